"""The true effects of tasks on each other, and estimates of them from truth tables or from new measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Grouping, select_groups
from tagalong.learn import MLP, Job, Problem, Recipe, train
from tagalong.measure import Estimator
from tagalong.problems import load_problem

from .truth_table import TruthTable

Array = NDArray[np.float64]


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


def measure_estimate(table: TruthTable, problem: Problem, estimator: Any, seed: int, every: int = 4) -> Estimate:
    """Runs an estimator on the problem of a table.

    Args:
        table: the table.
        problem: the problem of the table.
        estimator: an `Estimator`, a subclass of it, or a function that takes (problem, seed) and returns (gains
            [source, target], cost).
        seed: the seed of the network.
        every: the number of steps between measurements.

    Raises:
        ValueError: If the gains have the wrong shape.
    """
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        estimator = estimator()
    if isinstance(estimator, Estimator):
        trained = train(
            problem,
            Job(problem.names, seed),
            meter={"estimator": estimator, "held_out": True, "every": every},
        )
        affinity = trained.affinity
        assert affinity is not None
        passes = 3 * len(problem.names) + 1
        return Estimate(affinity.mean, passes / 3 * len(affinity.steps) / trained.steps)
    gains, cost = estimator(problem, seed)
    n = len(table.tasks)
    if np.shape(gains) != (n, n):
        raise InvalidInput("gains", f"must have the shape ({n}, {n}), source by target", f"{np.shape(gains)}")
    return Estimate(np.asarray(gains, dtype=np.float64), float(cost))
