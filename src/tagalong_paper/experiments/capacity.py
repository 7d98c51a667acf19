"""`capacity`: compares one larger network for all tasks with several small networks for groups of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.learn import Capacity, capacities, count_parameters
from tagalong.study import TrainingBackend, compare_methods

from ..claims import claim_all_lower, summarize
from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import Point, draw_error_against_cost
from ..metrics import Label, error_per_row, metric_digits, metric_label, total_result, totals_by_method
from ..printed import CAPACITY
from .tune import training_rules

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "Is one larger network as good as several small ones?"
METHODS = ("mtl", "uw", "gradnorm")
NetworkTotals = dict[tuple[str, str, float], list[float]]
GroupTotals = dict[Label, list[float]]


def run(setup: ExperimentSetup, methods: Sequence[str] | None = None) -> Report:
    """Trains networks with n× the channels and networks with n× the parameters.

    Args:
        setup: the problem, the seeds and the output folder.
        methods: one or more of "mtl", "uw" and "gradnorm". Defaults to the paper's methods: all three, or "mtl" and
            "gradnorm" for Taskonomy.
    """
    chosen = methods or [method for method in METHODS if method != "uw" or setup.printed_dataset != "taskonomy"]
    multiples = [float(k) for k in setup.budgets]
    with setup.open_backend() as backend:
        rules = training_rules(setup, backend, chosen)
        sizes = [Capacity("channels", 1.0, 1.0, count_parameters(setup.chosen, setup.chosen.names), 1.0)]
        sizes += capacities(setup.chosen, times=multiples)
        # Compare groups first: this fails if MTL diverges, and training larger networks takes hours.
        compared = compare_methods(backend, ["tag", "hoa"], setup.budgets, setup.seeds)
        records = [record for record in compared if record.budget is not None]
        found = _totals(backend, rules, sizes, setup.seeds)
    group_totals = totals_by_method(setup.chosen, records)
    relative_parameters = {(one.method, one.budget): one.parameters / sizes[0].parameters for one in records}
    return Report(
        "capacity",
        TITLE,
        tables=[_larger_network_table(setup, sizes, found), _group_table(setup, group_totals, relative_parameters)],
        claims=_claims(found, group_totals, multiples, error_per_row(setup.chosen)),
        figures={"capacity": _figure(setup, figure_points(sizes, found, group_totals, relative_parameters))},
        notes=[*setup.notes, "parameters are relative to MTL's; the paper counts n× the channels, and n groups, as n×"],
        numbers={"rules": rules},
    )


def _totals(
    backend: TrainingBackend, rules: Mapping[str, str], sizes: Sequence[Capacity], seeds: Sequence[int]
) -> NetworkTotals:
    jobs = {
        (method, size.by, size.times): [backend.job(backend.problem.names, seed, rule, size.width) for seed in seeds]
        for method, rule in rules.items()
        for size in sizes
    }
    rows = backend.networks([job for some in jobs.values() for job in some], "larger networks", diverged=True)
    return {label: [total_result(backend.problem, rows[job].test) for job in some] for label, some in jobs.items()}


def _larger_network_table(setup: ExperimentSetup, sizes: Sequence[Capacity], totals: NetworkTotals) -> ReportTable:
    rows: list[list[Cell]] = []
    known, digits = CAPACITY.get(setup.printed_dataset or "", {}), metric_digits(setup.chosen)
    for (method, by, multiple), values in totals.items():
        size = next(size for size in sizes if (size.by, size.times) == (by, multiple))
        printed = known.get((method, int(multiple))) if by == "channels" and len(setup.chosen.names) >= 5 else None
        comparable = printed is not None and len(printed.results) == len(setup.chosen.names)
        shown = Value(printed.total, digits=digits) if printed is not None and comparable else None
        rows.append([method, f"{multiple:g}× {by}", Value(size.reached), summarize(values, digits=digits), shown])
    columns = ("method", "size", "parameters, ×", f"total {metric_label(setup.chosen)}", "printed")
    return ReportTable("One larger network", columns, rows)


def _group_table(
    setup: ExperimentSetup, group_totals: GroupTotals, relative_parameters: Mapping[Label, float]
) -> ReportTable:
    digits = metric_digits(setup.chosen)
    rows = [
        (*label, Value(relative_parameters[label]), summarize(values, digits=digits))
        for label, values in group_totals.items()
    ]
    columns = ("method", "groups", "parameters, ×", f"total {metric_label(setup.chosen)}")
    return ReportTable("Groups of networks of the usual size", columns, rows)


def _claims(
    totals: NetworkTotals, group_totals: GroupTotals, multiples: Sequence[float], per_row: float
) -> list[Claim]:
    groups = {
        f"{group} against {method} at {n:g}× {by}": (group_totals[group, k], totals[method, by, n])
        for group, k in group_totals
        for method, by, n in totals
        if n == k
    }
    wider = {
        f"{method} at {n:g}× channels": (totals[method, "channels", 1.0], totals[method, "channels", n])
        for method in dict.fromkeys(method for method, *_ in totals)
        for n in multiples
    }
    return [
        claim_all_lower("groups of TAG and HOA do better than larger networks", groups, per_row=per_row),
        claim_all_lower("more channels do worse than the usual ones (said of CelebA)", wider, per_row=per_row),
    ]


def _figure(setup: ExperimentSetup, points: Sequence[Point]) -> Figure:
    return draw_error_against_cost(
        points,
        title=TITLE,
        cost_label="parameters, against MTL's",
        error_label=f"total {metric_label(setup.chosen)}",
        note=f"{setup.problem.name}, {setup.size}; labels are sizes or groups; equal points are side by side",
    )


def figure_points(
    sizes: Sequence[Capacity],
    totals: NetworkTotals,
    group_totals: GroupTotals,
    relative_parameters: Mapping[Label, float],
) -> list[Point]:
    """Returns the points of the figure, excluding networks that diverged."""
    larger: dict[tuple[str, float], float] = {(size.by, size.times): size.reached for size in sizes}
    made = [
        Point(
            f"{method}, {by}", f"{multiple:g}×", larger[by, multiple], summarize(values).mean, summarize(values).stderr
        )
        for (method, by, multiple), values in totals.items()
    ]
    for (method, k), values in group_totals.items():
        made.append(
            Point(method, str(k), relative_parameters[method, k], summarize(values).mean, summarize(values).stderr)
        )
    return [point for point in made if np.isfinite(point.error)]
