"""The recommendation of a search: either networks confirmed on validation or one network for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tagalong.learn import Trained

from ..relative_losses import Subset
from .beliefs import Array, Beliefs
from .trial import Trials, half_losses

PRIOR_WEIGHT = 20.0  # number of differences that the prior counts for: the halves have a correlation of 0.5


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search.

    Attributes:
        optimism: the number of standard deviations subtracted from the predicted losses of untrained networks.
        rounds: the approximate number of rounds, whose networks are trained together. If None, it depends on what a
            round costs (see `plan_rounds`).
        together: the fraction of the effort spent on networks for all tasks, the baseline of every comparison.
        reserved: the fraction of the effort reserved for training the best networks with more seeds if the gain is
            uncertain.
        clear: the number of standard deviations by which the gain must exceed zero for its confirmation to stop.
        caution: the number of standard deviations added to predicted losses in the final choice.
        sure: the number of standard deviations by which the gain must exceed zero for grouping to be recommended.
        screen: the fraction of a training run after which the worse half of the proposals is dropped, or None to train
            all of them fully.
    """

    optimism: float = 1.0
    rounds: int | None = None
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
        expected: the expected relative change in loss from one network for all tasks, averaged over tasks, or 0 if that
            network is recommended.
        doubt: the standard deviation of `expected`.
        tried: the number of sets of tasks that were trained, excluding the set of all tasks.
        agreement: the fraction of the differences between networks on the validation rows that is not due to noise (see
            `compare_halves`).
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


def recommend(
    beliefs: Beliefs,
    trials: Trials,
    tasks: Sequence[str],
    budget: int,
    settings: SearchSettings,
    *,
    cautious: bool = True,
) -> Recommendation:
    """Chooses the best of the fully trained networks.

    Args:
        beliefs: the predicted losses.
        trials: all trials and their results.
        tasks: the names of all tasks.
        budget: the maximum number of networks.
        settings: the settings of the search, which determine how certain a gain must be.
        cautious: whether to recommend one network for all tasks unless the gain is certain.
    """
    everything = frozenset(tasks)
    whole = dict.fromkeys(trial.tasks for trial in trials if trial.fraction == 1)
    sets = [everything, *(subset for subset in whole if subset != everything)]
    pool = np.array([[task in subset for task in tasks] for subset in sets])
    means, deviations = beliefs.predict(pool)
    agreement, row_noise = compare_halves(trials, tasks)
    means = agreement * means
    deviations = np.sqrt((agreement * deviations) ** 2 + row_noise**2)
    deviations[0] = 0.0
    together = Recommendation(dict.fromkeys(tasks, everything), 0.0, 0.0, len(sets) - 1, agreement)
    values = np.where(pool, means + (settings.caution if cautious else 0.0) * deviations, np.inf)
    values[0] = 0.0
    rows = serving_rows(values, select_cover(values, budget))
    columns = np.arange(len(tasks))
    expected = float(means[rows, columns].mean())
    doubt = float(np.sqrt((deviations[rows, columns] ** 2).sum()) / len(tasks))
    if len(sets) == 1 or (cautious and not expected < -settings.sure * doubt):
        return together
    serves = {task: sets[row] for task, row in zip(tasks, rows, strict=True)}
    ratio = float(np.exp(expected))
    return Recommendation(serves, ratio - 1, ratio * doubt, len(sets) - 1, agreement)


def compare_halves(trials: Trials, tasks: Sequence[str]) -> tuple[float, Array]:
    """Estimates the noise due to the validation rows by comparing two halves of them.

    On each half, every network is compared with the network for all tasks with the same seed.

    Returns:
        The fraction of the differences that is not due to noise, from 0 to 1. This is the Spearman–Brown reliability
        computed from the correlation between the halves. The second value is the standard deviation of the noise for
        each task.
    """
    everything = frozenset(tasks)
    whole = {trial: result for trial, result in trials.items() if trial.fraction == 1}
    base = {trial.seed: result for trial, result in whole.items() if trial.tasks == everything}
    compared = {trial: one for trial, one in whole.items() if trial.tasks != everything and trial.seed in base}
    losses = _half_losses([(trial.tasks, result) for trial, result in compared.items()], tasks)
    base_losses = dict(zip(base, _half_losses([(everything, result) for result in base.values()], tasks), strict=True))
    ratios = {trial: np.log(mine / base_losses[trial.seed]) for trial, mine in zip(compared, losses, strict=True)}
    sets = dict.fromkeys(trial.tasks for trial in compared)
    found = np.full((len(sets), len(tasks), 2), np.nan)
    for row, subset in enumerate(sets):
        found[row] = np.mean([ratio for trial, ratio in ratios.items() if trial.tasks == subset], axis=0)
    return _reliability(found), _row_noise(found)


def _half_losses(results: Sequence[tuple[Subset, Trained]], tasks: Sequence[str]) -> Array:
    """Returns the losses of networks as an array of shape [networks, tasks, halves], with NaN for other tasks."""
    unknown = (np.nan, np.nan)
    rows = [[half_losses(result, task) if task in subset else unknown for task in tasks] for subset, result in results]
    return np.array(rows).reshape(len(results), len(tasks), 2)


def _reliability(log_ratios: Array) -> float:
    first, second = log_ratios[~np.isnan(log_ratios).any(-1)].T  # one half may have no labels
    size = (np.sum(first**2) + np.sum(second**2)) / 2
    if not size > 0:
        return 0.0
    mean = size / len(first)
    half = max(0.0, (np.sum(first * second) + 0.5 * PRIOR_WEIGHT * mean) / (size + PRIOR_WEIGHT * mean))
    return float(2 * half / (1 + half))


def _row_noise(log_ratios: Array) -> Array:
    """Estimates each task's noise from the difference between the two halves, with shrinkage toward other tasks."""
    squares = (log_ratios[..., 0] - log_ratios[..., 1]) ** 2 / 4
    counts = np.sum(~np.isnan(squares), axis=0)
    sums = np.nansum(squares, axis=0)
    usual = sums.sum() / max(1, counts.sum())
    return np.asarray(np.sqrt((sums + 4 * usual) / (counts + 4)))


def select_cover(values: Array, budget: int) -> tuple[int, ...]:
    """Selects rows (networks) that approximately minimize the sum of the lowest value in each column (task).

    Starting from the first row and from each promising row, rows are added greedily and then replaced one at a time
    while the sum decreases. A fast heuristic is needed because the search calls this function thousands of times.

    Args:
        values: an array of shape [networks, tasks], which is infinite where a network is not trained on a task. The
            first row must be finite.
        budget: the maximum number of networks.

    Returns:
        The indices of the selected rows, without redundant rows.

    Example:
        >>> inf = np.inf
        >>> select_cover(np.array([[0.0, 0.0, 0.0], [-1.0, inf, inf], [inf, -1.0, 1.0], [inf, -2.0, inf]]), 2)
        (0, 3)
    """
    starts = [(0,), *((row,) for row in _promising_rows(values))]
    finite = np.isfinite(values)
    values = np.where(finite, values, 1000 * (np.abs(values[finite]).max() + 1))  # worse than any finite value
    found = [_replace_rows(values, _add_rows(values, start, budget)) for start in starts]
    best = min(found, key=lambda rows: (round(_sum_of_lowest(values, rows), 12), len(rows)))
    return _drop_redundant(values, best)


def serving_rows(values: Array, rows: tuple[int, ...]) -> NDArray[np.intp]:
    """Returns the row that serves each task, preferring the first row if several are equally good."""
    best: NDArray[np.intp] = np.asarray(rows, dtype=np.intp)[np.argmin(values[list(rows)], axis=0)]
    return best


def _promising_rows(values: Array) -> NDArray[np.intp]:
    gains = np.minimum(values - values[0], 0).sum(1)
    return np.argsort(gains, kind="stable")[:3]


def _sum_of_lowest(values: Array, rows: tuple[int, ...]) -> float:
    return float(values[list(rows)].min(0).sum())


def _add_rows(values: Array, rows: tuple[int, ...], budget: int) -> tuple[int, ...]:
    while len(rows) < budget:
        rows = (*rows, _best_addition(values, rows))
    return rows


def _best_addition(values: Array, rows: tuple[int, ...]) -> int:
    """Returns the row that lowers the sum the most when added."""
    lowest = values[list(rows)].min(0) if rows else np.full(values.shape[1], np.inf)
    return int(np.argmin(np.minimum(values, lowest).sum(1)))


def _replace_rows(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    total = _sum_of_lowest(values, rows)
    while True:
        for place in range(len(rows)):
            others = rows[:place] + rows[place + 1 :]
            changed = (*others, _best_addition(values, others))
            if (lower := _sum_of_lowest(values, changed)) < total - 1e-12:
                rows, total = changed, lower
                break
        else:
            return rows


def _drop_redundant(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Drops rows whose tasks are served equally well by the other rows."""
    kept = tuple(dict.fromkeys(sorted(rows)))
    for row in kept[::-1]:
        rest = tuple(other for other in kept if other != row)
        if rest and _sum_of_lowest(values, rest) <= _sum_of_lowest(values, kept) + 1e-12:
            kept = rest
    return kept
