"""The fields of an affinity: checked, converted and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from tagalong._names import named, refuse

from ._check import Fields, Floats, Ints


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """What an `Affinity` holds, without what can be asked of it; described there."""

    tasks: tuple[str, ...]
    mean: Floats
    stderr: Floats
    count: Ints
    steps: Ints
    history: Floats
    null: Floats
    skipped: Mapping[str, Ints] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = named(self.tasks)
        check, n, length = Fields(tasks), len(tasks), np.size(self.steps)
        skipped = {why: check.counts(f"skipped[{why!r}]", counts) for why, counts in self.skipped.items()}
        checked: dict[str, Any] = {
            "tasks": tasks,
            "mean": check.array("mean", self.mean, (n, n)),
            "stderr": check.errors(self.stderr),
            "count": check.counts("count", self.count),
            "steps": check.steps(self.steps),
            "history": check.array("history", self.history, (length, n, n)),
            "null": check.array("null", self.null, (length, n)),
            "skipped": MappingProxyType(skipped),
            "settings": check.settings(self.settings),
        }
        refuse(check.problems)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings cannot be pickled, and pickled arrays come back writeable: build it anew.
        values = (getattr(self, entry.name) for entry in fields(self))
        return type(self), tuple(dict(value) if isinstance(value, MappingProxyType) else value for value in values)
