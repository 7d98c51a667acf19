"""`main`: total error against cost for every method, and what each task gets in each network."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.group import Group
from tagalong.study import Lab, Method, MethodSummary, ProblemInfo, Record, Results, compare_methods

from ..affinities import AS_PUBLISHED
from ..claims import all_lower, value
from ..figures import Point, error_against_cost
from ..printed import BASELINES, OPTIMAL, PCGRAD_GAIN, PRINTED, Baseline, PrintedGroup
from ..report import Cell, Claim, Report, Sheet, Value
from ..totals import PaperOptimal, digits_of, measure_of, one_row, refuse_many, result, results_of, totals
from .tune import tuned_gradnorm

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench
    from ..totals import Label

TITLE = "Total error against cost: which way of grouping is best?"
GROUPING = ("cs", "hoa", "tag", "optimal")
ALONE = {"celeba": ("uw", "pcgrad", "pcgrad-uw"), "taskonomy": ()}
CS_AS_PUBLISHED = {"cs": {"estimator": "cosine_kernels", "every": 1}}
PRINTED_AS = {"pcgrad-uw": "pcgrad", "oracle": "optimal"}  # the published PCGrad run used UW's losses
COLUMNS = ("method", "groups", "total", "test loss, %", "validation loss, %", "deciding", "training", "parameters")


def run(bench: Bench, as_published: bool = False) -> Report:
    """Trains every method of the paper, at every budget.

    Args:
        bench: where.
        as_published: TAG with the optimiser's momentum in the step and affinities per learning rate, as the published
            code has it, instead of equation 1.
    """
    refuse_many(bench.chosen)
    with bench.lab() as lab:
        options = {**CS_AS_PUBLISHED, "tag": {**AS_PUBLISHED, "every": 10}} if as_published else CS_AS_PUBLISHED
        records = compare_methods(lab, _methods(bench, lab), bench.budgets, bench.seeds, options)
        results = Results(records, problem=ProblemInfo.of(bench.chosen))
        sheets = [
            total_sheet(bench, results),
            *group_sheets(bench, lab, records),
            *printed_sheets(bench),
            *pcgrad_sheet(bench, totals(bench.chosen, records)),
        ]
    name = "main-as-published" if as_published else "main"
    results.save(bench.out / f"{name}-results.json")
    found = totals(bench.chosen, records)
    return Report(
        name,
        TITLE,
        sheets=sheets,
        claims=_claims(bench, found, results),
        figures={
            f"{name}-deciding": _figure(bench, results, found, training=False),
            f"{name}-deciding-and-training": _figure(bench, results, found, training=True),
        },
        notes=[*bench.about, _step(as_published), *_choices(bench)],
        numbers={"totals": [{"method": m, "budget": k, "by_seed": values} for (m, k), values in found.items()]},
    )


def _methods(bench: Bench, lab: Lab) -> list[str | Method]:
    few = bench.printed == "taskonomy"
    rules = ALONE["taskonomy" if few else "celeba"]
    combined = [] if few else ["tag+pcgrad"]
    return ["mtl", "stl", "random", *rules, tuned_gradnorm(bench, lab), *GROUPING, PaperOptimal(), *combined]


def _step(as_published: bool) -> str:
    if as_published:
        return "TAG as published: the optimiser's step with its momentum, per learning rate"
    return "TAG as in equation 1: a plain gradient step (--as-published for the published code's)"


def _choices(bench: Bench) -> list[str]:
    theirs = "; the paper chooses on validation accuracy" if bench.printed == "celeba" else ""
    return [
        f"groups are chosen on validation losses relative to a reference network (hoa, optimal){theirs}. oracle, the "
        "paper's Optimal, has the lowest total on test data",
        "groups are chosen from all seeds together, as one choice for all of them; costs are those of one seed",
        "costs are in trainings of the one network for all tasks, by steps; deciding is paid once for all budgets, "
        "and counts as one training for random groups, as in the paper. A step of UW, GradNorm or PCGrad counts as "
        "one, though it takes longer; tuning α is not counted",
    ]


def total_sheet(bench: Bench, results: Results) -> Sheet:
    """One line per method and budget, with costs in trainings of MTL."""
    found, lines = totals(bench.chosen, results.records), results.table()
    rows = [_total_row(bench, line, found[line.method, line.budget]) for line in lines]
    note = "losses: mean relative change against mtl; costs in trainings of mtl; parameters against mtl's"
    note += "; no total where a network diverged" if any(line.diverged for line in lines) else ""
    return Sheet(f"Total {measure_of(bench.chosen)}", (*COLUMNS, "printed"), rows, note)


def _total_row(bench: Bench, line: MethodSummary, values: Sequence[float]) -> list[Cell]:
    digits = digits_of(bench.chosen)

    def share(number: float | None) -> Value:
        return Value(np.nan if number is None else 100 * number)

    def times(number: float | None) -> Value:
        return Value(np.nan if number is None else number, digits=1)

    return [
        line.method,
        "-" if line.budget is None else line.budget,
        value(values, digits=digits),
        share(line.change),
        share(line.validation),
        times(line.deciding_cost),
        times(line.training_cost),
        times(line.relative_parameters),
        _printed_total(bench, line.method, line.budget, digits),
    ]


def _printed_total(bench: Bench, method: str, budget: int | None, digits: int) -> Value | None:
    dataset, name = bench.printed, PRINTED_AS.get(method, method.partition(":")[0])
    if dataset is None or len(bench.chosen.names) < (9 if dataset == "celeba" else 5):
        return None  # the paper's totals are over all of its tasks
    if budget is None:
        line = BASELINES[dataset].get(name)
        return None if line is None or method == "pcgrad" else Value(line.total, digits=digits)
    table = OPTIMAL[dataset] if name == "optimal" and method == "oracle" else PRINTED.get(f"{dataset}_{name}", {})
    return Value(table[budget].total, digits=digits) if budget in table else None


def group_sheets(bench: Bench, lab: Lab, records: Sequence[Record]) -> list[Sheet]:
    """Every network of every method: the result of each task it trains; in brackets where it only helps."""
    sheets = [_baseline_sheet(bench, records)]
    for budget in bench.budgets:
        rows: list[list[Cell]] = []
        for record in records:
            if record.budget == budget and record.groups and record.seed == bench.seeds[0] and "+" not in record.method:
                rows += [_group_row(bench, lab, record.method, group) for group in record.groups]
        columns = ("method", *(bench.short(task) for task in bench.chosen.names))
        note = "means over seeds; in brackets: the task only helps here and is served from another network"
        sheets.append(Sheet(f"{budget} groups, {measure_of(bench.chosen)} of each task", columns, rows, note))
    return sheets


def _baseline_sheet(bench: Bench, records: Sequence[Record]) -> Sheet:
    rows: list[list[Cell]] = []
    of_method: dict[str, list[Record]] = {}
    for record in records:
        if record.budget is None:
            of_method.setdefault(record.method, []).append(record)
    for method, mine in of_method.items():
        by_task = {task: [result(bench.chosen, r.test[task]) for r in mine] for task in bench.chosen.names}
        cells = [value(found, digits=digits_of(bench.chosen)) for found in by_task.values()]
        rows.append([method, *cells])
    columns = ("method", *(bench.short(task) for task in bench.chosen.names))
    return Sheet(f"Baselines, {measure_of(bench.chosen)} of each task", columns, rows)


def _group_row(bench: Bench, lab: Lab, method: str, group: Group) -> list[Cell]:
    found, digits = results_of(lab, group.trains, bench.seeds), digits_of(bench.chosen)
    cells: list[Cell] = [
        value(found[task], digits=digits, served=task in group.serves) if task in group.trains else None
        for task in bench.chosen.names
    ]
    return [method, *cells]


def printed_sheets(bench: Bench) -> list[Sheet]:
    """The paper's tables of single tasks, where the data are the same."""
    if bench.printed is None or bench.printed != bench.problem.name:
        return []
    names, digits = [bench.short(task) for task in bench.chosen.names], digits_of(bench.chosen)
    columns = ("method", *(f"printed {name}" for name in names))

    def cells(line: Baseline | PrintedGroup, served: Container[str]) -> list[Cell]:
        errors = line.stderr or {}
        return [
            Value(line.results[n], errors.get(n), n in served, digits) if n in line.results else None for n in names
        ]

    rows = [[method, *cells(line, line.results)] for method, line in BASELINES[bench.printed].items()]
    sheets = [Sheet("Baselines, as printed", columns, rows)]
    tables = {name: PRINTED[f"{bench.printed}_{name}"] for name in ("cs", "hoa", "tag")}
    tables["optimal"] = OPTIMAL[bench.printed]
    for budget in bench.budgets:
        rows = [[method, *cells(g, g.bold)] for method, table in tables.items() for g in table[budget].groups]
        sheets.append(Sheet(f"{budget} groups, as printed", columns, rows))
    return sheets


def pcgrad_sheet(bench: Bench, found: Mapping[Label, Sequence[float]]) -> list[Sheet]:
    """How much PCGrad lowers the total of TAG's groups, in percent."""
    rows: list[list[Cell]] = []
    for budget in bench.budgets:
        if ("tag+pcgrad", budget) in found:
            plain, with_it = np.array(found["tag", budget]), np.array(found["tag+pcgrad", budget])
            gains = (100 * (plain - with_it) / np.where(plain > 0, plain, np.nan)).tolist()
            printed = PCGRAD_GAIN.get(budget) if bench.printed == "celeba" else None
            rows.append([budget, value(gains), None if printed is None else Value(printed)])
    return [Sheet("What PCGrad adds to TAG's groups, %", ("groups", "ours", "printed"), rows)] if rows else []


def _claims(bench: Bench, found: dict[Label, list[float]], results: Results) -> list[Claim]:
    def better(text: str, mine: str, others: list[Label | str]) -> Claim:
        pairs = {}
        for budget in bench.budgets:
            for other in others:
                label = (other, budget) if isinstance(other, str) else other
                pairs[f"{label[0]}, {budget} groups"] = found[mine, budget], found[label]
        return all_lower(text, pairs, row=one_row(bench.chosen))

    single: list[Label | str] = [label for label in found if label[1] is None and label[0] not in ("mtl", "stl")]
    rules = "UW, GradNorm and PCGrad do" if len(single) > 1 else "GradNorm does"
    claims = [
        better("TAG does better than MTL", "tag", [("mtl", None)]),
        better("TAG does better than STL", "tag", [("stl", None)]),
        better("TAG does better than random groups", "tag", ["random"]),
    ]
    if bench.printed != "taskonomy":  # there the paper has TAG's groups equal to those of CS, and HOA ahead of them
        claims += [better(f"TAG does better than {name.upper()}", "tag", [name]) for name in ("cs", "hoa")]
    return [
        *claims,
        better(f"{rules} worse than TAG's groups", "tag", single),
        better(f"{rules} worse than HOA's groups", "hoa", single),
        _faster(bench, results),
    ]


def _faster(bench: Bench, results: Results) -> Claim:
    costs = {(line.method, line.budget): line.deciding_cost or 0.0 for line in results.table()}
    budget, count = bench.budgets[0], len(bench.chosen.names)
    times = costs["hoa", budget] / costs["tag", budget]
    paper = 5 if bench.printed == "taskonomy" else 9
    text = "TAG decides an order of magnitude faster than HOA (22× on CelebA, 11.6× on Taskonomy)"
    because = f"{times:.1f}× fewer steps, with {count} tasks"
    if count < paper:
        return Claim(text, "not tested", f"{because}; HOA trains every pair, of the paper's {paper} tasks far more")
    return Claim(text, "yes" if times >= 10 else "no", because)


def _figure(bench: Bench, results: Results, found: dict[Label, list[float]], *, training: bool) -> Figure:
    points = [_point(line, found, training) for line in results.table()]
    cost = "cost of deciding and training" if training else "cost of deciding; of training where nothing is decided"
    return error_against_cost(
        points,
        title="Deciding and training" if training else "Deciding",
        cost=f"{cost}, in trainings of MTL",
        error=f"total {measure_of(bench.chosen)}",
        note=f"{bench.problem.name}, {bench.size}; beside each point its groups; equal costs stand side by side",
    )


def _point(line: MethodSummary, found: dict[Label, list[float]], training: bool) -> Point:
    deciding, trained = line.deciding_cost or 0.0, line.training_cost or 0.0
    cost = deciding + trained if training or not deciding else deciding
    mean = value(found[line.method, line.budget])
    return Point(line.method, "" if line.budget is None else str(line.budget), cost, mean.mean, mean.stderr)
