"""Lets each method decide, trains and times the chosen networks, and records their results."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tagalong.disclaimer import disclaimer
from tagalong.files import write_document
from tagalong.group import Group
from tagalong.learn import Diverged
from tagalong.score import Score

from .backend import Backend
from .methods import Choice, Combined, Decision, Method
from .records import GROUPINGS, TOGETHER, Cost, Label, ProblemInfo, Record
from .results import Results
from .store import NetworkResult
from .study_request import Options, StudyRequest, check_request

logger = logging.getLogger(__name__)
Decisions = Mapping[str, tuple[Method, Decision]]  # by method name


def compare_methods(
    backend: Backend,
    methods: Sequence[str | Method],
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
) -> list[Record]:
    """Compares methods on the networks of a backend, as `Study.run` does, without writing results.

    Args:
        backend: trains the networks, or looks them up; see `open_backend`.
        methods: as for `Study.run`.
        budgets: as for `Study.run`.
        seeds: as for `Study.run`.
        options: as for `Study.run`.

    Raises:
        ValueError: the input is invalid; the message lists every problem, and nothing is trained.
        Diverged: the network for all tasks diverged with at least one seed.
    """
    request = check_request(backend.tasks, methods, budgets, seeds, options, problem=backend.problem)
    # The networks for all tasks come first, since every cost is relative to theirs.
    backend.networks([backend.job(backend.tasks, seed) for seed in request.seeds], "all tasks together")
    return records_of(backend, decide_all(backend, request), request.seeds)


def decide_all(backend: Backend, request: StudyRequest) -> Decisions:
    """Lets each method decide, always in the same order, so that networks are always trained in the same batches.

    If a method cannot decide because a network that it needs diverged, its choices are empty.
    """
    made = {}
    for method in sorted(request.methods, key=lambda method: (method.order, method.name)):
        logger.info("%s decides", method.name)
        try:
            decision = method.decide(backend, request.budgets, request.seeds)
        except Diverged as error:
            logger.warning("%s could not select groups: %s", method.name, error)
            decision = Decision({(k, s): Choice(()) for k in _budgets(method, request) for s in request.seeds})
        made[method.name] = method, decision
    return {method.name: made[method.name] for method in request.methods}


def _budgets(method: Method, request: StudyRequest) -> tuple[int | None, ...]:
    return request.budgets if method.budgeted else (None,)


def records_of(backend: Backend, decisions: Decisions, seeds: Sequence[int]) -> list[Record]:
    """Trains the chosen networks of all methods at once, since methods can share networks; returns their records."""
    chosen = [
        (method, decision, budget, seed, choice)
        for method, decision in decisions.values()
        for (budget, seed), choice in decision.choices.items()
        if seed in seeds
    ]
    widths = {method.name: _width(method, backend) for method, *_ in chosen}
    jobs = [backend.job(g.trains, seed, m.rule, widths[m.name]) for m, _, _, seed, c in chosen for g in c.groups]
    jobs.sort(key=lambda job: (job.seed, job.rule, job.width, len(job.tasks), job.tasks))
    backend.networks(jobs, "the groups", diverged=True)
    return [
        _record(backend, method, budget, seed, choice, decision.deciding.get(seed, Cost()))
        for method, decision, budget, seed, choice in chosen
    ]


def _record(backend: Backend, method: Method, budget: int | None, seed: int, choice: Choice, deciding: Cost) -> Record:
    width = _width(method, backend)
    jobs = [backend.job(group.trains, seed, method.rule, width) for group in choice.groups]
    found = backend.networks(jobs, diverged=True)
    rows = [found[job] for job in jobs]
    shares = choice.shares or (1.0,) * len(rows)
    is_single_grouping = choice.shares is None
    return Record(
        method.name,
        budget,
        seed,
        groups=choice.groups if is_single_grouping else (),
        val=_scores(backend.tasks, choice, rows, shares, "val"),
        test=_scores(backend.tasks, choice, rows, shares, "test"),
        deciding=deciding,
        training=_expected_cost(rows, shares),
        parameters=_parameters(rows, shares),
        latency=_latency(backend, choice.groups, width) if is_single_grouping else None,
        networks=tuple(row.key for row in rows if row.key) if is_single_grouping else (),
        honest=method.honest,
    )


def _scores(
    names: Iterable[str], choice: Choice, rows: Sequence[NetworkResult], shares: Sequence[float], part: str
) -> dict[str, Score]:
    """Returns each task's score in the network that serves it; NaN if no group was chosen.

    If multiple groups can serve a task, its score is the expected value.
    """
    scores = {}
    for task in names:
        served = [
            (share, getattr(row, part)[task])
            for group, row, share in zip(choice.groups, rows, shares, strict=True)
            if task in group.serves
        ]
        scores[task] = _expected_score(served)
    return scores


def _expected_score(served: Sequence[tuple[float, Score]]) -> Score:
    if not served:
        return Score(math.nan, math.nan)
    if len(served) == 1 and served[0][0] == 1:
        return replace(served[0][1], rows=None)
    return Score(
        sum(share * score.loss for share, score in served), sum(share * score.error for share, score in served)
    )


def _width(method: Method, backend: Backend) -> float:
    return 1.0 if backend.problem is None else method.width(backend.problem)


def _parameters(rows: Sequence[NetworkResult], shares: Sequence[float]) -> int:
    """Returns the expected total number of parameters of all networks; 0 if that of any network is unknown."""
    if not all(row.parameters for row in rows):
        return 0
    return round(sum(share * row.parameters for share, row in zip(shares, rows, strict=True)))


def _latency(backend: Backend, groups: Sequence[Group], width: float) -> float | None:
    """Returns the time in seconds to pass one row through all networks with their served heads; None if unknown."""
    seconds = [backend.latency(group.serves, width) for group in groups if group.serves]
    known = [one for one in seconds if one is not None]
    return sum(known) if known and len(known) == len(seconds) else None


def _expected_cost(rows: Sequence[NetworkResult], shares: Sequence[float]) -> Cost:
    weighted = list(zip(shares, rows, strict=True))
    return Cost(
        round(sum(shares)),
        round(sum(share * row.steps for share, row in weighted)),
        sum(share * row.seconds for share, row in weighted),
    )


def confirm(
    backend: Backend, decisions: Decisions, records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo
) -> tuple[list[Record], list[int]]:
    """Trains the candidate of the verdict and one network for all tasks with fresh seeds.

    If the candidate diverges, the next best candidate is trained.

    Args:
        backend: trains the networks.
        decisions: the decisions of all methods.
        records: the records of all methods with the original seeds.
        seeds: the fresh seeds.
        info: the description of the problem.

    Returns:
        The records with fresh seeds, and the seeds that cannot be used because the network for all tasks diverged.
    """
    found: list[Record] = []
    lost: list[int] = []
    tried: list[Label] = [TOGETHER]
    left = list(seeds)
    while left and (candidate := _candidate([*records, *found], seeds, info)) not in (None, *tried):
        assert candidate is not None
        labels = [candidate] if found else [TOGETHER, candidate]
        found += records_of(backend, _with_seeds(decisions, *labels, seeds=left), left)
        lost += [record.seed for record in found if record.method == "mtl" and record.diverged]
        found = [record for record in found if record.seed not in lost]
        left = [seed for seed in left if seed not in lost]
        tried.append(candidate)
    return found, lost


def _candidate(records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo) -> Label | None:
    return Results(records, problem=info, settings={"confirming_seeds": list(seeds)}).verdict().candidate


def _with_seeds(decisions: Decisions, *labels: Label, seeds: Sequence[int]) -> Decisions:
    """Returns the choices of these methods and budgets with different seeds."""
    copied = {}
    for name, budget in labels:
        method, decision = decisions[name]
        (_, first), choice = next((at, choice) for at, choice in decision.choices.items() if at[0] == budget)
        deciding = {seed: decision.deciding[first] for seed in seeds if first in decision.deciding}
        copied[name] = method, Decision({(budget, seed): choice for seed in seeds}, deciding)
    return copied


def about_decisions(decisions: Decisions) -> dict[str, Any]:
    """Returns how methods reached their decisions, as an entry of a study's settings; empty if none explains it."""
    about = {name: dict(decision.about) for name, (_, decision) in decisions.items() if decision.about}
    return {"decisions": about} if about else {}


def write_decisions(out: Path, decisions: Decisions, tasks: Sequence[str]) -> None:
    """Writes `groupings.json`, `affinity.json` for `tag`, and `affinity-<method>.json` for other methods."""
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
    write_document(out / "groupings.json", GROUPINGS, 1, {"caution": disclaimer(tasks), "groupings": found})


def _choice_document(choice: Choice) -> dict[str, Any]:
    return {
        "groups": [{"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in choice.groups],
        "grouping": None if choice.grouping is None else choice.grouping.to_document(),
    }
