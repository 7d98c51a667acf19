"""The leaderboard: which estimator predicts best what truly helps, and what do its groups bring?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np

from .estimates import Estimate, correlation, estimates, marginal_effects, measured, offered, pair_gains, problem_of
from .truth_table import TruthTable, load_truth, truth_names

BUDGETS = (2, 3, 4)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """How an estimator does on a table, averaged over the seeds that it was measured with.

    Attributes:
        estimator: its name.
        table: its name.
        pairs: correlation with the true gains of pairs.
        marginal: correlation with the true effect of joining, averaged over all sets.
        changes: by budget, the true change of test losses of its groups against all together; negative is better.
        cost: in trainings of the network of all tasks, that one left out.
        seeds: how many.
    """

    estimator: str
    table: str
    pairs: float
    marginal: float
    changes: dict[int, float]
    cost: float
    seeds: int

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self) | {"changes": {str(budget): change for budget, change in self.changes.items()}}


def leaderboard(
    tables: Sequence[str] | None = None,
    *,
    budgets: Sequence[int] = BUDGETS,
    seeds: int = 3,
    progress: Callable[[str], None] | None = None,
) -> list[Standing]:
    """Every estimator on every table.

    Estimators of other packages (entry point group "tagalong.estimators") are measured now, on problems that come with
    the package; all others are looked up.

    Args:
        tables: names; all by default.
        budgets: how many networks there may be.
        seeds: of estimates, each from networks of one seed.
        progress: is told what is being looked at.

    Raises:
        ValueError: there is no such table, or no seed, or a single value where a list is needed.
    """
    if not isinstance(seeds, Integral) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"`seeds` must be at least 1, found {seeds!r}")
    for argument, given in {"tables": tables, "budgets": budgets}.items():
        if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
            raise ValueError(f"`{argument}` must be a list, found {given!r}; write [{given!r}]")
    found: list[Standing] = []
    theirs = offered()
    for name in truth_names() if tables is None else tables:
        table = load_truth(name)
        truths = pair_gains(table), marginal_effects(table)
        for label, of_seeds in _all_estimates(table, min(seeds, table.seeds), theirs, progress):
            found.append(_standing(label, name, table, truths, of_seeds, budgets))
    return found


def average(found: Sequence[Standing]) -> list[Standing]:
    """Means over tables, of the estimators that stand on all of them, under the name "all tables"."""
    tables = {one.table for one in found}
    means = []
    for name in dict.fromkeys(one.estimator for one in found):
        mine = [one for one in found if one.estimator == name]
        if {one.table for one in mine} == tables:
            pairs, marginal, cost = np.mean([(one.pairs, one.marginal, one.cost) for one in mine], axis=0)
            budgets = set.intersection(*(set(one.changes) for one in mine))
            changes = {k: float(np.mean([one.changes[k] for one in mine])) for k in sorted(budgets)}
            seeds = min(one.seeds for one in mine)
            means.append(Standing(name, "all tables", float(pairs), float(marginal), changes, float(cost), seeds))
    return means


def _all_estimates(
    table: TruthTable, seeds: int, theirs: Mapping[str, object], progress: Callable[[str], None] | None
) -> Iterator[tuple[str, list[Estimate]]]:
    by_name: dict[str, list[Estimate]] = {}
    for seed in range(seeds):
        for name, estimate in estimates(table, seed):
            by_name.setdefault(name, []).append(estimate)
    yield from by_name.items()
    problem = problem_of(table) if theirs else None
    for name, estimator in theirs.items() if problem is not None else ():
        if progress is not None:
            progress(f"measuring {name} on {table.about['problem']}")
        assert problem is not None
        try:
            yield name, [measured(table, problem, estimator, seed) for seed in range(seeds)]
        except Exception as error:  # a broken package must not hide the others
            log.warning("the estimator %r cannot be measured on %s: %s", name, table.about["problem"], error)


def _standing(
    label: str,
    name: str,
    table: TruthTable,
    truths: tuple[Any, Any],
    of_seeds: Sequence[Estimate],
    budgets: Sequence[int],
) -> Standing:
    pairs = np.mean([correlation(one.gains, truths[0]) for one in of_seeds])
    joining = [one.gains if one.joining is None else one.joining for one in of_seeds]
    marginal = np.mean([correlation(gains, truths[1]) for gains in joining])
    possible = [budget for budget in budgets if budget <= len(table.tasks)]
    changes = {budget: [_change(one, table, budget) for one in of_seeds] for budget in possible}
    return Standing(
        label,
        name,
        float(pairs),
        float(marginal),
        {budget: float(np.mean(some)) for budget, some in changes.items()},
        float(np.mean([one.cost for one in of_seeds])),
        len(of_seeds),
    )


def _change(estimate: Estimate, table: TruthTable, budget: int) -> float:
    groups = estimate.groups(table.tasks, budget).groups
    return table.change({task: group.trains for group in groups for task in group.serves})
