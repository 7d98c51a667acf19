"""Rounds of networks that are trained elsewhere: which to train next, and what is known so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_validator
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Job, Problem, Task, Trained

from .decisions import Decisions, Trial, check_averages, conclude, confirm_recommended, decide_all, train_choices
from .documents import Count
from .executors import Elsewhere, Pending
from .keys import digest
from .methods import Decision, Method
from .records import Cost
from .results import Results
from .rule import decide
from .runner import Runner, plain_steps
from .store import Store
from .study_request import StudyRequest
from .words import MIN_SEEDS

SCREENING_SHARE = 0.5  # of a limited number of runs, to find the best way; the others judge it
Network = tuple[tuple[str, ...], int]  # the tasks and the seed of a network
# The place of a seed in the order of all seeds, and networks that settle something together: how good a way of grouping
# is with this seed. A single network is the baseline of all other comparisons.
Comparison = tuple[int, Sequence[Job]]


class Plan(BaseModel):
    """What to compare, as it is stored; labels and affinities are in the store.

    Attributes:
        tasks: the tasks. Without targets, only their names and the losses of their constants matter.
        with_targets: whether the labels are known.
        logits: whether predictions for classes are logits.
        methods: the names of the methods.
        budgets: the limits on the number of networks.
        seeds: the seeds.
        options: the options of each method.
        runs: the most networks to train, or None if there is no limit.
        screening: whether these are too few for all seeds, so that one seed chooses.
        affinities: the keys of the measured affinities, by the method that uses them.
    """

    tasks: list[Task]
    with_targets: bool
    logits: bool
    methods: list[str]
    budgets: list[int]
    seeds: list[Count]
    options: dict[str, dict[str, Any]]
    runs: int | None
    screening: bool
    affinities: dict[str, str]

    @model_validator(mode="after")
    def _check_affinities(self) -> Plan:
        if lacking := {"tag", "cs"} & set(self.methods) - self.affinities.keys():
            raise ValueError(f"affinities must have one for the method {min(lacking)!r}")
        return self


@dataclass(frozen=True)
class TrainingPlan:
    """The networks to train next.

    Attributes:
        networks: the tasks and seed of each network. All of them can be trained at the same time; those that settle
            most come first.
        round: the number of this round, from 1.
        rounds: the number of rounds that are expected in all. Later rounds depend on the results of earlier ones.
        trained: the number of networks whose results are known.
        methods: the names of the methods to compare, which always include `mtl`.
    """

    networks: tuple[Network, ...]
    round: int
    rounds: int
    trained: int
    methods: tuple[str, ...]


class ExternalRunner(Runner):
    """Gives methods the results and affinities that somebody else's script has measured.

    Args:
        problem: the tasks and labels, without inputs.
        store: the store of the results.
        affinities: the measured affinities by the method that uses them ("tag" or "cs").
    """

    def __init__(self, problem: Problem, store: Store, affinities: Mapping[str, Affinity]) -> None:
        super().__init__(problem, store, Elsewhere())
        self._affinities = affinities

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinity provided by the user.

        Each seed incurs the cost of one training run and an equal share of the measuring cost.
        """
        affinity = self._affinities[method].only(self.tasks)
        overhead = affinity.settings.get("overhead") or 0.0
        costs = {}
        for seed in seeds:
            job = self.job(self.tasks, seed)
            costs[seed] = Cost(1)  # groups can be decided before the cost of the affinity is known
            if not self.missing([job]):
                network = self.networks([job], diverged=True)[job]
                steps = plain_steps(affinity, network.steps, len(seeds)) if network.steps else 0
                costs[seed] = Cost(1, steps, network.seconds * (1 + overhead))
        return affinity, costs

    def tell(self, trained: Trained, answers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Stores a network, and its answers on the rows of "val" and "test" if they are known.

        An earlier result of the network is replaced.
        """
        key = self.keys.of(trained.job)
        self.store.add({key: (self.keys.definition(trained.job), trained)}, answers, replace=True)


class Rounds:
    """Lets the methods of a plan decide, as far as results are known, and collects the networks that they need.

    Args:
        runner: the runner that knows the results.
        request: the methods, budgets and seeds.
        plan: the plan that they belong to.
    """

    def __init__(self, runner: ExternalRunner, request: StudyRequest, plan: Plan) -> None:
        self.runner, self.request, self.plan = runner, request, plan
        self.limit = math.inf if plan.runs is None else plan.runs

    # What is known ----------------------------------------------------------------------------------------------------

    @cached_property
    def trained(self) -> dict[Job, Trained]:
        """All networks whose results are known."""
        results = self.runner.store.results(self.runner.store.known_keys())
        return {trained.job: trained for trained in results.values()}

    @cached_property
    def converging_seeds(self) -> tuple[int, ...]:
        """The seeds with which the network for all tasks did not diverge, or all seeds if it always did."""
        together = {seed: self.trained.get(self._together(seed)) for seed in self.request.seeds}
        seeds = tuple(seed for seed, network in together.items() if network is None or not network.diverged)
        return seeds or self.request.seeds

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds with which groups are chosen: only the first of them, if there are few runs."""
        return self.converging_seeds[:1] if self.plan.screening else self.converging_seeds

    def _together(self, seed: int) -> Job:
        return self.runner.job(self.runner.tasks, seed)

    def _decide(self, seeds: Sequence[int]) -> tuple[Decisions, list[Sequence[Job]]]:
        """Returns the decisions of the methods that can decide, and the networks that each of the others needs."""
        decisions: dict[str, tuple[Method, Decision]] = {}
        needed: list[Sequence[Job]] = []
        for method in sorted(self.request.methods, key=lambda method: (method.order, method.name)):
            try:
                decisions |= decide_all(self.runner, replace(self.request, methods=(method,), seeds=tuple(seeds)))
            except Pending as pending:  # noqa: PERF203 - the other methods may be able to decide
                needed.append(pending.jobs)
        listed = [method.name for method in self.request.methods if method.name in decisions]
        return {name: decisions[name] for name in listed}, needed

    def _complete_decisions(self, seeds: Sequence[int]) -> Decisions:
        """Returns the decisions for the methods and budgets whose networks are all trained."""
        complete = {}
        for name, (method, decision) in self._decide(seeds)[0].items():
            waiting = set()
            for (budget, seed), choice in decision.choices.items():
                if not all(self.runner.group_job(group, seed) in self.trained for group in choice.groups):
                    waiting.add(budget)
            choices = {at: choice for at, choice in decision.choices.items() if at[0] not in waiting}
            if choices:
                complete[name] = method, replace(decision, choices=choices)
        return complete

    # What to train next -----------------------------------------------------------------------------------------------

    def needs_too_many(self) -> bool:
        """Whether all methods, budgets and seeds may need more networks than may be trained."""
        comparisons, is_final = self._comparisons()
        has_limit = self.plan.runs is not None
        return has_limit and (not is_final or len(order_networks(comparisons, trained=())) > self.limit)

    def next(self) -> TrainingPlan:
        """Returns the networks of the last round that are not trained yet or, if there are none, starts a new round.

        Rounds are stored, so that the plan stays the same while their results arrive.
        """
        store, number, current = self.runner.store, 0, None
        while (later := store.computed(f"round {number + 1}")) is not None:
            number, current = number + 1, later
        plan = digest(self.plan.model_dump(mode="json"))
        methods = tuple(method.name for method in self.request.methods)
        if current is not None and (current["plan"], current["seeds"]) == (plan, list(self.choosing_seeds)):
            networks = [(tuple(tasks), seed) for tasks, seed in current["networks"]]
            waiting = tuple(network for network in networks if Job(*network) not in self.trained)
            if waiting:
                return TrainingPlan(waiting, number, number + current["more"], len(self.trained), methods)

        jobs, more = self._next_jobs()
        if not jobs:
            return TrainingPlan((), number, number, len(self.trained), methods)
        document = {
            "plan": plan,
            "seeds": self.choosing_seeds,
            "networks": [[job.tasks, job.seed] for job in jobs],
            "more": more,
        }
        store.add_computed(f"round {number + 1}", document)
        return self.next()  # another process may have started this round before

    def _next_jobs(self) -> tuple[list[Job], int]:
        """Returns the networks of the next round, and how many rounds are expected after it."""
        comparisons, is_final = self._comparisons()
        share = SCREENING_SHARE if self.plan.screening else 1.0
        if jobs := order_networks(comparisons, self.trained, self.limit, share):
            return jobs, int(not is_final) + int(self.plan.screening)
        return (self._judging_jobs() if self.plan.screening else []), 0

    def _comparisons(self) -> tuple[list[Comparison], bool]:
        """Returns the networks of each method and budget, by seed, and whether all methods could decide."""
        seeds = list(self.choosing_seeds)
        decisions, needed = self._decide(seeds)
        comparisons: list[Comparison] = [(place, [self._together(seed)]) for place, seed in enumerate(seeds)]
        for name, (_, decision) in decisions.items():
            for (_, seed), choice in decision.choices.items():
                check_averages(self.runner, name, choice)
                networks = [self.runner.group_job(group, seed) for group in choice.groups]
                comparisons.append((seeds.index(seed), networks))
        return comparisons + [(0, jobs) for jobs in needed], not needed

    def _judging_jobs(self) -> list[Job]:
        """Returns the networks of as many fresh seeds as the limit allows, which judge what is recommended."""
        decisions = self._complete_decisions(self.choosing_seeds)
        if "mtl" not in decisions:
            return []
        trial = self._trial(decisions, self.choosing_seeds)
        networks: list[Job] = []
        count = 1
        while (jobs := self._needed_to_confirm(trial, count)) is not None:
            if len(self.trained) + len(jobs) > self.limit:
                break
            networks, count = jobs, count + 1
        return networks

    # Results ----------------------------------------------------------------------------------------------------------

    def results(self, out: Path | None = None) -> Results | None:
        """Returns the results of all comparisons whose networks are trained.

        Returns None if no network for all tasks is trained, with which everything is compared.

        Args:
            out: the folder to which the decisions are written, or None.

        Raises:
            InvalidInput: If the network for all tasks diverged with every seed.
        """
        seeds = [seed for seed in self.choosing_seeds if self._together(seed) in self.trained]
        if not seeds:
            return None
        if self.trained[self._together(seeds[0])].diverged:
            expected = "the network for all tasks diverged with every seed, and everything is compared with it"
            raise InvalidInput("", expected, hint="try a lower learning rate")
        # Seeds are dropped until a way of using several networks is complete.
        decisions = self._complete_decisions(seeds)
        while len(decisions) == 1 and len(seeds) > 1:
            seeds = seeds[:-1]
            decisions = self._complete_decisions(seeds)

        trial = self._trial(decisions, seeds)
        count = 0
        while self._needed_to_confirm(trial, count + 1) == []:
            count += 1
        # Fewer fresh seeds would say less than the seeds that chose.
        fresh = self._fresh_seeds(seeds, count) if count >= len(seeds) else ()
        notes = self.request.notes
        if missing := [method.name for method in self.request.methods if method.name not in decisions]:
            notes += (f"no results of {', '.join(missing)} yet",)
        request = replace(self.request, seeds=tuple(seeds), confirming=fresh, notes=notes)
        lost = tuple(seed for seed in self.request.seeds if seed not in self.converging_seeds)
        return conclude(self.runner.problem, [replace(trial, request=request, lost=lost)], request.to_document(), out)

    def settling(self) -> list[Network]:
        """Returns the networks with fresh seeds that would judge what is recommended once more."""
        results = self.results()
        if results is None or results.verdict().seeds >= MIN_SEEDS:
            return []
        seeds = results.settings["seeds"]
        decisions = self._complete_decisions(seeds)
        jobs = self._needed_to_confirm(self._trial(decisions, seeds), MIN_SEEDS)
        return [(job.tasks, job.seed) for job in jobs or ()]

    def _trial(self, decisions: Decisions, seeds: Sequence[int]) -> Trial:
        request = replace(self.request, seeds=tuple(seeds))
        return Trial(self.runner, request, decisions, train_choices(self.runner, decisions, seeds))

    def _needed_to_confirm(self, trial: Trial, count: int) -> list[Job] | None:
        """Returns the missing networks of the recommended way and the reference for fresh seeds.

        Returns None if the reference itself is recommended.
        """
        recommended = decide(trial.evidence).recommended
        if recommended == trial.request.reference:
            return None
        try:
            confirm_recommended(trial, recommended, self._fresh_seeds(trial.request.seeds, count))
        except Pending as pending:
            return list(pending.jobs)
        return []

    def _fresh_seeds(self, used: Collection[int], count: int) -> tuple[int, ...]:
        """Returns the next seeds that chose nothing."""
        planned = [seed for seed in self.converging_seeds if seed not in used]
        first = max(self.request.seeds) + 1
        return tuple([*planned, *range(first, first + count)][:count])


def order_networks(
    comparisons: Sequence[Comparison],
    trained: Collection[Job],
    runs: float = math.inf,
    share: float = SCREENING_SHARE,
) -> list[Job]:
    """Returns the networks that are still missing, those that settle most first.

    The comparisons of the first seed come first. Among those of a seed, the one that lacks the fewest networks is
    settled next, since each run then settles as much as it can. A comparison is left out if it does not fit into the
    limit: half of a comparison settles nothing. Apart from the first one, comparisons of several networks may use only
    a share of the runs, so that the others can judge the best of them.

    Args:
        comparisons: what to settle.
        trained: the networks whose results are known.
        runs: the most networks to train in all, including those that are trained already.
        share: the share of the runs for comparisons of several networks.

    Example:
        >>> pairs = [Job(("a", "b"), 0), Job(("c", "d"), 0)]
        >>> alone = [Job((task,), 0) for task in "abcd"]
        >>> comparisons = [(0, alone), (0, pairs), (0, [Job(("a", "b", "c", "d"), 0)])]
        >>> ["+".join(job.tasks) for job in order_networks(comparisons, [], runs=8)]
        ['a+b+c+d', 'a+b', 'c+d']
    """
    known, chosen = set(trained), list[Job]()
    waiting, settled = list(comparisons), 0
    while waiting:
        missing = [[job for job in dict.fromkeys(networks) if job not in known] for _, networks in waiting]
        place = min(range(len(waiting)), key=lambda at: (waiting[at][0], len(missing[at]), at))
        (_, networks), jobs = waiting.pop(place), missing[place]
        is_baseline = len(networks) == 1
        limit = runs if is_baseline or not settled else runs * share
        if not jobs or len(known) + len(jobs) <= limit:
            settled += not is_baseline
            known.update(jobs)
            chosen += jobs
    return chosen
