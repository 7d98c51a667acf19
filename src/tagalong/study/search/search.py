"""The search loop behind `auto`, in which affinities suggest networks and validation losses decide among them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tagalong.learn import Job, Trained
from tagalong.score import Score

from ..relative_losses import Subset
from ..runner import Runner
from .beliefs import Array, Beliefs, Bools, TrialArrays, distances
from .recommendation import Recommendation, SearchSettings, recommend, select_cover
from .trial import Trial, Trials, mean_half_loss, small_set_flattery

Mask = tuple[bool, ...]
WIDE_ROUNDS, NARROW_ROUNDS = 4, 12  # on five truth tables, no other number was clearly better
MIN_ROUND_SIZE = 2  # since a grouping needs multiple networks
MAX_POOL_SIZE = 4096  # number of candidate sets of tasks


@dataclass(frozen=True)
class Round:
    """One round of the search.

    Attributes:
        results: the results of the networks trained in this round.
        efforts: the effort spent on each of these networks, measured in full training runs.
        spent: the total effort spent by the end of this round.
        best: for each budget, the expected change in loss from one network for all tasks to the best networks.
    """

    results: Trials
    efforts: Mapping[Trial, float]
    spent: float
    best: dict[int, float]


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        chosen: the recommendation for each budget.
        steps: the rounds in order.
        spent: the total effort spent.
    """

    chosen: dict[int, Recommendation]
    steps: tuple[Round, ...]
    spent: float


def search(
    runner: Runner,
    budgets: Sequence[int],
    effort: float,
    seeds: Sequence[int],
    *,
    hints: Array | None = None,
    errors: Array | None = None,
    spent: float = 0.0,
    settings: SearchSettings | None = None,
) -> SearchResult:
    """Searches for the best networks for each budget.

    Args:
        runner: the runner that trains the networks or looks them up.
        budgets: the limits on the number of networks.
        effort: the number of full training runs, including the first networks for all tasks.
        seeds: the seeds to choose from. Each set of tasks is trained with one seed, and with more seeds if its result
            could affect the choice. The network for all tasks must not diverge for any of these seeds.
        hints: an array of shape [source, target] with prior estimates of how much each task helps another, e.g.
            affinities. If None, there is no prior.
        errors: the standard errors of the hints. Hints with larger errors get less weight.
        spent: the effort already spent on measuring the hints.
        settings: the settings of the search, or None for the defaults.
    """
    return _SearchLoop(
        runner, tuple(budgets), effort, tuple(seeds), hints, errors, spent, settings or SearchSettings()
    ).run()


@dataclass
class _SearchLoop:
    runner: Runner
    budgets: tuple[int, ...]
    effort: float
    seeds: tuple[int, ...]
    hints: Array | None
    errors: Array | None
    spent: float
    settings: SearchSettings
    steps: list[Round] = field(default_factory=list)
    seen: dict[Trial, Trained] = field(default_factory=dict)  # excludes sets that diverged with any seed
    diverged: set[Subset] = field(default_factory=set)
    believed: Beliefs | None = None
    proposals_per_fit: int | None = None  # None: all proposals of a round are based on the same predictions

    def run(self) -> SearchResult:
        self.tasks = self.runner.tasks
        self.pool = initial_pool(len(self.tasks))
        self._train([Trial(frozenset(self.tasks), seed) for seed in self._baseline_seeds()])
        for seed in self._exhaustive_seeds():
            self._train([Trial(self._tasks_of(row), seed) for row in self.pool if not self._is_trained(row, seed)])
        rounds = self.settings.rounds or plan_rounds(self.effort, self.runner.free_width)
        if rounds < NARROW_ROUNDS:
            self._run_wide_rounds(rounds)
        else:
            self._run_narrow_rounds(rounds)
        beliefs = self._beliefs()
        chosen = {budget: recommend(beliefs, self.seen, self.tasks, budget, self.settings) for budget in self.budgets}
        return SearchResult(chosen, tuple(self.steps), self.spent)

    def _run_narrow_rounds(self, rounds: int) -> None:
        """Trains a few networks at a time: proposals first, and confirmations once only the reserved effort is left."""
        batch = _narrow_round_size(self.effort, rounds)
        while self.spent + 1 <= self.effort:
            confirming = self.spent >= self._unreserved and self._is_uncertain()
            actions = (self._train_proposals, self._train_confirmations)
            if not any(action(batch) for action in (actions[::-1] if confirming else actions)):
                break

    def _run_wide_rounds(self, rounds: int) -> None:
        """Trains proposals in all rounds but the last, which uses the whole reserved effort."""
        batch = max(MIN_ROUND_SIZE, math.ceil((self._unreserved - self.spent) / max(1, rounds - 1)))
        last = max(MIN_ROUND_SIZE, math.ceil(self.effort - self._unreserved))
        self.proposals_per_fit = _narrow_round_size(self.effort)
        while self.spent + 1 <= self.effort:
            exploring = self.spent < self._unreserved
            if not (self._train_proposals(batch) if exploring else self._train_last_round(last)):
                break

    @property
    def _unreserved(self) -> float:
        return (1 - self.settings.reserved) * self.effort

    def _train_last_round(self, count: int) -> bool:
        """Trains confirmations if they are needed, together with as many proposals as `count` leaves."""
        trials = self._confirming_trials(count) if self._is_uncertain() else []
        if self.settings.screen is not None:
            return self._train(trials) or self._train_proposals(count)
        trials += [trial for trial in self._proposals(count - len(trials)) if trial not in trials]
        return self._train(trials) or self._train_confirmations(count)

    def _is_uncertain(self) -> bool:
        """Whether, for any budget, the best networks are not clearly better than one network for all tasks."""
        beliefs = self._beliefs()
        best = [recommend(beliefs, self.seen, self.tasks, k, self.settings, cautious=False) for k in self.budgets]
        return any(one.expected > -self.settings.clear * one.doubt for one in best)

    def _baseline_seeds(self) -> tuple[int, ...]:
        """Returns the seeds of the first networks for all tasks, the baseline of every comparison.

        At least one seed is returned.
        """
        return self.seeds[: max(1, round(self.effort * self.settings.together))]

    def _exhaustive_seeds(self) -> tuple[int, ...]:
        """Returns the seeds for which the effort is sufficient to train every subset."""
        subsets = 2 ** len(self.tasks) - 1
        missing = [subsets - sum(trial.seed == seed for trial in self.seen) for seed in self.seeds]
        enough = self.spent + np.cumsum(missing) <= self.effort + 1e-9
        return self.seeds[: int(enough.sum())] if subsets <= len(self.pool) else ()

    def _train(self, trials: Sequence[Trial]) -> bool:
        """Runs as many new trials as the effort allows and returns whether there were any."""
        known = {trial for step in self.steps for trial in step.results}
        trials = [trial for trial in trials if trial not in known]
        ends = self.spent + np.cumsum([trial.fraction for trial in trials])
        allowed = [trial for trial, end in zip(trials, ends, strict=True) if end <= self.effort + 1e-9 or not self.seen]
        if not allowed:
            return False
        jobs = {trial: self._make_job(trial) for trial in allowed}
        results = self.runner.networks(jobs.values(), "networks proposed by auto", diverged=True)
        found = {trial: results[job] for trial, job in jobs.items()}
        self._add_results(found)
        efforts = {trial: self._effort_spent(trial, result) for trial, result in found.items()}
        self.spent += sum(efforts.values())
        self.steps.append(Round(found, efforts, self.spent, self._best_expected_changes()))
        return True

    def _make_job(self, trial: Trial) -> Job:
        job = self.runner.job(trial.tasks, trial.seed)
        return job if trial.fraction == 1 else self.runner.early_job(job, trial.fraction * self._full_training_steps)

    def _effort_spent(self, trial: Trial, result: Trained) -> float:
        return 1.0 if trial.fraction == 1 else result.steps / self._full_training_steps

    @property
    def _full_training_steps(self) -> int:
        """The number of steps in a full training run, taken from the first network for all tasks."""
        return self.seen[Trial(frozenset(self.tasks), self.seeds[0])].steps

    def _add_results(self, results: Trials) -> None:
        """Adds results. A set of tasks that diverged for one seed is dropped for all seeds."""
        together = frozenset(self.tasks)  # can diverge only in a partial training
        self.diverged |= {trial.tasks for trial, result in results.items() if result.diverged} - {together}
        converged = {trial: result for trial, result in {**self.seen, **results}.items() if not result.diverged}
        self.seen = {trial: result for trial, result in converged.items() if trial.tasks not in self.diverged}
        self.pool, self.believed = self._drop_diverged(self.pool), None

    def _drop_diverged(self, pool: Bools) -> Bools:
        return pool[[self._tasks_of(row) not in self.diverged for row in pool]] if self.diverged else pool

    def _train_proposals(self, count: int) -> bool:
        """Trains proposals and returns whether there were any.

        If `screen` is set, twice as many proposals are screened first.
        """
        screen = self.settings.screen
        if screen is None:
            return self._train(self._proposals(count))
        first = [Trial(frozenset(self.tasks), seed, screen) for seed in self.seeds if self._is_seen(self.tasks, seed)]
        self._train(first)
        early = [Trial(trial.tasks, trial.seed, screen) for trial in self._proposals(2 * count)]
        screened = self._train([trial for trial in early if self._is_seen(self.tasks, trial.seed, screen)])
        return self._train(self._proposals(count)) or screened

    def _best_expected_changes(self) -> dict[int, float]:
        if len({trial.tasks for trial in self.seen}) < 2:
            return dict.fromkeys(self.budgets, 0.0)
        beliefs = self._beliefs()
        return {k: recommend(beliefs, self.seen, self.tasks, k, self.settings).expected for k in self.budgets}

    def _beliefs(self) -> Beliefs:
        if self.believed is None:
            self.believed = self._fit_beliefs()
        return self.believed

    def _fit_beliefs(self) -> Beliefs:
        everything = frozenset(self.tasks)
        bases = {(trial.seed, trial.fraction): one for trial, one in self.seen.items() if trial.tasks == everything}
        kept = [trial for trial in self.seen if trial.fraction == 1 or trial.tasks != everything]
        flattery = small_set_flattery(self.seen.values(), len(self.tasks))
        logs = np.full((len(kept), len(self.tasks)), np.nan)
        for row, trial in enumerate(kept):
            for column, task in enumerate(self.tasks):
                if task in trial.tasks:
                    logs[row, column] = np.log(mean_half_loss(self.seen[trial], task))
                    if self.seen[trial].flattery:
                        logs[row, column] += np.log1p(flattery[len(trial.tasks)])
                    if trial.fraction < 1:  # assume that the gap to the network for all tasks does not change
                        whole, early = bases[trial.seed, 1.0], bases[trial.seed, trial.fraction]
                        logs[row, column] += np.log(mean_half_loss(whole, task) / mean_half_loss(early, task))
        inside = ~np.isnan(logs)
        seeds = np.array([trial.seed for trial in kept])
        is_early = np.array([trial.fraction < 1 for trial in kept])
        return Beliefs(TrialArrays(inside, seeds, is_early, logs), self.hints, self.errors)

    def _proposals(self, count: int) -> list[Trial]:
        """Returns the networks that would be best according to optimistic predictions of their losses.

        In a wide round, the first proposals are assumed to turn out as predicted before the next ones are made.
        Otherwise, a round would contain many networks that teach the same lesson. In Bayesian optimization, this is
        known as the kriging believer.
        """
        trials: list[Trial] = []
        seen, believed = self.seen, self._beliefs()
        while len(trials) < count:
            left = count - len(trials)
            found = self._best_proposals(min(left, self.proposals_per_fit or left))
            trials += found
            if not found or len(trials) >= count:
                break
            self.seen = {**self.seen, **{trial: self._predicted_result(trial) for trial in found}}
            self.believed = None
        if self.seen is not seen:
            self.seen, self.believed = seen, believed
        return trials

    def _predicted_result(self, trial: Trial) -> Trained:
        everything = frozenset(self.tasks)
        bases = {seen.seed: one for seen, one in self.seen.items() if seen.tasks == everything and seen.fraction == 1}
        base = bases.get(trial.seed, bases[self.seeds[0]])
        inside = np.array([[task in trial.tasks for task in self.tasks]])
        ratios = dict(zip(self.tasks, np.exp(self._beliefs().predict(inside)[0][0]).tolist(), strict=True))
        val = {task: Score(ratios[task] * mean_half_loss(base, task), math.nan) for task in trial.tasks}
        return replace(base, job=self._make_job(trial), val=val, halves={}, flattery={})

    def _best_proposals(self, count: int) -> list[Trial]:
        beliefs = self._beliefs()
        seen = [tuple(task in trial.tasks for task in self.tasks) for trial in self.seen]
        self.pool = self._drop_diverged(add_neighbors(seen, self.pool))
        means, deviations = beliefs.predict(self.pool)
        return self._choose_trials(means, deviations, count)

    def _choose_trials(self, means: Array, deviations: Array, count: int) -> list[Trial]:
        """Chooses new sets first, since they are more informative than additional seeds of known sets."""
        trials: list[Trial] = []
        trained = np.array([[task in trial.tasks for task in self.tasks] for trial in self.seen if trial.fraction == 1])
        times = (distances(self.pool, trained) == 0).sum(1)
        known = times > 0
        if known.all():
            known = times >= len(self.seeds)
        optimism, doubts = self.settings.optimism, np.where(known[:, None], 0.0, deviations)
        while len(trials) < count and optimism < 8:
            before = len(trials)
            for budget in self.budgets:
                values = np.where(self.pool, means - optimism * doubts, np.inf)
                values[0] = 0.0
                for row in select_cover(values, budget):
                    if not known[row] and len(trials) < count:
                        trials.append(self._next_trial(row, trials))
                        known[row], doubts[row] = True, 0.0  # will be known after this round
            if len(trials) == before:
                optimism = max(0.5, 1.5 * optimism)
        return trials

    def _train_confirmations(self, count: int) -> bool:
        return self._train(self._confirming_trials(count))

    def _confirming_trials(self, count: int) -> list[Trial]:
        """Returns trials that train the best networks so far and the network for all tasks with additional seeds."""
        beliefs, trials = self._beliefs(), []
        for budget in self.budgets:
            for subset in recommend(beliefs, self.seen, self.tasks, budget, self.settings, cautious=False).networks:
                free = [s for s in self.seeds if not self._is_seen(subset, s) and Trial(subset, s) not in trials]
                trials += [Trial(subset, seed) for seed in free]
        return trials[:count]

    def _next_trial(self, row: int, pending_trials: Sequence[Trial]) -> Trial:
        subset = self._tasks_of(self.pool[row])
        free = [seed for seed in self.seeds if not self._is_seen(subset, seed)]
        free = [
            seed for seed in free if self._is_seen(self.tasks, seed)
        ] or free  # prefer seeds that allow a paired comparison
        used = [trial.seed for trial in [*self.seen, *pending_trials]]
        return Trial(subset, min(free, key=lambda seed: (used.count(seed), seed)))

    def _is_seen(self, subset: Iterable[str], seed: int, fraction: float = 1.0) -> bool:
        return Trial(frozenset(subset), seed, fraction) in self.seen

    def _is_trained(self, row: Bools, seed: int) -> bool:
        return self._is_seen(self._tasks_of(row), seed)

    def _tasks_of(self, row: Bools) -> Subset:
        return frozenset(task for task, inside in zip(self.tasks, row, strict=True) if inside)


def plan_rounds(effort: float, free_width: int | None) -> int:
    """Returns the number of rounds of a search.

    A round takes at least as long as one training run, so narrow rounds are used only if each of them trains at least
    twice as many networks as can be trained in the time of one. At most a third of the time is then lost.

    Args:
        effort: the number of full training runs.
        free_width: see `Runner.free_width`.

    Example:
        >>> [plan_rounds(60, width) for width in (1, 2, 3, 100, None)]
        [12, 12, 4, 4, 4]
    """
    if free_width is None or _narrow_round_size(effort) < 2 * free_width:
        return WIDE_ROUNDS
    return NARROW_ROUNDS


def _narrow_round_size(effort: float, rounds: int = NARROW_ROUNDS) -> int:
    return max(MIN_ROUND_SIZE, round(effort / rounds))


def initial_pool(n_tasks: int) -> Bools:
    """Returns the initial candidate sets as an array of shape [sets, tasks].

    The set of all tasks comes first. If there are few tasks, all other subsets follow. Otherwise, single tasks, pairs
    and the sets that omit one or two tasks follow.
    """
    if 2**n_tasks - 1 <= MAX_POOL_SIZE:
        bits = np.arange(2**n_tasks - 1, 0, -1)[:, None] >> np.arange(n_tasks) & 1
        return bits.astype(bool)
    one = np.eye(n_tasks, dtype=bool)
    upper, lower = np.triu_indices(n_tasks, 1)
    two = one[upper] | one[lower]
    sets = np.concatenate([np.ones((1, n_tasks), dtype=bool), ~one, one, ~two, two])
    return sets[:MAX_POOL_SIZE]


def add_neighbors(sets: Iterable[Mask], pool: Bools) -> Bools:
    """Adds to the pool all sets that differ from one of `sets` in a single task."""
    known = dict.fromkeys(map(tuple, pool.tolist()))
    if len(known) == 2 ** pool.shape[1] - 1:
        return pool
    added: dict[Mask, None] = {}
    for mask in sets:
        for task in range(len(mask)):
            changed = (*mask[:task], not mask[task], *mask[task + 1 :])
            if any(changed) and changed not in known:
                added[changed] = None
    kept = [*known, *added]
    if len(kept) > MAX_POOL_SIZE:  # the first sets are diverse, the last ones are close to the latest trials
        half = MAX_POOL_SIZE // 2
        kept = [*kept[:half], *kept[-half:]]
    return np.array(kept, dtype=bool)
