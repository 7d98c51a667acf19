"""Everything a meter has measured so far."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong._names import name_problems, named, refuse
from tagalong.affinity import Affinity

from ._reading import Reading
from ._record import Record


class Ledger:
    """The records of all estimators, and what was learnt of the tasks on the way.

    The last reading stays on the device until it is needed or the next one comes, so that training does not
    wait for it.

    Attributes:
        tasks: Task names, None before they are known.
        source_counts: How often each task was a source.
        touched: The shared parameters that each task depends on, by number.
        latest: What the reading that was settled last gave, by estimator.
    """

    def __init__(self, tasks: Sequence[str] | None) -> None:
        self.tasks = None if tasks is None else task_names(tasks)
        self.source_counts: dict[str, int] = {}
        self.latest: dict[str, NDArray[np.float64]] = {}
        self._records: dict[str, Record] = {}
        self.touched: dict[str, set[int]] = {}
        self._measured = 0
        self._waiting: tuple[int, Reading] | None = None

    def post(self, call: int, reading: Reading) -> None:
        for task in reading.sources:
            self.source_counts[task] = self.source_counts.get(task, 0) + 1
        for task, indices in reading.touched.items():
            self.touched.setdefault(task, set()).update(indices)
        self._waiting = call, reading

    def settle(self) -> None:
        """Reads what still waits on the device."""
        if self._waiting is None:
            return
        (call, reading), self._waiting = self._waiting, None
        self.latest = {}
        overflowed = reading.overflowed()
        for entry in reading.entries():
            record = self._record(entry.name)
            if overflowed:
                record.skip("non-finite gradient", reading.tried())
                continue
            record.add(call, entry.values, entry.null)
            self.latest[entry.name] = entry.values
            for reason, pairs in entry.skipped.items():
                record.skip(reason, pairs)
        self._measured += not overflowed

    @property
    def measured(self) -> int:
        self.settle()
        return self._measured

    @property
    def unconnected(self) -> list[tuple[str, str]]:
        return unconnected_pairs(self.touched)

    def affinity(self, estimator: str, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        return self._record(estimator).affinity(settings, last=last)

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        return {
            "tasks": None if self.tasks is None else list(self.tasks),
            "measured": self._measured,
            "source_counts": dict(self.source_counts),
            "touched": {task: sorted(indices) for task, indices in self.touched.items()},
            "records": {name: record.state_dict() for name, record in self._records.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tasks = state["tasks"]
        if self.tasks is not None and tasks is not None and tuple(tasks) != self.tasks:
            raise ValueError(f"this state is of the tasks {tasks}, the meter of {list(self.tasks)}.")
        self.tasks = self.tasks if tasks is None else tuple(tasks)
        self._measured, self._waiting = int(state["measured"]), None
        self.source_counts = dict(state["source_counts"])
        self.touched = {task: set(indices) for task, indices in state["touched"].items()}
        self._records = {}
        for name, record in state["records"].items():
            self._record(name).load_state_dict(record)

    def _record(self, name: str) -> Record:
        assert self.tasks is not None
        return self._records.setdefault(name, Record(self.tasks))


def task_names(tasks: Sequence[str]) -> tuple[str, ...]:
    names = named(tasks)
    refuse(name_problems(names))
    return names


def unconnected_pairs(touched: Mapping[str, set[int]]) -> list[tuple[str, str]]:
    """Pairs of tasks that no shared parameter serves both of."""
    names = list(touched)
    return [(a, b) for k, a in enumerate(names) for b in names[k + 1 :] if not touched[a] & touched[b]]
