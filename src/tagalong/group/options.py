"""The options of `select_groups`, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from reprlib import repr as short
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from tagalong.errors import InvalidInput, is_integer, is_positive, is_positive_integer

from .problem import Floats
from .scores import Complete, Scores, group_name

Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
Links = Collection[Collection[str]]
Objective = Literal["max", "min"]
SolverName = Literal["auto", "exact", "milp", "search"]
MAX_RESAMPLES = 100_000  # more would take days
MAX_RESAMPLED_VALUES = 2**28  # 2 GB, since all resamples are drawn before the first selection


class SelectionOptions(TypedDict, total=False):
    """The options of `select_groups`, which explains them."""

    objective: Objective
    allow_single: bool | None
    max_size: int | None
    cost: Cost | None
    max_cost: float | None
    max_total_cost: float | None
    must_link: Links
    cannot_link: Links
    weights: Mapping[str, float] | None
    complete: Complete
    place_unmeasured: bool
    solver: SolverName
    time_limit: float | None
    seed: int
    resamples: int | None
    stop: Callable[[], bool] | None


@dataclass(frozen=True)
class SelectionRequest:
    """The options of `select_groups` with their defaults."""

    objective: Objective = "max"
    allow_single: bool | None = None
    max_size: int | None = None
    cost: Cost | None = None
    max_cost: float | None = None
    max_total_cost: float | None = None
    must_link: Links = ()
    cannot_link: Links = ()
    weights: Mapping[str, float] | None = None
    complete: Complete = None
    place_unmeasured: bool = False
    solver: SolverName = "auto"
    time_limit: float | None = None
    seed: int = 0
    resamples: int | None = None
    stop: Callable[[], bool] | None = None

    @property
    def sign(self) -> float:
        """The sign of the scores: −1 if they are minimized, otherwise 1."""
        return 1.0 if self.objective == "max" else -1.0

    @property
    def has_group_costs(self) -> bool:
        """Whether the cost of a network depends on its tasks."""
        return callable(self.cost) or isinstance(self.cost, Mapping)

    def allows_single_tasks(self, scores: Scores) -> bool:
        """Returns whether single-task networks are allowed."""
        return scores.singles if self.allow_single is None else self.allow_single

    def weights_of(self, tasks: Iterable[str]) -> Floats:
        """Returns the weight of each task."""
        return np.array([float((self.weights or {}).get(task, 1.0)) for task in tasks])

    def total(self, scores: Mapping[str, float]) -> float:
        """Returns the weighted sum of the scores of tasks."""
        return float(sum(self.weights_of(scores) * np.array(list(scores.values()))))

    def cost_of(self, group: frozenset[str]) -> float:
        """Returns the cost of a network trained on the given tasks, or NaN if the mapping does not list them."""
        if self.cost is None:
            return 1.0
        if isinstance(self.cost, Mapping):
            return float(self._listed_costs.get(group, self._listed_costs.get(len(group), math.nan)))
        cost = self.cost(group) if callable(self.cost) else self.cost
        if not is_positive(cost):
            raise InvalidInput("cost", f"must return a positive number for {group_name(group)}", short(cost))
        return float(cost)

    @cached_property
    def _listed_costs(self) -> dict[Any, float]:
        """The mapping of costs, with keys converted from tuples to frozensets."""
        assert isinstance(self.cost, Mapping)
        return {frozenset(key) if isinstance(key, tuple) else key: cost for key, cost in self.cost.items()}

    def check(self, scores: Scores) -> None:
        """Raises an error if an option is invalid."""
        solvers = get_args(SolverName)
        most_resamples = min(MAX_RESAMPLES, MAX_RESAMPLED_VALUES // len(scores.tasks) ** 2)
        resamples = self.resamples is None or (
            is_integer(self.resamples, minimum=0) and self.resamples <= most_resamples
        )
        requirements = (
            ("objective", self.objective in get_args(Objective), "must be 'max' or 'min'"),
            ("solver", self.solver in solvers, f"must be one of {', '.join(map(repr, solvers))}"),
            ("max_size", self.max_size is None or is_positive_integer(self.max_size), "must be a positive integer"),
            ("time_limit", self.time_limit is None or is_positive(self.time_limit), "must be a positive number"),
            ("max_cost", self.max_cost is None or is_positive(self.max_cost), "must be a positive number"),
            ("max_total_cost", self.max_total_cost is None or is_positive(self.max_total_cost), "must be positive"),
            ("seed", is_integer(self.seed, minimum=0), "must be a non-negative integer"),
            ("resamples", resamples, f"must be an integer from 0 to {most_resamples}"),
            ("weights", self.weights is None or isinstance(self.weights, Mapping), "must map tasks to numbers"),
        )
        for name, is_met, expected in requirements:
            if not is_met:
                raise InvalidInput(name, expected, short(getattr(self, name)))
        self._check_costs(scores)
        known = ", ".join(map(repr, scores.tasks))
        for task, weight in (self.weights or {}).items():
            if task not in scores.tasks:
                raise InvalidInput("weights", f"must contain only known tasks ({known})", repr(task))
            if not is_positive(weight):
                raise InvalidInput("weights", "must contain only positive numbers", f"{short(weight)} for {task!r}")
        for name in ("must_link", "cannot_link"):
            links = getattr(self, name)
            if not _is_collection(links) or not all(_is_collection(link) and len(set(link)) > 1 for link in links):
                raise InvalidInput(name, "must be a list of sets of two or more tasks", short(links))
            unknown = {task for link in links for task in link}.difference(scores.tasks)
            if unknown:
                raise InvalidInput(name, f"must contain only known tasks ({known})", ", ".join(map(repr, unknown)))
        self._check_values(scores)

    def _check_costs(self, scores: Scores) -> None:
        if self.cost is not None and scores.own_costs:
            raise InvalidInput("cost", "cannot be combined with candidates, which have their own costs")
        if self.cost is not None and not self.has_group_costs and not is_positive(self.cost):
            raise InvalidInput("cost", "must be a positive number, a mapping or a callable", short(self.cost))
        if self.max_cost is not None and isinstance(self.cost, (int, float)) and self.cost > self.max_cost:
            raise InvalidInput("max_cost", "must be at least `cost`, the cost of every network", short(self.max_cost))
        if isinstance(self.cost, Mapping):
            for key, cost in self.cost.items():
                if not isinstance(key, (frozenset, tuple, Integral)):
                    raise InvalidInput("cost", "must map groups, e.g. ('a', 'b'), or group sizes to costs", short(key))
                if not is_positive(cost) and cost == cost:  # NaN means that the network cannot be chosen
                    raise InvalidInput("cost", "must contain only positive numbers", f"{short(cost)} for {short(key)}")
        for name in ("max_cost", "max_total_cost"):
            if getattr(self, name) is not None and self.cost is None and not scores.own_costs:
                raise InvalidInput(name, "requires `cost` unless the networks have their own costs")

    def _check_values(self, scores: Scores) -> None:
        alone = self.allows_single_tasks(scores)
        if scores.matrix is not None:
            n = len(scores.tasks)
            required = ~np.eye(n, dtype=bool) | alone
            for source, target in np.argwhere(required & ~np.isfinite(scores.matrix)):
                found = f"{scores.matrix[source, target]} for {scores.tasks[source]!r} on {scores.tasks[target]!r}"
                raise InvalidInput("scores", "must be finite", found)


def _is_collection(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)
