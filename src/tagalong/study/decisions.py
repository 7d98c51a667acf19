"""Every method decides; the chosen networks are trained, timed and become records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tagalong.disclaimer import disclaimer
from tagalong.files import write_document
from tagalong.group import Group
from tagalong.learn import Diverged, build_network
from tagalong.score import Score

from .backend import Lab
from .methods import Choice, Combined, Decision, Method
from .records import GROUPINGS, TOGETHER, Cost, Label, ProblemInfo, Record
from .request import Asked, Options, check_request
from .results import Results
from .store import NetworkResult

logger = logging.getLogger(__name__)
Decisions = Mapping[str, tuple[Method, Decision]]  # by the name of the method


def compare_methods(
    lab: Lab,
    methods: Sequence[str | Method],
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
) -> list[Record]:
    """What methods reach with the networks of a lab, as `Study.run` finds it, without writing results.

    Args:
        lab: has the networks, or trains them; see `open_lab`.
        methods: as for `Study.run`.
        budgets: as for `Study.run`.
        seeds: as for `Study.run`.
        options: as for `Study.run`.

    Raises:
        ValueError: with every problem of the input, before any training.
        Diverged: one network for all tasks did, with some seed.
    """
    asked = check_request(lab.problem, methods, budgets, seeds, options)
    # All together first: every cost is compared with what this took.
    lab.networks([lab.job(lab.problem.names, seed) for seed in asked.seeds], "all tasks together")
    return records_of(lab, decide_all(lab, asked), asked.seeds)


def decide_all(lab: Lab, asked: Asked) -> Decisions:
    """In one order whatever was asked for, so that the same networks are trained side by side; given as asked.

    A method that cannot decide, since a network that it needs diverged, chooses nothing.
    """
    made = {}
    for method in sorted(asked.methods, key=lambda method: (method.order, method.name)):
        logger.info("%s decides", method.name)
        try:
            decision = method.decide(lab, asked.budgets, asked.seeds)
        except Diverged as error:
            logger.warning("%s cannot decide: %s", method.name, error)
            decision = Decision({(k, s): Choice(()) for k in _budgets(method, asked) for s in asked.seeds})
        made[method.name] = method, decision
    return {method.name: made[method.name] for method in asked.methods}


def _budgets(method: Method, asked: Asked) -> tuple[int | None, ...]:
    return asked.budgets if method.budgeted else (None,)


def records_of(lab: Lab, decisions: Decisions, seeds: Sequence[int]) -> list[Record]:
    """Trains what was chosen, all methods together so that they share, and reads the results."""
    chosen = [
        (method, decision, budget, seed, choice)
        for method, decision in decisions.values()
        for (budget, seed), choice in decision.choices.items()
        if seed in seeds
    ]
    widths = {method.name: method.width(lab.problem) for method, *_ in chosen}
    jobs = [lab.job(g.trains, seed, m.rule, widths[m.name]) for m, _, _, seed, c in chosen for g in c.groups]
    jobs.sort(key=lambda job: (job.seed, job.rule, job.width, len(job.tasks), job.tasks))
    lab.networks(jobs, "the groups", diverged=True)
    return [
        _record(lab, method, budget, seed, choice, decision.deciding.get(seed, Cost()))
        for method, decision, budget, seed, choice in chosen
    ]


def _record(lab: Lab, method: Method, budget: int | None, seed: int, choice: Choice, deciding: Cost) -> Record:
    width = method.width(lab.problem)
    jobs = [lab.job(group.trains, seed, method.rule, width) for group in choice.groups]
    found = lab.networks(jobs, diverged=True)
    rows = [found[job] for job in jobs]
    shares = choice.shares or (1.0,) * len(rows)
    meant = choice.shares is None
    return Record(
        method.name,
        budget,
        seed,
        groups=choice.groups if meant else (),
        val=_outcomes(lab.problem.names, choice, rows, shares, "val"),
        test=_outcomes(lab.problem.names, choice, rows, shares, "test"),
        deciding=deciding,
        training=_expected(rows, shares),
        parameters=round(sum(share * row.parameters for share, row in zip(shares, rows, strict=True))),
        latency=sum(_latency(lab, group, width) for group in choice.groups) if meant and choice.groups else None,
        networks=tuple(row.key for row in rows) if meant else (),
        honest=method.honest,
    )


def _outcomes(
    names: Iterable[str], choice: Choice, rows: Sequence[NetworkResult], shares: Sequence[float], part: str
) -> dict[str, Score]:
    """Each task where it is served; the expectation if several groups may serve it, NaN if none was chosen."""
    outcomes = {}
    for task in names:
        served = [
            (share, getattr(row, part)[task])
            for group, row, share in zip(choice.groups, rows, shares, strict=True)
            if task in group.serves
        ]
        loss = sum(share * outcome.loss for share, outcome in served)
        known = Score(loss, sum(share * outcome.error for share, outcome in served))
        outcomes[task] = known if served else Score(math.nan, math.nan)
    return outcomes


def _expected(rows: Sequence[NetworkResult], shares: Sequence[float]) -> Cost:
    weighed = list(zip(shares, rows, strict=True))
    return Cost(
        round(sum(shares)),
        round(sum(share * row.steps for share, row in weighed)),
        sum(share * row.seconds for share, row in weighed),
    )


def _latency(lab: Lab, group: Group, width: float) -> float:
    """Seconds of a forward pass of one row, with the heads that are served; timed once and then looked up."""
    if not group.serves:
        return 0.0
    served = lab.job(group.serves, 0, width=width)
    found = lab.store.latency(lab.keys.of(served))
    if found is None:
        network = build_network(lab.problem, served.tasks, seed=0, width=width).to(lab.device)
        row, _ = lab.problem.test.only(()).to(lab.device).batch(torch.tensor([0]))
        found = latency(network, row).one
        lab.store.add_latency(lab.keys.of(served), found)
    return found


@dataclass(frozen=True)
class Latency:
    """Seconds of a forward pass: of one row, and of a batch of `rows`."""

    one: float
    batch: float
    rows: int


def latency(network: nn.Module, inputs: Tensor, *, repeats: int = 20, warm_up: int = 3) -> Latency:
    """The median time of a forward pass in evaluation mode, on the device of the inputs.

    Args:
        network: to be timed; its mode is put back.
        inputs: a full batch of rows.
        repeats: passes that count.
        warm_up: passes before them that do not.
    """
    mode = network.training
    network.eval()
    try:
        with torch.inference_mode():
            one, batch = (_median(network, rows, repeats, warm_up) for rows in (inputs[:1], inputs))
    finally:
        network.train(mode)
    return Latency(one, batch, len(inputs))


def _median(network: nn.Module, rows: Tensor, repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        network(rows)
    clock = _cuda_seconds if rows.is_cuda else _cpu_seconds
    return median(clock(network, rows) for _ in range(repeats))


def _cpu_seconds(network: nn.Module, rows: Tensor) -> float:
    start = time.perf_counter()
    network(rows)
    return time.perf_counter() - start


def _cuda_seconds(network: nn.Module, rows: Tensor) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(rows.device):
        start.record()
        network(rows)
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def confirmed(
    lab: Lab, decisions: Decisions, records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo
) -> tuple[list[Record], list[int]]:
    """Trains the candidate of the verdict and all together with fresh seeds; where it diverges, the next candidate.

    Args:
        lab: trains.
        decisions: of all methods.
        records: of all methods with the seeds that they decided from.
        seeds: fresh ones.
        info: what the records are about.

    Returns:
        The records of fresh seeds, and those seeds with which all together diverged, so that nothing can be compared.
    """
    found: list[Record] = []
    lost: list[int] = []
    tried: list[Label] = [TOGETHER]
    left = list(seeds)
    while left and (candidate := _candidate([*records, *found], seeds, info)) not in (None, *tried):
        assert candidate is not None
        labels = [candidate] if found else [TOGETHER, candidate]
        found += records_of(lab, _choices_again(decisions, *labels, seeds=left), left)
        lost += [record.seed for record in found if record.method == "mtl" and record.diverged]
        found = [record for record in found if record.seed not in lost]
        left = [seed for seed in left if seed not in lost]
        tried.append(candidate)
    return found, lost


def _candidate(records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo) -> Label | None:
    return Results(records, problem=info, settings={"confirming_seeds": list(seeds)}).verdict().candidate


def _choices_again(decisions: Decisions, *labels: Label, seeds: Sequence[int]) -> Decisions:
    """The same choices of some methods and budgets for other seeds."""
    again = {}
    for name, budget in labels:
        method, decision = decisions[name]
        (_, first), choice = next((at, choice) for at, choice in decision.choices.items() if at[0] == budget)
        deciding = {seed: decision.deciding[first] for seed in seeds if first in decision.deciding}
        again[name] = method, Decision({(budget, seed): choice for seed in seeds}, deciding)
    return again


def write_decisions(out: Path, decisions: Decisions, tasks: Sequence[str]) -> None:
    """`groupings.json`, and `affinity.json` of `tag`; `affinity-<method>.json` of others that measured."""
    measured = {
        name: decision.affinity
        for name, (method, decision) in decisions.items()
        if decision.affinity is not None and not isinstance(method, Combined)
    }
    main = "tag" if "tag" in measured else next(iter(measured), None)
    for name, affinity in measured.items():
        affinity.save(out / ("affinity.json" if name == main else f"affinity-{name}.json"))
    found = [
        {"method": name, "budget": budget} | _document(choice)
        for name, (_, decision) in decisions.items()
        for budget, choice in {budget: choice for (budget, _), choice in decision.choices.items()}.items()
        if choice.shares is None and choice.groups
    ]
    write_document(out / "groupings.json", GROUPINGS, 1, {"caution": disclaimer(tasks), "groupings": found})


def _document(choice: Choice) -> dict[str, Any]:
    return {
        "groups": [{"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in choice.groups],
        "grouping": None if choice.grouping is None else choice.grouping.to_document(),
    }
