"""Searches for groups in which one network answers each task, given only the losses of networks.

Part of the effort confirms the groups with more seeds if it is uncertain that they are better than one network for all
tasks, which is recommended unless the gain is clear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tagalong.group import Group
from tagalong.learn import Trained

from ..relative_losses import Subset
from ..runner import Runner
from .beliefs import Array
from .flattery import half_losses
from .proposals import MIN_ROUND, Proposer, Trial, select_cover

TOGETHER = 0.15  # the fraction of the effort for networks for all tasks, the baseline of every comparison
RESERVED = 0.25  # the fraction of the effort for confirmations
ROUNDS = 3  # of proposals; on five truth tables, no other number was clearly better
CLEAR = 3.0  # standard deviations by which the gain must exceed zero to need no confirmation
CAUTION = 0.25  # standard deviations added to predicted losses in the final choice
SURE = 1.5  # standard deviations by which the gain must exceed zero for groups to be recommended
PRIOR_WEIGHT = 20.0  # number of differences that the prior counts for: the halves have a correlation of 0.5
PRIOR_NOISE_WEIGHT = 4.0  # number of differences that the noise pooled over tasks counts for


@dataclass(frozen=True)
class Recommendation:
    """The recommended networks for a budget.

    Attributes:
        groups: the networks, and the tasks that each of them answers.
        expected: the expected relative change in loss from one network for all tasks, averaged over tasks, or 0 if that
            network is recommended.
        doubt: the standard deviation of `expected`.
        agreement: the fraction of the differences between networks on the validation rows that is not due to noise (see
            `compare_halves`).
    """

    groups: tuple[Group, ...]
    expected: float
    doubt: float
    agreement: float


@dataclass(frozen=True)
class GroupSearch:
    """The result of a search for groups.

    Attributes:
        chosen: the recommendation for each budget.
        results: the networks, in the order of their training, with those that diverged.
    """

    chosen: dict[int, Recommendation]
    results: dict[Trial, Trained]


def search_groups(runner: Runner, budgets: Sequence[int], effort: float, seeds: Sequence[int]) -> GroupSearch:
    """Searches for the best groups for each budget.

    Args:
        runner: the runner that trains the networks or looks them up.
        budgets: the limits on the number of networks.
        effort: the number of training runs, including the first networks for all tasks.
        seeds: the seeds to choose from. Each set of tasks is trained with one seed, and with more seeds if its result
            could affect the choice. The network for all tasks must not diverge for any of these seeds.
    """
    proposer, results = Proposer(runner.tasks, tuple(seeds), tuple(budgets)), dict[Trial, Trained]()

    def train(trials: Sequence[Trial]) -> None:
        jobs = {trial: runner.job(trial.tasks, trial.seed) for trial in trials}
        trained = runner.networks(jobs.values(), "networks proposed by auto", diverged=True)
        added = {trial: trained[job] for trial, job in jobs.items()}
        proposer.add(added)
        results.update(added)

    exploring = (1 - RESERVED) * effort
    train([Trial(frozenset(runner.tasks), seed) for seed in seeds[: max(1, round(TOGETHER * effort))]])
    batch = max(MIN_ROUND, math.ceil((exploring - len(results)) / ROUNDS))
    last = max(MIN_ROUND, math.ceil(effort - exploring))
    while len(results) + 1 <= effort:
        if len(results) < exploring:
            trials = proposer.propose(batch, effort)
        else:
            chosen = [recommend(proposer, budget, cautious=False) for budget in budgets]
            certain = all(one.expected <= -CLEAR * one.doubt for one in chosen)
            trials = [] if certain else _confirmations(proposer, chosen)[:last]
            proposals = proposer.propose(last - len(trials), effort)
            trials += [trial for trial in proposals if trial not in trials]
            trials = trials or _confirmations(proposer, chosen)[:last]
        trials = trials[: int(effort - len(results) + 1e-9)]
        if not trials:
            break
        train(trials)
    return GroupSearch({budget: recommend(proposer, budget) for budget in budgets}, results)


def _confirmations(proposer: Proposer, chosen: Sequence[Recommendation]) -> list[Trial]:
    """Returns trials that train recommended networks and the network for all tasks with additional seeds."""
    sets = dict.fromkeys(group.trains for recommendation in chosen for group in recommendation.groups)
    trials = [Trial(tasks, seed) for tasks in sets for seed in proposer.seeds]
    return [trial for trial in trials if trial not in proposer.results]


def recommend(proposer: Proposer, budget: int, *, cautious: bool = True) -> Recommendation:
    """Chooses the best of the trained networks.

    Args:
        proposer: what is known about networks.
        budget: the maximum number of networks.
        cautious: whether to recommend one network for all tasks unless the gain is certain.
    """
    tasks, everything = proposer.tasks, frozenset(proposer.tasks)
    sets = list(dict.fromkeys([everything, *(trial.tasks for trial in proposer.results)]))
    inside = np.array([[task in subset for task in tasks] for subset in sets])
    means, deviations = proposer.beliefs.predict(inside)
    agreement, row_noise = compare_halves(proposer.results, tasks)
    means = agreement * means
    deviations = np.sqrt((agreement * deviations) ** 2 + row_noise**2)
    deviations[0] = 0.0

    values = np.where(inside, means + (CAUTION if cautious else 0.0) * deviations, np.inf)
    values[0] = 0.0
    rows = np.array(select_cover(values, budget))
    serving = rows[np.argmin(values[rows], axis=0)]  # the network of each task; the first one if several are equal
    columns = np.arange(len(tasks))
    expected = float(means[serving, columns].mean())
    doubt = float(np.sqrt((deviations[serving, columns] ** 2).sum()) / len(tasks))
    if len(sets) == 1 or (cautious and not expected < -SURE * doubt):
        return Recommendation((Group(tasks, tasks),), 0.0, 0.0, agreement)
    groups = [Group(sets[row], [task for task, by in zip(tasks, serving, strict=True) if by == row]) for row in rows]
    ratio = float(np.exp(expected))
    return Recommendation(tuple(sorted(groups)), ratio - 1, ratio * doubt, agreement)


def compare_halves(results: Mapping[Trial, Trained], tasks: Sequence[str]) -> tuple[float, Array]:
    """Estimates the noise due to the validation rows by comparing two halves of them.

    On each half, every network is compared with the network for all tasks with the same seed.

    Returns:
        The fraction of the differences that is not due to noise, from 0 to 1. This is the Spearman–Brown reliability
        computed from the correlation between the halves. The second value is the standard deviation of the noise for
        each task.
    """
    everything = frozenset(tasks)
    base = {trial.seed: result for trial, result in results.items() if trial.tasks == everything}
    by_set: dict[Subset, list[Array]] = {}
    for trial, result in results.items():
        if trial.tasks == everything or trial.seed not in base:
            continue
        ratios = np.full((len(tasks), 2), np.nan)
        for column, task in enumerate(tasks):
            if task in trial.tasks:
                ratios[column] = np.log(half_losses(result, task)) - np.log(half_losses(base[trial.seed], task))
        by_set.setdefault(trial.tasks, []).append(ratios)
    log_ratios = np.array([np.mean(ratios, axis=0) for ratios in by_set.values()]).reshape(-1, len(tasks), 2)

    # Half of the difference between the halves is noise; its size is shrunk toward that of other tasks.
    squares = (log_ratios[..., 0] - log_ratios[..., 1]) ** 2 / 4
    counts, sums = np.sum(~np.isnan(squares), axis=0), np.nansum(squares, axis=0)
    usual = sums.sum() / max(1, counts.sum())
    noise = np.sqrt((sums + PRIOR_NOISE_WEIGHT * usual) / (counts + PRIOR_NOISE_WEIGHT))

    first, second = log_ratios[~np.isnan(log_ratios).any(-1)].T  # one half may have no labels
    size = (np.sum(first**2) + np.sum(second**2)) / 2
    if not size > 0:
        return 0.0, noise
    prior = PRIOR_WEIGHT * size / len(first)
    half = max(0.0, (np.sum(first * second) + 0.5 * prior) / (size + prior))
    return float(2 * half / (1 + half)), noise
