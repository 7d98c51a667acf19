"""What a search recommends: networks that validation confirms, or one network for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..relative_losses import Subset
from ..store import NetworkResult
from .beliefs import Array, Beliefs
from .trial import Trials, half_losses

HALF_AGREED = 20.0  # weight of the prior that the halves correlate by 0.5, in number of differences


@dataclass(frozen=True)
class SearchSettings:
    """How the search proposes and decides.

    Attributes:
        optimism: number of standard deviations that a proposal is credited with.
        rounds: approximate number of rounds; the trainings of a round can run in parallel.
        together: the share of the effort for networks of all tasks, which everything is compared with.
        reserved: the share of the effort for further seeds of the best networks at the end, while they are in doubt.
        clear: number of standard deviations that the expected gain must exceed to be beyond doubt.
        caution: number of standard deviations that are counted against moving a task, in the final choice.
        sure: number of standard deviations that the expected gain must exceed to be recommended.
        screen: train proposals for this fraction first, and only the better half to the end; None trains all fully.
    """

    optimism: float = 1.0
    rounds: int = 12
    together: float = 0.15
    reserved: float = 0.25
    clear: float = 3.0
    caution: float = 0.25
    sure: float = 1.5
    screen: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """The recommended networks for a budget.

    Attributes:
        serves: for each task, the tasks of the network that serves it.
        expected: the expected relative change of the losses against one network for all tasks, a mean over tasks; 0 if
            that network is recommended.
        doubt: its standard deviation.
        tried: number of sets of tasks that were trained, besides the set of all.
        agreement: the share of the differences on all validation rows that is not noise of these rows; see
            `halves_of`.
    """

    serves: dict[str, Subset]
    expected: float
    doubt: float
    tried: int
    agreement: float

    @property
    def networks(self) -> tuple[Subset, ...]:
        """The tasks of each network."""
        return tuple(dict.fromkeys(self.serves.values()))


def choose(
    beliefs: Beliefs,
    seen: Trials,
    tasks: Sequence[str],
    budget: int,
    settings: SearchSettings,
    *,
    cautious: bool = True,
) -> Recommendation:
    """Chooses the best networks among those that were trained fully.

    Args:
        beliefs: predictions of their losses.
        seen: all trials, with their results.
        tasks: names of all tasks.
        budget: the largest number of networks.
        settings: how certain a gain must be.
        cautious: whether to recommend one network for all tasks unless the gain is certain.
    """
    everything = frozenset(tasks)
    whole = dict.fromkeys(trial.tasks for trial in seen if trial.fraction == 1)
    sets = [everything, *(subset for subset in whole if subset != everything)]
    pool = np.array([[task in subset for task in tasks] for subset in sets])
    means, deviations = beliefs.expect(pool)
    agreement, row_noise = halves_of(seen, tasks)
    means = agreement * means
    deviations = np.sqrt((agreement * deviations) ** 2 + row_noise**2)
    deviations[0] = 0.0
    together = Recommendation(dict.fromkeys(tasks, everything), 0.0, 0.0, len(sets) - 1, agreement)
    values = np.where(pool, means + (settings.caution if cautious else 0.0) * deviations, np.inf)
    values[0] = 0.0
    rows = served_by(values, cover(values, budget))
    columns = np.arange(len(tasks))
    expected = float(means[rows, columns].mean())
    doubt = float(np.sqrt((deviations[rows, columns] ** 2).sum()) / len(tasks))
    if len(sets) == 1 or (cautious and not expected < -settings.sure * doubt):
        return together
    serves = {task: sets[row] for task, row in zip(tasks, rows, strict=True)}
    ratio = float(np.exp(expected))
    return Recommendation(serves, ratio - 1, ratio * doubt, len(sets) - 1, agreement)


def halves_of(seen: Trials, tasks: Sequence[str]) -> tuple[float, Array]:
    """Estimates the noise of the validation rows from its two halves.

    On each half, networks are compared with that for all tasks with the same seed.

    Returns:
        The share, from 0 to 1, of the differences on all rows that is not noise of these rows: the reliability that
        follows from the correlation of the halves (Spearman and Brown). And for each task the standard deviation of
        that noise.
    """
    everything = frozenset(tasks)
    whole = {trial: result for trial, result in seen.items() if trial.fraction == 1}
    base = {trial.seed: result for trial, result in whole.items() if trial.tasks == everything}
    by_set: dict[Subset, list[NetworkResult]] = {}
    for trial, result in whole.items():
        if trial.tasks != everything and trial.seed in base:
            by_set.setdefault(trial.tasks, []).append(result)
    found = np.full((len(by_set), len(tasks), 2), np.nan)
    for row, (subset, some) in enumerate(by_set.items()):
        for column, task in enumerate(tasks):
            if task in subset:
                pairs = [(half_losses(one, task), half_losses(base[one.job.seed], task)) for one in some]
                found[row, column] = np.mean([np.log(np.divide(mine, theirs)) for mine, theirs in pairs], axis=0)
    return _agreement(found), _row_noise(found)


def _agreement(found: Array) -> float:
    first, second = found[~np.isnan(found).any(-1)].T  # a half may have no labels
    size = (np.sum(first**2) + np.sum(second**2)) / 2
    if not size > 0:
        return 0.0
    mean = size / len(first)
    half = max(0.0, (np.sum(first * second) + 0.5 * HALF_AGREED * mean) / (size + HALF_AGREED * mean))
    return float(2 * half / (1 + half))


def _row_noise(found: Array) -> Array:
    """Estimates the noise of all rows as half the difference of the halves, shrunk towards that of the other tasks."""
    squares = (found[..., 0] - found[..., 1]) ** 2 / 4
    counts = np.sum(~np.isnan(squares), axis=0)
    sums = np.nansum(squares, axis=0)
    usual = sums.sum() / max(1, counts.sum())
    return np.asarray(np.sqrt((sums + 4 * usual) / (counts + 4)))


def cover(values: Array, budget: int) -> tuple[int, ...]:
    """Selects rows (networks) such that the sum over columns (tasks) of the lowest value is low.

    Rows are added greedily, from the first row and from every promising one, and then replaced one at a time while that
    lowers the sum. This heuristic is fast, since the search calls it thousands of times.

    Args:
        values: [networks, tasks], infinite if a network does not train a task; the first row must be finite.
        budget: the largest number of networks.

    Returns:
        The rows, without redundant ones.

    Example:
        >>> inf = np.inf
        >>> cover(np.array([[0.0, 0.0, 0.0], [-1.0, inf, inf], [inf, -1.0, 1.0], [inf, -2.0, inf]]), 2)
        (0, 3)
    """
    starts = [(0,), *((row,) for row in _promising_rows(values))]
    there = np.isfinite(values)
    values = np.where(there, values, 1000 * (np.abs(values[there]).max() + 1))  # worse than any finite value
    found = [_improve(values, _extend(values, start, budget)) for start in starts]
    best = min(found, key=lambda rows: (round(_total(values, rows), 12), len(rows)))
    return _drop_redundant(values, best)


def served_by(values: Array, rows: tuple[int, ...]) -> NDArray[np.intp]:
    """Returns for each task the row that serves it; the first of equal ones."""
    best: NDArray[np.intp] = np.asarray(rows, dtype=np.intp)[np.argmin(values[list(rows)], axis=0)]
    return best


def _promising_rows(values: Array, count: int = 3) -> NDArray[np.intp]:
    gains = np.minimum(values - values[0], 0).sum(1)
    return np.argsort(gains, kind="stable")[:count]


def _total(values: Array, rows: tuple[int, ...]) -> float:
    return float(values[list(rows)].min(0).sum())


def _extend(values: Array, rows: tuple[int, ...], budget: int) -> tuple[int, ...]:
    while len(rows) < budget:
        rows = (*rows, _addition(values, rows))
    return rows


def _addition(values: Array, rows: tuple[int, ...]) -> int:
    """Returns the row that lowers the sum most when it is added."""
    held = values[list(rows)].min(0) if rows else np.full(values.shape[1], np.inf)
    return int(np.argmin(np.minimum(values, held).sum(1)))


def _improve(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    total = _total(values, rows)
    while True:
        for place in range(len(rows)):
            others = rows[:place] + rows[place + 1 :]
            changed = (*others, _addition(values, others))
            if (lower := _total(values, changed)) < total - 1e-12:
                rows, total = changed, lower
                break
        else:
            return rows


def _drop_redundant(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Drops rows whose tasks the other rows serve as well."""
    kept = tuple(dict.fromkeys(sorted(rows)))
    for row in kept[::-1]:
        rest = tuple(other for other in kept if other != row)
        if rest and _total(values, rest) <= _total(values, kept) + 1e-12:
            kept = rest
    return kept
