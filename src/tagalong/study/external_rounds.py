"""Rounds of networks that are trained elsewhere: what to train next, and the results so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tagalong.errors import InvalidInput
from tagalong.learn import Job, constant_scores

from .candidates import comparable_records
from .decisions import Decisions, confirm_candidate, decide_all, explain_decisions, train_choices
from .executors import Pending
from .external_runner import ExternalRunner
from .external_targets import PARTS
from .learning import Learning, constant_p_values
from .methods import Choice, Decision, Method
from .planning import SCREENING_SHARE, Comparison, Network, PlanRequest, TrainingPlan, order_networks
from .records import ProblemInfo, Record
from .results import Results
from .uncertainty import comparison_noise
from .verdict import MIN_SEEDS

Deciding = dict[str, tuple[Job, ...]]  # the missing networks that each method needs to decide


def is_too_long(runner: ExternalRunner, request: PlanRequest) -> bool:
    """Returns whether all methods, budgets and seeds may need more networks than may be trained."""
    decisions, deciding = _decide(runner, request, request.study.seeds)
    networks = order_networks(_comparisons(runner, decisions, deciding, request.study.seeds), trained=())
    return request.runs is not None and (bool(deciding) or len(networks) > request.runs)


def next_round(runner: ExternalRunner, request: PlanRequest) -> TrainingPlan:
    """Returns the networks of the last round that are not trained yet or, if there are none, starts a new round.

    Rounds are stored, so that the plan stays the same while their results arrive.
    """
    trained = set(runner.store.known_keys())
    seeds = _usable_seeds(runner, request)
    number, current = 0, None
    while (later := runner.store.computed(f"round {number + 1}")) is not None:
        number, current = number + 1, later
    waiting: tuple[Network, ...] = ()
    if current is not None and (current["plan"], current["seeds"]) == (request.digest, list(seeds)):
        listed = [(tuple(tasks), seed) for tasks, seed in current["networks"]]
        waiting = tuple(network for network in listed if runner.keys.of(Job(*network)) not in trained)
    if not waiting:
        decisions, deciding = _decide(runner, request, seeds)
        share = SCREENING_SHARE if request.screening else 1.0
        comparisons = _comparisons(runner, decisions, deciding, seeds)
        jobs = order_networks(comparisons, runner.trained(), request.limit, share)
        confirms = request.screening
        if not jobs and request.screening:
            jobs, confirms = _fresh_networks(runner, request, decisions, seeds, request.limit - len(trained)), False
        if jobs:
            more = int(bool(deciding)) + int(confirms)
            networks = [[job.tasks, job.seed] for job in jobs]
            document = {"plan": request.digest, "seeds": seeds, "networks": networks, "more": more}
            runner.store.add_computed(f"round {number + 1}", document)
            return next_round(runner, request)  # another process may have started this round before
    rounds = number + (current["more"] if current is not None and waiting else 0)
    methods = tuple(method.name for method in request.study.methods)
    return TrainingPlan(waiting, number, rounds, len(trained), methods)


def compare(runner: ExternalRunner, request: PlanRequest) -> tuple[Results, Decisions] | None:
    """Returns the results of all comparisons whose networks are trained, and the decisions behind them.

    Returns None if no network for all tasks is trained, with which everything is compared.

    Raises:
        InvalidInput: If the network for all tasks diverged with every seed.
    """
    trained = runner.trained()
    seeds = _usable_seeds(runner, request)
    seeds = tuple(seed for seed in seeds if runner.job(runner.tasks, seed) in trained)
    if not seeds:
        return None
    if trained[runner.job(runner.tasks, seeds[0])].diverged:
        expected = "the network for all tasks diverged with every seed, and everything is compared with it"
        raise InvalidInput("", expected, hint="try a lower learning rate")
    # Seeds are dropped until a way of using several networks is complete.
    while True:
        decisions = _complete_decisions(runner, request, seeds, trained)
        if len(decisions) > 1 or len(seeds) == 1:
            break
        seeds = seeds[:-1]
    records = train_choices(runner, decisions, seeds)
    learning = _learning(runner, records)
    count = 0
    while _missing_to_confirm(runner, request, decisions, records, learning, count + 1) == []:
        count += 1
    # Fewer fresh seeds would say less than the seeds that chose the candidate.
    confirming = _fresh_seeds(runner, request, seeds, count if count >= len(seeds) else 0)
    fresh, _ = confirm_candidate(runner, decisions, records, confirming, learning)
    lost = [seed for seed in request.study.seeds if seed not in _usable_seeds(runner, request, all_seeds=True)]
    settings: dict[str, Any] = {
        "methods": [method.name for method in request.study.methods],
        "budgets": list(request.study.budgets),
        "seeds": list(request.study.seeds),
        "confirming_seeds": list(confirming),
        **explain_decisions(decisions),
    }
    if lost:
        settings["diverged_seeds"] = lost
    problem = ProblemInfo.from_tasks(runner.tasks)
    if len(runner.problem.val):
        known = ProblemInfo.of(runner.problem)
        rows = {part: known.rows[part] for part in PARTS}
        problem = replace(known, rows=rows, labels={part: known.labels[part] for part in PARTS})
    noise = comparison_noise([*records, *fresh], runner.row_losses, None, confirming, learning.unlearnt)
    results = Results([*records, *fresh], problem=problem, noise=noise, settings=settings, learning=learning)
    return results, decisions


def settling_networks(runner: ExternalRunner, request: PlanRequest) -> list[Network]:
    """Returns the networks that would settle a provisional verdict: the candidate's and the baseline's, fresh seeds."""
    compared = compare(runner, request)
    if compared is None:
        return []
    results, decisions = compared
    choosing = [record for record in results.records if record.seed not in results.settings["confirming_seeds"]]
    if results.verdict().seeds >= MIN_SEEDS:
        return []
    missing = _missing_to_confirm(runner, request, decisions, choosing, results.learning, MIN_SEEDS)
    return [(job.tasks, job.seed) for job in missing or ()]


def _usable_seeds(runner: ExternalRunner, request: PlanRequest, all_seeds: bool = False) -> tuple[int, ...]:
    """Returns the seeds with which candidates are chosen.

    A seed with which the network for all tasks diverged is left out, unless it always did. A screening has one seed.
    """
    jobs = {seed: runner.job(runner.tasks, seed) for seed in request.study.seeds}
    results = runner.store.results(map(runner.keys.of, jobs.values()))
    diverged = {trained.job for trained in results.values() if trained.diverged}
    seeds = tuple(seed for seed, job in jobs.items() if job not in diverged) or request.study.seeds
    return seeds[:1] if request.screening and not all_seeds else seeds


def _decide(runner: ExternalRunner, request: PlanRequest, seeds: Sequence[int]) -> tuple[Decisions, Deciding]:
    """Lets each method decide, as far as results are known, and returns the networks that the others need first."""
    decisions: dict[str, tuple[Method, Decision]] = {}
    deciding: Deciding = {}
    for method in sorted(request.study.methods, key=lambda method: (method.order, method.name)):
        try:
            method.begin(runner, seeds)
            decisions |= decide_all(runner, replace(request.study, methods=(method,), seeds=tuple(seeds)))
        except Pending as pending:  # noqa: PERF203 - the other methods may be able to decide
            deciding[method.name] = pending.jobs
    return {m.name: decisions[m.name] for m in request.study.methods if m.name in decisions}, deciding


def _comparisons(
    runner: ExternalRunner, decisions: Decisions, deciding: Deciding, seeds: Sequence[int]
) -> list[Comparison]:
    """Returns the networks of each method and budget, by seed, and those that each undecided method needs."""
    place = {seed: number for number, seed in enumerate(seeds)}
    comparisons = [Comparison(place[seed], [runner.job(runner.tasks, seed)]) for seed in seeds]
    for _, decision in decisions.values():
        for (_, seed), choice in decision.choices.items():
            comparisons.append(Comparison(place[seed], [runner.group_job(group, seed) for group in choice.groups]))
    return comparisons + [Comparison(0, jobs) for jobs in deciding.values()]


def _complete_decisions(
    runner: ExternalRunner, request: PlanRequest, seeds: Sequence[int], trained: Collection[Job]
) -> Decisions:
    """Returns the decisions for the methods and budgets whose networks are all trained."""
    decisions, _ = _decide(runner, request, seeds)
    complete = {}
    for name, (method, decision) in decisions.items():

        def is_trained(choice: Choice, seed: int) -> bool:
            return all(runner.group_job(group, seed) in trained for group in choice.groups)

        known = {budget for (budget, seed), choice in decision.choices.items() if is_trained(choice, seed)}
        known -= {budget for (budget, seed), choice in decision.choices.items() if not is_trained(choice, seed)}
        choices = {at: choice for at, choice in decision.choices.items() if at[0] in known}
        if choices:
            complete[name] = method, replace(decision, choices=choices)
    return complete


def _learning(runner: ExternalRunner, records: Sequence[Record]) -> Learning:
    """Compares the networks that may be recommended with constants, on the validation rows."""
    if not len(runner.problem.val):
        return Learning()
    groupings = [[runner.row_losses(record, "val") or {} for record in some] for some in comparable_records(records)]
    scores = constant_scores(runner.problem, "val", fit_on="val")
    return Learning(
        constant_p_values(groupings, {task: one.rows for task, one in scores.items() if one.rows is not None})
    )


def _fresh_seeds(runner: ExternalRunner, request: PlanRequest, used: Collection[int], count: int) -> tuple[int, ...]:
    """Returns the next seeds that did not choose the candidate."""
    planned = [seed for seed in _usable_seeds(runner, request, all_seeds=True) if seed not in used]
    first = max(request.study.seeds) + 1
    return tuple([*planned, *range(first, first + count)][:count])


def _missing_to_confirm(
    runner: ExternalRunner,
    request: PlanRequest,
    decisions: Decisions,
    records: Sequence[Record],
    learning: Learning,
    count: int,
) -> list[Job] | None:
    """Returns the missing networks of the candidate and the baseline for fresh seeds, or None without a candidate."""
    try:
        seeds = _fresh_seeds(runner, request, {record.seed for record in records}, count)
        fresh, _ = confirm_candidate(runner, decisions, records, seeds, learning)
    except Pending as pending:
        return list(pending.jobs)
    return [] if fresh else None


def _fresh_networks(
    runner: ExternalRunner, request: PlanRequest, decisions: Decisions, seeds: Sequence[int], room: float
) -> list[Job]:
    """Returns the networks of as many fresh seeds as there is room for, which judge the candidate."""
    complete = _complete_decisions(runner, request, seeds, runner.trained())
    if "mtl" not in complete:
        return []
    records = train_choices(runner, complete, seeds)
    learning = _learning(runner, records)
    networks: list[Job] = []
    for count in range(1, math.floor(room) + 1):
        missing = _missing_to_confirm(runner, request, complete, records, learning, count)
        if missing is None or len(missing) > room:
            break
        networks = missing or networks
    return networks
