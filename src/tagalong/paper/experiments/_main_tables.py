"""The tables of `main`: totals with costs, every network with its tasks, and what PCGrad adds."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.group import Group
from tagalong.study import Lab, Record
from tagalong.study._summary import Line, summarise

from .._judge import value
from .._printed import PRINTED, PrintedGroup
from .._report import Cell, Sheet, Value
from .._totals import digits_of, measure_of, result, results_of, totals
from ..printed import BASELINES, OPTIMAL, PCGRAD_GAIN, Baseline

if TYPE_CHECKING:
    from .._bench import Bench
    from .._totals import Label

PRINTED_AS = {"pcgrad-uw": "pcgrad", "oracle": "optimal"}  # the published PCGrad run used UW's losses
COLUMNS = ("method", "groups", "total", "test loss, %", "validation loss, %", "deciding", "training", "parameters")


def total_sheet(bench: Bench, records: Sequence[Record]) -> Sheet:
    """One line per method and budget, with costs in trainings of MTL."""
    found = totals(bench.chosen, records)
    lines = summarise(list(records))
    rows = [_total_row(bench, line, found[line.method, line.budget]) for line in lines]
    note = "losses: mean relative change against mtl; costs in trainings of mtl; parameters against mtl's"
    note += "; no total where a network diverged" if any(line.diverged for line in lines) else ""
    return Sheet(f"Total {measure_of(bench.chosen)}", (*COLUMNS, "printed"), rows, note)


def _total_row(bench: Bench, line: Line, values: Sequence[float]) -> list[Cell]:
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


def _group_row(bench: Bench, lab: Lab, method: str, group: Group) -> list[Cell]:
    found, digits = results_of(lab, group.trains, bench.seeds), digits_of(bench.chosen)
    cells: list[Cell] = [
        value(found[task], digits=digits, served=task in group.serves) if task in group.trains else None
        for task in bench.chosen.names
    ]
    return [method, *cells]


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
