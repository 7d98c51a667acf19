"""What helped truly, and who predicts it: estimates in the tables, measured now, or from other packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups
from tagalong.learn import Job, Problem, train
from tagalong.measure import Estimator
from tagalong.plugins import load_plugins

from .truth_table import TruthTable

Array = NDArray[np.float64]


def pair_gains(table: TruthTable) -> Array:
    """[source, target]: by how much a partner lowers the log loss of a task that was alone; NaN on the diagonal."""
    return pair_gains_of(table.test.mean(0))


def pair_gains_of(logs: Array) -> Array:
    """The same of log losses [subsets, tasks]."""
    n = logs.shape[1]
    gains = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                alone, pair = (1 << target) - 1, (1 << source | 1 << target) - 1
                gains[source, target] = logs[alone, target] - logs[pair, target]
    return gains


def marginal_effects(table: TruthTable) -> Array:
    """[source, target]: by how much a task lowers another's log loss, averaged over all sets it may join."""
    return marginal_effects_of(table.test.mean(0))


def marginal_effects_of(logs: Array) -> Array:
    """The same of log losses [subsets, tasks]."""
    inside, n = ~np.isnan(logs), logs.shape[1]
    effects = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                without = inside[:, target] & ~inside[:, source]
                joined = np.flatnonzero(without) + (1 << source)
                effects[source, target] = np.mean(logs[without, target] - logs[joined, target])
    return effects


def correlation(estimate: Array, truth: Array) -> float:
    """Pearson's, of what stands out onto each target: a constant per target changes no grouping.

    Example:
        >>> round(correlation(np.array([[np.nan, 2, 0], [1, np.nan, 5], [0, 1, np.nan]]), np.eye(3) * np.nan), 2)
        nan
    """
    off = ~np.eye(len(truth), dtype=bool)
    mine, theirs = (_around_targets(np.where(off, some, np.nan))[off] for some in (estimate, truth))
    size = np.sqrt(np.sum(mine**2) * np.sum(theirs**2))
    return float(np.sum(mine * theirs) / size) if size > 0 else float("nan")


def _around_targets(effects: Array) -> Array:
    """Effects less their mean onto each target; the diagonal is left out."""
    n = len(effects)
    means = np.where(np.eye(n, dtype=bool), 0, effects).sum(0) / (n - 1)
    return np.asarray(effects - means)


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an estimator says of a table's tasks, from one seed.

    Attributes:
        gains: [source, target], higher for who helps more.
        cost: in trainings of the network of all tasks, without that training itself.
        losses: of whole networks, where it has them: groups are then chosen by these.
        joining: [source, target], by how much a task helps on average over all sets, where it knows these.
    """

    gains: Array
    cost: float
    losses: dict[frozenset[str], dict[str, float]] | None = None
    joining: Array | None = None

    def groups(self, tasks: tuple[str, ...], budget: int) -> Grouping:
        """The groups that it would choose."""
        if self.losses is not None:
            return select_groups(self.losses, budget, complete="pairs", objective="min")
        gains = np.where(np.eye(len(tasks), dtype=bool), 0.0, self.gains)
        return select_groups(Affinity.from_matrix(gains, tasks), budget)


def estimates(table: TruthTable, seed: int) -> Iterator[tuple[str, Estimate]]:
    """Every estimator's name and what it says, from the networks of one seed."""
    for name, gains in table.affinities.items():
        if seed < len(gains):
            yield name, Estimate(gains[seed], table.costs[name])
    for name, logs in table.predictions.items():
        if seed < len(logs):
            yield name, _of_subsets(table, logs[seed], table.costs[name])
    for place, fraction in enumerate(table.fractions):
        logs = table.early[seed, place]
        yield f"pairs, 1/{round(1 / fraction)} trained", estimate_from_pairs(table, logs, fraction)
    yield "pairs (HOA)", estimate_from_pairs(table, table.val[seed].mean(0), 1.0)


def _of_subsets(table: TruthTable, logs: Array, cost: float) -> Estimate:
    losses = {
        frozenset(task for task, there in zip(table.tasks, inside, strict=True) if there): {
            task: float(np.exp(log)) for task, log, there in zip(table.tasks, row, inside, strict=True) if there
        }
        for inside, row in zip(table.subsets, logs - logs[-1], strict=True)
    }
    return Estimate(pair_gains_of(logs), cost, losses, marginal_effects_of(logs))


def estimate_from_pairs(table: TruthTable, logs: Array, fraction: float) -> Estimate:
    """What the networks of one and of two tasks say, as HOA does.

    Args:
        table: whose tasks.
        logs: log losses [subsets, tasks].
        fraction: of a training, that each of these networks took.
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


def offered() -> dict[str, object]:
    """Estimators of other packages, by the name of their entry point in the group "tagalong.estimators"."""
    return load_plugins("estimators")


def problem_of(table: TruthTable) -> Problem | None:
    """The problem that a table is of, where it comes with the package; None where its data are elsewhere."""
    load = table.about.get("load")
    if load is None:
        return None
    from tagalong.problems import load_problem

    try:
        problem = load_problem(load["name"], **load["options"])
    except ImportError:
        return None
    return problem if problem.fingerprint == table.about["fingerprint"] else None


def measured(table: TruthTable, problem: Problem, estimator: Any, seed: int, every: int = 4) -> Estimate:
    """What an estimator says of a table's tasks.

    Args:
        table: of this problem.
        problem: what is trained.
        estimator: an `Estimator` for the meter, a class of these, or a function from (problem, seed) to (gains
            [source, target], cost).
        seed: of the network.
        every: steps between two measurements.

    Raises:
        ValueError: the gains are not of this table's tasks.
    """
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        estimator = estimator()
    if not isinstance(estimator, Estimator):
        gains, cost = estimator(problem, seed)
        gains, n = np.asarray(gains, dtype=np.float64), len(table.tasks)
        if gains.shape != (n, n):
            raise ValueError(f"`gains` must be [source, target] of {n} tasks, found the shape {gains.shape}")
        return Estimate(gains, float(cost))
    settings = {"estimator": estimator, "held_out": True, "every": every}
    trained = train(problem, Job(problem.names, seed), meter=settings)
    affinity = trained.affinity
    assert affinity is not None
    passes = 3 * len(problem.names) + 1
    return Estimate(affinity.mean, passes / 3 * len(affinity.steps) / trained.steps)
