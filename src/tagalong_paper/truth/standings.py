"""The leaderboard: which estimator best predicts which tasks actually help, and how good are its groups?"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from itertools import permutations
from typing import Any

import numpy as np
import torch

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, did_you_mean, is_positive_integer
from tagalong.group import Grouping, select_groups
from tagalong.learn import MLP, Job, Problem, Recipe, train
from tagalong.measure import Estimator
from tagalong.problems import load_problem
from tagalong.study import make_method

from .truth_table import Array, TruthRunner, TruthTable, load_truth, truth_names

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

    Four rows show how to read the others. "random groups" is their expected result. "copies" averages networks for all
    tasks that differ only in their seeds, instead of forming groups. "best by validation" chooses among networks for
    all subsets, each trained with one seed. "truth, half the seeds" predicts the other half, which is how reliable the
    truth itself is.

    Estimates are looked up in the tables, except for your own estimators and those from other packages (in the
    "tagalong.estimators" entry point group). They are measured on tagalong's own problems during the call.

    Args:
        tables: the names of the truth tables. Defaults to all.
        budgets: the numbers of networks to select.
        seeds: the number of seeds to average over.
        estimators: your own estimators by name: an `Estimator`, its class, or a function that takes (problem, seed) and
            returns (gains [source, target], cost).

    Raises:
        ValueError: If a table is unknown, a budget exceeds the number of tasks, or `seeds` is not positive.
    """
    if not is_positive_integer(seeds):
        raise InvalidInput("seeds", "must be a positive integer", repr(seeds))
    for name in tables or ():
        if name not in truth_names():
            hint = did_you_mean(name, truth_names())
            raise InvalidInput("tables", "must be a list of names of truth tables", repr(name), hint)
    loaded = {name: load_truth(name) for name in (truth_names() if tables is None else tables)}
    most = max((len(table.tasks) for table in loaded.values()), default=0)
    for budget in budgets:
        if not 1 <= budget <= most:
            raise InvalidInput("budgets", f"must be between 1 and the number of tasks ({most})", repr(budget))
    standings: list[Standing] = []
    own_estimators: dict[str, object] = {point.name: point for point in entry_points(group="tagalong.estimators")}
    own_estimators |= estimators or {}
    for name, table in loaded.items():
        seed_count = min(seeds, table.seeds)
        possible = [budget for budget in budgets if budget <= len(table.tasks)]
        by_estimator: dict[str, list[tuple[Estimate, TruthTable]]] = {}
        for seed in range(seed_count):
            for label, estimate in table_estimates(table, seed):
                by_estimator.setdefault(label, []).append((estimate, table))
        by_estimator |= _measure_estimators(table, own_estimators, seed_count)
        if table.seeds > 1:
            by_estimator["truth, half the seeds"] = [halves_of_truth(table, seed) for seed in range(seed_count)]
        standings += [_score(label, name, judged, possible) for label, judged in by_estimator.items()]
        references = {"random groups": _random_changes(table, possible)}
        if table.copies:
            references["copies"] = {
                k: float(np.exp(table.copies[k][-1]).mean() - 1) for k in budgets if k in table.copies
            }
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
    decision = make_method("random", {"random": {"exact": True}}).decide(TruthRunner(table), budgets, [0])
    changes = {}
    for budget in budgets:
        choice = decision.choices[budget, 0]
        assert choice.shares is not None
        total = 0.0
        for group, share in zip(choice.groups, choice.shares, strict=True):
            total += share * len(group.serves) * table.change(dict.fromkeys(group.serves, group.trains))
        changes[budget] = total / len(table.tasks)
    return changes


def average(standings: Sequence[Standing]) -> list[Standing]:
    """Returns the mean over all tables for each estimator that was scored on all of them."""
    tables = {standing.table for standing in standings}
    means = []
    for name in dict.fromkeys(standing.estimator for standing in standings):
        rows = [standing for standing in standings if standing.estimator == name]
        if {row.table for row in rows} == tables:
            pairs, marginal, cost = np.mean([(row.pairs, row.marginal, row.cost) for row in rows], axis=0).tolist()
            budgets = set.intersection(*(set(row.changes) for row in rows))
            changes = {k: float(np.mean([row.changes[k] for row in rows])) for k in sorted(budgets)}
            seeds = min(row.seeds for row in rows)
            means.append(Standing(name, "all tables", pairs, marginal, changes, cost, seeds))
    return means


def pair_gains(logs: Array) -> Array:
    """Returns how much each source lowers each target's log loss in a network for both, with NaN on the diagonal.

    Args:
        logs: the log losses of every subset [subsets, tasks].
    """
    bits, targets = 1 << np.arange(logs.shape[1]), np.arange(logs.shape[1])
    alone = logs[bits - 1, targets]
    together = logs[(bits[:, None] | bits) - 1, targets]  # [source, target]
    gains = alone - together
    np.fill_diagonal(gains, np.nan)
    return np.asarray(gains)


def marginal_effects(logs: Array) -> Array:
    """Returns how much each source lowers each target's log loss, averaged over all sets that it can join.

    Args:
        logs: the log losses of every subset [subsets, tasks].
    """
    members, n = ~np.isnan(logs), logs.shape[1]
    effects = np.full((n, n), np.nan)
    for source, target in permutations(range(n), 2):
        without = np.flatnonzero(members[:, target] & ~members[:, source])
        joined = without + (1 << source)
        effects[source, target] = np.mean(logs[without, target] - logs[joined, target])
    return effects


def correlation(estimate: Array, truth: Array) -> float:
    """Returns Pearson's correlation after centering each target.

    Centering is appropriate because adding a constant to a target does not change the grouping.

    Example:
        >>> round(correlation(np.array([[np.nan, 2, 0], [1, np.nan, 5], [0, 1, np.nan]]), np.eye(3) * np.nan), 2)
        nan
    """
    off = ~np.eye(len(truth), dtype=bool)
    centered = []
    for effects in (estimate, truth):
        means = np.where(off, effects, 0).sum(0) / (len(effects) - 1)
        centered.append((effects - means)[off])
    size = np.sqrt(np.sum(centered[0] ** 2) * np.sum(centered[1] ** 2))
    return float(centered[0] @ centered[1] / size) if size > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimator's result for the tasks of a table and one seed.

    Attributes:
        gains: how much each source helps each target [source, target].
        cost: the additional cost, relative to training one network for all tasks.
        losses: the estimated losses of each network. If not None, these losses determine the groups.
        joining: how much each source helps each target on average over all sets [source, target], or None if that
            is estimated by the gains.
    """

    gains: Array
    cost: float
    losses: dict[frozenset[str], dict[str, float]] | None = None
    joining: Array | None = None

    def groups(self, tasks: tuple[str, ...], budget: int) -> Grouping:
        """Returns the best groups according to the estimate."""
        if self.losses is not None:
            return select_groups(self.losses, budget, complete="pairs", objective="min")
        gains = np.where(np.eye(len(tasks), dtype=bool), 0.0, self.gains)
        return select_groups(Affinity.from_matrix(gains, tasks), budget)


def table_estimates(table: TruthTable, seed: int) -> Iterator[tuple[str, Estimate]]:
    """Yields the name of each estimator with its estimate for one seed."""
    for name, gains in table.affinities.items():
        if seed < len(gains):
            yield name, Estimate(gains[seed], table.costs[name])
    for name, logs in table.predictions.items():
        if seed < len(logs):
            yield name, estimate_from_networks(table, logs[seed], table.costs[name])
    pairs = len(table.tasks) * (len(table.tasks) + 1) / 2
    for logs, fraction in zip(table.early[seed], table.fractions, strict=True):
        yield (
            f"pairs, 1/{round(1 / fraction)} trained",
            estimate_from_networks(table, logs, fraction * pairs, only_pairs=True),
        )
    logs = table.val[seed].mean(0)
    yield "pairs (HOA)", estimate_from_networks(table, logs, pairs, only_pairs=True)
    yield "best by validation", estimate_from_networks(table, logs, float(len(logs)))


def halves_of_truth(table: TruthTable, seed: int) -> tuple[Estimate, TruthTable]:
    """Returns an estimate from the test losses of half the seeds, and a table with the other half to judge it by.

    How well one half predicts the other shows how much of the truth is noise.

    Args:
        table: the table.
        seed: the first seed of the first half. The seeds that follow it complete the half.
    """
    order = np.roll(np.arange(table.seeds), -seed)
    half = table.seeds // 2
    logs = table.test[order[:half]].mean(0)
    return estimate_from_networks(table, logs, float(half * len(logs))), replace(table, test=table.test[order[half:]])


def estimate_from_networks(table: TruthTable, logs: Array, cost: float, *, only_pairs: bool = False) -> Estimate:
    """Returns the estimate based on trained networks.

    Args:
        table: the truth table.
        logs: the log losses [subsets, tasks].
        cost: the cost of the estimate, relative to training one network for all tasks.
        only_pairs: whether to use only networks for one and two tasks, as in HOA.
    """
    gains = pair_gains(logs)
    singles = 1 << np.arange(len(table.tasks))
    reference = logs[singles - 1, np.arange(len(table.tasks))] if only_pairs else logs[-1]
    losses = {}
    for members, relative in zip(table.subsets, np.exp(logs - reference), strict=True):
        if members.sum() <= 2 or not only_pairs:
            tasks = [task for task, member in zip(table.tasks, members, strict=True) if member]
            losses[frozenset(tasks)] = dict(zip(tasks, relative[members].tolist(), strict=True))
    return Estimate(gains, cost, losses, gains if only_pairs else marginal_effects(logs))


def load_table_problem(table: TruthTable) -> Problem | None:
    """Loads the problem of a table. Returns None if the data are not available."""
    about = table.about
    if about.get("load") is None:
        return None
    try:
        problem = load_problem(about["load"]["name"], **about["load"]["options"])
    except ImportError:
        return None
    # The network and recipe of the table, whatever the problem's defaults are.
    if "hidden" in about["load"]:
        inputs, _ = problem.train.batch(torch.tensor([0]))
        problem = replace(problem, encoder=MLP(inputs.shape[1], about["load"]["hidden"]), head=None)
    if "recipe" in about:
        problem = replace(problem, recipe=Recipe(**about["recipe"]))
    return problem if problem.fingerprint == about["fingerprint"] else None


def measure_estimate(table: TruthTable, problem: Problem, estimator: Any, seed: int) -> Estimate:
    """Runs an estimator on the problem of a table.

    Args:
        table: the table.
        problem: the problem of the table.
        estimator: an `Estimator`, a subclass of it, or a function that takes (problem, seed) and returns (gains
            [source, target], cost).
        seed: the seed of the network.

    Raises:
        ValueError: If the gains have the wrong shape.
    """
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        estimator = estimator()
    if isinstance(estimator, Estimator):
        trained = train(
            problem,
            Job(problem.names, seed),
            meter={"estimator": estimator, "held_out": True, "every": 4},
        )
        affinity = trained.affinity
        assert affinity is not None
        # A backward pass costs two forward passes, so a training step costs three. A measured step costs one forward
        # pass for all tasks, and for each task a backward pass and a lookahead.
        passes = 1 + 3 * len(problem.names)
        return Estimate(affinity.mean, passes / 3 * len(affinity.steps) / trained.steps)
    gains, cost = estimator(problem, seed)
    n = len(table.tasks)
    if np.shape(gains) != (n, n):
        raise InvalidInput("gains", f"must have the shape ({n}, {n}), source by target", f"{np.shape(gains)}")
    return Estimate(np.asarray(gains, dtype=np.float64), float(cost))
