"""Streaming affinities, for tasks that take turns in training: from the gradients that training computes anyway."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
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
from .history import HostCopy, task_names
from .running_means import RunningMeans
from .setup import Setup
from .sketch import GradientSketch, check_optimizers
from .steps import check_ownership

STREAMING_ESTIMATORS = ("streaming", "streaming_gradient")
ROWS_PER_COPY = 64  # projections that are copied from the device at once
EARLY_CHECKS = (1, 2, 4, 8, 16, 32)  # observations after which ranks compare their tasks, besides every 64

_Row = tuple[int, int, Tensor]  # the number of the task, the layout of the projection, and the projection with the loss


def split_estimators(estimators: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Separates the names of streaming estimators from the estimators that use a closure.

    Example:
        >>> split_estimators(["lookahead", "streaming"])
        (('streaming',), ['lookahead'])
    """
    is_list = isinstance(estimators, Sequence) and not isinstance(estimators, str)
    items = list(estimators) if is_list else [estimators]
    streaming = [item for item in items if isinstance(item, str) and item in STREAMING_ESTIMATORS]
    return tuple(dict.fromkeys(streaming)), [item for item in items if item not in streaming]


def check_streaming(setup: Setup, estimators: Sequence[str]) -> None:
    """Checks that the step size is known if a streaming estimator needs it, and that optimizers and shards fit."""
    if not estimators:
        return
    if "streaming_gradient" in estimators and not setup.optimizers and setup.lr is None:
        raise ValueError("the step size is unknown; pass `optimizer`, or `lr`; only 'streaming' requires neither")
    if setup.optimizers:
        check_ownership(setup.trainable(), setup.optimizers)
        if setup.update == "optimizer":
            check_optimizers(setup.optimizers, setup.parameters)
    check_sharding(setup.parameters, setup.process_group)


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
        self._setup, self._task_names = setup, tasks
        self._sketch = GradientSketch(
            setup.parameters,
            setup.optimizers,
            dimension,
            seed,
            precondition=setup.update == "optimizer",
            lr=1.0 if setup.per_lr else setup.lr,
        )
        self._means = {name: RunningMeans(dimension, unit_length=name == "streaming") for name in estimators}
        self.tasks: dict[str, int] = {}
        self.observed, self.started = 0, False
        self._observed_here = self._digest = 0
        self._waiting: list[_Row] = []
        self._copying: tuple[list[_Row], HostCopy | None] = [], None
        self._accumulated: _Accumulated | None = None

    @torch.no_grad()
    def observe(self, task: str, loss: Tensor | float | None, wrapper: DistributedDataParallel | None) -> None:
        self._check(task, loss)
        if task not in self.tasks:
            self.tasks[task_names([task])[0]] = len(self.tasks)
        self.observed += 1
        shards = sharding_ranks(self._setup.parameters, self._setup.process_group)
        replicas = self._setup.replicas(wrapper) if shards.alone else shards
        self._check_agreement(task, replicas)

        total = self._sketch(shards)
        if total is None:
            for means in self._means.values():
                means.skip(self.tasks[task], "no optimizer state yet")
            return
        if _is_local_gradient(wrapper):
            total = replicas.sum([total])[0] / replicas.size
        before, self._accumulated = self._accumulated, _Accumulated(self._sketch.trainable, total)
        sketch = self._accumulated.since(before)
        if self._setup.scaler is not None:
            scale = getattr(self._setup.scaler, "_scale", None)  # on the device
            sketch = sketch / (scale.to(sketch) if isinstance(scale, Tensor) else self._setup.scale())

        values = sketch.new_full((1,), math.nan)
        if "streaming_gradient" in self._means and loss is not None:
            values = loss.detach().reshape(1).to(sketch) if isinstance(loss, Tensor) else values.fill_(loss)
            values = replicas.sum([values])[0] / replicas.size
        self._waiting.append((self.tasks[task], self._sketch.layout, torch.cat([sketch, values])))
        if len(self._waiting) == ROWS_PER_COPY:
            self._copy_rows()

    def affinity(self, name: str, settings: Mapping[str, Any]) -> Affinity:
        """Returns the affinities of the tasks observed so far."""
        self._flush()
        names = list(self.tasks if self._task_names is None else self._task_names)
        order = [self.tasks.get(task, len(self.tasks)) for task in names]  # tasks never observed get the padding
        means = self._means[name]

        def arrange(matrix: NDArray[Any], padding: float = 0) -> NDArray[Any]:
            return np.pad(matrix, (0, 1), constant_values=padding)[np.ix_(order, order)]

        mean, stderr, count = means.estimate(first_order=name == "streaming_gradient")
        affinity = Affinity.from_matrix(
            arrange(mean, np.nan),
            names,
            stderr=arrange(stderr, np.nan),
            count=arrange(count),
            settings=dict(settings),
        )
        return replace(affinity, skipped={reason: arrange(n) for reason, n in means.skipped_pairs().items()})

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {
            "tasks": list(self.tasks),
            "observed": self.observed,
            "means": {name: means.state_dict() for name, means in self._means.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tasks = {task: number for number, task in enumerate(state["tasks"])}
        self.observed = int(state["observed"])
        self._waiting, self._copying, self._accumulated = [], ([], None), None
        self._observed_here = self._digest = 0
        for name, means in state["means"].items():
            self._means[name].load_state_dict(means)

    def _check(self, task: str, loss: object) -> None:
        if self._task_names is not None and task not in self._task_names:
            raise unknown_name("task", "task of this meter", task, self._task_names)
        if loss is None and "streaming_gradient" in self._means:
            raise ValueError(
                "`loss` is required by estimator='streaming_gradient', which measures steps as fractions of the loss; "
                "pass the loss whose backward() was called: meter.observe(task, loss)"
            )
        if loss is not None and not (loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, Real)):
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"`loss` must be the scalar loss whose backward() was called, found {found}")
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
        """Adds the rows that have been copied to the host meanwhile, and starts to copy those that wait."""
        rows, copy = self._copying
        for (task, layout, _), values in zip(rows, () if copy is None else copy.to_numpy(), strict=True):
            for means in self._means.values():
                means.add(task, values[:-1], float(values[-1]), layout)
        vectors = [vector for *_, vector in self._waiting]
        self._copying = self._waiting, HostCopy(torch.stack(vectors)) if vectors else None
        self._waiting = []

    def _flush(self) -> None:
        self._copy_rows()
        self._copy_rows()

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return {**vars(self), "_accumulated": None, "started": False}


class _Accumulated:
    """The projection of ``.grad`` after a backward pass, to find what the next one adds.

    An optimizer step increases the versions of the parameters. A backward pass that accumulates keeps the tensors in
    ``.grad`` and increases their versions.
    """

    def __init__(self, parameters: Sequence[Tensor], projection: Tensor) -> None:
        gradients = [p.grad for p in parameters]
        self._projection = projection
        self._steps = [_versions(p) for p in parameters]
        self._gradients = [None if gradient is None else weakref.ref(gradient) for gradient in gradients]
        self._writes = [None if gradient is None else _versions(gradient) for gradient in gradients]

    def since(self, before: _Accumulated | None) -> Tensor:
        """Returns the projection without the earlier one, if the gradient still contains the earlier gradient."""
        if before is None or before._steps != self._steps:
            return self._projection
        for old, new in zip(before._gradients, self._gradients, strict=True):
            if old is not None and (old() is None or new is None or old() is not new()):
                return self._projection
        if self._writes == before._writes:  # no backward pass has reached the shared parameters since
            return torch.zeros_like(self._projection)
        return self._projection - before._projection.nan_to_num(0.0, 0.0, 0.0)


def _versions(tensor: Tensor) -> tuple[int, int]:
    """Returns the version counters of a tensor and of this rank's part of it, either of which a write increases."""
    return tensor._version, local_part(tensor)._version


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
