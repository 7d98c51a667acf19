"""Who predicts what helps: estimates in the tables, early-stopped pairs, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups
from tagalong.plugins import load_plugins

from ._effects import marginal_effects_of, pair_gains_of
from ._table import TruthTable

Array = NDArray[np.float64]


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
        yield f"pairs, 1/{round(1 / fraction)} trained", _of_pairs(table, logs, fraction)
    yield "pairs (HOA)", _of_pairs(table, table.val[seed].mean(0), 1.0)


def _of_subsets(table: TruthTable, logs: Array, cost: float) -> Estimate:
    losses = {
        frozenset(task for task, there in zip(table.tasks, inside, strict=True) if there): {
            task: float(np.exp(log)) for task, log, there in zip(table.tasks, row, inside, strict=True) if there
        }
        for inside, row in zip(table.subsets, logs - logs[-1], strict=True)
    }
    return Estimate(pair_gains_of(logs), cost, losses, marginal_effects_of(logs))


def _of_pairs(table: TruthTable, logs: Array, fraction: float) -> Estimate:
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
