"""Computes the verdict from a table with the losses of networks trained elsewhere.

The table can be a completed plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np

from tagalong.errors import InvalidInput, as_tuple, first_few, is_integer, raise_problems
from tagalong.group import Group
from tagalong.learn import Job
from tagalong.tabular import ParsedTable, TableError, TableRow, is_missing_word, is_number, read_table

from .backend import Backend
from .external import ExternalRun, check_result
from .methods import Decision, Method, Optimal, make_method
from .planning import (
    KEY_COLUMNS,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    PlannedGroups,
    PlanRequest,
    csv_label,
    read_csv_label,
)
from .records import TOGETHER, Label, ProblemInfo
from .relative_losses import Subset
from .results import Results
from .study_request import StudyRequest, default_budgets

NUMERIC_COLUMNS = tuple(column for column in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if column != "test_rows")
MOST_LISTED = 8  # missing numbers listed in a message
Cells = Mapping[str, str]  # the cells of one row, by column
Networks = dict[tuple[str, int], dict[str, Cells]]


def verdict_from_csv(path: str | Path, *, budgets: Sequence[int] | None = None) -> Results:
    """Computes the results and the verdict from a table with the losses of networks trained elsewhere.

    Args:
        path: a CSV or Parquet file (see `Problem.from_table`) with the columns network, seed, task, val_loss and
            test_loss. Optional columns are val_error, test_error, test_rows, steps, seconds and parameters. The
            test_rows column contains the names of .npy files with the losses on all test rows. With these losses, the
            verdict's interval accounts for noise due to the test rows. In a plan, the `serves` and `decides` columns
            indicate which methods use each network. If a table lacks these columns, the groups with the best validation
            losses are chosen. A network diverged if all its losses are nan.
        budgets: the limits on the number of networks, if the table is not a plan. Defaults to 2, 3 and 4.

    Raises:
        InvalidInput: If the table is incomplete or invalid. The message lists everything that is missing or wrong.
    """
    sizes = None if budgets is None else as_tuple(budgets, "budgets", "integers", "[2, 3]")
    file = Path(path)
    rows, columns = _read_rows(file)
    networks = _group_by_network(rows, file)
    _check_complete(networks, file)
    run = ExternalRun(_make_request(networks, columns, sizes))
    for (_, seed), by_task in networks.items():
        job = Job(tuple(task for task in run.request.tasks if task in by_task), seed)
        losses = _losses_and_errors(by_task, "val"), _losses_and_errors(by_task, "test")
        if all(math.isnan(loss) for part in losses for loss, _ in part.values()):
            run.add(check_result(job, None, None, **_read_costs(by_task)))
        else:
            run.add(check_result(job, *losses, _load_test_rows(by_task, file), **_read_costs(by_task)))
    return run.results(ProblemInfo.from_tasks(run.request.tasks, file.stem))


def tasks_in_csv(path: str | Path) -> tuple[str, ...]:
    """Returns the tasks in a table of losses, in order of first appearance."""
    return tuple(dict.fromkeys(cells["task"] for _, cells in _read_rows(Path(path))[0]))


def _check_complete(networks: Networks, file: Path) -> None:
    tasks = dict.fromkeys(task for by_task in networks.values() for task in by_task)
    if not any(by_task.keys() == tasks.keys() for by_task in networks.values()):
        expected = f"must include a network that trains all tasks ({', '.join(tasks)}) as a baseline"
        raise TableError(file, expected, "none")


def _make_request(networks: Networks, columns: Sequence[str], budgets: Sequence[int] | None) -> PlanRequest:
    tasks = tuple(dict.fromkeys(task for by_task in networks.values() for task in by_task))
    seeds = tuple(sorted({seed for _, seed in networks}))
    subsets = list(dict.fromkeys(frozenset(by_task) for by_task in networks.values()))
    if "serves" in columns:
        if budgets is not None:
            hint = "omit `budgets`, or remove the columns 'serves' and 'decides'"
            raise InvalidInput("budgets", "cannot be used with a plan, which has its own", hint=hint)
        return _request_from_plan(networks, tasks, seeds)
    wrong = [budget for budget in budgets or () if not (is_integer(budget) and 1 <= budget <= len(tasks))]
    if wrong:
        expected = f"must be between 1 and the number of tasks, {len(tasks)}"
        raise InvalidInput("budgets", expected, ", ".join(map(short, wrong)))
    known = {(frozenset(by_task), seed) for (_, seed), by_task in networks.items()}
    complete = [subset for subset in subsets if all((subset, seed) in known for seed in seeds)]
    methods: list[Method] = [make_method("mtl"), BestInTable(complete)]
    if all(frozenset([task]) in complete for task in tasks):
        methods.insert(1, make_method("stl"))
    sizes = default_budgets(len(tasks)) if budgets is None else budgets
    return PlanRequest(tasks, StudyRequest(tuple(methods), tuple(sizes), seeds))


class BestInTable(Optimal):
    """Chooses the groups with the lowest validation losses from the networks in a table.

    Args:
        subsets: the tasks of each network.
    """

    name = "chosen"

    def __init__(self, subsets: Sequence[Subset]) -> None:
        super().__init__()
        self._subsets = list(subsets)

    def subsets(self, backend: Backend) -> list[Subset]:
        return self._subsets

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return replace(super().decide(backend, budgets, seeds), deciding={})  # no networks were trained just to decide


def _request_from_plan(networks: Networks, tasks: tuple[str, ...], seeds: tuple[int, ...]) -> PlanRequest:
    served: dict[Label, dict[Subset, set[str]]] = {}
    waiting: dict[Label, None] = {}
    for by_task in networks.values():
        for task, line in by_task.items():
            for label in map(read_csv_label, line["serves"].split()):
                served.setdefault(label, {}).setdefault(frozenset(by_task), set()).add(task)
            waiting |= dict.fromkeys(map(read_csv_label, line.get("decides", "").split()))
    groupings = {
        label: tuple(sorted(Group(trains, serves) for trains, serves in groups.items()))
        for label, groups in served.items()
    }
    groupings = {TOGETHER: (Group(tasks, tasks),)} | groupings
    _check_served(groupings, tasks)
    labels = [*groupings, *waiting]
    budgets = tuple(sorted({budget for _, budget in labels if budget is not None}))
    methods = [
        make_method(method)
        if any(label[0] == method for label in waiting)
        else PlannedGroups(method, {budget: groups for (name, budget), groups in groupings.items() if name == method})
        for method in dict.fromkeys(method for method, _ in labels)
    ]
    return PlanRequest(tasks, StudyRequest(tuple(methods), budgets, seeds))


def _check_served(groupings: Mapping[Label, tuple[Group, ...]], tasks: Sequence[str]) -> None:
    problems: list[InvalidInput] = []
    for label, groups in groupings.items():
        served = [task for group in groups for task in group.serves]
        wrong = sorted(set(tasks) ^ set(served)) + sorted(task for task in set(served) if served.count(task) > 1)
        if wrong:
            expected = f"must name {csv_label(label)} exactly once for each task"
            problems.append(TableError("column 'serves'", expected, f"a different count for {', '.join(wrong)}"))
    raise_problems(problems, TableError)


def _losses_and_errors(cells_by_task: Mapping[str, Cells], split: str) -> dict[str, tuple[float, float]]:
    return {
        task: (float(line[f"{split}_loss"]), float(line.get(f"{split}_error") or math.nan))
        for task, line in cells_by_task.items()
    }


def _load_test_rows(cells_by_task: Mapping[str, Cells], file: Path) -> dict[str, Any] | None:
    named = {task: line["test_rows"] for task, line in cells_by_task.items() if line.get("test_rows")}
    if set(named) != set(cells_by_task):
        return None
    return {task: _load_rows(file.parent / name) for task, name in named.items()}


def _load_rows(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "which does not exist" if isinstance(error, FileNotFoundError) else "which is something else"
        raise TableError("column 'test_rows'", "must name npy files", f"{path}, {reason}") from error


def _read_costs(cells_by_task: Mapping[str, Cells]) -> dict[str, Any]:
    """Returns the costs of a network. Each cost is read from the first row that contains it."""
    found: dict[str, Any] = {}
    for column, kind in (("steps", int), ("seconds", float), ("parameters", int)):
        given = [line[column] for line in cells_by_task.values() if line.get(column)]
        found[column] = kind(float(given[0])) if given else None
    return found


def _read_rows(file: Path) -> tuple[list[tuple[str, Cells]], list[str]]:
    """Reads the column names, and the location and cells of every row."""
    table = read_table(file)
    columns = table.header.cells
    problems = list(table.problems)
    missing = [column for column in (*KEY_COLUMNS, *REQUIRED_COLUMNS) if column not in columns]
    if missing:
        expected = f"must have the columns {', '.join((*KEY_COLUMNS, *REQUIRED_COLUMNS))}"
        problems.append(TableError(table.at(table.header), expected, f"no {', '.join(missing)}"))
    raise_problems(problems, TableError)
    return [(table.at(row), _read_cells(table, row)) for row in table.rows], columns


def _read_cells(table: ParsedTable, row: TableRow) -> Cells:
    """Returns the cells of a row by column.

    Decimal commas are converted to decimal points, and missing numbers are empty.
    """
    cells = dict(zip(table.header.cells, row.cells, strict=True))
    for column in NUMERIC_COLUMNS:
        cell = cells.get(column, "")
        if is_missing_word(cell) and cell.lower() != "nan":  # NaN is a measured value, not a missing one
            cells[column] = ""
        elif table.decimal_comma:
            cells[column] = cell.replace(",", ".")
    return cells


def _group_by_network(rows: Sequence[tuple[str, Cells]], file: Path) -> Networks:
    """Returns the rows by network and task.

    Checks that no cell is missing and that all numbers are valid.
    """
    networks: Networks = {}
    empty: list[str] = []
    problems: list[InvalidInput] = []
    for place, cells in rows:
        row = f"{cells['network']} (seed {cells['seed']}) {cells['task']}"
        if not cells["seed"].isdigit() or not cells["network"] or not cells["task"]:
            expected = "must specify a network, a seed (a non-negative integer) and a task"
            problems.append(TableError(place, expected, row))
            continue
        by_task = networks.setdefault((cells["network"], int(cells["seed"])), {})
        if cells["task"] in by_task:
            repeated = f"{cells['task']} in {cells['network']} (seed {cells['seed']})"
            hint = "list each network, seed and task only once"
            problems.append(TableError(place, f"repeats the result for {repeated}", hint=hint))
        by_task[cells["task"]] = cells
        empty += [f"{column} of {row}" for column in REQUIRED_COLUMNS if not cells[column]]
        wrong = [column for column in NUMERIC_COLUMNS if cells.get(column) and not is_number(cells[column])]
        problems += [TableError(f"{place}: {column}", "must be a number", repr(cells[column])) for column in wrong]
    if empty:
        problems.append(TableError(file, f"is missing required values: {first_few(empty, MOST_LISTED)}"))
    raise_problems(problems, TableError)
    return networks
