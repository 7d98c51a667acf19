"""`capacity`: compares one larger network for all tasks with several small networks for groups of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tagalong.learn import Problem, count_parameters, width_of_size
from tagalong.study import compare_methods

from ..experiment_setup import ExperimentSetup, totals_by_method, train_totals
from ..figures import draw_error_against_cost
from ..printed import CAPACITY
from ..report import Report, ReportTable, Value, claim_all_lower, values_of
from .tune import training_rules

TITLE = "Is one larger network as good as several small ones?"


@dataclass(frozen=True)
class Capacity:
    """The size of a wider network.

    Attributes:
        by: what is multiplied: "channels" (the paper's "n× channels") or "parameters". Doubling the channels of a
            convolution quadruples its parameters, so these two readings of "as large as n networks" differ widely.
        times: the multiple n.
        width: the width of the encoder, for `Job.width`.
        parameters: the number of parameters in a network for all tasks.
    """

    by: str
    times: float
    width: float
    parameters: int


def capacities(problem: Problem, times: Sequence[float]) -> list[Capacity]:
    """Returns the paper's wider networks for all tasks, first with n× the channels, then with n× the parameters."""
    widths = [("channels", n, float(n)) for n in times]
    widths += [("parameters", n, width_of_size(problem, problem.names, n)) for n in times]
    return [Capacity(*size, count_parameters(problem, problem.names, size[2])) for size in widths]


def run(setup: ExperimentSetup, methods: Sequence[str] | None = None) -> Report:
    """Trains networks with n× the channels and networks with n× the parameters.

    Args:
        setup: the problem, the seeds and the output folder.
        methods: one or more of "mtl", "uw" and "gradnorm". Defaults to the paper's methods: all three, or "mtl" and
            "gradnorm" for Taskonomy.
    """
    default = ["mtl", "gradnorm"] if setup.printed_dataset == "taskonomy" else ["mtl", "uw", "gradnorm"]
    with setup.open_runner() as runner:
        rules = training_rules(setup, runner, methods or default)
        usual = count_parameters(setup.chosen, setup.chosen.names)
        every_size = [Capacity("channels", 1.0, 1.0, usual), *capacities(setup.chosen, setup.budgets)]
        sizes = {f"{size.times:g}× {size.by}": size for size in every_size}
        # Compare groups first: this fails if MTL diverges, and training larger networks takes hours.
        records = compare_methods(runner, ["tag", "hoa"], setup.budgets, setup.seeds)
        jobs = {
            (method, size): [runner.job(runner.tasks, seed, rule, sizes[size].width) for seed in setup.seeds]
            for method, rule in rules.items()
            for size in sizes
        }
        larger = train_totals(runner, jobs, "larger networks")
    records = [record for record in records if record.budget is not None]
    groups = totals_by_method(setup.chosen, records)
    parameters = {(record.method, record.budget): record.parameters for record in records}
    total = f"total {setup.label()}"
    # The paper's totals include all of its tasks.
    printed = {
        (method, f"{times}× channels"): line.total
        for (method, times), line in CAPACITY.get(setup.printed_dataset or "", {}).items()
        if len(line.groups[0].results) == len(setup.chosen.names)
    }
    networks = [
        (method, size, Value(sizes[size].parameters / usual), setup.summarize(totals))
        for (method, size), totals in larger.items()
    ]
    grouped = [
        (method, k, Value(parameters[method, k] / usual), setup.summarize(totals))
        for (method, k), totals in groups.items()
    ]
    columns = ("method", "size", "parameters, ×", total, "printed")
    rows = [(*row, cell) for row, cell in zip(networks, values_of(printed, larger, digits=setup.digits), strict=True)]
    better = {}
    for (grouping, k), group_totals in groups.items():
        for (method, size), totals in larger.items():
            if k == sizes[size].times:
                better[f"{grouping} against {method} at {size}"] = group_totals, totals
    wider = {
        f"{method} at {size}": (larger[method, "1× channels"], totals)
        for (method, size), totals in larger.items()
        if sizes[size].by == "channels" and sizes[size].times > 1
    }
    return Report(
        "capacity",
        TITLE,
        tables=[
            ReportTable("One larger network", columns, rows),
            ReportTable("Groups of networks of the usual size", ("method", "groups", *columns[2:4]), grouped),
        ],
        claims=[
            claim_all_lower("groups of TAG and HOA do better than larger networks", better, per_row=setup.per_row),
            claim_all_lower(
                "more channels do worse than the usual ones (said of CelebA)", wider, per_row=setup.per_row
            ),
        ],
        figures={
            "capacity": draw_error_against_cost(
                [*networks, *grouped],
                title=TITLE,
                cost_label="parameters, against MTL's",
                error_label=total,
                note=f"{setup.problem.name}, {setup.size}; labels are sizes or groups",
            )
        },
        notes=[*setup.notes, "parameters are relative to MTL's; the paper counts n× the channels, and n groups, as n×"],
        numbers={"rules": rules},
    )
