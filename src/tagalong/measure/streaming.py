"""Streaming affinities, for tasks that take turns in training: from the gradients that training computes anyway."""

from __future__ import annotations

import math
import weakref
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.nn.parallel import DistributedDataParallel

from tagalong.affinity import Affinity
from tagalong.registry import unknown_name

from .distributed import Replicas, check_sharding, local_part, sharding_ranks
from .history import Floats, HostCopy, task_names
from .setup import Setup
from .sketch import GradientSketch
from .steps import check_ownership

ROWS_PER_COPY = 64  # projections that are copied from the device at once
EARLY_CHECKS = (1, 2, 4, 8, 16, 32)  # observations after which ranks compare their tasks, besides every 64
BLOCKS = 8  # parts of each task's visits, whose differences show the noise
RECENT = 100  # visits, or twice the number of tasks, after which the gradient of a task is out of date


class GradientStream:
    """Collects a projection of the shared gradient after each backward pass.

    Projections wait on the device until some have come together, so that training never waits for them. What is kept
    for each task is a few vectors on the host.

    Attributes:
        tasks: The tasks observed so far, with their numbers.
        observed: The number of observations.
    """

    def __init__(self, setup: Setup, tasks: Sequence[str] | None) -> None:
        precondition = setup.update == "optimizer" and bool(setup.optimizers)
        if setup.optimizers:
            check_ownership(setup.trainable(), setup.optimizers)
        check_sharding(setup.parameters)
        self._setup, self._task_names = setup, tasks
        self._sketch = GradientSketch(
            setup.parameters, setup.optimizers, setup.sketch_dimension, setup.seed, precondition=precondition
        )
        self._means = RunningMeans(setup.sketch_dimension)
        self.tasks: dict[str, int] = {}
        self.observed = self._observed_here = self._digest = 0
        # Of each observation, the task's number and the projection.
        self._waiting: list[tuple[int, Tensor]] = []
        self._copying: tuple[list[tuple[int, Tensor]], HostCopy | None] = [], None
        self._last: tuple[Tensor, list[Any], dict[int, Any], dict[int, Any]] | None = None

    @torch.no_grad()
    def observe(self, task: str) -> None:
        self._check(task)
        if not self._observed_here:
            self._setup.find_wrapper()
        if task not in self.tasks:
            self.tasks[task_names([task])[0]] = len(self.tasks)
        self.observed += 1
        shards = sharding_ranks(self._setup.parameters)
        replicas = self._setup.replicas if shards.alone else shards
        self._check_agreement(task, replicas)

        total = self._sketch(shards)
        if total is None:
            self._means.skip(self.tasks[task], "no optimizer state yet")
            return
        if _is_local_gradient(self._setup.wrapper):
            total = replicas.sum([total])[0] / replicas.size
        projection = self._without_earlier(total)
        self._waiting.append((self.tasks[task], projection))
        if len(self._waiting) == ROWS_PER_COPY:
            self._copy_rows()

    def affinity(self, settings: Mapping[str, Any]) -> Affinity:
        # Returns the affinities of the tasks observed so far.
        self._flush()
        names = list(self.tasks if self._task_names is None else self._task_names)
        numbers = [self.tasks.get(task, len(self.tasks)) for task in names]
        order = np.ix_(numbers, numbers)  # tasks that were never observed get the padding
        mean, stderr, count = self._means.estimate()
        mean, stderr = (np.pad(values, (0, 1), constant_values=np.nan)[order] for values in (mean, stderr))
        affinity = Affinity.from_matrix(
            mean, names, stderr=stderr, count=np.pad(count, (0, 1))[order], settings=dict(settings)
        )
        skipped = {}  # for each pair, the skipped visits of its tasks
        for reason, counts in self._means.skipped.items():
            visits = np.array([counts[number] for number in range(len(count))])
            of_pairs = visits[:, None] + visits * ~np.eye(len(visits), dtype=bool)
            skipped[reason] = np.pad(of_pairs, (0, 1))[order]
        return replace(affinity, skipped=skipped)

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {"tasks": list(self.tasks), "observed": self.observed, "means": self._means.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tasks = {task: number for number, task in enumerate(state["tasks"])}
        self.observed = int(state["observed"])
        self._waiting, self._copying, self._last = [], ([], None), None
        self._observed_here = self._digest = 0
        self._means.load_state_dict(state["means"])

    def _check(self, task: str) -> None:
        if self._task_names is not None and task not in self._task_names:
            raise unknown_name("task", "task of this meter", task, self._task_names)
        if all(p.grad is None for p in self._setup.parameters):
            raise RuntimeError(
                "no shared parameter has a gradient; call `observe` after backward() and before zero_grad(), and check "
                "that `shared` contains the parameters that are trained"
            )
        states = getattr(self._setup.scaler, "_per_optimizer_states", {})
        if any(states[id(o)]["stage"] is OptState.UNSCALED for o in self._setup.optimizers if id(o) in states):
            raise RuntimeError(
                "the gradients have been unscaled already; call `observe` directly after backward(), before "
                "scaler.unscale_() and clipping"
            )

    def _check_agreement(self, task: str, replicas: Replicas) -> None:
        # If ranks differ, the gradients of different tasks were averaged before they could be observed. This is checked
        # at the first observations and from time to time.
        self._observed_here += 1
        self._digest = zlib.crc32(f"{task!r},".encode(), self._digest)  # ranks may have numbered the tasks differently
        if self._observed_here % ROWS_PER_COPY and self._observed_here not in EARLY_CHECKS:
            return
        if len(set(replicas.gather(self._digest))) > 1:
            raise RuntimeError(
                "ranks have trained on different tasks in the same step, and their gradients were averaged before "
                "they could be observed; draw the task of each step with the same seed on all ranks"
            )

    def _without_earlier(self, projection: Tensor) -> Tensor:
        # Subtracts the previous projection if ``.grad`` still contains the gradient observed then: an optimizer step
        # increases the versions of the parameters, and a backward pass that accumulates keeps the tensors in ``.grad``.
        steps = [_versions(p) for p in self._sketch.trainable]
        gradients = {k: p.grad for k, p in enumerate(self._sketch.trainable) if p.grad is not None}
        writes = {k: _versions(gradient) for k, gradient in gradients.items()}
        last, self._last = self._last, (projection, steps, {k: weakref.ref(g) for k, g in gradients.items()}, writes)
        if last is None:
            return projection
        last_projection, last_steps, last_gradients, last_writes = last
        replaced = any(k not in gradients or gradients[k] is not old() for k, old in last_gradients.items())
        if steps != last_steps or replaced:
            return projection
        if writes == last_writes:  # no backward pass has reached the shared parameters since
            return torch.zeros_like(projection)
        return projection - last_projection.nan_to_num(0.0, 0.0, 0.0)

    def _copy_rows(self) -> None:
        # Adds the rows that have been copied to the host meanwhile, and starts to copy those that wait.
        rows, copy = self._copying
        for (task, _), values in zip(rows, () if copy is None else copy.to_numpy(), strict=True):
            self._means.add(task, values)
        vectors = [vector for _, vector in self._waiting]
        self._copying = self._waiting, HostCopy(torch.stack(vectors)) if vectors else None
        self._waiting = []

    def _flush(self) -> None:
        self._copy_rows()
        self._copy_rows()

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return {**vars(self), "_last": None, "_observed_here": 0, "_digest": 0}


def _versions(tensor: Tensor) -> tuple[int, int]:
    # A write increases either the tensor's counter or that of this rank's part of it.
    return tensor._version, local_part(tensor)._version


def _is_local_gradient(wrapper: DistributedDataParallel | None) -> bool:
    # Inside no_sync(), gradients are not averaged over ranks yet.
    if wrapper is None or wrapper.require_forward_param_sync:
        return False
    if wrapper.gradient_as_bucket_view:  # gradients move when they are averaged
        raise RuntimeError(
            "`observe` cannot tell apart gradients that accumulate inside no_sync() if DistributedDataParallel has "
            "gradient_as_bucket_view=True; create it without this option, or accumulate without no_sync()"
        )
    return True


class RunningMeans:
    """The running mean of each task's gradient, relative to the mean gradient over the tasks at the same time.

    The mean over the tasks moves during training, and tasks are visited at different times and unequally often.
    Therefore, what is added for a visit is the difference between the gradient and the mean of the most recent
    gradients of all tasks, each counted once. A task counts as recent for 2n visits (at least 100), where n is the
    number of tasks. Pairs of tasks that were never recent at the same time have no affinity.

    A task's visits are dealt out to blocks in turn. The products between different blocks estimate the squared norm of
    a mean without the noise of single batches, and the differences between blocks show the standard errors.

    Gradients are scaled to unit length, so that all visits have equal weight.

    Args:
        dimension: The length of the vectors.

    Attributes:
        skipped: The number of skipped visits of each task, by reason.
    """

    def __init__(self, dimension: int) -> None:
        # The first axis of these has a row per task, and more for tasks to come.
        self._sums = np.zeros((0, BLOCKS, dimension), dtype=np.float32)
        self._counts = np.zeros((0, BLOCKS), dtype=np.int64)
        self._latest = np.zeros((0, dimension), dtype=np.float32)
        self._last_visit = np.zeros(0, dtype=np.int64)  # 0 if it is not recent
        self._shares = np.zeros(0)
        self._together = np.zeros((0, 0), dtype=np.int32)
        self._center, self._center_sum = np.zeros(dimension), np.zeros(dimension)
        self._tasks = self._visits = self._centered = 0
        self.skipped: dict[str, Counter[int]] = {}

    def add(self, task: int, gradient: Floats) -> None:
        self._make_room(task)
        norm = math.sqrt(gradient @ gradient)
        if not math.isfinite(norm) or norm == 0.0:
            self.skip(task, "zero gradient" if norm == 0.0 else "non-finite gradient")
            return
        value = (gradient / norm).astype(np.float32)

        # The mean of the most recent gradients of all tasks, without those that are out of date.
        self._visits += 1
        expired = (self._last_visit > 0) & (self._last_visit <= self._visits - max(RECENT, 2 * self._tasks))
        if expired.any():
            self._latest[expired], self._last_visit[expired] = 0.0, 0
            self._center = self._latest.sum(axis=0, dtype=np.float64)  # also removes accumulated rounding errors
        self._center += value
        self._center -= self._latest[task]
        self._latest[task], self._last_visit[task] = value, self._visits
        recent = self._last_visit > 0
        number = np.count_nonzero(recent)
        if number < max(2, min(3, self._tasks)):
            self.skip(task, "no other task nearby")
            return
        mean = self._center / number

        block = int(self._counts[task].sum()) % BLOCKS
        self._sums[task, block] += value - mean
        self._counts[task, block] += 1
        self._shares[task] += 1.0 / number
        self._together[task] += recent
        self._center_sum += mean
        self._centered += 1

    def skip(self, task: int, reason: str) -> None:
        self._make_room(task)
        self.skipped.setdefault(reason, Counter())[task] += 1

    def estimate(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        # Returns the affinities [source, target], their standard errors, and the number of visits behind them.
        n = self._tasks
        sums, counts = self._sums[:n].astype(np.float64), self._counts[:n]
        visits = counts.sum(axis=1)
        shares = self._shares[:n] / np.maximum(1, visits)
        if n < 3:
            # The mean gradient over all tasks and visits, which is the same for each task, is added again.
            sums += counts[:, :, None] * (self._center_sum / max(1, self._centered))
            shares[:] = 0.0
        else:
            # What is left of the mean over the tasks is subtracted.
            means = sums.sum(axis=1)[visits > 0] / visits[visits > 0, None]
            sums -= counts[:, :, None] * means.sum(axis=0) / max(1, len(means))

        # The products of all blocks, followed by those without each of the blocks.
        subsets = [slice(None), *(np.arange(BLOCKS) != block for block in range(BLOCKS))]
        products = [_products(sums[:, kept], counts[:, kept], shares) for kept in subsets]
        grams, squares = (np.stack(parts) for parts in zip(*products, strict=True))
        values, errors = _cosines(grams, squares, _means(sums, counts), counts)
        together = np.minimum(self._together, self._together.T)[:n, :n].astype(np.int64)
        measured = (together > 0) & np.isfinite(values)
        return np.where(measured, values, np.nan), np.where(measured, errors, np.nan), np.where(measured, together, 0)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(x.copy()) for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        return {**vars(self), **arrays, "skipped": {reason: dict(n) for reason, n in self.skipped.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays = {name: x.numpy().copy() for name, x in state.items() if isinstance(x, Tensor)}
        vars(self).update({**state, **arrays})
        self.skipped = {reason: Counter(n) for reason, n in state["skipped"].items()}

    def _make_room(self, task: int) -> None:
        self._tasks = max(self._tasks, task + 1)
        if task < len(self._counts):
            return
        added = (0, task + 1)
        for name in ("_sums", "_counts", "_latest", "_last_visit", "_shares"):
            array = getattr(self, name)
            setattr(self, name, np.pad(array, [added] + [(0, 0)] * (array.ndim - 1)))
        self._together = np.pad(self._together, added)


# In what follows, grams are [subsets of blocks, tasks, tasks], squared norms [subsets, tasks], sums [tasks, blocks,
# dimension], and counts, the numbers of visits behind them, [tasks, blocks]. Shares [tasks] say how much of each task's
# own gradient is in the mean that was subtracted from it.


def _cosines(grams: Floats, squares: Floats, means: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    # Returns cosines, whose norms are corrected for noise so that few visits do not shrink them, and standard errors
    # from leaving out one block at a time.
    squares = np.where(np.isfinite(squares), squares, squares[0])
    # A norm that cannot be told from noise is taken to be as large as its standard error, and one whose standard error
    # is unknown, because there are only two visits, is not corrected.
    uncorrected = (means**2).sum(axis=1)
    floor = np.fmax(_jackknife_error(squares), 0.01 * uncorrected)
    floor = np.where((counts > 0).sum(axis=1) > 2, floor, uncorrected)
    norms = np.sqrt(np.maximum(squares, np.where(floor > 0, floor, np.nan)))

    cosines = grams / (norms[:, :, None] * norms[:, None, :])
    values = np.clip(cosines[0], -1.0, 1.0)
    errors = np.hypot(_jackknife_error(cosines), (1.0 - values**2) / means.shape[1] ** 0.5)
    diagonal = np.eye(len(values), dtype=bool) & np.isfinite(squares[0])
    return np.where(diagonal, 1.0, values), np.where(diagonal, 0.0, errors)


def _jackknife_error(samples: Floats) -> Floats:
    return np.asarray(np.sqrt((BLOCKS - 1) * samples[1:].var(axis=0)))


def _products(sums: Floats, counts: NDArray[np.int64], shares: Floats) -> tuple[Floats, Floats]:
    # Returns the inner products of the tasks' means [tasks, tasks], and their squared norms [tasks], without noise. The
    # squared norms are NaN for tasks with visits in one block only.
    means, visits = _means(sums, counts), counts.sum(axis=1)
    gram = means @ means.T

    # The mean product of different blocks of a task, whose noise is independent.
    pairs = visits**2 - (counts**2).sum(axis=1)
    products = (sums.sum(axis=1) ** 2).sum(axis=1) - np.einsum("ibd,ibd->i", sums, sums)
    squares = products / np.where(pairs > 0, pairs, np.nan)
    if not shares.any():
        return gram, squares

    # The mean that was subtracted contains the noise of each task, so the noise of two tasks is negatively correlated:
    # with P = 1 − s·1ᵀ, where s are the shares, and D the noise of the means before centering, it is P D Pᵀ. If another
    # task is visited less often, the same gradient of it is subtracted from several blocks.
    noise = np.nan_to_num((means**2).sum(axis=1) - squares)
    repeated = np.maximum(0.0, 1.0 - visits / np.maximum(visits, 1.0)[:, None])  # [i, j]: how often j's repeats
    of_blocks = np.zeros(len(shares))
    for _ in range(3):  # the noise of rarely visited tasks hides in the products of blocks at first
        total = (noise + of_blocks).sum() / (1.0 - shares.mean())
        own = (noise + of_blocks - shares**2 * total) / np.maximum(1.0 - 2.0 * shares, 0.2)
        of_blocks = shares**2 * (repeated @ np.maximum(own, 0.0))
    common = np.outer(shares, own) + np.outer(own, shares) - np.outer(shares, shares) * total
    return gram + common, squares - of_blocks


def _means(sums: Floats, counts: NDArray[np.int64]) -> Floats:
    visits = counts.sum(axis=1, keepdims=True)
    return np.asarray(sums.sum(axis=1) / np.where(visits > 0, visits, np.nan))
