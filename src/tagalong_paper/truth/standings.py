"""The leaderboard: which estimator best predicts which tasks actually help, and how good are its groups?"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import numpy as np

from tagalong.errors import InvalidInput, did_you_mean, is_positive_integer
from tagalong.study import make_method

from .estimates import (
    Estimate,
    correlation,
    halves_of_truth,
    load_table_problem,
    marginal_effects,
    measure_estimate,
    pair_gains,
    table_estimates,
)
from .truth_table import TruthBackend, TruthTable, load_truth, truth_names

TRUTH = "truth, half the seeds"
RANDOM = "random groups"
COPIES = "copies"
logger = logging.getLogger(__name__)


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


def leaderboard(
    tables: Sequence[str] | None = None,
    *,
    budgets: Sequence[int] = (2, 3, 4),
    seeds: int = 3,
    estimators: Mapping[str, object] | None = None,
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

    Raises:
        ValueError: If a table is unknown or `seeds` is not positive.
    """
    if not is_positive_integer(seeds):
        raise InvalidInput("seeds", "must be a positive integer", repr(seeds))
    for name in tables or ():
        if name not in truth_names():
            hint = did_you_mean(name, truth_names())
            raise InvalidInput("tables", "must be a list of names of truth tables", repr(name), hint)
    standings: list[Standing] = []
    unlisted: dict[str, object] = {point.name: point for point in entry_points(group="tagalong.estimators")}
    unlisted |= estimators or {}
    for name in truth_names() if tables is None else tables:
        table = load_truth(name)
        seed_count = min(seeds, table.seeds)
        possible = [budget for budget in budgets if budget <= len(table.tasks)]
        by_estimator: dict[str, list[tuple[Estimate, TruthTable]]] = {}
        for seed in range(seed_count):
            for label, estimate in table_estimates(table, seed):
                by_estimator.setdefault(label, []).append((estimate, table))
        by_estimator |= _measure_estimators(table, unlisted, seed_count)
        if table.seeds > 1:
            by_estimator[TRUTH] = [halves_of_truth(table, seed) for seed in range(seed_count)]
        standings += [_score(label, name, judged, possible) for label, judged in by_estimator.items()]
        references = {RANDOM: _random_changes(table, possible)}
        if table.copies:
            references[COPIES] = _copies_changes(table, budgets)
        for label, changes in references.items():
            standings.append(Standing(label, name, math.nan, math.nan, changes, 0.0, table.seeds))
    return standings


def _measure_estimators(
    table: TruthTable, estimators: Mapping[str, object], seeds: int
) -> dict[str, list[tuple[Estimate, TruthTable]]]:
    problem = load_table_problem(table) if estimators else None
    if problem is None:
        return {}
    measured = {}
    for name, estimator in estimators.items():
        try:
            if isinstance(estimator, EntryPoint):
                estimator = estimator.load()
            measured[name] = [(measure_estimate(table, problem, estimator, seed), table) for seed in range(seeds)]
        except Exception as error:  # noqa: PERF203 - a broken one must not stop the others
            logger.warning("could not measure the estimator %r on %s: %s", name, table.about["problem"], error)
    return measured


def _score(
    label: str, table_name: str, judged: Sequence[tuple[Estimate, TruthTable]], budgets: Sequence[int]
) -> Standing:
    """Scores an estimator by its estimates for each seed, each with the table that it is judged by."""
    pairs, joining, changes = [], [], []
    for estimate, table in judged:
        logs = table.test.mean(0)
        pairs.append(correlation(estimate.gains, pair_gains(logs)))
        joined = estimate.gains if estimate.joining is None else estimate.joining
        joining.append(correlation(joined, marginal_effects(logs)))
        groupings = [estimate.groups(table.tasks, budget) for budget in budgets]
        served = [{task: group.trains for group in grouping.groups for task in group.serves} for grouping in groupings]
        changes.append([table.change(tasks) for tasks in served])
    return Standing(
        label,
        table_name,
        float(np.mean(pairs)),
        float(np.mean(joining)),
        dict(zip(budgets, np.mean(changes, axis=0).tolist(), strict=True)),
        float(np.mean([estimate.cost for estimate, _ in judged])),
        len(judged),
    )


def _random_changes(table: TruthTable, budgets: Sequence[int]) -> dict[int, float]:
    decision = make_method("random", {"random": {"exact": True}}).decide(TruthBackend(table), budgets, [0])
    changes = {}
    for budget in budgets:
        choice = decision.choices[budget, 0]
        assert choice.shares is not None
        total = 0.0
        for group, share in zip(choice.groups, choice.shares, strict=True):
            total += share * len(group.serves) * table.change(dict.fromkeys(group.serves, group.trains))
        changes[budget] = total / len(table.tasks)
    return changes


def _copies_changes(table: TruthTable, budgets: Sequence[int]) -> dict[int, float]:
    return {budget: float(np.exp(table.copies[budget][-1]).mean() - 1) for budget in budgets if budget in table.copies}


def average(standings: Sequence[Standing]) -> list[Standing]:
    """Returns the mean over all tables for each estimator that was scored on all of them."""
    tables = {standing.table for standing in standings}
    means = []
    for name in dict.fromkeys(standing.estimator for standing in standings):
        mine = [standing for standing in standings if standing.estimator == name]
        if {standing.table for standing in mine} == tables:
            pairs, marginal, cost = np.mean([(one.pairs, one.marginal, one.cost) for one in mine], axis=0).tolist()
            budgets = set.intersection(*(set(standing.changes) for standing in mine))
            changes = {k: float(np.mean([standing.changes[k] for standing in mine])) for k in sorted(budgets)}
            seeds = min(standing.seeds for standing in mine)
            means.append(Standing(name, "all tables", pairs, marginal, changes, cost, seeds))
    return means
