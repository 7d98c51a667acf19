"""`main`: the total error and cost of every method, and the result of each task in each network."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.group import Group
from tagalong.study import Method, MethodSummary, ProblemInfo, Record, Results, TrainingBackend, compare_methods

from ..affinities import AS_PUBLISHED
from ..claims import claim_all_lower, summarize
from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import Point, draw_error_against_cost
from ..metrics import (
    PaperOptimal,
    check_task_count,
    error_per_row,
    metric_digits,
    metric_label,
    network_results,
    task_result,
    totals_by_method,
)
from ..printed import BASELINES, OPTIMAL, PCGRAD_GAIN, PRINTED, Baseline, PrintedGroup
from .tune import tuned_gradnorm

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup
    from ..metrics import Label

TITLE = "Total error against cost: which way of grouping is best?"
GROUPING_METHODS = ("cs", "hoa", "tag", "optimal")
SINGLE_NETWORK_METHODS = {"celeba": ("uw", "pcgrad", "pcgrad-uw"), "taskonomy": ()}
CS_AS_PUBLISHED = {"cs": {"estimator": "cosine_kernels", "every": 1}}
PRINTED_NAMES = {"pcgrad-uw": "pcgrad", "oracle": "optimal"}  # the published PCGrad run used UW's losses
COLUMNS = ("method", "groups", "total", "test loss, %", "validation loss, %", "deciding", "training", "parameters")


def run(setup: ExperimentSetup, as_published: bool = False) -> Report:
    """Trains each of the paper's methods with each budget.

    Args:
        setup: the problem, the seeds and the output folder.
        as_published: whether TAG measures affinities as in the published code rather than with equation 1. The
            published code includes momentum in the step, and divides affinities by the learning rate.
    """
    check_task_count(setup.chosen)
    with setup.open_backend() as backend:
        options = {**CS_AS_PUBLISHED, "tag": {**AS_PUBLISHED, "every": 10}} if as_published else CS_AS_PUBLISHED
        records = compare_methods(backend, _methods(setup, backend), setup.budgets, setup.seeds, options)
        results = Results(records, problem=ProblemInfo.of(setup.chosen))
        tables = [
            total_table(setup, results),
            *group_tables(setup, backend, records),
            *printed_tables(setup),
            *pcgrad_tables(setup, totals_by_method(setup.chosen, records)),
        ]
    name = "main-as-published" if as_published else "main"
    results.save(setup.out / f"{name}-results.json")
    found = totals_by_method(setup.chosen, records)
    return Report(
        name,
        TITLE,
        tables=tables,
        claims=_claims(setup, found, results),
        figures={
            f"{name}-deciding": _figure(setup, results, found, include_training=False),
            f"{name}-deciding-and-training": _figure(setup, results, found, include_training=True),
        },
        notes=[*setup.notes, _tag_note(as_published), *_method_notes(setup)],
        numbers={"totals": [{"method": m, "budget": k, "by_seed": values} for (m, k), values in found.items()]},
    )


def _methods(setup: ExperimentSetup, backend: TrainingBackend) -> list[str | Method]:
    taskonomy = setup.printed_dataset == "taskonomy"
    rules = SINGLE_NETWORK_METHODS["taskonomy" if taskonomy else "celeba"]
    combined = [] if taskonomy else ["tag+pcgrad"]
    return [
        "mtl",
        "stl",
        "random",
        *rules,
        tuned_gradnorm(setup, backend),
        *GROUPING_METHODS,
        PaperOptimal(),
        *combined,
    ]


def _tag_note(as_published: bool) -> str:
    if as_published:
        return "TAG as published: the optimizer's step with its momentum, divided by the learning rate"
    return "TAG as in equation 1: a plain gradient step (--as-published for that of the published code)"


def _method_notes(setup: ExperimentSetup) -> list[str]:
    paper = "; the paper uses validation accuracy" if setup.printed_dataset == "celeba" else ""
    return [
        f"hoa and optimal choose groups by validation losses relative to a reference network{paper}. oracle, the "
        "paper's Optimal, chooses the groups with the lowest total on test data",
        "groups are chosen once, from all seeds together; costs are those of one seed",
        "costs are in trainings of the one network for all tasks, by steps; deciding is paid once for all budgets, "
        "and counts as one training for random groups, as in the paper. A step of UW, GradNorm or PCGrad counts as "
        "one, though it takes longer; tuning α is not counted",
    ]


def total_table(setup: ExperimentSetup, results: Results) -> ReportTable:
    """Returns a table with one row per method and budget. Costs are relative to one training run of MTL."""
    found, lines = totals_by_method(setup.chosen, results.records), results.table()
    rows = [_total_row(setup, line, found[line.method, line.budget]) for line in lines]
    note = "losses: mean relative change against mtl; costs in trainings of mtl; parameters against mtl's"
    note += "; no total where a network diverged" if any(line.diverged for line in lines) else ""
    return ReportTable(f"Total {metric_label(setup.chosen)}", (*COLUMNS, "printed"), rows, note)


def _total_row(setup: ExperimentSetup, summary: MethodSummary, values: Sequence[float]) -> list[Cell]:
    digits = metric_digits(setup.chosen)

    def percent(number: float | None) -> Value:
        return Value(np.nan if number is None else 100 * number)

    def multiple(number: float | None) -> Value:
        return Value(np.nan if number is None else number, digits=1)

    return [
        summary.method,
        "-" if summary.budget is None else summary.budget,
        summarize(values, digits=digits),
        percent(summary.change),
        percent(summary.validation),
        multiple(summary.deciding_cost),
        multiple(summary.training_cost),
        multiple(summary.relative_parameters),
        _printed_total(setup, summary.method, summary.budget, digits),
    ]


def _printed_total(setup: ExperimentSetup, method: str, budget: int | None, digits: int) -> Value | None:
    dataset, name = setup.printed_dataset, PRINTED_NAMES.get(method, method.partition(":")[0])
    if dataset is None or len(setup.chosen.names) < (9 if dataset == "celeba" else 5):
        return None  # the paper's totals include all of its tasks
    if budget is None:
        line = BASELINES[dataset].get(name)
        return None if line is None or method == "pcgrad" else Value(line.total, digits=digits)
    table = OPTIMAL[dataset] if name == "optimal" and method == "oracle" else PRINTED.get(f"{dataset}_{name}", {})
    return Value(table[budget].total, digits=digits) if budget in table else None


def group_tables(setup: ExperimentSetup, backend: TrainingBackend, records: Sequence[Record]) -> list[ReportTable]:
    """Returns tables of each task's result in every network of every method. Helpers' results are in parentheses."""
    tables = [_baseline_table(setup, records)]
    for budget in setup.budgets:
        rows: list[list[Cell]] = []
        for record in records:
            if record.budget == budget and record.groups and record.seed == setup.seeds[0] and "+" not in record.method:
                rows += [_group_row(setup, backend, record.method, group) for group in record.groups]
        columns = ("method", *(setup.short_name(task) for task in setup.chosen.names))
        note = "means over seeds; results in brackets are of helpers, which another network serves"
        tables.append(ReportTable(f"{budget} groups, {metric_label(setup.chosen)} of each task", columns, rows, note))
    return tables


def _baseline_table(setup: ExperimentSetup, records: Sequence[Record]) -> ReportTable:
    rows: list[list[Cell]] = []
    of_method: dict[str, list[Record]] = {}
    for record in records:
        if record.budget is None:
            of_method.setdefault(record.method, []).append(record)
    for method, mine in of_method.items():
        by_task = {task: [task_result(setup.chosen, r.test[task]) for r in mine] for task in setup.chosen.names}
        cells = [summarize(found, digits=metric_digits(setup.chosen)) for found in by_task.values()]
        rows.append([method, *cells])
    columns = ("method", *(setup.short_name(task) for task in setup.chosen.names))
    return ReportTable(f"Baselines, {metric_label(setup.chosen)} of each task", columns, rows)


def _group_row(setup: ExperimentSetup, backend: TrainingBackend, method: str, group: Group) -> list[Cell]:
    found, digits = network_results(backend, group.trains, setup.seeds), metric_digits(setup.chosen)
    cells: list[Cell] = [
        summarize(found[task], digits=digits, served=task in group.serves) if task in group.trains else None
        for task in setup.chosen.names
    ]
    return [method, *cells]


def printed_tables(setup: ExperimentSetup) -> list[ReportTable]:
    """Returns the paper's per-task tables if the data set is the same."""
    if setup.printed_dataset is None or setup.printed_dataset != setup.problem.name:
        return []
    names, digits = [setup.short_name(task) for task in setup.chosen.names], metric_digits(setup.chosen)
    columns = ("method", *(f"printed {name}" for name in names))

    def cells(line: Baseline | PrintedGroup, served: Container[str]) -> list[Cell]:
        errors = line.stderr or {}
        return [
            Value(line.results[n], errors.get(n), n in served, digits) if n in line.results else None for n in names
        ]

    rows = [[method, *cells(line, line.results)] for method, line in BASELINES[setup.printed_dataset].items()]
    tables = [ReportTable("Baselines, as printed", columns, rows)]
    groupings = {name: PRINTED[f"{setup.printed_dataset}_{name}"] for name in ("cs", "hoa", "tag")}
    groupings["optimal"] = OPTIMAL[setup.printed_dataset]
    for budget in setup.budgets:
        rows = [[m, *cells(group, group.bold)] for m, printed in groupings.items() for group in printed[budget].groups]
        tables.append(ReportTable(f"{budget} groups, as printed", columns, rows))
    return tables


def pcgrad_tables(setup: ExperimentSetup, totals: Mapping[Label, Sequence[float]]) -> list[ReportTable]:
    """Returns a table of how much PCGrad lowers the total of TAG's groups, in percent."""
    rows: list[list[Cell]] = []
    for budget in setup.budgets:
        if ("tag+pcgrad", budget) in totals:
            plain, with_it = np.array(totals["tag", budget]), np.array(totals["tag+pcgrad", budget])
            gains = (100 * (plain - with_it) / np.where(plain > 0, plain, np.nan)).tolist()
            printed = PCGRAD_GAIN.get(budget) if setup.printed_dataset == "celeba" else None
            rows.append([budget, summarize(gains), None if printed is None else Value(printed)])
    return [ReportTable("What PCGrad adds to TAG's groups, %", ("groups", "ours", "printed"), rows)] if rows else []


def _claims(setup: ExperimentSetup, totals: dict[Label, list[float]], results: Results) -> list[Claim]:
    def claim_better(text: str, method: str, others: list[Label | str]) -> Claim:
        pairs = {}
        for budget in setup.budgets:
            for other in others:
                label = (other, budget) if isinstance(other, str) else other
                pairs[f"{label[0]}, {budget} groups"] = totals[method, budget], totals[label]
        return claim_all_lower(text, pairs, per_row=error_per_row(setup.chosen))

    single: list[Label | str] = [label for label in totals if label[1] is None and label[0] not in ("mtl", "stl")]
    rules = "UW, GradNorm and PCGrad do" if len(single) > 1 else "GradNorm does"
    claims = [
        claim_better("TAG does better than MTL", "tag", [("mtl", None)]),
        claim_better("TAG does better than STL", "tag", [("stl", None)]),
        claim_better("TAG does better than random groups", "tag", ["random"]),
    ]
    # On Taskonomy, the paper's TAG has the same groups as CS, and HOA is better.
    if setup.printed_dataset != "taskonomy":
        claims += [claim_better(f"TAG does better than {name.upper()}", "tag", [name]) for name in ("cs", "hoa")]
    return [
        *claims,
        claim_better(f"{rules} worse than TAG's groups", "tag", single),
        claim_better(f"{rules} worse than HOA's groups", "hoa", single),
        _speed_claim(setup, results),
    ]


def _speed_claim(setup: ExperimentSetup, results: Results) -> Claim:
    costs = {(line.method, line.budget): line.deciding_cost or 0.0 for line in results.table()}
    budget, count = setup.budgets[0], len(setup.chosen.names)
    times = costs["hoa", budget] / costs["tag", budget]
    paper = 5 if setup.printed_dataset == "taskonomy" else 9
    text = "TAG decides an order of magnitude faster than HOA (22× on CelebA, 11.6× on Taskonomy)"
    because = f"{times:.1f}× fewer steps, with {count} tasks"
    if count < paper:
        return Claim(text, "not tested", f"{because}; HOA trains every pair, of the paper's {paper} tasks far more")
    return Claim(text, "yes" if times >= 10 else "no", because)


def _figure(
    setup: ExperimentSetup, results: Results, totals: dict[Label, list[float]], *, include_training: bool
) -> Figure:
    points = [_point(line, totals, include_training) for line in results.table()]
    cost = (
        "cost of deciding and training"
        if include_training
        else "cost of deciding; of training where nothing is decided"
    )
    return draw_error_against_cost(
        points,
        title="Deciding and training" if include_training else "Deciding",
        cost_label=f"{cost}, in trainings of MTL",
        error_label=f"total {metric_label(setup.chosen)}",
        note=f"{setup.problem.name}, {setup.size}; labels are groups; equal costs are side by side",
    )


def _point(summary: MethodSummary, totals: dict[Label, list[float]], include_training: bool) -> Point:
    deciding, trained = summary.deciding_cost or 0.0, summary.training_cost or 0.0
    cost = deciding + trained if include_training or not deciding else deciding
    mean = summarize(totals[summary.method, summary.budget])
    return Point(summary.method, "" if summary.budget is None else str(summary.budget), cost, mean.mean, mean.stderr)
