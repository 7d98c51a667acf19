"""What was asked for: the options of `select_groups`, checked; and the units that weighted scores are counted in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from reprlib import repr as short
from typing import Any, Literal, get_args

import numpy as np

from tagalong.errors import counted, is_number, refuse

from .problem import Floats, Ints
from .scores import Scores, group_name

Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
SolverName = Literal["auto", "exact", "lp", "columns", "milp", "search"]
SOLVERS = get_args(SolverName)
LARGEST = 1023  # the power of two that scores may add up to: the difference of two such sums still is a double


@dataclass(frozen=True)
class Request:
    """The options of `select_groups`, after its scores."""

    budgets: Sequence[float]
    objective: Literal["max", "min"] = "max"
    allow_single: bool | None = None
    max_size: int | None = None
    cost: Cost | None = None
    max_cost: float | None = None
    must_link: Iterable[Iterable[str]] = ()
    cannot_link: Iterable[Iterable[str]] = ()
    weights: Mapping[str, float] | None = None
    solver: str = "auto"
    time_limit: float | None = None
    seed: int = 0
    resamples: int | None = None
    stop: Callable[[], bool] | None = None

    def singles(self, scores: Scores) -> bool:
        """Whether networks of one task are allowed: as asked, or as the scores suggest."""
        return scores.singles if self.allow_single is None else self.allow_single

    def units(self, scores: Scores) -> Units:
        """What weighted scores are counted in."""
        return Units.of(scores.largest(self.singles(scores)), self._weights(scores))

    @property
    def sign(self) -> float:
        """−1 if scores are to be minimised."""
        return 1.0 if self.objective == "max" else -1.0

    def _weights(self, scores: Scores) -> Floats:
        return np.array([float((self.weights or {}).get(task, 1.0)) for task in scores.tasks])

    def cost_of(self, group: frozenset[str]) -> float:
        """What a network for these tasks costs; NaN if a mapping does not list it."""
        if self.cost is None:
            return 1.0
        if isinstance(self.cost, Mapping):
            return float(self._listed_costs.get(group, self._listed_costs.get(len(group), np.nan)))
        if not callable(self.cost):
            return float(self.cost)
        try:
            found = self.cost(group)
        except Exception as error:
            raise ValueError(
                f"`cost` must return a positive number for {group_name(group)}, but it raised {error!r}"
            ) from error
        number = _number(found)
        if not 0 < number < math.inf:
            raise ValueError(f"`cost` of {group_name(group)} must be a positive number, found {short(found)}")
        return number

    @cached_property
    def _listed_costs(self) -> dict[Any, float]:
        """A mapping of costs with sets as keys, however they were written."""
        assert isinstance(self.cost, Mapping)
        return {frozenset(key) if isinstance(key, tuple) else key: cost for key, cost in self.cost.items()}

    def check(self, scores: Scores) -> None:
        """Refuses what cannot be meant."""
        value_problems = self._value_problems(scores) if self._knows_singles else []
        problems = [
            *self._budget_problems(scores),
            *self._option_problems(),
            *self._cost_problems(scores),
            *_link_problems("must_link", self.must_link, scores),
            *_link_problems("cannot_link", self.cannot_link, scores),
            *self._weight_problems(scores),
            *value_problems,
        ]
        refuse(problems)
        refuse(_range_problems(scores.largest(self.singles(scores)), self._weights(scores)))

    @property
    def _knows_singles(self) -> bool:
        return self.allow_single is None or isinstance(self.allow_single, (bool, np.bool_))

    def _budget_problems(self, scores: Scores) -> list[str]:
        n, problems = len(scores.tasks), []
        plain = self.cost is None and all(entry.cost == 1 or np.isnan(entry.cost) for entry in scores.listed or ())
        for budget in self.budgets:
            if isinstance(budget, bool) or not isinstance(budget, (int, float, np.number)):
                problems.append(f"`budget` must be a number, found {short(budget)}")
            elif not is_number(budget) or budget <= 0:
                problems.append(f"`budget` must be positive, found {short(budget)}; 1 is one network for all tasks")
            elif plain and budget != int(budget):
                problems.append(f"`budget` must be a whole number of networks, found {budget!r}; or give a `cost`")
            elif plain and budget > n:
                problems.append(f"`budget` must be from 1 to the number of tasks, {n}, found {budget!r}")
        if not len(self.budgets):
            problems.append("`budgets` must hold at least one budget, found none")
        return problems

    def _option_problems(self) -> list[str]:
        problems = []
        if not isinstance(self.objective, str) or self.objective not in ("max", "min"):
            problems.append(f"`objective` must be 'max' or 'min', found {short(self.objective)}")
        if not isinstance(self.solver, str) or self.solver not in SOLVERS:
            problems.append(f"`solver` must be one of {', '.join(map(repr, SOLVERS))}, found {short(self.solver)}")
        if not self._knows_singles:
            problems.append(f"`allow_single` must be True, False or None, found {short(self.allow_single)}")
        if self.max_size is not None and (not _is_whole(self.max_size) or self.max_size < 1):
            problems.append(f"`max_size` must be a whole number from 1, found {self.max_size!r}")
        if self.time_limit is not None and not _is_positive(self.time_limit):
            problems.append(f"`time_limit` must be a positive number of seconds, found {self.time_limit!r}")
        if not _is_whole(self.seed) or self.seed < 0:
            problems.append(f"`seed` must be a whole number from 0, found {self.seed!r}")
        if self.resamples is not None and (not _is_whole(self.resamples) or self.resamples < 0):
            problems.append(f"`resamples` must be a whole number from 0, found {self.resamples!r}")
        if self.stop is not None and not callable(self.stop):
            problems.append(f"`stop` must be a callable that returns True or False, found {self.stop!r}")
        return problems

    def _cost_problems(self, scores: Scores) -> list[str]:
        problems = []
        if self.cost is not None and scores.own_costs:
            problems.append("`cost` must be left out: each Candidate has its own")
        by_group = callable(self.cost) or isinstance(self.cost, Mapping)
        if self.cost is not None and not by_group and not _is_positive(self.cost):
            problems.append(f"`cost` must be a positive number, a mapping or a callable, found {short(self.cost)}")
        if isinstance(self.cost, Mapping):
            problems += self._cost_table_problems(self.cost)
        if self.max_cost is not None and not _is_positive(self.max_cost):
            problems.append(f"`max_cost` must be a positive number, found {self.max_cost!r}")
        unknown = scores.listed is None or any(np.isnan(entry.cost) for entry in scores.listed)
        if self.max_cost is not None and self.cost is None and unknown:
            problems.append("`max_cost` needs `cost`, what one network costs given its tasks; found none")
        return problems

    def _cost_table_problems(self, table: Mapping[Any, Any]) -> list[str]:
        keys = [key for key in table if isinstance(key, bool) or not isinstance(key, (frozenset, tuple, Integral))]
        if keys:
            return [
                "`cost` must map sets of tasks, or numbers of tasks, to costs, found the key "
                f"{short(keys[0])}; write frozenset({{'a', 'b'}}) or 2"
            ]
        problems = []
        if len(self._listed_costs) < len(table):
            problems.append("`cost` must list each group once, found one as a tuple and again in another order or form")
        for key, cost in table.items():
            unlisted = isinstance(cost, (float, np.floating)) and np.isnan(cost)  # as if the key were not there
            if not unlisted and not _is_positive(cost):
                what = f"a network of {counted(int(key), 'task')}" if isinstance(key, Integral) else group_name(key)
                problems.append(f"`cost` of {what} must be a positive number, found {short(cost)}")
        return problems

    def _weight_problems(self, scores: Scores) -> list[str]:
        if self.weights is None:
            return []
        if not isinstance(self.weights, Mapping):
            example = f"{{{scores.tasks[0]!r}: 2}}"
            return [f"`weights` must map tasks to numbers, such as {example}, found {short(self.weights)}"]
        unknown = set(self.weights) - set(scores.tasks)
        problems = []
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`weights` must name tasks ({known}), found {', '.join(sorted(map(repr, unknown)))}")
        for task, weight in self.weights.items():
            if not _is_positive(weight):
                problems.append(f"`weights`: the weight of {task!r} must be a positive number, found {short(weight)}")
        return problems

    def _value_problems(self, scores: Scores) -> list[str]:
        if scores.matrix is None:
            return []
        wanted = ~np.eye(len(scores.tasks), dtype=bool)
        if self.singles(scores):
            wanted[:] = True
        bad = np.argwhere(wanted & ~np.isfinite(scores.matrix))
        if not len(bad):
            return []
        i, j = bad[0]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        where = f"{scores.matrix[i, j]} from {scores.tasks[i]!r} onto {scores.tasks[j]!r}{more}"
        hint = (
            "measure that pair, or leave the task out"
            if i != j
            else "give the single-task score, or allow_single=False"
        )
        return [f"`scores` must be finite, found {where}; {hint}"]


def read_links(links: Any) -> Any:
    """Links as tuples of tuples, so that they can be read twice; what is no link stays as it is, to be refused."""
    if isinstance(links, str) or not isinstance(links, Iterable):
        return links
    return tuple(link if isinstance(link, str) or not isinstance(link, Iterable) else tuple(link) for link in links)


def read_budgets(budgets: Any) -> tuple[float, ...]:
    """Several budgets."""
    if isinstance(budgets, str) or not isinstance(budgets, Iterable) or getattr(budgets, "ndim", 1) == 0:
        raise ValueError(
            f"`budgets` must be a list of numbers, such as [2, 3], found {short(budgets)}; or give `budget`"
        )
    return tuple(budgets)


def _link_problems(name: str, links: Any, scores: Scores) -> list[str]:
    if not isinstance(links, tuple):
        return [f"`{name}` must be a list of sets of tasks, such as [('a', 'b')], found {short(links)}"]
    problems = []
    for link in links:
        if not isinstance(link, tuple) or len(set(map(repr, link))) < 2:
            problems.append(f"`{name}` must hold sets of two or more tasks, found {short(link)}")
            continue
        unknown = sorted({repr(task) for task in link if task not in scores.tasks})
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`{name}` must name tasks ({known}), found {', '.join(unknown)}")
    return problems


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return is_number(value) and bool(value > 0)


def _number(value: Any) -> float:
    """As a float, tensors and arrays of one number too; NaN for anything else."""
    if isinstance(value, (str, bytes, bool, complex, np.complexfloating)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        return math.nan


@dataclass(frozen=True)
class Units:
    """Weighted scores as multiples of a power of two near the largest of them: sums neither overflow nor vanish.

    Multiplying by a power of two is exact, so scores of any size are treated alike.

    Attributes:
        exponent: of the unit.
        powers: of each task, what its scores are divided by first.
        weights: of each task, between 1/2 and 1.
        shifts: of each task, the power of two that is left to multiply by.
    """

    exponent: int
    powers: Ints
    weights: Floats
    shifts: Ints

    @classmethod
    def of(cls, largest: Floats, weights: Floats) -> Units:
        """For scores up to `largest` and the weights of the tasks."""
        (_, powers), (fractions, more) = np.frexp(largest), np.frexp(weights)
        together = (powers + more).astype(np.int64)
        exponent = int(together[largest > 0].max()) if largest.any() else 0
        return cls(exponent, powers.astype(np.int64), fractions, together - exponent)

    def weighted(self, values: Floats) -> Floats:
        """Scores (their last axis are the tasks) times weights, in this unit."""
        found: Floats = np.ldexp(np.ldexp(values, -self.powers) * self.weights, self.shifts)
        return found

    def one(self, task: int, value: float) -> float:
        """The score of one task times its weight, in this unit."""
        return math.ldexp(
            math.ldexp(value, -int(self.powers[task])) * float(self.weights[task]), int(self.shifts[task])
        )

    def back(self, value: float) -> float:
        """From this unit to that of the scores."""
        return math.ldexp(value, self.exponent)


def _range_problems(largest: Floats, weights: Floats) -> list[str]:
    """Refuses scores whose sum over all tasks is no double, with and without weights."""
    for name, factors in (("`scores`", np.ones(len(weights))), ("`scores` times `weights`", weights)):
        units = Units.of(largest, factors)
        total = float(units.weighted(largest).sum())
        if total and math.frexp(total)[1] + units.exponent > LARGEST:
            few = f"found up to {largest.max():.3g} for one of {len(largest)}"
            most = f"{math.ldexp(1.0, LARGEST):.0e}"
            return [f"{name} must add up to less than {most} over all tasks, {few}; divide all of them by one number"]
    return []
