"""What a search recommends: networks that validation confirms, or one for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..relative_losses import Subset
from ..store import NetworkResult
from .beliefs import Array, Beliefs
from .trial import Trials, half_losses

HALF_AGREED = 20.0  # weight of the prior that halves agree by half, in differences


@dataclass(frozen=True)
class SearchSettings:
    """How the search proposes and decides.

    Attributes:
        optimism: standard deviations by which doubt counts in favour of a proposal.
        rounds: in which the effort is spent, about; trainings of a round can run together.
        together: the share of the effort for networks of all tasks, which everything is compared with.
        reserved: the share of the effort for further seeds of the best networks, at the end, while these are in doubt.
        clear: standard deviations that the expected gain must exceed to be in no doubt.
        caution: standard deviations by which doubt counts against moving a task, in the final choice.
        sure: standard deviations that the expected gain must exceed to be recommended.
        screen: train proposals to this fraction first, and end the worse half there; None: train all to the end.
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
class Chosen:
    """What is recommended for a budget.

    Attributes:
        serves: for each task the tasks of the network that serves it.
        expected: the expected change of the losses against all together, a mean over tasks; 0 for all together.
        doubt: its standard deviation.
        tried: number of sets of tasks trained, without all together.
        agreement: how much of the differences on one half of the validation rows the other half shows.
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
) -> Chosen:
    """The best networks among those that were trained to the end.

    Args:
        beliefs: what is expected of them.
        seen: all trials, with their results.
        tasks: names.
        budget: how many networks there may be.
        settings: how sure to be.
        cautious: recommend all together unless the gain stands out.
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
    together = Chosen(dict.fromkeys(tasks, everything), 0.0, 0.0, len(sets) - 1, agreement)
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
    return Chosen(serves, ratio - 1, ratio * doubt, len(sets) - 1, agreement)


def halves_of(seen: Trials, tasks: Sequence[str]) -> tuple[float, Array]:
    """What two halves of the validation rows say of the luck of these rows.

    Differences against all together with the same seed are taken on either half.

    Returns:
        How much of the differences on all rows is not the luck of these rows, from 0 to 1: the reliability that follows
        from the correlation of halves (Spearman and Brown). And for each task the standard deviation of that luck.
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
    first, second = found[~np.isnan(found).any(-1)].T  # where one half has no labels, nothing can agree
    size = (np.sum(first**2) + np.sum(second**2)) / 2
    if not size > 0:
        return 0.0
    mean = size / len(first)
    half = max(0.0, (np.sum(first * second) + 0.5 * HALF_AGREED * mean) / (size + HALF_AGREED * mean))
    return float(2 * half / (1 + half))


def _row_noise(found: Array) -> Array:
    """Of all rows: half of what the halves differ by; tasks with few differences take after the others."""
    squares = (found[..., 0] - found[..., 1]) ** 2 / 4
    counts = np.sum(~np.isnan(squares), axis=0)
    sums = np.nansum(squares, axis=0)
    usual = sums.sum() / max(1, counts.sum())
    return np.asarray(np.sqrt((sums + 4 * usual) / (counts + 4)))


def cover(values: Array, budget: int) -> tuple[int, ...]:
    """Which rows (networks) to take, so that the sum over columns (tasks) of the lowest value is low.

    Greedy from the first row and from every good start, then one network at a time is replaced by a better one until
    none is. Exact answers are for the final choice; this runs thousands of times.

    Args:
        values: [networks, tasks], infinite where a network lacks a task; the first row must have all.
        budget: how many networks there may be.

    Returns:
        The rows, without those that serve nothing better.

    Example:
        >>> inf = np.inf
        >>> cover(np.array([[0.0, 0.0, 0.0], [-1.0, inf, inf], [inf, -1.0, 1.0], [inf, -2.0, inf]]), 2)
        (0, 3)
    """
    starts = [(0,), *((row,) for row in _promising(values))]
    there = np.isfinite(values)
    values = np.where(there, values, 1000 * (np.abs(values[there]).max() + 1))  # uncovered is worse than any
    found = [_improved(values, _grown(values, start, budget)) for start in starts]
    best = min(found, key=lambda rows: (round(_total(values, rows), 12), len(rows)))
    return _needed(values, best)


def served_by(values: Array, rows: tuple[int, ...]) -> NDArray[np.intp]:
    """For each task the row that serves it; the first of equals."""
    best: NDArray[np.intp] = np.asarray(rows, dtype=np.intp)[np.argmin(values[list(rows)], axis=0)]
    return best


def _promising(values: Array, count: int = 3) -> NDArray[np.intp]:
    gains = np.minimum(values - values[0], 0).sum(1)
    return np.argsort(gains, kind="stable")[:count]


def _total(values: Array, rows: tuple[int, ...]) -> float:
    return float(values[list(rows)].min(0).sum())


def _grown(values: Array, rows: tuple[int, ...], budget: int) -> tuple[int, ...]:
    while len(rows) < budget:
        rows = (*rows, _addition(values, rows))
    return rows


def _addition(values: Array, rows: tuple[int, ...]) -> int:
    """Returns the row that lowers the sum most when it joins the others."""
    held = values[list(rows)].min(0) if rows else np.full(values.shape[1], np.inf)
    return int(np.argmin(np.minimum(values, held).sum(1)))


def _improved(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
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


def _needed(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Without rows that others serve as well as."""
    kept = tuple(dict.fromkeys(sorted(rows)))
    for row in kept[::-1]:
        rest = tuple(other for other in kept if other != row)
        if rest and _total(values, rest) <= _total(values, kept) + 1e-12:
            kept = rest
    return kept
