"""A meter's history: everything measured so far, copied from the device only when needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

HISTORY_MEMORY = 64 * 2**20  # bytes, by default
MIN_BLOCKS = 16  # enough for standard errors, however many tasks there are

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

    def __init__(self, tasks: Sequence[str] | None, memory: float = HISTORY_MEMORY) -> None:
        self.tasks = None if tasks is None else task_names(tasks)
        self._memory = memory
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
        return self._records.setdefault(name, EstimatorHistory(self.tasks, self._memory))


class EstimatorHistory:
    """The history of one estimator's affinities.

    Once it takes more than `memory` bytes, it keeps means over blocks of 2, 4, 8, … consecutive steps. Steps that are
    relative to the null step and raw steps are kept in separate blocks, because they are at different levels.
    """

    def __init__(self, tasks: Sequence[str], memory: float = HISTORY_MEMORY) -> None:
        self._tasks, self._memory = tuple(tasks), memory
        self._blocks: list[HistoryBlock] = []
        self._steps_per_block = 1
        self._added = 0
        self._last: tuple[int, Floats, Floats] | None = None
        self._skipped: dict[str, NDArray[np.int64]] = {}

    def add(self, step: int, values: Floats, null: Floats) -> None:
        """Adds one measured step: the affinities (NaN if not measured) and the null effect subtracted from them."""
        self._last = step, values, null
        self._merge([HistoryBlock.of_step(step, self._added, values, null)])
        self._added += 1
        while len(self._blocks) > MIN_BLOCKS and self._nbytes > self._memory:
            self._steps_per_block *= 2
            blocks, self._blocks = self._blocks, []
            self._merge(blocks)

    @property
    def _nbytes(self) -> int:
        n = len(self._tasks)
        return len(self._blocks) * (8 * n * (n + 1) + (4 * n * (n + 1) if self._steps_per_block > 1 else 0))

    def _merge(self, blocks: Iterable[HistoryBlock]) -> None:
        """Appends blocks, or adds them to the last blocks if they belong together."""
        for new in blocks:
            same = [b for b in self._blocks[-2:] if b.belongs_with(new, self._steps_per_block)]
            if same:
                same[0].add(new)
            else:
                self._blocks.append(new)

    def skip(self, reason: str, pairs: Mask) -> None:
        if pairs.any():
            count = self._skipped.setdefault(reason, np.zeros(pairs.shape, dtype=np.int64))
            count += pairs

    def affinity(self, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        """Returns the affinity over all steps, or only that of the last step (without the counts of skipped values)."""
        n, settings = len(self._tasks), dict(settings)
        if last:
            blocks = [] if self._last is None else [HistoryBlock.of_step(self._last[0], 0, *self._last[1:])]
        else:
            blocks = self._blocks
        counts = None
        if not last and self._steps_per_block > 1:
            counts = np.array([block.value_counts for block in blocks], dtype=np.int64)
            settings["steps_per_block"] = self._steps_per_block
        return Affinity.from_history(
            np.array([block.means for block in blocks]).reshape(-1, n, n),
            self._tasks,
            np.array([block.step for block in blocks], dtype=np.int64),
            null=np.array([block.null_means for block in blocks]).reshape(-1, n),
            skipped={} if last else self._skipped,
            settings=settings,
            block_counts=counts,
        )

    def state_dict(self) -> dict[str, Any]:
        n = len(self._tasks)
        state = {
            "steps": [block.step for block in self._blocks],
            "values": torch.from_numpy(np.array([b.values for b in self._blocks], dtype=np.float64).reshape(-1, n, n)),
            "null": torch.from_numpy(np.array([b.null for b in self._blocks], dtype=np.float64).reshape(-1, n)),
            "skipped": {reason: torch.from_numpy(count.copy()) for reason, count in self._skipped.items()},
        }
        if self._steps_per_block > 1:
            assert self._last is not None
            state["blocks"] = {
                "steps_per_block": self._steps_per_block,
                "added": self._added,
                "first": [block.first for block in self._blocks],
                "sizes": [block.size for block in self._blocks],
                "relative": [block.relative for block in self._blocks],
                "counts": torch.from_numpy(np.array([b.all_counts for b in self._blocks], dtype=np.int32)),
                "last": [self._last[0], *(torch.from_numpy(array.copy()) for array in self._last[1:])],
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        steps = [int(step) for step in state["steps"]]
        values, null = list(state["values"].numpy().copy()), list(state["null"].numpy().copy())
        self._skipped = {reason: count.numpy().copy() for reason, count in state["skipped"].items()}
        rows = list(zip(steps, values, null, strict=True))
        self._blocks = [HistoryBlock.of_step(step, k, *arrays) for k, (step, *arrays) in enumerate(rows)]
        self._steps_per_block, self._added, self._last = 1, len(rows), rows[-1] if rows else None
        blocks = state.get("blocks")
        if blocks is not None:
            parts = (blocks[name] for name in ("first", "sizes", "relative", "counts"))
            for block, first, size, relative, counts in zip(self._blocks, *parts, strict=True):
                block.first, block.size, block.relative = int(first), int(size), bool(relative)
                block.counts = counts.numpy().copy() if size > 1 else None
            step, *last = blocks["last"]
            self._last = int(step), last[0].numpy().copy(), last[1].numpy().copy()
            self._steps_per_block, self._added = int(blocks["steps_per_block"]), int(blocks["added"])


@dataclass
class HistoryBlock:
    """Consecutive measured steps that are kept as one.

    Attributes:
        step: The call number of the first step.
        first: How many steps were measured before the first one.
        size: The number of steps.
        relative: Whether the values are relative to the null step.
        values: The sums of the affinities; of a single step, the affinities, with NaN for pairs without a value.
        null: The sums of the effects of the null step; of a single step, the effects, with NaN for unknown ones.
        counts: The number of values in each sum of affinities, followed by a row with those in the sums of effects;
            None for a single step.
    """

    step: int
    first: int
    size: int
    relative: bool
    values: Floats
    null: Floats
    counts: NDArray[np.int32] | None = None

    @classmethod
    def of_step(cls, step: int, first: int, values: Floats, null: Floats) -> HistoryBlock:
        return cls(step, first, 1, bool(np.isfinite(null).any()), values, null)

    @property
    def all_counts(self) -> NDArray[np.int32]:
        if self.counts is not None:
            return self.counts
        return np.isfinite(np.vstack([self.values, self.null])).astype(np.int32)

    @property
    def value_counts(self) -> NDArray[np.int32]:
        return self.all_counts[:-1]

    @property
    def means(self) -> Floats:
        return self.values if self.counts is None else _means(self.values, self.counts[:-1])

    @property
    def null_means(self) -> Floats:
        return self.null if self.counts is None else _means(self.null, self.counts[-1])

    def belongs_with(self, other: HistoryBlock, steps_per_block: int) -> bool:
        return self.relative == other.relative and self.first // steps_per_block == other.first // steps_per_block

    def add(self, other: HistoryBlock) -> None:
        """Adds the steps of a later block."""
        self.counts = self.all_counts + other.all_counts
        self.values = np.nan_to_num(self.values) + np.nan_to_num(other.values)
        self.null = np.nan_to_num(self.null) + np.nan_to_num(other.null)
        self.size += other.size


def _means(sums: Floats, counts: NDArray[np.int32]) -> Floats:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


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
