"""Checks the options of `select_groups`, and defines the scaling of weighted scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from numbers import Integral
from reprlib import repr as short
from typing import Any, Literal, get_args

import numpy as np

from tagalong.affinity import max_resamples
from tagalong.errors import (
    InvalidInput,
    is_integer,
    is_number,
    is_positive,
    is_positive_integer,
    pluralize,
    raise_problems,
)

from .scores import Scores, group_name
from .selection_problem import Floats, Ints

Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
SolverName = Literal["auto", "exact", "milp", "search"]
SOLVERS = get_args(SolverName)
MAX_BUDGETS = 10_000  # at once
MAX_EXPONENT = 1023  # sums of scores must stay below this power of two, so the difference of two sums is still a double


@dataclass(frozen=True)
class SelectionRequest:
    """The options of `select_groups`, without the scores."""

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

    def allows_single_tasks(self, scores: Scores) -> bool:
        """Returns whether single-task networks are allowed."""
        return scores.singles if self.allow_single is None else self.allow_single

    def scaling(self, scores: Scores) -> ScoreScaling:
        """Returns the scaling used to compute weighted scores."""
        return ScoreScaling.for_scores(
            scores.max_abs_scores(self.allows_single_tasks(scores)), self._weight_array(scores)
        )

    @property
    def sign(self) -> float:
        """The sign of the scores: −1 if they are minimized, otherwise 1."""
        return 1.0 if self.objective == "max" else -1.0

    def _weight_array(self, scores: Scores) -> Floats:
        return np.array([float((self.weights or {}).get(task, 1.0)) for task in scores.tasks])

    def cost_of(self, group: frozenset[str]) -> float:
        """Returns the cost of a network trained on the given tasks, or NaN if the mapping does not list them."""
        if self.cost is None:
            return 1.0
        if isinstance(self.cost, Mapping):
            return float(self._listed_costs.get(group, self._listed_costs.get(len(group), np.nan)))
        if not callable(self.cost):
            return float(self.cost)
        try:
            found = self.cost(group)
        except Exception as error:
            expected = f"must return a positive number for {group_name(group)}, but raised {error!r}"
            raise InvalidInput("cost", expected) from error
        number = _to_float(found)
        if not 0 < number < math.inf:
            raise InvalidInput("cost", f"must return a positive number for {group_name(group)}", short(found))
        return number

    @cached_property
    def _listed_costs(self) -> dict[Any, float]:
        """The mapping of costs, with keys converted from tuples to frozensets."""
        assert isinstance(self.cost, Mapping)
        return {frozenset(key) if isinstance(key, tuple) else key: cost for key, cost in self.cost.items()}

    def check(self, scores: Scores) -> None:
        """Raises an error that lists all invalid options, if any."""
        value_problems = self._value_problems(scores) if self._has_valid_allow_single else []
        problems = [
            *self._budget_problems(scores),
            *self._option_problems(),
            *self._resample_problems(len(scores.tasks)),
            *self._cost_problems(scores),
            *_link_problems("must_link", self.must_link, scores),
            *_link_problems("cannot_link", self.cannot_link, scores),
            *self._weight_problems(scores),
            *value_problems,
        ]
        raise_problems(problems)
        raise_problems(
            _range_problems(scores.max_abs_scores(self.allows_single_tasks(scores)), self._weight_array(scores))
        )

    @property
    def _has_valid_allow_single(self) -> bool:
        return self.allow_single is None or isinstance(self.allow_single, (bool, np.bool_))

    def _budget_problems(self, scores: Scores) -> list[InvalidInput]:
        n, problems = len(scores.tasks), []
        plain = self.cost is None and all(entry.cost == 1 or np.isnan(entry.cost) for entry in scores.candidates or ())
        for budget in self.budgets:
            if isinstance(budget, bool) or not isinstance(budget, (int, float, np.number)):
                problems.append(InvalidInput("budget", "must be a number", short(budget)))
            elif budget == math.inf:
                problems.append(InvalidInput("budget", "must be finite", "inf", f"there are {n} tasks"))
            elif not is_number(budget) or budget <= 0:
                meaning = "1 means one network for all tasks"
                problems.append(InvalidInput("budget", "must be positive", short(budget), meaning))
            elif plain and budget != int(budget):
                hint = "pass `cost` if networks have costs"
                problems.append(
                    InvalidInput("budget", "must be an integer (the number of networks)", repr(budget), hint)
                )
            elif plain and budget > n:
                problems.append(InvalidInput("budget", f"must be at most the number of tasks ({n})", repr(budget)))
        if not len(self.budgets):
            problems.append(InvalidInput("budgets", "must contain at least one budget", "none"))
        return problems

    def _option_problems(self) -> list[InvalidInput]:
        problems = []
        if not isinstance(self.objective, str) or self.objective not in ("max", "min"):
            problems.append(InvalidInput("objective", "must be 'max' or 'min'", short(self.objective)))
        if not isinstance(self.solver, str) or self.solver not in SOLVERS:
            expected = f"must be one of {', '.join(map(repr, SOLVERS))}"
            problems.append(InvalidInput("solver", expected, short(self.solver)))
        if not self._has_valid_allow_single:
            problems.append(InvalidInput("allow_single", "must be True, False or None", short(self.allow_single)))
        if self.max_size is not None and not is_positive_integer(self.max_size):
            problems.append(InvalidInput("max_size", "must be a positive integer", repr(self.max_size)))
        if self.time_limit is not None and not is_positive(self.time_limit):
            problems.append(InvalidInput("time_limit", "must be a positive number of seconds", repr(self.time_limit)))
        if not is_integer(self.seed, minimum=0):
            problems.append(InvalidInput("seed", "must be a non-negative integer", repr(self.seed)))
        if self.stop is not None and not callable(self.stop):
            problems.append(InvalidInput("stop", "must be a callable that returns True or False", repr(self.stop)))
        return problems

    def _resample_problems(self, tasks: int) -> list[InvalidInput]:
        if self.resamples is None:
            return []
        if not is_integer(self.resamples, minimum=0):
            return [InvalidInput("resamples", "must be a non-negative integer", repr(self.resamples))]
        if self.resamples <= (most := max_resamples(tasks)):
            return []
        expected = f"must be at most {most:,} for {pluralize(tasks, 'task')}, since each repeats the selection"
        return [InvalidInput("resamples", expected, f"{self.resamples:,}", "for more, vary `seed`")]

    def _cost_problems(self, scores: Scores) -> list[InvalidInput]:
        problems = []
        if self.cost is not None and scores.own_costs:
            problems.append(InvalidInput("cost", "cannot be combined with candidates, which have their own costs"))
        by_group = callable(self.cost) or isinstance(self.cost, Mapping)
        if self.cost is not None and not by_group and not is_positive(self.cost):
            expected = "must be a positive number, a mapping or a callable"
            problems.append(InvalidInput("cost", expected, short(self.cost)))
        if isinstance(self.cost, Mapping):
            problems += self._cost_table_problems(self.cost)
        if self.max_cost is not None and not is_positive(self.max_cost):
            problems.append(InvalidInput("max_cost", "must be a positive number", repr(self.max_cost)))
        unknown = scores.candidates is None or any(np.isnan(entry.cost) for entry in scores.candidates)
        if self.max_cost is not None and self.cost is None and unknown:
            problems.append(InvalidInput("max_cost", "requires `cost` unless the networks have their own costs"))
        return problems

    def _cost_table_problems(self, table: Mapping[Any, Any]) -> list[InvalidInput]:
        keys = [key for key in table if isinstance(key, bool) or not isinstance(key, (frozenset, tuple, Integral))]
        if keys:
            expected = "must map groups or group sizes to costs"
            hint = "use keys like frozenset({'a', 'b'}) or 2"
            return [InvalidInput("cost", expected, f"the key {short(keys[0])}", hint)]
        problems = []
        if len(self._listed_costs) < len(table):
            found = "one listed twice (as tuples in different orders, or as a tuple and a frozenset)"
            problems.append(InvalidInput("cost", "must list each group only once", found))
        for key, cost in table.items():
            unlisted = isinstance(cost, (float, np.floating)) and np.isnan(cost)  # NaN means that the key is not listed
            if not unlisted and not is_positive(cost):
                name = f"a network of {pluralize(int(key), 'task')}" if isinstance(key, Integral) else group_name(key)
                problems.append(InvalidInput("cost", "must contain only positive numbers", f"{short(cost)} for {name}"))
        return problems

    def _weight_problems(self, scores: Scores) -> list[InvalidInput]:
        if self.weights is None:
            return []
        if not isinstance(self.weights, Mapping):
            example = f"{{{scores.tasks[0]!r}: 2}}"
            return [InvalidInput("weights", f"must map tasks to numbers, e.g. {example}", short(self.weights))]
        unknown = set(self.weights) - set(scores.tasks)
        problems = []
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            names = ", ".join(sorted(map(repr, unknown)))
            problems.append(InvalidInput("weights", f"must contain only known tasks ({known})", names))
        for task, weight in self.weights.items():
            if not is_positive(weight):
                found = f"{short(weight)} for {task!r}"
                problems.append(InvalidInput("weights", "must contain only positive numbers", found))
        return problems

    def _value_problems(self, scores: Scores) -> list[InvalidInput]:
        if scores.matrix is None:
            return []
        wanted = ~np.eye(len(scores.tasks), dtype=bool)
        if self.allows_single_tasks(scores):
            wanted[:] = True
        bad = np.argwhere(wanted & ~np.isfinite(scores.matrix))
        if not len(bad):
            return []
        i, j = bad[0]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        where = f"{scores.matrix[i, j]} for the score of {scores.tasks[i]!r} on {scores.tasks[j]!r}{more}"
        pair_hint, single_hint = "measure that pair, or omit the task", "pass that score, or `allow_single=False`"
        return [InvalidInput("scores", "must be finite", where, pair_hint if i != j else single_hint)]


def read_links(links: Any) -> Any:
    """Returns the links as tuples, which can be iterated over more than once.

    Invalid links are rejected later by `check`.
    """
    if isinstance(links, str) or not isinstance(links, Iterable):
        return links
    return tuple(link if isinstance(link, str) or not isinstance(link, Iterable) else tuple(link) for link in links)


def read_budgets(budgets: Any) -> tuple[float, ...]:
    """Returns the budgets as a tuple."""
    if isinstance(budgets, str) or not isinstance(budgets, Iterable) or getattr(budgets, "ndim", 1) == 0:
        raise InvalidInput("budgets", "must be a list of numbers, e.g. [2, 3]", short(budgets))
    found = tuple(islice(budgets, MAX_BUDGETS + 1))
    if len(found) > MAX_BUDGETS:
        raise InvalidInput("budgets", f"must be at most {MAX_BUDGETS:,} numbers", "more", "select in parts")
    return found


def _link_problems(name: str, links: Any, scores: Scores) -> list[InvalidInput]:
    if not isinstance(links, tuple):
        return [InvalidInput(name, "must be a list of sets of tasks, e.g. [('a', 'b')]", short(links))]
    problems = []
    for link in links:
        if not isinstance(link, tuple) or len(set(map(repr, link))) < 2:
            problems.append(InvalidInput(name, "must contain sets of two or more tasks", short(link)))
            continue
        unknown = sorted({repr(task) for task in link if task not in scores.tasks})
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(InvalidInput(name, f"must contain only known tasks ({known})", ", ".join(unknown)))
    return problems


def _to_float(value: Any) -> float:
    """Converts a number, or a tensor or array with one element, to a float. Returns NaN for anything else."""
    if isinstance(value, (str, bytes, bool, complex, np.complexfloating)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor with multiple elements
        return math.nan


@dataclass(frozen=True)
class ScoreScaling:
    """Scales weighted scores by a power of two close to the largest one, so sums neither overflow nor underflow.

    Multiplying by a power of two is exact, so scores of any magnitude are treated the same way.

    Attributes:
        exponent: the power-of-two exponent that defines the common scale.
        powers: power-of-two exponents; each task's scores are first divided by the corresponding power.
        weights: the mantissa (between 1/2 and 1) of each task's weight.
        shifts: power-of-two exponents; in the end, each task's weighted scores are multiplied by the corresponding
            power.
    """

    exponent: int
    powers: Ints
    weights: Floats
    shifts: Ints

    @classmethod
    def for_scores(cls, max_scores: Floats, weights: Floats) -> ScoreScaling:
        """Returns the scaling for scores of magnitude up to `max_scores` with the given weights."""
        (_, powers), (fractions, more) = np.frexp(max_scores), np.frexp(weights)
        together = (powers + more).astype(np.int64)
        exponent = int(together[max_scores > 0].max()) if max_scores.any() else 0
        return cls(exponent, powers.astype(np.int64), fractions, together - exponent)

    def weighted(self, values: Floats) -> Floats:
        """Multiplies scores (with tasks along the last axis) by their weights, on the common scale."""
        found: Floats = np.ldexp(np.ldexp(values, -self.powers) * self.weights, self.shifts)
        return found

    def weighted_score(self, task: int, value: float) -> float:
        """Multiplies the score of one task by its weight, on the common scale."""
        return math.ldexp(
            math.ldexp(value, -int(self.powers[task])) * float(self.weights[task]), int(self.shifts[task])
        )

    def weighted_total(self, values: Mapping[str, float], tasks: Sequence[str]) -> float:
        """Sums the weighted scores of some of the tasks, on the common scale."""
        return sum(self.weighted_score(tasks.index(task), value) for task, value in values.items())

    def to_scores(self, value: float) -> float:
        """Converts a value back to the original scale of the scores."""
        return math.ldexp(value, self.exponent)


def _range_problems(max_scores: Floats, weights: Floats) -> list[InvalidInput]:
    """Returns a problem if the sum of all scores could overflow, with or without weights."""
    for name, factors in (("scores", np.ones(len(weights))), ("`scores` times `weights`", weights)):
        scaling = ScoreScaling.for_scores(max_scores, factors)
        total = float(scaling.weighted(max_scores).sum())
        if total and math.frexp(total)[1] + scaling.exponent > MAX_EXPONENT:
            expected = f"must sum to less than {math.ldexp(1.0, MAX_EXPONENT):.0e} over all tasks"
            found = f"values up to {max_scores.max():.3g} for {len(max_scores)} tasks"
            return [InvalidInput(name, expected, found, "divide all scores by the same number")]
    return []
