"""A meter's history: everything measured so far, copied from the device only when needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, as_names, raise_problems, task_name_problems

from .estimators import Estimator

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class MeterHistory:
    """The histories of all estimators, and facts about the tasks.

    The last reading stays on the device until it is needed or the next one arrives, so that training does not wait for
    it.

    Attributes:
        tasks: Task names, or None if they are not known yet.
        source_counts: How often each task has been a source.
        pair_counts: How often each source has been measured together with each target.
        touched: The indices of the shared parameters that each task depends on.
        latest: The affinities of the last reading copied from the device, by estimator.
    """

    def __init__(self, tasks: Sequence[str] | None) -> None:
        self.tasks = None if tasks is None else task_names(tasks)
        self.source_counts: dict[str, int] = {}
        self.pair_counts: Counter[tuple[str, str]] = Counter()
        self.latest: dict[str, Floats] = {}
        self._records: dict[str, EstimatorHistory] = {}
        self.touched: dict[str, set[int]] = {}
        self._measured = 0
        self._waiting: tuple[int, Reading] | None = None

    def add(self, call: int, reading: Reading) -> None:
        for task in reading.sources:
            self.source_counts[task] = self.source_counts.get(task, 0) + 1
        if len(reading.targets) < len(reading.tasks):  # only needed if targets are sampled
            self.pair_counts.update(product(reading.sources, reading.targets))
        for task, indices in reading.touched.items():
            self.touched.setdefault(task, set()).update(indices)
        self._waiting = call, reading

    def flush(self) -> None:
        """Copies pending values from the device."""
        if self._waiting is None:
            return
        (call, reading), self._waiting = self._waiting, None
        self.latest = {}
        overflowed = reading.overflowed()
        for entry in reading.entries():
            record = self._record(entry.name)
            if overflowed:
                record.skip("non-finite gradient", reading.attempted_pairs())
                continue
            record.add(call, entry.values, entry.null)
            self.latest[entry.name] = entry.values
            for reason, pairs in entry.skipped.items():
                record.skip(reason, pairs)
        self._measured += not overflowed

    @property
    def measured(self) -> int:
        self.flush()
        return self._measured

    @property
    def unconnected(self) -> list[tuple[str, str]]:
        return unconnected_pairs(self.touched)

    def affinity(self, estimator: str, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        return self._record(estimator).affinity(settings, last=last)

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {
            "tasks": None if self.tasks is None else list(self.tasks),
            "measured": self._measured,
            "source_counts": dict(self.source_counts),
            "pair_counts": [[*pair, number] for pair, number in self.pair_counts.items()],
            "touched": {task: sorted(indices) for task, indices in self.touched.items()},
            "records": {name: record.state_dict() for name, record in self._records.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tasks = state["tasks"]
        if self.tasks is not None and tasks is not None and tuple(tasks) != self.tasks:
            raise InvalidInput("state", f"must have the tasks {list(self.tasks)}", str(list(tasks)))
        self.tasks = self.tasks if tasks is None else tuple(tasks)
        self._measured, self._waiting = int(state["measured"]), None
        self.source_counts = dict(state["source_counts"])
        self.pair_counts = Counter({(i, j): number for i, j, number in state.get("pair_counts", ())})
        self.touched = {task: set(indices) for task, indices in state["touched"].items()}
        self._records = {}
        for name, record in state["records"].items():
            self._record(name).load_state_dict(record)

    def _record(self, name: str) -> EstimatorHistory:
        assert self.tasks is not None
        return self._records.setdefault(name, EstimatorHistory(self.tasks))


class EstimatorHistory:
    """The history of one estimator's affinities."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tuple(tasks)
        self._steps: list[int] = []
        self._values: list[Floats] = []
        self._null: list[Floats] = []
        self._skipped: dict[str, NDArray[np.int64]] = {}

    def add(self, step: int, values: Floats, null: Floats) -> None:
        """Adds one measured step: the affinities (NaN if not measured) and the null effect subtracted from them."""
        self._steps.append(step)
        self._values.append(values)
        self._null.append(null)

    def skip(self, reason: str, pairs: Mask) -> None:
        if pairs.any():
            count = self._skipped.setdefault(reason, np.zeros(pairs.shape, dtype=np.int64))
            count += pairs

    def affinity(self, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        """Returns the affinity over all steps, or only that of the last step (without the counts of skipped values)."""
        n, kept = len(self._tasks), slice(-1 if last else None, None)
        return Affinity.from_history(
            np.array(self._values[kept]).reshape(-1, n, n),
            self._tasks,
            np.array(self._steps[kept], dtype=np.int64),
            null=np.array(self._null[kept]).reshape(-1, n),
            skipped={} if last else self._skipped,
            settings=dict(settings),
        )

    def state_dict(self) -> dict[str, Any]:
        n = len(self._tasks)
        return {
            "steps": list(self._steps),
            "values": torch.from_numpy(np.array(self._values, dtype=np.float64).reshape(-1, n, n)),
            "null": torch.from_numpy(np.array(self._null, dtype=np.float64).reshape(-1, n)),
            "skipped": {reason: torch.from_numpy(count.copy()) for reason, count in self._skipped.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = [int(step) for step in state["steps"]]
        self._values = list(state["values"].numpy().copy())
        self._null = list(state["null"].numpy().copy())
        self._skipped = {reason: count.numpy().copy() for reason, count in state["skipped"].items()}


@dataclass
class Reading:
    """The affinities of one step, kept on the device so that training does not wait for them.

    Attributes:
        tasks: All task names.
        estimators: The estimators, in the order of `estimates`.
        sources: The source tasks.
        targets: The target tasks.
        estimates: The estimates [estimators, sources, targets], where the null step may be the last source.
        with_null: Whether the last source is the null step.
        idle: Whether the null step leaves the parameters unchanged.
        lr: The learning rate that the estimates are divided by, or 1.
        own: The losses of the training closure.
        before: The target losses before the step, from the training closure or the held-out closure.
        finite: Whether each gradient was finite, if this was checked.
        touched: The indices of the shared parameters that each source depends on.
        asked: The tasks that were run as sources and as targets, or None if all were.
    """

    tasks: Sequence[str]
    estimators: Sequence[Estimator]
    sources: Sequence[str]
    targets: Sequence[str]
    estimates: HostCopy
    with_null: bool
    idle: bool
    lr: float
    own: Floats
    before: Floats
    finite: Sequence[Tensor]
    touched: dict[str, set[int]]
    asked: tuple[Sequence[str], Sequence[str]] | None = None

    def overflowed(self) -> bool:
        return bool(self.finite) and not bool(torch.stack(list(self.finite)).all())

    def attempted_pairs(self) -> Mask:
        """Returns the pairs that this step tried to measure."""
        tried = np.zeros((len(self.tasks), len(self.tasks)), dtype=bool)
        tried[self._pairs(self.sources, self.targets)] = True
        return tried

    def entries(self) -> Iterator[EstimatorEntry]:
        """Waits for the device and yields one entry per estimator."""
        for estimator, estimate in zip(self.estimators, self.estimates.to_numpy(), strict=True):
            yield self._entry(estimator, estimate)

    def _entry(self, estimator: Estimator, estimate: Floats) -> EstimatorEntry:
        n = len(self.tasks)
        null = np.full(n, 0.0 if self.idle or not estimator.of_steps else np.nan)
        if self.with_null:
            if estimator.of_steps:
                null[[self.tasks.index(t) for t in self.targets]] = estimate[-1]
                estimate = estimate - estimate[-1]
            estimate = estimate[:-1]
        if estimator.of_steps:
            lr = self.lr or np.nan  # a warm-up may start at a learning rate of 0
            estimate, null = estimate / lr, null / lr
        values = np.full((n, n), np.nan)
        values[self._pairs(self.sources, self.targets)] = estimate
        invalid = self.attempted_pairs() & ~np.isfinite(values)
        values[invalid] = np.nan
        return EstimatorEntry(
            estimator.name, values, np.where(np.isfinite(null), null, np.nan), self._skip_reasons(invalid, estimator)
        )

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[NDArray[np.intp], ...]:
        rows, columns = ([self.tasks.index(t) for t in names] for names in (sources, targets))
        return np.ix_(rows, columns)

    def _skip_reasons(self, invalid: Mask, estimator: Estimator) -> dict[str, Mask]:
        """Returns the pairs without a value at this step, by reason, ignoring pairs whose source was not chosen."""
        own, before = self.own[:, None], self.before[None, :]
        missing = np.isnan(own) | np.isnan(before)
        if self.asked is not None:  # the others were not run, so their labels may well be there
            asked = np.zeros_like(missing)
            asked[self._pairs(*self.asked)] = True
            missing &= asked
        infinite = ~missing & (np.isinf(own) | np.isinf(before))
        zero = invalid & (before == 0) & estimator.ratio
        other = "non-finite after the step" if estimator.of_steps else "zero gradient"
        if estimator.of_steps and not self.lr:
            other = "zero learning rate"
        return {"missing": missing, "non-finite loss": infinite, "zero loss": zero, other: invalid & ~zero}


@dataclass(frozen=True)
class EstimatorEntry:
    """The affinities of one estimator in a reading, with NaN for pairs that were not measured.

    Attributes:
        name: The name of the estimator.
        values: The affinities [source, target], with `null` subtracted if it is finite.
        null: The effect of the null step (with a zero gradient) on each target.
        skipped: The pairs without a value, by reason.
    """

    name: str
    values: Floats
    null: Floats
    skipped: dict[str, Mask]


class HostCopy:
    """Starts copying values to the host, which overlaps with other work until `to_numpy` is called."""

    def __init__(self, values: Tensor) -> None:
        self._here = values.detach()
        self._there: torch.cuda.Event | None = None
        if values.device.type not in ("cuda", "cpu"):
            self._here = self._here.cpu()
        elif values.device.type == "cuda":
            self._here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._here.copy_(values, non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(values.device))

    def to_numpy(self) -> Floats:
        """Waits for this copy, but not for kernels launched later, and returns the values."""
        if self._there is not None:
            self._there.synchronize()
        return self._here.numpy().astype(np.float64)


def task_names(tasks: Sequence[str]) -> tuple[str, ...]:
    names = as_names(tasks)
    raise_problems(task_name_problems(names))
    return names


def unconnected_pairs(touched: Mapping[str, set[int]]) -> list[tuple[str, str]]:
    """Returns the pairs of tasks that do not share any parameters."""
    names = list(touched)
    return [(a, b) for k, a in enumerate(names) for b in names[k + 1 :] if not touched[a] & touched[b]]
