"""The true effects of tasks on each other, and estimates based on truth tables or new measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Grouping, select_groups
from tagalong.learn import MLP, Job, Problem, Recipe, train
from tagalong.measure import Estimator
from tagalong.registry import Registry
from tagalong.study import make_method

from .truth_table import TruthBackend, TruthTable

Array = NDArray[np.float64]


def pair_gains(table: TruthTable) -> Array:
    """Returns how much each source lowers each target's log loss in a network for both, with NaN on the diagonal."""
    return pair_gains_of(table.test.mean(0))


def pair_gains_of(logs: Array) -> Array:
    """Returns the same as `pair_gains`, given log losses [subsets, tasks]."""
    n = logs.shape[1]
    gains = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                alone, pair = (1 << target) - 1, (1 << source | 1 << target) - 1
                gains[source, target] = logs[alone, target] - logs[pair, target]
    return gains


def marginal_effects(table: TruthTable) -> Array:
    """Returns how much each source lowers each target's log loss, averaged over all sets that it can join."""
    return marginal_effects_of(table.test.mean(0))


def marginal_effects_of(logs: Array) -> Array:
    """Returns the same as `marginal_effects`, given log losses [subsets, tasks]."""
    membership, n = ~np.isnan(logs), logs.shape[1]
    effects = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                without = membership[:, target] & ~membership[:, source]
                joined = np.flatnonzero(without) + (1 << source)
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
    mine, theirs = (_center_targets(np.where(off, effects, np.nan))[off] for effects in (estimate, truth))
    size = np.sqrt(np.sum(mine**2) * np.sum(theirs**2))
    return float(np.sum(mine * theirs) / size) if size > 0 else float("nan")


def _center_targets(effects: Array) -> Array:
    """Subtracts the mean of each target, excluding the diagonal."""
    n = len(effects)
    means = np.where(np.eye(n, dtype=bool), 0, effects).sum(0) / (n - 1)
    return np.asarray(effects - means)


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimator's result for the tasks of a table and one seed.

    Attributes:
        gains: how much each source helps each target [source, target].
        cost: the additional cost, relative to training one network for all tasks.
        losses: the estimated losses of each network. If not None, these losses determine the groups.
        joining: how much each source helps each target on average over all sets [source, target], or None if not
            estimated.
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
            yield name, _estimate_from_subsets(table, logs[seed], table.costs[name])
    for place, fraction in enumerate(table.fractions):
        logs = table.early[seed, place]
        yield f"pairs, 1/{round(1 / fraction)} trained", estimate_from_pairs(table, logs, fraction)
    logs = table.val[seed].mean(0)
    yield "pairs (HOA)", estimate_from_pairs(table, logs, 1.0)
    yield "best by validation", _estimate_from_subsets(table, logs, float(len(logs)))


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
    return _estimate_from_subsets(table, logs, float(half * len(logs))), replace(table, test=table.test[order[half:]])


def random_changes(table: TruthTable, budgets: Sequence[int]) -> dict[int, float]:
    """Returns the expected true change with random groups, by budget. All partitions are equally likely."""
    random = make_method("random", {"random": {"exact": True}})
    decision = random.decide(TruthBackend(table), budgets, [0])
    changes = {}
    for budget in budgets:
        choice = decision.choices[budget, 0]
        assert choice.shares is not None
        total = sum(
            share * len(group.serves) * table.change(dict.fromkeys(group.serves, group.trains))
            for group, share in zip(choice.groups, choice.shares, strict=True)
        )
        changes[budget] = total / len(table.tasks)
    return changes


def copies_changes(table: TruthTable, budgets: Sequence[int]) -> dict[int, float]:
    """Returns the true change with averaged networks for all tasks, by budget, without the budgets not in the table."""
    return {budget: float(np.exp(table.copies[budget][-1]).mean() - 1) for budget in budgets if budget in table.copies}


def _estimate_from_subsets(table: TruthTable, logs: Array, cost: float) -> Estimate:
    losses = {
        frozenset(task for task, member in zip(table.tasks, members, strict=True) if member): {
            task: float(np.exp(log)) for task, log, member in zip(table.tasks, row, members, strict=True) if member
        }
        for members, row in zip(table.subsets, logs - logs[-1], strict=True)
    }
    return Estimate(pair_gains_of(logs), cost, losses, marginal_effects_of(logs))


def estimate_from_pairs(table: TruthTable, logs: Array, fraction: float) -> Estimate:
    """Returns the estimate based on networks for one and two tasks, as in HOA.

    Args:
        table: the truth table.
        logs: the log losses [subsets, tasks].
        fraction: the fraction of a full training run that each network was trained for.
    """
    n = len(table.tasks)
    gains = np.full((n, n), np.nan)
    losses: dict[frozenset[str], dict[str, float]] = {}
    for target, name in enumerate(table.tasks):
        alone = logs[(1 << target) - 1, target]
        losses[frozenset([name])] = {name: 1.0}
        for source, other in enumerate(table.tasks):
            if source != target:
                pair = logs[(1 << source | 1 << target) - 1, target]
                gains[source, target] = alone - pair
                losses.setdefault(frozenset([name, other]), {})[name] = float(np.exp(pair - alone))
    return Estimate(gains, fraction * n * (n + 1) / 2, losses)


def plugin_estimators() -> dict[str, object]:
    """Returns the estimators from other packages by entry point name (in the "tagalong.estimators" group)."""
    declared: Registry[object] = Registry("estimator", lambda name, value: value, {})
    return declared.load()


def load_table_problem(table: TruthTable) -> Problem | None:
    """Loads the problem of a table. Returns None if the data are not available."""
    load = table.about.get("load")
    if load is None:
        return None
    from tagalong.problems import load_problem

    try:
        problem = load_problem(load["name"], **load["options"])
    except ImportError:
        return None
    # The network and recipe of the table, whatever the problem's defaults are.
    if "hidden" in load:
        inputs, _ = problem.train.batch(torch.tensor([0]))
        problem = replace(problem, encoder=MLP(inputs.shape[1], load["hidden"]), head=None)
    if "recipe" in table.about:
        problem = replace(problem, recipe=Recipe(**table.about["recipe"]))
    return problem if problem.fingerprint == table.about["fingerprint"] else None


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
    if not isinstance(estimator, Estimator):
        gains, cost = estimator(problem, seed)
        gains, n = np.asarray(gains, dtype=np.float64), len(table.tasks)
        if gains.shape != (n, n):
            raise InvalidInput("gains", f"must have the shape ({n}, {n}), source by target", f"{gains.shape}")
        return Estimate(gains, float(cost))
    settings = {"estimator": estimator, "held_out": True, "every": every}
    trained = train(problem, Job(problem.names, seed), meter=settings)
    affinity = trained.affinity
    assert affinity is not None
    passes = 3 * len(problem.names) + 1
    return Estimate(affinity.mean, passes / 3 * len(affinity.steps) / trained.steps)
