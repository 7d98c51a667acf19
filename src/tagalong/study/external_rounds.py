"""Rounds of networks that are trained elsewhere: what to train next, and the results so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Job, Problem, Trained

from .decisions import (
    Decisions,
    check_averages,
    conclude,
    confirm_recommended,
    cross_fitted_rows,
    decide_all,
    train_choices,
)
from .evidence import gather_evidence
from .executors import Elsewhere, Pending
from .methods import Decision, Method
from .planning import SCREENING_SHARE, Comparison, Network, PlanRequest, TrainingPlan, order_networks
from .records import Cost, Record
from .results import Results
from .runner import Runner, plain_steps
from .store import Store
from .study_request import usable_budgets
from .words import MIN_SEEDS, label_text


class ExternalRunner(Runner):
    """Gives methods the results and affinities that somebody else's script has measured.

    Args:
        problem: the tasks and labels, without inputs.
        store: the store of the results.
        affinities: the measured affinities by the method that uses them ("tag", "cs" or "auto").
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
        affinity = (self._affinities.get(method) or self._affinities["cs"]).only(self.tasks)
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

    def trained(self) -> dict[Job, Trained]:
        """Returns all networks whose results are known."""
        return {trained.job: trained for trained in self.store.results(self.store.known_keys()).values()}


def is_too_long(runner: ExternalRunner, request: PlanRequest) -> bool:
    """Returns whether all methods, budgets and seeds may need more networks than may be trained."""
    comparisons, deciding = _comparisons(runner, *_decide(runner, request, request.study.seeds), request.study.seeds)
    return request.runs is not None and (deciding or len(order_networks(comparisons, trained=())) > request.runs)


def next_round(runner: ExternalRunner, request: PlanRequest) -> TrainingPlan:
    """Returns the networks of the last round that are not trained yet or, if there are none, starts a new round.

    Rounds are stored, so that the plan stays the same while their results arrive.
    """
    seeds = _usable_seeds(runner, request)
    number, current = 0, None
    while (later := runner.store.computed(f"round {number + 1}")) is not None:
        number, current = number + 1, later
    trained = set(runner.store.known_keys())
    waiting: tuple[Network, ...] = ()
    if current is not None and (current["plan"], current["seeds"]) == (request.digest, list(seeds)):
        listed = [(tuple(tasks), seed) for tasks, seed in current["networks"]]
        waiting = tuple(network for network in listed if runner.keys.of(Job(*network)) not in trained)
    methods = tuple(method.name for method in request.study.methods)
    if current is not None and waiting:
        return TrainingPlan(waiting, number, number + current["more"], len(trained), methods)

    decisions, missing = _decide(runner, request, seeds)
    comparisons, deciding = _comparisons(runner, decisions, missing, seeds)
    share = SCREENING_SHARE if request.screening else 1.0
    jobs = order_networks(comparisons, runner.trained(), request.limit, share)
    confirms = request.screening
    if not jobs and request.screening:
        jobs, confirms = _judging_networks(runner, request, decisions, seeds), False
    if not jobs:
        return TrainingPlan((), number, number, len(trained), methods)
    networks = [[job.tasks, job.seed] for job in jobs]
    more = int(deciding) + int(confirms)
    document = {"plan": request.digest, "seeds": seeds, "networks": networks, "more": more}
    runner.store.add_computed(f"round {number + 1}", document)
    return next_round(runner, request)  # another process may have started this round before


def compare_trained(runner: ExternalRunner, request: PlanRequest, out: Path | None = None) -> Results | None:
    """Returns the results of all comparisons whose networks are trained.

    Returns None if no network for all tasks is trained, with which everything is compared.

    Args:
        runner: the runner that knows the networks.
        request: what to compare.
        out: the folder to which the decisions are written, or None.

    Raises:
        InvalidInput: If the network for all tasks diverged with every seed.
    """
    trained = runner.trained()
    together = {seed: trained.get(runner.job(runner.tasks, seed)) for seed in _usable_seeds(runner, request)}
    seeds = [seed for seed, network in together.items() if network is not None]
    if not seeds:
        return None
    if any(network is not None and network.diverged for network in together.values()):
        expected = "the network for all tasks diverged with every seed, and everything is compared with it"
        raise InvalidInput("", expected, hint="try a lower learning rate")
    # Seeds are dropped until a way of using several networks is complete.
    decisions = _complete_decisions(runner, request, seeds, trained)
    while len(decisions) == 1 and len(seeds) > 1:
        seeds = seeds[:-1]
        decisions = _complete_decisions(runner, request, seeds, trained)

    records = train_choices(runner, decisions, seeds)
    count = 0
    while _missing_to_confirm(runner, request, decisions, records, count + 1) == []:
        count += 1
    # Fewer fresh seeds would say less than the seeds that chose.
    fresh = _fresh_seeds(runner, request, seeds, count if count >= len(seeds) else 0)
    left_out = [
        label_text((method.name, budget))
        for method in request.study.methods
        for budget in (usable_budgets(method, request.study.budgets, len(runner.tasks)) if method.budgeted else [None])
        if (method.name, budget) not in {record.label for record in records}
    ]
    notes = [f"no results of {', '.join(left_out)} yet"] if left_out else []
    study = replace(request.study, seeds=tuple(seeds), confirming=fresh, notes=(*request.study.notes, *notes))
    lost = [seed for seed in request.study.seeds if seed not in _usable_seeds(runner, request, screening=False)]
    return conclude(runner, study, decisions, study.to_document(request.options), out, lost)


def settling_networks(runner: ExternalRunner, request: PlanRequest) -> list[Network]:
    """Returns the networks with fresh seeds that would judge the recommended way and the reference once more."""
    results = compare_trained(runner, request)
    if results is None or results.verdict().seeds >= MIN_SEEDS:
        return []
    choosing = [record for record in results.records if record.seed in results.settings["seeds"]]
    decisions = _complete_decisions(runner, request, results.settings["seeds"], runner.trained())
    missing = _missing_to_confirm(runner, request, decisions, choosing, MIN_SEEDS)
    return [(job.tasks, job.seed) for job in missing or ()]


def _usable_seeds(runner: ExternalRunner, request: PlanRequest, screening: bool = True) -> tuple[int, ...]:
    """Returns the seeds with which candidates are chosen.

    A seed with which the network for all tasks diverged is left out, unless it always did. A screening has one seed.
    """
    keys = {seed: runner.keys.of(runner.job(runner.tasks, seed)) for seed in request.study.seeds}
    results = runner.store.results(keys.values())
    diverged = [key for key, trained in results.items() if trained.diverged]
    seeds = tuple(seed for seed, key in keys.items() if key not in diverged) or request.study.seeds
    return seeds[:1] if request.screening and screening else seeds


def _decide(
    runner: ExternalRunner, request: PlanRequest, seeds: Sequence[int]
) -> tuple[Decisions, list[tuple[Job, ...]]]:
    """Lets each method decide, as far as results are known, and returns the networks that each of the others needs."""
    decisions: dict[str, tuple[Method, Decision]] = {}
    missing = []
    for method in sorted(request.study.methods, key=lambda method: (method.order, method.name)):
        try:
            method.begin(runner, seeds)
            decisions |= decide_all(runner, replace(request.study, methods=(method,), seeds=tuple(seeds)))
        except Pending as pending:  # noqa: PERF203 - the other methods may be able to decide
            missing.append(pending.jobs)
    listed = [method.name for method in request.study.methods if method.name in decisions]
    return {name: decisions[name] for name in listed}, missing


def _comparisons(
    runner: ExternalRunner, decisions: Decisions, missing: Sequence[Sequence[Job]], seeds: Sequence[int]
) -> tuple[list[Comparison], bool]:
    """Returns the networks of each method and budget, by seed, and whether there are methods that cannot decide yet."""
    comparisons = [Comparison(place, [runner.job(runner.tasks, seed)]) for place, seed in enumerate(seeds)]
    for name, (_, decision) in decisions.items():
        for (_, seed), choice in decision.choices.items():
            check_averages(runner, name, choice)
            networks = [runner.group_job(group, seed) for group in choice.groups]
            comparisons.append(Comparison(list(seeds).index(seed), networks))
    return comparisons + [Comparison(0, jobs) for jobs in missing], bool(missing)


def _complete_decisions(
    runner: ExternalRunner, request: PlanRequest, seeds: Sequence[int], trained: Collection[Job]
) -> Decisions:
    """Returns the decisions for the methods and budgets whose networks are all trained."""
    complete = {}
    for name, (method, decision) in _decide(runner, request, seeds)[0].items():
        waiting = set()
        for (budget, seed), choice in decision.choices.items():
            if not all(runner.group_job(group, seed) in trained for group in choice.groups):
                waiting.add(budget)
        choices = {at: choice for at, choice in decision.choices.items() if at[0] not in waiting}
        if choices:
            complete[name] = method, replace(decision, choices=choices)
    return complete


def _fresh_seeds(runner: ExternalRunner, request: PlanRequest, used: Collection[int], count: int) -> tuple[int, ...]:
    """Returns the next seeds that chose nothing."""
    planned = [seed for seed in _usable_seeds(runner, request, screening=False) if seed not in used]
    first = max(request.study.seeds) + 1
    return tuple([*planned, *range(first, first + count)][:count])


def _missing_to_confirm(
    runner: ExternalRunner, request: PlanRequest, decisions: Decisions, records: Sequence[Record], count: int
) -> list[Job] | None:
    """Returns the missing networks of the recommended way and the reference for fresh seeds, or None if it is one."""
    evidence = gather_evidence(runner, records, request.study.reference, cross_fitted_rows(decisions))
    if evidence.verdict().recommended == evidence.reference:
        return None
    seeds = _fresh_seeds(runner, request, {record.seed for record in records}, count)
    try:
        confirm_recommended(runner, decisions, evidence, seeds)
    except Pending as pending:
        return list(pending.jobs)
    return []


def _judging_networks(
    runner: ExternalRunner, request: PlanRequest, decisions: Decisions, seeds: Sequence[int]
) -> list[Job]:
    """Returns the networks of as many fresh seeds as the limit allows, which judge what is recommended."""
    trained = runner.trained()
    decisions = _complete_decisions(runner, request, seeds, trained)
    records = train_choices(runner, decisions, seeds) if "mtl" in decisions else []
    networks: list[Job] = []
    count = 1
    while records:
        missing = _missing_to_confirm(runner, request, decisions, records, count)
        if missing is None or len(trained) + len(missing) > request.limit:
            break
        networks = missing or networks
        count += 1
    return networks
