"""`capacity`: compares one larger network for all tasks with several small networks for groups of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tagalong.learn import Capacity, capacities, count_parameters
from tagalong.study import compare_methods

from ..claims import claim_all_lower
from ..experiment_setup import ExperimentSetup, totals_by_method, train_totals
from ..figures import Point, draw_error_against_cost
from ..printed import CAPACITY
from ..report import Report, ReportTable, Value, values_of
from .tune import training_rules

TITLE = "Is one larger network as good as several small ones?"


def run(setup: ExperimentSetup, methods: Sequence[str] | None = None) -> Report:
    """Trains networks with n× the channels and networks with n× the parameters.

    Args:
        setup: the problem, the seeds and the output folder.
        methods: one or more of "mtl", "uw" and "gradnorm". Defaults to the paper's methods: all three, or "mtl" and
            "gradnorm" for Taskonomy.
    """
    default = ["mtl", "gradnorm"] if setup.printed_dataset == "taskonomy" else ["mtl", "uw", "gradnorm"]
    with setup.open_backend() as backend:
        rules = training_rules(setup, backend, methods or default)
        usual = count_parameters(setup.chosen, setup.chosen.names)
        sizes = [Capacity("channels", 1.0, 1.0, usual, 1.0), *capacities(setup.chosen, times=setup.budgets)]
        # Compare groups first: this fails if MTL diverges, and training larger networks takes hours.
        records = compare_methods(backend, ["tag", "hoa"], setup.budgets, setup.seeds)
        jobs = {
            (method, size): [backend.job(backend.tasks, seed, rule, size.width) for seed in setup.seeds]
            for method, rule in rules.items()
            for size in sizes
        }
        larger = train_totals(backend, jobs, "larger networks")
    records = [record for record in records if record.budget is not None]
    groups = totals_by_method(setup.chosen, records)
    parameters = {(record.method, record.budget): record.parameters for record in records}
    total = f"total {setup.label()}"
    # The paper's totals include all of its tasks.
    printed = {
        (method, "channels", float(times)): line.total
        for (method, times), line in CAPACITY.get(setup.printed_dataset or "", {}).items()
        if len(line.groups[0].results) == len(setup.chosen.names)
    }
    tables = [
        ReportTable.of_columns(
            "One larger network",
            {
                "method": [method for method, _ in larger],
                "size": [f"{size.times:g}× {size.by}" for _, size in larger],
                "parameters, ×": [Value(size.reached) for _, size in larger],
                total: map(setup.summarize, larger.values()),
                "printed": values_of(
                    printed, [(method, size.by, size.times) for method, size in larger], digits=setup.digits
                ),
            },
        ),
        ReportTable.of_columns(
            "Groups of networks of the usual size",
            {
                "method": [method for method, _ in groups],
                "groups": [k for _, k in groups],
                "parameters, ×": [Value(parameters[label] / usual) for label in groups],
                total: map(setup.summarize, groups.values()),
            },
        ),
    ]
    better, wider = {}, {}
    for (method, size), totals in larger.items():
        if size.times in setup.budgets:
            for (grouping, k), grouped in groups.items():
                if k == size.times:
                    better[f"{grouping} against {method} at {k:g}× {size.by}"] = grouped, totals
            if size.by == "channels":
                wider[f"{method} at {size.times:g}× channels"] = larger[method, sizes[0]], totals
    return Report(
        "capacity",
        TITLE,
        tables,
        claims=[
            claim_all_lower("groups of TAG and HOA do better than larger networks", better, per_row=setup.per_row),
            claim_all_lower(
                "more channels do worse than the usual ones (said of CelebA)", wider, per_row=setup.per_row
            ),
        ],
        figures={
            "capacity": draw_error_against_cost(
                points_of(tables),
                title=TITLE,
                cost_label="parameters, against MTL's",
                error_label=total,
                note=f"{setup.problem.name}, {setup.size}; labels are sizes or groups; equal points are side by side",
            )
        },
        notes=[*setup.notes, "parameters are relative to MTL's; the paper counts n× the channels, and n groups, as n×"],
        numbers={"rules": rules},
    )


def points_of(tables: Sequence[ReportTable]) -> list[Point]:
    """Returns the points of the figure, excluding networks that diverged."""
    points = []
    for table in tables:
        for method, label, cost, error, *_ in table.rows:
            if isinstance(cost, Value) and isinstance(error, Value) and np.isfinite(error.mean):
                points.append(Point(str(method), str(label), cost.mean, error))
    return points
