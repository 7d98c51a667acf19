"""The fields of an affinity, checked, converted and frozen; every problem of one input is named at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tagalong.errors import name_problems, named, refuse

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class AffinityFileError(ValueError):
    """A file that should hold an affinity does not, or holds a damaged one."""


class Fields:
    """Converts and freezes arrays, and remembers what was wrong with them."""

    def __init__(self, tasks: tuple[Any, ...]) -> None:
        self.n = len(tasks)
        self.problems = name_problems(tasks)

    def array(self, name: str, value: Any, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Any:
        """A read-only copy of `value` with this shape and type."""
        try:
            array = np.asarray(value)
            if array.dtype.kind in "cmM":
                raise TypeError(f"values of type {array.dtype}")
            if np.issubdtype(dtype, np.integer) and (array != np.round(array)).any():
                raise ValueError("not whole numbers")
            array = np.asarray(array, dtype=dtype)
        except (TypeError, ValueError, OverflowError) as error:
            self.problems.append(f"`{name}` must be an array of numbers, found {type(value).__name__}: {error}")
            return np.zeros(shape, dtype)
        if array.size == 0 and 0 in shape:
            array = array.reshape(shape)  # an empty list cannot say how many tasks it is about
        if array.shape != shape:
            found = f"{self.n} tasks need {shape}, found {array.shape}"
            self.problems.append(f"`{name}` has the wrong shape: {found}")
        elif np.issubdtype(array.dtype, np.floating):
            infinite = int(np.isinf(array).sum())
            if infinite:
                expected = f"`{name}` must be finite, or NaN where not measured"
                self.problems.append(f"{expected}, found {infinite} infinite; has the loss diverged?")
        return frozen(array)

    def counts(self, name: str, value: Any) -> Ints:
        array: Ints = self.array(name, value, (self.n, self.n), np.int64)
        if (array < 0).any():
            self.problems.append(f"`{name}` must count values, found {array.min()}; counts are 0 or more")
        return array

    def errors(self, value: Any) -> Floats:
        array: Floats = self.array("stderr", value, (self.n, self.n))
        if (array < 0).any():
            self.problems.append(f"`stderr` must be 0 or more, or NaN where not known, found {array[array < 0].min()}")
        return array

    def steps(self, value: Any) -> Ints:
        array: Ints = self.array("steps", value, (np.size(value),), np.int64)
        if array.ndim == 1 and (np.diff(array) <= 0).any():
            self.problems.append("`steps` must rise strictly, one call number per measured step; sort them")
        return array

    def settings(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """A copy as JSON would give it back, so that a saved affinity equals the loaded one."""
        try:
            return MappingProxyType(json.loads(json.dumps(dict(value), allow_nan=False)))
        except (TypeError, ValueError) as error:
            self.problems.append(f"`settings` must be JSON-able (numbers, strings, lists, None), found {error}")
            return MappingProxyType({})


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only array that nobody else can write to; one that already is such stays itself."""
    if array.flags.writeable or array.base is not None:
        array = array.copy()
        array.setflags(write=False)
    return array


def at_least_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, found {value!r}")


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
