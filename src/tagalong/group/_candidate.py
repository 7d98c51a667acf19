"""A network that could be trained, with what it would bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, init=False)
class Candidate:
    """One network that may be chosen: what it trains, how well each task does in it, what it costs.

    Several candidates may train the same tasks, for example a full and a half-size network for one task.

    Attributes:
        trains: the tasks trained.
        values: the result of each task that the network may serve; tasks left out only help.
        cost: what the network takes of the budget.

    Example:
        >>> Candidate({"age", "ill"}, {"age": 0.9, "ill": 0.7}, cost=1)
        Candidate({age, ill}, cost=1)
    """

    trains: frozenset[str]
    values: Mapping[str, float]
    cost: float

    def __init__(self, trains: Iterable[str], values: Mapping[str, float], cost: float = 1) -> None:
        if isinstance(trains, str):
            raise ValueError(
                f"`trains` must be a collection of names, found the string {trains!r}; write {{{trains!r}}}"
            )
        names = frozenset(trains)
        foreign = sorted(map(repr, set(values) - names))
        if foreign:
            raise ValueError(f"`values` must be results of trained tasks, found {', '.join(foreign)}")
        object.__setattr__(self, "trains", names)
        object.__setattr__(self, "values", MappingProxyType(dict(values)))
        object.__setattr__(self, "cost", cost)

    def __repr__(self) -> str:
        return f"Candidate({{{', '.join(sorted(map(str, self.trains)))}}}, cost={self.cost:g})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Candidate, (self.trains, dict(self.values), self.cost)  # read-only mappings cannot be pickled

    def __hash__(self) -> int:
        return hash((self.trains, tuple(sorted(self.values.items())), self.cost))
