"""Streaming affinities: running means of projected gradients, for tasks that take turns in training."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, raise_problems
from tagalong.registry import unknown_name

from .distributed import Replicas
from .history import HostCopy, task_names
from .preconditioners import optimizer_problems
from .setup import Setup
from .sketch import GradientSketch
from .steps import check_ownership

STREAMING_ESTIMATORS = ("streaming", "streaming_gradient")
BLOCKS = 8  # parts of each task's visits, whose differences show the noise
ROWS_PER_COPY = 64  # projections that are copied from the device at once
EARLY_CHECKS = (1, 2, 4, 8, 16, 32)  # observations after which ranks compare their tasks, besides every 64
RECENT = 100  # visits, or twice the number of tasks, after which the gradient of a task is out of date

Floats = NDArray[np.float64]
_NO_ROWS: Floats = np.zeros((0, 0))


def split_estimators(chosen: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Separates the names of streaming estimators from the estimators that use a closure.

    Example:
        >>> split_estimators(["lookahead", "streaming"])
        (('streaming',), ['lookahead'])
    """
    items = list(chosen) if isinstance(chosen, Sequence) and not isinstance(chosen, str) else [chosen]
    streamed = [item for item in items if isinstance(item, str) and item in STREAMING_ESTIMATORS]
    return tuple(dict.fromkeys(streamed)), [item for item in items if item not in streamed]


def check_streaming(setup: Setup, estimators: Sequence[str]) -> None:
    """Checks that the step size is known if a streaming estimator needs it, and that the optimizers fit."""
    if "streaming_gradient" in estimators and not setup.optimizers and setup.lr is None:
        raise InvalidInput(
            "",
            "the step size is unknown",
            hint="pass `optimizer`, or `lr`; only estimator='streaming' requires neither",
        )
    if estimators and setup.optimizers:
        check_ownership(setup.trainable(), setup.optimizers)
        if setup.update == "optimizer":
            raise_problems(list(optimizer_problems(setup.optimizers, setup.parameters)))


class GradientStream:
    """Collects a projection of the shared gradient after each backward pass.

    Projections wait on the device until some have come together, so that training never waits for them. What is kept
    for each task is a few vectors on the host.

    Attributes:
        tasks: The tasks observed so far, with their numbers.
        observed: The number of observations.
        started: Whether `observe` has been called in this process.
    """

    def __init__(
        self, setup: Setup, estimators: Sequence[str], dimension: int, seed: int, tasks: Sequence[str] | None
    ) -> None:
        self._setup, self._dimension, self._seed, self._given = setup, dimension, seed, tasks
        self._sketch = GradientSketch(
            setup.parameters,
            setup.optimizers,
            dimension,
            seed,
            precondition=setup.update == "optimizer",
            lr=setup.lr,
            per_lr=setup.per_lr,
        )
        self._estimators = tuple(estimators)
        self.tasks: dict[str, int] = {}
        self.observed, self.started = 0, False
        self._observed_here = self._digest = 0
        self._means = {name: RunningMeans(dimension, unit_length=name == "streaming") for name in estimators}
        self._waiting: list[_Row] = []
        self._copying: tuple[list[_Row], list[HostCopy]] | None = None
        self._accumulated: _Accumulated | None = None

    def observe(self, task: str, loss: Tensor | float | None, wrapper: DistributedDataParallel | None) -> None:
        self._check(task, loss)
        if task not in self.tasks:
            self.tasks[task_names([task])[0]] = len(self.tasks)
        self.observed += 1
        replicas = self._setup.replicas(wrapper)
        self._agree(task, replicas)
        sketch = self._latest_gradient(replicas if _is_local_gradient(wrapper) else None)
        value: Tensor | float = torch.nan
        if "streaming_gradient" in self._estimators and sketch is not None and loss is not None:
            value = self._mean_loss(loss, replicas)
        self._waiting.append(_Row(self.tasks[task], self._sketch.layout, sketch, value))
        if len(self._waiting) == ROWS_PER_COPY:
            self._copy_rows()

    def affinity(self, name: str, settings: Mapping[str, Any]) -> Affinity:
        """Returns the affinities of the tasks observed so far."""
        self._flush()
        found = self._means[name].estimate(first_order=name == "streaming_gradient")
        names = list(self.tasks if self._given is None else self._given)
        order = [self.tasks.get(task, len(self.tasks)) for task in names]  # tasks never observed get the padding
        mean, stderr = (np.pad(x, (0, 1), constant_values=np.nan)[np.ix_(order, order)] for x in found[:2])
        counts = np.pad(found[2], (0, 1))[np.ix_(order, order)]
        affinity = Affinity.from_matrix(mean, names, stderr=stderr, count=counts, settings=dict(settings))
        skipped = {r: np.pad(v, (0, 1))[np.ix_(order, order)] for r, v in self._means[name].skipped_pairs().items()}
        return Affinity(**{**_fields(affinity), "skipped": skipped})

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {
            "tasks": list(self.tasks),
            "observed": self.observed,
            "means": {name: means.state_dict() for name, means in self._means.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tasks = {task: k for k, task in enumerate(state["tasks"])}
        self.observed = int(state["observed"])
        self._waiting, self._copying, self._accumulated = [], None, None
        self._observed_here, self._digest = 0, 0
        for name, means in state["means"].items():
            self._means[name].load_state_dict(means)

    def _check(self, task: str, loss: object) -> None:
        if self._given is not None and task not in self._given:
            raise unknown_name("task", "task of this meter", task, self._given)
        if loss is None and "streaming_gradient" in self._estimators:
            raise InvalidInput(
                "loss",
                "is required by estimator='streaming_gradient', which measures steps as fractions of the loss",
                hint="pass the loss whose backward() was called: meter.observe(task, loss)",
            )
        if not _is_scalar(loss):
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InvalidInput("loss", "must be the scalar loss whose backward() was called", found)
        if all(p.grad is None for p in self._setup.parameters):
            raise RuntimeError(
                "no shared parameter has a gradient; call `observe` after backward() and before zero_grad(), and check "
                "that `shared` contains the parameters that are trained"
            )
        if _is_unscaled(self._setup):
            raise RuntimeError(
                "the gradients have been unscaled already; call `observe` directly after backward(), before "
                "scaler.unscale_() and clipping"
            )

    def _mean_loss(self, loss: Tensor | float, replicas: Replicas) -> Tensor | float:
        if not replicas.alone:
            here = torch.as_tensor(loss, device=self._setup.parameters[0].device).detach()
            return replicas.sum([here])[0] / replicas.size
        return loss.detach() if isinstance(loss, Tensor) else loss

    def _latest_gradient(self, replicas: Replicas | None) -> Tensor | None:
        """Returns the projection of what the last backward pass added to ``.grad``, without the scaler's factor.

        Args:
            replicas: The ranks over which the gradient has not been averaged yet, if any.
        """
        total = self._sketch()
        if total is None:
            return None
        if replicas is not None:
            total = replicas.sum([total])[0] / replicas.size
        before, self._accumulated = self._accumulated, _Accumulated.now(self._sketch.trainable, total)
        sketch = total if before is None else before.subtract_from(self._accumulated)
        return sketch / _scale(self._setup, sketch) if self._setup.scaler is not None else sketch

    def _agree(self, task: str, replicas: Replicas) -> None:
        """Checks at the first observations, and from time to time, that all ranks have observed the same tasks.

        Otherwise, the gradients of different tasks were averaged over the ranks before they could be observed.
        """
        self._observed_here += 1
        self._digest = zlib.crc32(f"{task!r},".encode(), self._digest)  # ranks may have numbered the tasks differently
        if self._observed_here % ROWS_PER_COPY and self._observed_here not in EARLY_CHECKS:
            return
        if len(set(replicas.gather(self._digest))) > 1:
            raise RuntimeError(
                "ranks have trained on different tasks in the same step, and their gradients were averaged before "
                "they could be observed; draw the task of each step with the same seed on all ranks"
            )

    def _copy_rows(self) -> None:
        self._finish_copy()
        rows, self._waiting = self._waiting, []
        sketches = [row.sketch for row in rows if row.sketch is not None]
        losses = [row.loss.reshape(()).to(sketches[0]) for row in rows if isinstance(row.loss, Tensor)]
        self._copying = rows, [HostCopy(torch.stack(values)) for values in (sketches, losses) if values]

    def _finish_copy(self) -> None:
        if self._copying is not None:
            (rows, copies), self._copying = self._copying, None
            self._add(rows, *(copy.to_numpy() for copy in copies))

    def _flush(self) -> None:
        self._copy_rows()
        self._finish_copy()

    def _add(self, rows: Sequence[_Row], sketches: Floats = _NO_ROWS, losses: Floats = _NO_ROWS) -> None:
        next_row, next_loss = iter(range(len(sketches))), iter(losses)
        numbers = [None if row.sketch is None else next(next_row) for row in rows]
        values = [float(next(next_loss) if isinstance(row.loss, Tensor) else row.loss) for row in rows]
        for means in self._means.values():
            for row, number, loss in zip(rows, numbers, values, strict=True):
                if number is None:
                    means.skip(row.task, "no optimizer state yet")
                else:
                    means.add(row.task, sketches[number], loss, row.layout)

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return {**vars(self), "_accumulated": None, "started": False}


@dataclass(frozen=True)
class _Row:
    """One observation.

    Attributes:
        task: The number of the task.
        layout: The layout of the projection.
        sketch: The projection, or None if there is none yet.
        loss: The loss, or NaN if it was not passed.
    """

    task: int
    layout: int
    sketch: Tensor | None
    loss: Tensor | float


@dataclass(frozen=True)
class _Accumulated:
    """The projection of ``.grad`` after a backward pass, to find what the next one adds.

    Attributes:
        sketch: The projection.
        steps: The version counters of the parameters, which optimizer steps increase.
        gradients: The gradient of each parameter. A backward pass that accumulates keeps these tensors.
        writes: The version counters of these gradients, which a backward pass that accumulates increases.
    """

    sketch: Tensor
    steps: list[int]
    gradients: list[weakref.ref[Tensor] | None]
    writes: list[int]

    @classmethod
    def now(cls, parameters: Sequence[Tensor], sketch: Tensor) -> _Accumulated:
        gradients = [p.grad for p in parameters]
        return cls(
            sketch,
            [p._version for p in parameters],
            [None if gradient is None else weakref.ref(gradient) for gradient in gradients],
            [-1 if gradient is None else gradient._version for gradient in gradients],
        )

    def subtract_from(self, later: _Accumulated) -> Tensor:
        """Returns the later projection without this one, if the later gradient still contains this one."""
        if later.steps != self.steps or later.sketch.shape != self.sketch.shape:
            return later.sketch
        pairs = zip(self.gradients, later.gradients, strict=True)
        if not all(before is None or _is_same(before, now) for before, now in pairs):
            return later.sketch
        if later.writes == self.writes:  # no backward pass has reached the shared parameters since
            return torch.zeros_like(later.sketch)
        return later.sketch - self.sketch.nan_to_num(0.0, 0.0, 0.0)


def _is_same(before: weakref.ref[Tensor], now: weakref.ref[Tensor] | None) -> bool:
    gradient = before()
    return gradient is not None and now is not None and gradient is now()


def _is_local_gradient(wrapper: DistributedDataParallel | None) -> bool:
    """Whether the last forward pass was inside no_sync(), so that gradients are not averaged over ranks yet."""
    if wrapper is None or wrapper.require_forward_param_sync:
        return False
    if wrapper.gradient_as_bucket_view:  # gradients move when they are averaged
        raise RuntimeError(
            "`observe` cannot tell apart gradients that accumulate inside no_sync() if DistributedDataParallel has "
            "gradient_as_bucket_view=True; create it without this option, or accumulate without no_sync()"
        )
    return True


def _is_scalar(loss: object) -> bool:
    return loss is None or isinstance(loss, Real) or (isinstance(loss, Tensor) and loss.numel() == 1)


def _scale(setup: Setup, like: Tensor) -> Tensor | float:
    """Returns the scaler's factor, without waiting for the device if it is known there."""
    scale = getattr(setup.scaler, "_scale", None)
    return scale.to(like) if isinstance(scale, Tensor) else setup.scale()


def _is_unscaled(setup: Setup) -> bool:
    if setup.scaler is None:
        return False
    states = getattr(setup.scaler, "_per_optimizer_states", {})
    stages = [states[id(o)]["stage"] for o in setup.optimizers if id(o) in states]
    return any(getattr(stage, "name", "") == "UNSCALED" for stage in stages)


def _fields(affinity: Affinity) -> dict[str, Any]:
    return {name: getattr(affinity, name) for name in affinity.__dataclass_fields__}


class RunningMeans:
    """The running mean of each task's gradient, relative to the mean gradient over the tasks at the same time.

    The mean over the tasks moves during training, and tasks are visited at different times and unequally often.
    Therefore, what is added for a visit is the difference between the gradient and the mean of the most recent
    gradients of all tasks, each counted once. A task counts as recent for 2n visits (at least 100), where n is the
    number of tasks. Pairs of tasks that were never recent at the same time have no affinity.

    A task's visits are dealt out to blocks in turn. The products between different blocks estimate the squared norm of
    a mean without the noise of single batches, and the differences between blocks show the standard errors.

    Args:
        dimension: The length of the vectors.
        unit_length: Whether gradients are scaled to unit length, so that all visits have equal weight.
    """

    def __init__(self, dimension: int, *, unit_length: bool) -> None:
        self._dimension, self._unit_length = dimension, unit_length
        self._sums = np.zeros((0, BLOCKS, dimension), dtype=np.float32)
        self._counts = np.zeros((0, BLOCKS), dtype=np.int64)
        self._latest = np.zeros((0, dimension), dtype=np.float32)
        self._last_visit = np.zeros(0, dtype=np.int64)
        self._losses = np.zeros((0, 2))
        self._shares = np.zeros(0)
        self._together = np.zeros((0, 0), dtype=np.int32)
        self._center, self._center_sum = np.zeros(dimension), np.zeros(dimension)
        self._visits = self._centered = self._layout = 0
        self._number = self._oldest = 0  # of the recent tasks; the oldest visit is a lower bound
        self._skipped: dict[str, NDArray[np.int64]] = {}

    def add(self, task: int, gradient: Floats, loss: float, layout: int) -> None:
        """Adds the gradient of one visit. A new `layout` means that it cannot be compared with earlier ones."""
        self._grow(task + 1)
        norm = math.sqrt(gradient @ gradient)
        if not math.isfinite(norm) or norm == 0.0:
            self.skip(task, "zero gradient" if norm == 0.0 else "non-finite gradient")
            return
        value = (gradient / norm if self._unit_length else gradient).astype(np.float32)
        if layout != self._layout:
            self._layout = layout
            self._forget(self._last_visit > 0)
        self._update_center(task, value)
        number = self._number
        if number < min(3, len(self._last_visit)) or number < 2:
            self.skip(task, "no other task nearby")
            return
        block = int(self._counts[task].sum()) % BLOCKS
        mean = self._center / number
        self._sums[task, block] += value - mean
        self._counts[task, block] += 1
        self._shares[task] += 1.0 / number
        self._together[task] += self._last_visit > 0
        self._center_sum += mean
        self._centered += 1
        if math.isfinite(loss):
            self._losses[task] += loss, 1

    def skip(self, task: int, reason: str) -> None:
        self._grow(task + 1)
        counts = self._skipped.setdefault(reason, np.zeros(0, dtype=np.int64))
        self._skipped[reason] = np.pad(counts, (0, max(0, task + 1 - len(counts))))
        self._skipped[reason][task] += 1

    def skipped_pairs(self) -> dict[str, NDArray[np.int64]]:
        """Returns for each pair the number of skipped visits of its tasks, by reason."""
        found = {}
        for reason, counts in self._skipped.items():
            by_task = np.pad(counts, (0, len(self._counts) - len(counts)))
            found[reason] = by_task[:, None] + by_task * ~np.eye(len(by_task), dtype=bool)
        return found

    def estimate(self, *, first_order: bool) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Returns the affinities [source, target], their standard errors, and the number of visits behind them."""
        counts = np.minimum(self._together, self._together.T).astype(np.int64)
        if first_order or len(self._sums) < 3:
            vectors = BlockVectors(self._uncentered(), self._counts, np.zeros(len(self._sums)))
        else:
            vectors = BlockVectors(self._recentered(), self._counts, self._shares / np.maximum(1, self._counts.sum(1)))
        values, errors = vectors.products(self._losses) if first_order else vectors.cosines()
        known = (counts > 0) & np.isfinite(values)
        return np.where(known, values, np.nan), np.where(known, errors, np.nan), np.where(known, counts, 0)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in _ARRAYS}
        numbers = {name: int(getattr(self, f"_{name}")) for name in _NUMBERS}
        skipped = {reason: torch.from_numpy(counts.copy()) for reason, counts in self._skipped.items()}
        return {**arrays, **numbers, "skipped": skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in _ARRAYS:
            setattr(self, f"_{name}", state[name].numpy().copy())
        for name in _NUMBERS:
            setattr(self, f"_{name}", int(state[name]))
        self._count_recent()
        self._skipped = {reason: counts.numpy().copy() for reason, counts in state["skipped"].items()}

    def _grow(self, tasks: int) -> None:
        if tasks > len(self._counts):
            for name in ("sums", "counts", "latest", "last_visit", "losses", "shares"):
                array = getattr(self, f"_{name}")
                setattr(self, f"_{name}", _extended(array, (tasks, *array.shape[1:])))
            self._together = _extended(self._together, (tasks, tasks))

    def _update_center(self, task: int, value: NDArray[np.float32]) -> None:
        """Replaces the task's most recent gradient, after forgetting those that are out of date."""
        self._visits += 1
        last = self._visits - max(RECENT, 2 * len(self._last_visit))
        if self._oldest <= last:
            self._forget((self._last_visit > 0) & (self._last_visit <= last))
            self._count_recent()
        self._center += value
        self._center -= self._latest[task]
        self._latest[task] = value
        self._number += int(self._last_visit[task] == 0)
        self._last_visit[task] = self._visits

    def _forget(self, tasks: NDArray[np.bool_]) -> None:
        if tasks.any():
            self._latest[tasks] = 0.0
            self._last_visit[tasks] = 0
            self._center = self._latest.sum(axis=0, dtype=np.float64)  # also removes accumulated rounding errors
            self._count_recent()

    def _count_recent(self) -> None:
        recent = self._last_visit[self._last_visit > 0]
        self._number, self._oldest = len(recent), int(recent.min(initial=self._visits))

    def _recentered(self) -> Floats:
        """Returns the block sums without what is left of the mean over the tasks."""
        counts = self._counts.sum(axis=1)
        means = self._sums.sum(axis=1, dtype=np.float64)[counts > 0] / counts[counts > 0, None]
        left = means.mean(axis=0) if len(means) else np.zeros(self._dimension)
        return np.asarray(self._sums - self._counts[:, :, None] * left)

    def _uncentered(self) -> Floats:
        """Returns the block sums with the mean gradient over all tasks and visits, which is the same for each task."""
        return np.asarray(self._sums + self._counts[:, :, None] * (self._center_sum / max(1, self._centered)))


def _extended(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns an array with zeros added at the end, in memory that is allocated ahead for further calls."""
    base = array.base
    if not isinstance(base, np.ndarray) or any(have < need for have, need in zip(base.shape, shape, strict=True)):
        ahead = [2 * new if new > old else old for new, old in zip(shape, array.shape, strict=True)]
        base = np.zeros(ahead, dtype=array.dtype)
        base[tuple(map(slice, array.shape))] = array
    return base[tuple(map(slice, shape))]


_ARRAYS = ("sums", "counts", "latest", "last_visit", "losses", "shares", "together", "center", "center_sum")
_NUMBERS = ("visits", "centered", "layout")


class BlockVectors:
    """Inner products of the tasks' means, with standard errors from leaving out one block at a time.

    Args:
        sums: The sums over each block (tasks × blocks × dimension).
        counts: The number of visits in each block.
        shares: The share of each task's own gradient in the mean that was subtracted from it (0 if none was).
    """

    def __init__(self, sums: Floats, counts: NDArray[np.int64], shares: Floats) -> None:
        self._dimension, self._shares = sums.shape[2], shares
        self._sums, self._counts = sums, counts.astype(np.float64)
        self._inner = np.einsum("ibd,icd->ibc", sums, sums)
        self._left_out = [np.arange(counts.shape[1]) != b for b in range(counts.shape[1])]

    def cosines(self) -> tuple[Floats, Floats]:
        """Returns cosines whose norms are corrected for noise, so that few visits do not shrink them."""
        everything = np.ones(self._counts.shape[1], dtype=bool)
        squares, samples = self._squares(everything), [self._squares(kept) for kept in self._left_out]
        samples = [np.where(np.isfinite(sample), sample, squares) for sample in samples]
        floor = self._least_squares(_jackknife_error(samples))
        cosines = [
            self._gram(kept) / _outer_root(np.maximum(square, floor))
            for kept, square in zip([everything, *self._left_out], [squares, *samples], strict=True)
        ]
        values = np.clip(cosines[0], -1.0, 1.0)
        error = np.hypot(_jackknife_error(cosines[1:]), (1.0 - values**2) / self._dimension**0.5)
        diagonal = np.eye(len(values), dtype=bool) & np.isfinite(squares)
        return np.where(diagonal, 1.0, values), np.where(diagonal, 0.0, error)

    def _least_squares(self, error: Floats) -> Floats:
        """Returns the least squared norms that are used, given the standard errors of the squared norms.

        A norm that cannot be told from noise is taken to be as large as its standard error, and one whose standard
        error is unknown, because there are only two visits, is not corrected.
        """
        uncorrected = (self._means(np.ones(self._counts.shape[1], dtype=bool)) ** 2).sum(axis=1)
        floor = np.where((self._counts > 0).sum(axis=1) > 2, np.fmax(error, 0.01 * uncorrected), uncorrected)
        return np.where(floor > 0, floor, np.nan)

    def products(self, losses: Floats) -> tuple[Floats, Floats]:
        """Returns inner products as fractions of the target's mean loss, given sums and numbers of losses."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_loss = losses[:, 0] / losses[:, 1]
        everything = np.ones(self._counts.shape[1], dtype=bool)
        values, *samples = (self._products(kept) / mean_loss for kept in [everything, *self._left_out])
        squares = np.sqrt(np.maximum(self._squares(everything), 0.0))
        spread = np.outer(squares, squares) / mean_loss / self._dimension**0.5
        return values, np.hypot(_jackknife_error(samples), spread)

    def _products(self, kept: NDArray[np.bool_]) -> Floats:
        gram = self._gram(kept)
        np.fill_diagonal(gram, self._squares(kept))
        return gram

    def _gram(self, kept: NDArray[np.bool_]) -> Floats:
        means = self._means(kept)
        return np.asarray(means @ means.T - self._common_noise(kept)[0])

    def _squares(self, kept: NDArray[np.bool_]) -> Floats:
        """Returns the squared norms of the means without noise; NaN for tasks with visits in one block only."""
        return self._products_of_blocks(kept) - self._common_noise(kept)[1]

    def _means(self, kept: NDArray[np.bool_]) -> Floats:
        counts = self._counts[:, kept].sum(axis=1, keepdims=True)
        return np.asarray(self._sums[:, kept].sum(axis=1) / np.where(counts > 0, counts, np.nan))

    def _products_of_blocks(self, kept: NDArray[np.bool_]) -> Floats:
        """Returns the mean inner product of different blocks of a task, whose noise is independent."""
        counts, inner = self._counts[:, kept], self._inner[:, kept][:, :, kept]
        own = np.einsum("ibb->i", inner)
        pairs = counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1)
        return np.asarray((inner.sum(axis=(1, 2)) - own) / np.where(pairs > 0, pairs, np.nan))

    def _common_noise(self, kept: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Returns the noise that centering has added to the products of two tasks, and of different blocks of a task.

        The mean that is subtracted contains the noise of each task, so the noise of two tasks becomes negatively
        correlated: with P = 1 − s·1ᵀ, where s are the shares, and D the noise of the means before centering, it is
        P D Pᵀ. If another task is visited less often, the same gradient of it is subtracted from several blocks.
        """
        n, s, counts = len(self._shares), self._shares, self._counts[:, kept].sum(axis=1)
        of_blocks = np.zeros(n)
        if not s.any():
            return np.zeros((n, n)), of_blocks
        noise = np.nan_to_num((self._means(kept) ** 2).sum(axis=1) - self._products_of_blocks(kept))
        repeated = np.maximum(0.0, 1.0 - counts / np.maximum(counts, 1.0)[:, None])  # [i, j]: how often j's repeats
        for _ in range(3):  # the noise of rarely visited tasks hides in the products of blocks at first
            total = (noise + of_blocks).sum() / (1.0 - s.mean())
            own = (noise + of_blocks - s**2 * total) / np.maximum(1.0 - 2.0 * s, 0.2)
            of_blocks = s**2 * (repeated @ np.maximum(own, 0.0))
        return np.outer(s, s) * total - np.outer(s, own) - np.outer(own, s), of_blocks


def _jackknife_error(samples: Sequence[Floats]) -> Floats:
    stacked = np.stack(samples)
    return np.asarray(np.sqrt((len(samples) - 1) * stacked.var(axis=0)))


def _outer_root(squares: Floats) -> Floats:
    roots = np.sqrt(squares)
    return np.outer(roots, roots)
