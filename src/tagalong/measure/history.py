"""A meter's history: everything measured so far, copied from the device only when needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
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
        self.source_counts: Counter[str] = Counter()
        self.pair_counts: Counter[tuple[str, str]] = Counter()
        self.touched: dict[str, set[int]] = {}
        self.latest: dict[str, Floats] = {}
        self._memory, self._measured = memory, 0
        self._records: dict[str, EstimatorHistory] = {}
        self._waiting: tuple[int, Reading] | None = None

    def add(self, call: int, reading: Reading) -> None:
        self.flush()  # the previous reading arrived long ago
        self.source_counts.update(reading.sources)
        if len(reading.targets) < len(reading.tasks):  # only needed if targets are sampled
            self.pair_counts.update(product(reading.sources, reading.targets))
        for task, indices in reading.touched.items():
            self.touched.setdefault(task, set()).update(indices)
        self._waiting = call, reading

    def flush(self) -> None:
        """Copies pending values from the device."""
        if self._waiting is None:
            return
        (call, reading), self._waiting, self.latest = self._waiting, None, {}
        overflowed = reading.overflowed()
        self._measured += not overflowed
        for name, values, skipped in reading.read():
            record = self._record(name)
            if overflowed:
                record.skip({"non-finite gradient": reading.pairs})
            else:
                record.add(call, values)
                record.skip(skipped)
                self.latest[name] = values[:-1]

    @property
    def measured(self) -> int:
        self.flush()
        return self._measured

    @property
    def unconnected(self) -> list[tuple[str, str]]:
        """Pairs of tasks that do not share any parameters."""
        return [(a, b) for a, b in combinations(self.touched, 2) if not self.touched[a] & self.touched[b]]

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
        self._measured, self._waiting, self._records = int(state["measured"]), None, {}
        self.source_counts = Counter(state["source_counts"])
        self.pair_counts = Counter({(source, target): number for source, target, number in state["pair_counts"]})
        self.touched = {task: set(indices) for task, indices in state["touched"].items()}
        for name, record in state["records"].items():
            self._record(name).load_state_dict(record)

    def _record(self, name: str) -> EstimatorHistory:
        assert self.tasks is not None
        return self._records.setdefault(name, EstimatorHistory(self.tasks, self._memory))


@dataclass
class HistoryBlock:
    """The sums over consecutive measured steps, at first over a single one.

    Attributes:
        step: The call number of the first step.
        first: How many steps were measured before the first one.
        sums: The sums of the affinities [sources, targets], and in the last row those of the null step's effects.
        counts: The number of values in each sum.
    """

    step: int
    first: int
    sums: Floats
    counts: NDArray[np.int32]

    @property
    def means(self) -> Floats:
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), np.nan)

    def belongs_with(self, other: HistoryBlock, steps_per_block: int) -> bool:
        # Steps that are relative to the null step and raw steps are at different levels.
        same_level = self.counts[-1].any() == other.counts[-1].any()
        return bool(same_level) and self.first // steps_per_block == other.first // steps_per_block


class EstimatorHistory:
    """The history of one estimator's affinities.

    Once it takes more than `memory` bytes, it keeps means over blocks of 2, 4, 8, … consecutive steps.
    """

    def __init__(self, tasks: Sequence[str], memory: float = HISTORY_MEMORY) -> None:
        self._tasks, self._memory = tuple(tasks), memory
        self._blocks: list[HistoryBlock] = []
        self._last: HistoryBlock | None = None
        self._steps_per_block, self._added = 1, 0
        self._skipped: dict[str, NDArray[np.int64]] = {}

    def add(self, step: int, values: Floats) -> None:
        """Adds the affinities of one step, followed by a row with the effect of the null step; unknown ones are NaN."""
        finite = np.isfinite(values)
        self._last = HistoryBlock(step, self._added, np.where(finite, values, 0.0), finite.astype(np.int32))
        self._added += 1
        self._append([self._last])
        while (
            len(self._blocks) > MIN_BLOCKS and sum(b.sums.nbytes + b.counts.nbytes for b in self._blocks) > self._memory
        ):
            self._steps_per_block *= 2
            blocks, self._blocks = self._blocks, []
            self._append(blocks)

    def _append(self, blocks: Iterable[HistoryBlock]) -> None:
        for new in blocks:
            for k, block in enumerate(self._blocks[-2:], start=max(0, len(self._blocks) - 2)):
                if block.belongs_with(new, self._steps_per_block):
                    sums, counts = block.sums + new.sums, block.counts + new.counts
                    self._blocks[k] = HistoryBlock(block.step, block.first, sums, counts)
                    break
            else:
                self._blocks.append(new)

    def skip(self, pairs_by_reason: Mapping[str, Mask]) -> None:
        for reason, pairs in pairs_by_reason.items():
            if pairs.any():
                self._skipped[reason] = self._skipped.get(reason, 0) + pairs.astype(np.int64)

    def affinity(self, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        """Returns the affinity over all steps, or only that of the last step (without the counts of skipped values)."""
        n, settings, counts = len(self._tasks), dict(settings), None
        blocks = self._blocks
        if last:
            blocks = [] if self._last is None else [self._last]
        elif self._steps_per_block > 1:
            counts = np.array([block.counts[:-1] for block in blocks], dtype=np.int64)
            settings["steps_per_block"] = self._steps_per_block
        means = np.array([block.means for block in blocks]).reshape(-1, n + 1, n)
        return Affinity.from_history(
            means[:, :-1],
            self._tasks,
            np.array([block.step for block in blocks], dtype=np.int64),
            null=means[:, -1],
            skipped={} if last else self._skipped,
            settings=settings,
            block_counts=counts,
        )

    def state_dict(self) -> dict[str, Any]:
        blocks = [*self._blocks, *([] if self._last is None else [self._last])]
        return {
            "blocks": [[b.step, b.first, torch.from_numpy(b.sums), torch.from_numpy(b.counts)] for b in blocks],
            "steps_per_block": self._steps_per_block,
            "skipped": {reason: torch.from_numpy(count) for reason, count in self._skipped.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        blocks = [
            HistoryBlock(step, first, sums.numpy().copy(), counts.numpy().copy())
            for step, first, sums, counts in state["blocks"]
        ]
        self._last = blocks.pop() if blocks else None
        self._blocks, self._steps_per_block = blocks, int(state["steps_per_block"])
        self._added = 0 if self._last is None else self._last.first + 1
        self._skipped = {reason: count.numpy().copy() for reason, count in state["skipped"].items()}


@dataclass
class Reading:
    """The estimates of one step, kept on the device so that training does not wait for them.

    Attributes:
        tasks: All task names.
        sources: The source tasks.
        targets: The target tasks.
        estimators: The estimators.
        estimates: The estimates [estimators, sources, targets], where the null step may be the last source.
        idle: Whether the null step leaves the parameters unchanged.
        lr: The learning rate that the estimates are divided by, or 1.
        before: The target losses before the step.
        skipped: The pairs without a loss or with an infinite one, by reason.
        finite: Whether each gradient was finite, if this was checked.
        touched: The indices of the shared parameters that each source depends on.
    """

    tasks: Sequence[str]
    sources: Sequence[str]
    targets: Sequence[str]
    estimators: Sequence[Estimator]
    estimates: HostCopy
    idle: bool
    lr: float
    before: Floats
    skipped: dict[str, Mask]
    finite: Sequence[Tensor]
    touched: dict[str, set[int]]

    def overflowed(self) -> bool:
        return bool(self.finite) and not bool(torch.stack(list(self.finite)).all())

    @property
    def pairs(self) -> Mask:
        """The pairs that this step tried to measure."""
        return np.outer(np.isin(self.tasks, self.sources), np.isin(self.tasks, self.targets))

    def read(self) -> Iterator[tuple[str, Floats, dict[str, Mask]]]:
        """Waits for the device, and yields the name, the affinities and the skipped pairs of each estimator.

        The affinities are NaN for pairs that were not measured. The effect of the null step is subtracted from them,
        and follows as the last row.
        """
        n = len(self.tasks)
        rows, columns = ([self.tasks.index(t) for t in names] for names in (self.sources, self.targets))
        for estimator, estimate in zip(self.estimators, self.estimates.to_numpy(), strict=True):
            values = np.full((n + 1, n), np.nan)
            values[np.ix_(rows, columns)] = estimate[: len(rows)]
            if self.idle or not estimator.of_steps:
                values[n] = 0.0
            elif len(estimate) > len(rows):
                values[n, columns] = estimate[-1]
                values[:n] -= values[n]
            other = "zero gradient"
            if estimator.of_steps:
                values /= self.lr or np.nan  # a warm-up may start at a learning rate of 0
                other = "non-finite after the step" if self.lr else "zero learning rate"
            zero, negative = (self.before == 0) & estimator.ratio, (self.before < 0) & estimator.ratio
            values[:, zero | negative] = np.nan
            values[~np.isfinite(values)] = np.nan
            invalid = self.pairs & np.isnan(values[:n])
            reasons = {"zero loss": zero, "negative loss": negative, other: ~(zero | negative)}
            yield estimator.name, values, {**self.skipped, **{why: invalid & which for why, which in reasons.items()}}


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
