"""A meter's history: everything measured so far, copied from the device only when needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """The affinities of all estimators, and facts about the tasks.

    The last reading stays on the device until it is needed or the next one arrives, so that training does not wait for
    it.

    Attributes:
        tasks: Task names, or None if they are not known yet.
        source_counts: How often each task has been a source.
        has_pairs: Whether two tasks have been measured together.
        touched: The indices of the shared parameters that each task depends on.
        late_tasks: How often each task that is not measured has appeared.
    """

    def __init__(self, tasks: Sequence[str] | None, estimators: Sequence[Estimator]) -> None:
        self.tasks = None if tasks is None else task_names(tasks)
        self._may_lack_tasks = tasks is not None
        self.late_tasks: Counter[str] = Counter()
        self.source_counts: Counter[str] = Counter()
        self.has_pairs = False
        self.touched: dict[str, set[int]] = {}
        self._estimators = estimators
        self._calls: list[int] = []  # the numbers of the measured calls
        # Of each of them, the affinities [estimators, sources, targets], where the last source is the null step.
        self._values: list[Floats] = []
        self._skipped: dict[str, NDArray[np.int64]] = {}  # by reason [estimators, sources, targets]
        self._waiting: tuple[int, Reading] | None = None

    def add(self, call: int, reading: Reading) -> None:
        self.flush()  # the previous reading arrived long ago
        self.tasks = task_names(reading.tasks)
        self.source_counts.update(reading.sources)
        self.has_pairs |= len({*reading.sources, *reading.targets}) > 1
        for task, indices in reading.touched.items():
            self.touched.setdefault(task, set()).update(indices)
        self._waiting = call, reading

    def note_changed_tasks(self, names: Sequence[str]) -> list[str]:
        # Counts the tasks that appear late, and returns notes about them and about those that have vanished.
        tasks = self.tasks or ()
        late = [name for name in names if name not in tasks]
        self.late_tasks.update(late)
        vanished = [name for name in tasks if name not in names] if names and not self._may_lack_tasks else []
        advice = "so it is not measured. Pass the names of all tasks to the meter: `tasks=[...]`."
        return [f"{t!r} is a new task, {advice}" for t in late] + [f"{t!r} has vanished, {advice}" for t in vanished]

    def flush(self) -> None:
        # Copies pending values from the device.
        if self._waiting is None:
            return
        (call, reading), self._waiting = self._waiting, None
        values, skipped = self._read(reading)
        if not reading.overflowed():
            self._calls.append(call)
            self._values.append(values)
        for reason, pairs in skipped.items():
            if pairs.any():
                of_all = np.broadcast_to(pairs, (len(self._estimators), *pairs.shape[-2:]))
                self._skipped[reason] = self._skipped.get(reason, 0) + of_all.astype(np.int64)

    def _read(self, reading: Reading) -> tuple[Floats, dict[str, Mask]]:
        """Waits for the device, and returns the affinities and the skipped pairs by reason, of each estimator.

        The affinities [estimators, sources, targets] are NaN for pairs that were not measured. The effect of the null
        step is subtracted from them, and follows as the last source.
        """
        estimates, tasks = reading.estimates.to_numpy(), list(self.tasks or ())
        rows, columns = ([tasks.index(t) for t in names] for names in (reading.sources, reading.targets))
        pairs = np.outer(np.isin(tasks, reading.sources), np.isin(tasks, reading.targets))
        if reading.overflowed():
            return estimates, {"non-finite gradient": pairs}
        of_steps = np.array([estimator.of_steps for estimator in self._estimators])[:, None, None]
        of_ratios = np.array([estimator.ratio for estimator in self._estimators])[:, None, None]
        values = np.full((len(estimates), len(tasks) + 1, len(tasks)), np.nan)
        values[np.ix_(range(len(estimates)), rows, columns)] = estimates[:, : len(rows)]

        # The null step has no effect if it is idle, nor on estimators that do not use steps.
        values[:, -1:] = np.where(of_steps & (not reading.idle), np.nan, 0.0)
        if estimates.shape[1] > len(rows):
            values[:, -1, columns] = np.where(of_steps[:, 0], estimates[:, -1], 0.0)
            values[:, :-1] -= values[:, -1:]
        values = np.where(of_steps, values / (reading.lr or np.nan), values)  # a warm-up may start at a rate of 0

        zero, negative = of_ratios & (reading.before == 0), of_ratios & (reading.before < 0)
        values = np.where(np.isfinite(values) & ~zero & ~negative, values, np.nan)
        invalid = pairs & np.isnan(values[:, :-1])
        undefined = invalid & ~zero & ~negative
        skipped = {**reading.skipped, "zero loss": invalid & zero, "negative loss": invalid & negative}
        skipped["non-finite after the step" if reading.lr else "zero learning rate"] = undefined & of_steps
        skipped["zero gradient"] = undefined & ~of_steps
        return values, skipped

    @property
    def measured(self) -> int:
        self.flush()
        return len(self._calls)

    def affinity(self, estimator: str, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        # Returns the affinity over all steps, or only that of the last step (without the counts of skipped values).
        self.flush()
        assert self.tasks is not None
        number, steps = [e.name for e in self._estimators].index(estimator), slice(-1 if last else 0, None)
        values = np.stack([of_step[number] for of_step in self._values[steps]])
        skipped = {reason: pairs[number] for reason, pairs in self._skipped.items() if pairs[number].any()}
        return Affinity.from_history(
            values[:, :-1],
            self.tasks,
            self._calls[steps],
            null=values[:, -1],
            skipped={} if last else skipped,
            settings=settings,
        )

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {
            "tasks": None if self.tasks is None else list(self.tasks),
            "source_counts": dict(self.source_counts),
            "late_tasks": dict(self.late_tasks),
            "touched": {task: sorted(indices) for task, indices in self.touched.items()},
            "calls": list(self._calls),
            "values": torch.from_numpy(np.array(self._values)),
            "skipped": {reason: torch.from_numpy(pairs) for reason, pairs in self._skipped.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tasks = state["tasks"]
        if self.tasks is not None and tasks is not None and tuple(tasks) != self.tasks:
            raise InvalidInput("state", f"must have the tasks {list(self.tasks)}", str(list(tasks)))
        self.tasks = self.tasks if tasks is None else tuple(tasks)
        self.source_counts = Counter(state["source_counts"])
        self.late_tasks = Counter(state["late_tasks"])
        self.touched = {task: set(indices) for task, indices in state["touched"].items()}
        self._calls, self._values, self._waiting = list(state["calls"]), list(state["values"].numpy().copy()), None
        self._skipped = {reason: pairs.numpy().copy() for reason, pairs in state["skipped"].items()}


@dataclass
class Reading:
    """The estimates of one step, kept on the device so that training does not wait for them.

    Attributes:
        tasks: All task names.
        sources: The source tasks.
        targets: The target tasks.
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
    estimates: HostCopy
    idle: bool
    lr: float
    before: Floats
    skipped: dict[str, Mask]
    finite: Sequence[Tensor]
    touched: dict[str, set[int]]

    def overflowed(self) -> bool:
        return bool(self.finite) and not bool(torch.stack(list(self.finite)).all())


class HostCopy:
    """Starts copying values to the host, which overlaps with other work until `to_numpy` is called."""

    def __init__(self, values: Tensor) -> None:
        self._here = values.detach().to("cpu", non_blocking=values.is_cuda)  # into pinned memory
        self._done = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def to_numpy(self) -> Floats:
        # Waits for this copy, but not for kernels launched later, and returns the values.
        if self._done is not None:
            self._done.synchronize()
        return self._here.numpy().astype(np.float64)


def task_names(tasks: Sequence[str]) -> tuple[str, ...]:
    raise_problems(task_name_problems(as_names(tasks)))
    return as_names(tasks)
