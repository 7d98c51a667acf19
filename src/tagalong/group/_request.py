"""What was asked for, checked: every problem of one request is named at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tagalong._names import refuse

from ._scores import Scores

Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
SOLVERS = ("auto", "exact", "lp", "columns", "milp", "search")


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

    def check(self, scores: Scores) -> None:
        """Refuses what cannot be meant."""
        problems = [
            *self._budget_problems(len(scores.tasks), scores),
            *self._option_problems(),
            *self._cost_problems(scores),
            *_link_problems("must_link", self.must_link, scores),
            *_link_problems("cannot_link", self.cannot_link, scores),
            *self._weight_problems(scores),
            *self._value_problems(scores),
        ]
        refuse(problems)

    def _budget_problems(self, n: int, scores: Scores) -> list[str]:
        problems = []
        counted = self.cost is None and scores.listed is None
        counted |= self.cost is None and all(entry.cost == 1 for entry in scores.listed or ())
        for budget in self.budgets:
            if isinstance(budget, bool) or not isinstance(budget, (int, float, np.number)):
                problems.append(f"`budget` must be a number, found {budget!r}")
            elif not np.isfinite(budget) or budget <= 0:
                problems.append(f"`budget` must be positive, found {budget!r}; 1 is one network for all tasks")
            elif counted and budget != int(budget):
                problems.append(f"`budget` must be a whole number of networks, found {budget!r}; or give a `cost`")
            elif counted and budget > n:
                problems.append(f"`budget` must be from 1 to the number of tasks, {n}, found {budget!r}")
        if not len(self.budgets):
            problems.append("`budgets` must hold at least one budget, found none")
        return problems

    def _option_problems(self) -> list[str]:
        problems = []
        if self.objective not in ("max", "min"):
            problems.append(f"`objective` must be 'max' or 'min', found {self.objective!r}")
        if self.solver not in SOLVERS:
            problems.append(f"`solver` must be one of {', '.join(map(repr, SOLVERS))}, found {self.solver!r}")
        if self.allow_single not in (None, True, False):
            problems.append(f"`allow_single` must be True, False or None, found {self.allow_single!r}")
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
        if self.cost is not None and scores.listed is not None and not scores.given:
            problems.append("`cost` must be left out: each Candidate has its own")
        by_group = callable(self.cost) or isinstance(self.cost, Mapping)
        if self.cost is not None and not by_group and not _is_positive(self.cost):
            problems.append(f"`cost` must be a positive number, a mapping or a callable, found {self.cost!r}")
        if self.max_cost is not None and not _is_positive(self.max_cost):
            problems.append(f"`max_cost` must be a positive number, found {self.max_cost!r}")
        if self.max_cost is not None and self.cost is None and (scores.listed is None or scores.given):
            problems.append("`max_cost` needs `cost`, what one network costs given its tasks; found none")
        return problems

    def _weight_problems(self, scores: Scores) -> list[str]:
        unknown = set(self.weights or ()) - set(scores.tasks)
        problems = []
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`weights` must name tasks ({known}), found {', '.join(sorted(map(repr, unknown)))}")
        for task, weight in (self.weights or {}).items():
            if not _is_positive(weight):
                problems.append(f"`weights`: the weight of {task!r} must be a positive number, found {weight!r}")
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


def _link_problems(name: str, links: Iterable[Iterable[str]], scores: Scores) -> list[str]:
    problems = []
    for link in links:
        if isinstance(link, str) or len(set(link)) < 2:
            problems.append(f"`{name}` must hold sets of two or more tasks, found {link!r}")
            continue
        unknown = sorted(set(link) - set(scores.tasks), key=repr)
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`{name}` must name tasks ({known}), found {', '.join(map(repr, unknown))}")
    return problems


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return number and bool(np.isfinite(value)) and value > 0
