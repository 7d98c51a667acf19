"""Lets methods choose networks, trains the chosen networks, measures their latency, and records the results."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tagalong.affinity import CAUTION
from tagalong.documents import build
from tagalong.errors import InvalidInput, pluralize
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Trained
from tagalong.score import Score

from .documents import GroupingsFile
from .external_backend import PREDICTIONS_HINT
from .learning import Learning
from .methods import Choice, Combined, Decision, Method, no_average
from .records import TOGETHER, Cost, Label, Record, averaged_tasks, network_key
from .runner import Runner
from .search_log import format_effort
from .study_request import Options, StudyRequest, check_request, usable_budgets
from .verdict import decide

logger = logging.getLogger(__name__)
Decisions = Mapping[str, tuple[Method, Decision]]  # by method name


def compare_methods(
    runner: Runner,
    methods: Sequence[str | Method],
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
) -> list[Record]:
    """Compares methods as `Study.run` does, without writing results.

    Args:
        runner: the runner that trains the networks or looks them up (see `open_runner`).
        methods: see `Study.run`.
        budgets: see `Study.run`.
        seeds: see `Study.run`.
        options: see `Study.run`.

    Raises:
        ValueError: If the input is invalid. The message lists every problem, and nothing is trained.
        Diverged: If the network for all tasks diverges for at least one seed.
    """
    request = check_request(
        runner.tasks, methods, budgets, seeds, options, problem=runner.problem if runner.trains else None
    )
    # The networks for all tasks come first, since every cost is relative to theirs.
    runner.networks([runner.job(runner.tasks, seed) for seed in request.seeds], "all tasks together")
    return train_choices(runner, decide_all(runner, request), request.seeds)


def decide_all(runner: Runner, request: StudyRequest) -> Decisions:
    """Lets each method decide which networks to train.

    Methods decide in a fixed order so that networks are always trained in the same batches. If a network needed by a
    method diverged, the method makes no choice.
    """
    made = {}
    for method in sorted(request.methods, key=lambda method: (method.order, method.name)):
        logger.info("%s decides", method.name)
        try:
            decision = method.decide(runner, usable_budgets(method, request.budgets, len(runner.tasks)), request.seeds)
        except Diverged as error:
            logger.warning("%s could not select groups: %s", method.name, error)
            budgets = usable_budgets(method, request.budgets, len(runner.tasks)) if method.budgeted else (None,)
            decision = Decision({(k, s): Choice(()) for k in budgets for s in request.seeds})
        made[method.name] = method, decision
    return {method.name: made[method.name] for method in request.methods}


def train_choices(runner: Runner, decisions: Decisions, seeds: Sequence[int]) -> list[Record]:
    """Trains the chosen networks of all methods at once, since methods can share networks.

    Returns their records.
    """
    chosen = [
        (method, decision, budget, seed, choice)
        for method, decision in decisions.values()
        for (budget, seed), choice in decision.choices.items()
        if seed in seeds
    ]
    for method, *_, choice in chosen:
        check_averages(runner, method.name, choice)
    widths = {method.name: _network_width(method, runner) for method, *_ in chosen}
    jobs = [runner.group_job(g, seed, m.rule, widths[m.name]) for m, _, _, seed, c in chosen for g in c.groups]
    jobs.sort(key=lambda job: (job.seed, job.rule, job.width, len(job.tasks), job.tasks, job.network or ""))
    runner.networks(jobs, "the groups", diverged=True)
    return [
        _make_record(runner, method, budget, seed, choice, decision.deciding.get(seed, Cost()))
        for method, decision, budget, seed, choice in chosen
    ]


def _make_record(
    runner: Runner, method: Method, budget: int | None, seed: int, choice: Choice, deciding: Cost
) -> Record:
    width = _network_width(method, runner)
    jobs = [runner.group_job(group, seed, method.rule, width) for group in choice.groups]
    found = runner.networks(jobs, diverged=True)
    rows = [found[job] for job in jobs]
    shares = choice.shares or (1.0,) * len(rows)
    is_single_grouping = choice.shares is None
    return Record(
        method.name,
        budget,
        seed,
        groups=choice.groups if is_single_grouping else (),
        val=_expected_scores(runner, choice, rows, shares, "val"),
        test=_expected_scores(runner, choice, rows, shares, "test"),
        deciding=deciding,
        training=_expected_cost(rows, shares, [runner.step_cost(job.network) for job in jobs]),
        parameters=_expected_parameters(rows, shares),
        latency=_total_latency(runner, choice.groups, jobs) if is_single_grouping else None,
        networks=tuple(row.key for row in rows if row.key) if is_single_grouping else (),
        honest=method.honest,
    )


def check_averages(runner: Runner, method: str, choice: Choice) -> None:
    """Checks that the answers for all tasks that several networks serve can be averaged."""
    averaged = averaged_tasks(choice.groups) if choice.shares is None else ()
    if not averaged:
        return
    place = f"the groups of {method!r}"
    tasks = {name: runner.task(name) for name in sorted(averaged)}
    if any(task is None for task in tasks.values()):
        expected = "must serve each task by one network if only the losses of networks are known"
        raise InvalidInput(place, expected, hint=PREDICTIONS_HINT)
    if unknown := [name for name, task in tasks.items() if task is not None and task.averaging is None]:
        raise no_average(place, unknown)
    served = [(task, network_key(group)) for group in choice.groups for task in group.serves]
    if len(set(served)) < len(served):
        raise InvalidInput(place, "must serve a task by different networks", hint="number the copies: `Group.copy`")


def _expected_scores(
    runner: Runner, choice: Choice, results: Sequence[Trained], probabilities: Sequence[float], split: str
) -> dict[str, Score]:
    """Returns each task's score in the networks that serve it, or NaN if no groups were chosen.

    The answers of several networks are averaged. If the groups are drawn at random, expected scores are returned.
    """
    if choice.scores is not None:
        return {task: choice.scores[split][task] for task in runner.tasks}
    scores = {}
    if choice.shares is None and averaged_tasks(choice.groups):
        scores = runner.average_scores(choice.groups, [row.key for row in results], split)
        scores = {task: replace(score, rows=None) for task, score in scores.items()}
    for task in runner.tasks:
        if task in scores:
            continue
        served = [
            (share, getattr(row, split)[task])
            for group, row, share in zip(choice.groups, results, probabilities, strict=True)
            if task in group.serves
        ]
        scores[task] = _expected_score(served)
    return {task: scores[task] for task in runner.tasks}


def _expected_score(weighted_scores: Sequence[tuple[float, Score]]) -> Score:
    if not weighted_scores:
        return Score(math.nan, math.nan)
    if len(weighted_scores) == 1 and weighted_scores[0][0] == 1:
        return replace(weighted_scores[0][1], rows=None)
    return Score(
        sum(share * score.loss for share, score in weighted_scores),
        sum(share * score.error for share, score in weighted_scores),
    )


def _network_width(method: Method, runner: Runner) -> float:
    return method.width(runner.problem) if runner.trains else 1.0


def _expected_parameters(results: Sequence[Trained], probabilities: Sequence[float]) -> int:
    """Returns the expected total number of parameters, or 0 if it is unknown for any network."""
    if not all(row.parameters for row in results):
        return 0
    return round(sum(share * row.parameters for share, row in zip(probabilities, results, strict=True)))


def _total_latency(runner: Runner, groups: Sequence[Group], jobs: Sequence[Job]) -> float | None:
    """Returns the inference time per row, in seconds, of all networks together, or None if unknown."""
    seconds = [
        runner.latency(group.serves, job.width, job.network)
        for group, job in zip(groups, jobs, strict=True)
        if group.serves
    ]
    known = [one for one in seconds if one is not None]
    return sum(known) if known and len(known) == len(seconds) else None


def _expected_cost(results: Sequence[Trained], probabilities: Sequence[float], step_costs: Sequence[float]) -> Cost:
    weighted = list(zip(probabilities, results, step_costs, strict=True))
    return Cost(
        round(sum(probabilities)),
        round(sum(share * cost * row.steps for share, row, cost in weighted)),
        sum(share * row.seconds for share, row, _ in weighted),
    )


def confirm_candidate(
    runner: Runner,
    decisions: Decisions,
    records: Sequence[Record],
    seeds: Sequence[int],
    learning: Learning,
    *,
    fresh_teachers: bool = True,
) -> tuple[list[Record], list[int]]:
    """Trains the verdict's candidate, copies of as many networks, and one network for all tasks with fresh seeds.

    Copies are trained only if they are among the methods. If the candidate diverges, the next-best candidate is
    trained. No network is shared between seeds, except teachers if `fresh_teachers` is False.

    Args:
        runner: the runner that trains the networks.
        decisions: the decisions of all methods.
        records: the records of all methods for the original seeds.
        seeds: the fresh seeds.
        learning: what is known about how well networks learned.
        fresh_teachers: whether to train the teachers of taught networks anew, too.

    Returns:
        The records for the fresh seeds, and the seeds that cannot be used because the network for all tasks diverged.
    """
    found: list[Record] = []
    lost: list[int] = []
    tried: list[Label] = [TOGETHER]
    left = list(seeds)
    while left:
        verdict = decide([*records, *found], {}, confirming=seeds, learning=learning)
        if verdict.candidate in (None, *tried):
            break
        done = {record.label for record in found}
        compared = dict.fromkeys((TOGETHER, verdict.candidate, verdict.copies))
        wanted = [label for label in compared if label and label not in done]
        again = _decide_again(decisions, wanted, left)
        if fresh_teachers:
            again = {
                name: (method, _with_fresh_teachers(runner, decisions[name][1], decision))
                for name, (method, decision) in again.items()
            }
        found += train_choices(runner, again, left)
        lost += [record.seed for record in found if record.method == "mtl" and record.diverged]
        found = [record for record in found if record.seed not in lost]
        left = [seed for seed in left if seed not in lost]
        assert verdict.candidate is not None
        tried.append(verdict.candidate)
    return found, lost


def _decide_again(decisions: Decisions, labels: Sequence[Label], seeds: Sequence[int]) -> Decisions:
    """Returns the same decisions for fresh seeds.

    Networks that were picked from many, such as those of `best-of`, are not picked again: the plan is the same, and the
    luck of picking is gone.
    """
    copied: dict[str, tuple[Method, Decision]] = {}
    for name, budget in labels:
        method, decision = decisions[name]
        (_, first), choice = next((at, choice) for at, choice in decision.choices.items() if at[0] == budget)
        deciding = {seed: decision.deciding[first] for seed in seeds if first in decision.deciding}
        choices = {**(copied[name][1].choices if name in copied else {}), **{(budget, seed): choice for seed in seeds}}
        copied[name] = method, Decision(choices, deciding)
    return copied


def _with_fresh_teachers(runner: Runner, original: Decision, decision: Decision) -> Decision:
    """Trains the teachers of a decision for fresh seeds anew, and lets them teach.

    Args:
        runner: the runner that trains the networks.
        original: the decision for the original seeds, whose explanation names the teachers.
        decision: the same decision for the fresh seeds.
    """
    seeds = dict.fromkeys(seed for _, seed in decision.choices)
    _, first = next(iter(original.choices))
    teachers = build(tuple[Group, ...], original.about.get("teachers", ()))
    if not any(group.taught for choice in decision.choices.values() for group in choice.groups):
        return decision
    jobs = {seed: [runner.group_job(group, seed) for group in teachers] for seed in (first, *seeds)}
    results = runner.networks([job for some in jobs.values() for job in some], "teachers", diverged=True)
    choices = {}
    for (budget, seed), choice in decision.choices.items():
        fresh = {results[old].key: results[new] for old, new in zip(jobs[first], jobs[seed], strict=True)}
        choices[budget, seed] = replace(choice, groups=tuple(_taught_by(group, fresh) for group in choice.groups))
    return replace(decision, choices=choices)


def _taught_by(group: Group, fresh: Mapping[str, Trained]) -> Group:
    """Replaces the teachers of a group, given the key of each. Those that diverged are left out."""
    if group.taught is None or not fresh.keys() >= set(group.taught.teachers):
        return group
    weights = group.taught.weights or (1.0,) * len(group.taught.teachers)
    known = {
        fresh[key].key: weight
        for key, weight in zip(group.taught.teachers, weights, strict=True)
        if not fresh[key].diverged
    }
    if not known:
        return group
    return replace(group, taught=replace(group.taught, teachers=tuple(known), weights=tuple(known.values())))


def explain_decisions(decisions: Decisions) -> dict[str, Any]:
    """Returns the methods' explanations of their decisions, or an empty mapping if there are none."""
    about = {name: dict(decision.about) for name, (_, decision) in decisions.items() if decision.about}
    return {"decisions": about} if about else {}


def effort_notes(decisions: Decisions) -> list[str]:
    """Returns a sentence about the training runs that `best-of` and `auto` spend on their decisions."""
    about = {name: decision.about for name, (_, decision) in decisions.items()}
    if not about.get("best-of"):
        return []
    copies, trainings = about["best-of"]["copies"], about["best-of"]["trainings"]
    searched = about.get("auto", {}).get("effort")
    who = f"best-of spends {pluralize(trainings, 'training')}"
    if searched is not None:
        same = int(searched) == trainings
        who = "auto and best-of each spend " if same else f"auto spends {format_effort(searched)} and best-of "
        who += pluralize(trainings, "training")
    choice = " or ".join(map(str, sorted(set(copies)))) + (" copy" if max(copies) == 1 else " copies")
    return [f"{who} on deciding; best-of chooses from {choice} of one network for each seed."]


def write_decisions(out: Path, decisions: Decisions) -> None:
    """Writes `groupings.json`, `affinity.json` (for `tag`) and `affinity-<method>.json` (for other methods)."""
    measured = {
        name: decision.affinity
        for name, (method, decision) in decisions.items()
        if decision.affinity is not None and not isinstance(method, Combined)
    }
    main = "tag" if "tag" in measured else next(iter(measured), None)
    for name, affinity in measured.items():
        affinity.save(out / ("affinity.json" if name == main else f"affinity-{name}.json"))
    found = [
        {"method": name, "budget": budget} | _choice_document(choice)
        for name, (_, decision) in decisions.items()
        for budget, choice in {budget: choice for (budget, _), choice in decision.choices.items()}.items()
        if choice.shares is None and choice.groups
    ]
    GroupingsFile.write(out / "groupings.json", {"caution": CAUTION, "groupings": found})


def _choice_document(choice: Choice) -> dict[str, Any]:
    return {
        "groups": [group.to_document(cost=False) for group in choice.groups],
        "grouping": None if choice.grouping is None else choice.grouping.to_document(),
    }
