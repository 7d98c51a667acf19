"""The leaderboard: which estimator best predicts which tasks actually help, and how good are its groups?"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, did_you_mean, is_positive_integer

from .estimates import (
    Estimate,
    copies_changes,
    correlation,
    halves_of_truth,
    load_table_problem,
    marginal_effects,
    measure_estimate,
    pair_gains,
    plugin_estimators,
    random_changes,
    table_estimates,
)
from .truth_table import TruthTable, load_truth, truth_names

BUDGETS = (2, 3, 4)
TRUTH = "truth, half the seeds"
RANDOM = "random groups"
COPIES = "copies"
Array = NDArray[np.float64]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """An estimator's scores on a table, averaged over seeds.

    Attributes:
        estimator: the name of the estimator.
        table: the name of the table.
        pairs: the correlation with the true gains in pairs of tasks, or NaN if the gains are not estimated.
        marginal: the correlation with the true gains from joining a set, averaged over all sets.
        changes: the true change in test loss by budget, relative to one network for all tasks. Negative values are
            better.
        cost: the additional cost, relative to training one network for all tasks.
        seeds: the number of seeds.
    """

    estimator: str
    table: str
    pairs: float
    marginal: float
    changes: dict[int, float]
    cost: float
    seeds: int

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        return asdict(self) | {"changes": {str(budget): change for budget, change in self.changes.items()}}


def leaderboard(
    tables: Sequence[str] | None = None,
    *,
    budgets: Sequence[int] = BUDGETS,
    seeds: int = 3,
    estimators: Mapping[str, object] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Standing]:
    """Scores every estimator on every table.

    Four rows show how to read the others. `RANDOM` is the expected result of random groups. `COPIES` averages networks
    for all tasks that differ only in their seeds, instead of forming groups. "best by validation" chooses among
    networks for all subsets, each trained with one seed. `TRUTH` is the truth's own reliability: half the seeds predict
    the other half.

    Estimates are looked up in the tables, except for your own estimators and those from other packages (in the
    "tagalong.estimators" entry point group). They are measured on tagalong's own problems during the call.

    Args:
        tables: the names of the truth tables. Defaults to all.
        budgets: the numbers of networks to select.
        seeds: the number of seeds to average over.
        estimators: your own estimators by name: an `Estimator`, its class, or a function that takes (problem, seed) and
            returns (gains [source, target], cost).
        progress: a function that is called with a message before each measurement.

    Raises:
        ValueError: If a table is unknown, `seeds` is not positive, or an argument is not a list.
    """
    if not is_positive_integer(seeds):
        raise InvalidInput("seeds", "must be a positive integer", repr(seeds))
    for argument, given in {"tables": tables, "budgets": budgets}.items():
        if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
            raise InvalidInput(argument, "must be a list", repr(given), f"write [{given!r}]")
    for name in tables or ():
        if name not in truth_names():
            hint = did_you_mean(name, truth_names())
            raise InvalidInput("tables", "must be names of truth tables", repr(name), hint)
    found: list[Standing] = []
    plugins = {**plugin_estimators(), **(estimators or {})}
    for name in truth_names() if tables is None else tables:
        table = load_truth(name)
        used, truth = min(seeds, table.seeds), _Truth.of(table)
        for label, by_seed in _all_estimates(table, used, plugins, progress):
            found.append(_score_estimator(label, name, [(estimate, truth) for estimate in by_seed], budgets))
        if table.seeds > 1:
            halves = [halves_of_truth(table, seed) for seed in range(used)]
            judged = [(estimate, _Truth.of(other)) for estimate, other in halves]
            found.append(_score_estimator(TRUTH, name, judged, budgets))
        possible = [budget for budget in budgets if budget <= len(table.tasks)]
        references = {RANDOM: random_changes(table, possible)}
        if table.copies:
            references[COPIES] = copies_changes(table, budgets)
        for label, changes in references.items():
            found.append(Standing(label, name, math.nan, math.nan, changes, 0.0, table.seeds))
    return found


@dataclass(frozen=True, eq=False)
class _Truth:
    """A table with the effects by which estimates are judged."""

    table: TruthTable
    pairs: Array
    joining: Array

    @staticmethod
    def of(table: TruthTable) -> _Truth:
        return _Truth(table, pair_gains(table), marginal_effects(table))


def average(found: Sequence[Standing]) -> list[Standing]:
    """Returns the mean over all tables for each estimator that was scored on all of them."""
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
    table: TruthTable, seeds: int, plugins: Mapping[str, object], progress: Callable[[str], None] | None
) -> Iterator[tuple[str, list[Estimate]]]:
    by_name: dict[str, list[Estimate]] = {}
    for seed in range(seeds):
        for name, estimate in table_estimates(table, seed):
            by_name.setdefault(name, []).append(estimate)
    yield from by_name.items()
    problem = load_table_problem(table) if plugins else None
    for name, estimator in plugins.items() if problem is not None else ():
        if progress is not None:
            progress(f"measuring {name} on {table.about['problem']}")
        assert problem is not None
        try:
            yield name, [measure_estimate(table, problem, estimator, seed) for seed in range(seeds)]
        except Exception as error:  # one broken plug-in must not stop the others
            log.warning("could not measure the estimator %r on %s: %s", name, table.about["problem"], error)


def _score_estimator(
    label: str, name: str, judged: Sequence[tuple[Estimate, _Truth]], budgets: Sequence[int]
) -> Standing:
    pairs = np.mean([correlation(one.gains, truth.pairs) for one, truth in judged])
    joining = [one.gains if one.joining is None else one.joining for one, _ in judged]
    marginal = np.mean([correlation(gains, truth.joining) for gains, (_, truth) in zip(joining, judged, strict=True)])
    possible = [budget for budget in budgets if budget <= len(judged[0][1].table.tasks)]
    changes = {budget: [_true_change(one, truth.table, budget) for one, truth in judged] for budget in possible}
    return Standing(
        label,
        name,
        float(pairs),
        float(marginal),
        {budget: float(np.mean(values)) for budget, values in changes.items()},
        float(np.mean([one.cost for one, _ in judged])),
        len(judged),
    )


def _true_change(estimate: Estimate, table: TruthTable, budget: int) -> float:
    groups = estimate.groups(table.tasks, budget).groups
    return table.change({task: group.trains for group in groups for task in group.serves})
