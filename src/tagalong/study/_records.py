"""From decisions to records: the chosen networks are trained, and every task is read where it is served."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from tagalong.group import Group
from tagalong.learn import build_network

from ._lab import Lab
from ._latency import latency
from ._record import Cost, Outcome, Record
from ._row import Row
from .methods import Choice, Decision, Method

Decisions = Mapping[str, tuple[Method, Decision]]


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
    names: Iterable[str], choice: Choice, rows: Sequence[Row], shares: Sequence[float], part: str
) -> dict[str, Outcome]:
    """Each task where it is served; the expectation if several groups may serve it, NaN if none was chosen."""
    outcomes = {}
    for task in names:
        served = [
            (share, getattr(row, part)[task])
            for group, row, share in zip(choice.groups, rows, shares, strict=True)
            if task in group.serves
        ]
        loss = sum(share * outcome.loss for share, outcome in served)
        known = Outcome(loss, sum(share * outcome.error for share, outcome in served))
        outcomes[task] = known if served else Outcome(math.nan, math.nan)
    return outcomes


def _expected(rows: Sequence[Row], shares: Sequence[float]) -> Cost:
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
