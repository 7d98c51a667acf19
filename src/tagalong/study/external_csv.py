"""Computes the verdict from a table with the losses or predictions of networks trained elsewhere.

The table can be a completed plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.errors import InvalidInput, as_tuple, collect, first_few, is_integer, raise_problems
from tagalong.group import Group
from tagalong.learn import Job, Trained
from tagalong.tabular import MISSING_WORDS, TableError, parse_numbers, read_table

from .external import ExternalRun
from .external_results import check_result, check_told_predictions
from .external_targets import ExternalTargets, Parts
from .members import member_seed
from .methods import BestOf, Decision, Method, Optimal, make_method
from .planning import (
    COPY_COLUMN,
    KEY_COLUMNS,
    OPTIONAL_COLUMNS,
    PREDICTIONS_COLUMN,
    REQUIRED_COLUMNS,
    PlannedGroups,
    PlanRequest,
)
from .prediction_files import read_parts, read_targets_file
from .records import TOGETHER, Label, ProblemInfo, label_key, read_label_key
from .relative_losses import Subset
from .results import Results
from .runner import Runner
from .study_request import StudyRequest, default_budgets

if TYPE_CHECKING:
    import pandas as pd

NUMERIC_COLUMNS = tuple(column for column in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if column != "test_rows")
MOST_LISTED = 8  # missing numbers listed in a message
Cells = Mapping[str, str]  # the cells of one row, by column
Networks = dict[tuple[str, int], dict[str, Cells]]
FILE_HINT = "enter the name of a file for each network in the column 'predictions', and pass `targets_file`"
DIVERGED_HINT = "if the network diverged, leave its predictions empty and enter nan as its losses"


def verdict_from_csv(
    path: str | Path,
    *,
    budgets: Sequence[int] | None = None,
    targets_file: str | Path | None = None,
    kinds: Mapping[str, str] | None = None,
    logits: bool = False,
) -> Results:
    """Computes the results and the verdict from a table with the losses of networks trained elsewhere.

    If there is a file with targets, losses are computed from the predictions of the networks instead, and the answers
    of several networks can be averaged.

    Args:
        path: a CSV or Parquet file (see `Problem.from_table`) with the columns network, seed, task, val_loss and
            test_loss. Optional columns are val_error, test_error, test_rows, steps, seconds and parameters. The
            test_rows column contains the names of .npy files with the losses on all test rows. With these losses, the
            verdict's interval accounts for noise due to the test rows. In a plan, the `serves` and `decides` columns
            indicate which methods use each network. If a table lacks these columns, the groups with the best validation
            losses are chosen. A network diverged if all its losses are nan. With `targets_file`, no losses are needed.
            Instead, a column `predictions` contains the name of a file for each network: an npz file with the arrays
            val_TASK and test_TASK for each task, or a table with a column `split` (val or test) and a column for each
            task, or for each class of a multiclass task (TASK:0, TASK:1, …). For binary and multiclass tasks,
            predictions are probabilities.
        budgets: the limits on the number of networks, if the table is not a plan. Defaults to 2, 3 and 4.
        targets_file: a file with the labels, in the same format as predictions, with one column for each task. Missing
            labels are empty or NaN.
        kinds: the kinds of tasks: "binary", "multiclass" or "regression". By default, a task with predictions for
            several classes is multiclass, a task whose labels are 0 and 1 is binary, and any other is regression.
        logits: whether predictions for binary and multiclass tasks are logits instead of probabilities.

    Raises:
        InvalidInput: If the table is incomplete or invalid. The message lists everything that is missing or wrong.
    """
    sizes = None if budgets is None else as_tuple(budgets, "budgets", "integers", "[2, 3]")
    file = Path(path)
    table = _read_rows(file, REQUIRED_COLUMNS if targets_file is None else (PREDICTIONS_COLUMN,))
    if targets_file is None:
        _check_without_targets(table, kinds, logits)
    networks = _group_by_network(table, with_losses=targets_file is None)
    _check_complete(networks, file)
    request = _make_request(networks, list(table.columns), sizes, averages=targets_file is not None)
    jobs = {key: Job(tuple(task for task in request.tasks if task in networks[key]), key[1]) for key in networks}
    if targets_file is None:
        results = [_read_losses(job, networks[key], file) for key, job in jobs.items()]
    else:
        predictions = _load_predictions(networks, jobs, file)
        together = next(parts for job, parts in predictions.items() if parts and len(job.tasks) == len(request.tasks))
        targets = read_targets_file(Path(targets_file), request.tasks, together, kinds, logits)
        request = replace(request, targets=targets)
        results = _score_all(networks, jobs, predictions, targets)
    run = ExternalRun(request)
    for result in results:
        run.add(result)
    return run.results(ProblemInfo.from_tasks(request.tasks, file.stem))


def _check_without_targets(table: pd.DataFrame, kinds: Mapping[str, str] | None, logits: bool) -> None:
    if PREDICTIONS_COLUMN in table and any(table[PREDICTIONS_COLUMN]):
        raise InvalidInput("targets_file", "is required, since the table names predictions")
    for argument, given in (("kinds", kinds), ("logits", logits)):
        if given:
            raise InvalidInput(argument, "can only be used together with `targets_file`")


def _read_losses(job: Job, cells_by_task: Mapping[str, Cells], file: Path) -> Trained:
    losses = _losses_and_errors(cells_by_task, "val"), _losses_and_errors(cells_by_task, "test")
    if _has_diverged(cells_by_task):
        return check_result(job, None, None, **_read_costs(cells_by_task))
    return check_result(job, *losses, _load_test_rows(cells_by_task, file), **_read_costs(cells_by_task))


def _has_diverged(cells_by_task: Mapping[str, Cells]) -> bool:
    """Returns whether all losses of a network are nan."""
    losses = [cells.get(column, "") for cells in cells_by_task.values() for column in REQUIRED_COLUMNS]
    return all(loss and math.isnan(float(loss)) for loss in losses)


def _load_predictions(networks: Networks, jobs: Mapping[tuple[str, int], Job], file: Path) -> dict[Job, Parts]:
    """Reads the predictions of all networks; those of a network that diverged are empty."""
    found: dict[Job, Parts] = {}
    problems: list[InvalidInput] = []
    missing: list[str] = []
    for (name, seed), by_task in networks.items():
        named = sorted({cells[PREDICTIONS_COLUMN] for cells in by_task.values() if cells[PREDICTIONS_COLUMN]})
        network = f"{name} (seed {seed})"
        if len(named) > 1:
            expected = f"must name one file for {network}"
            problems.append(TableError(f"column {PREDICTIONS_COLUMN!r}", expected, ", ".join(named)))
        elif named:
            job = jobs[name, seed]
            found[job] = collect(problems, read_parts, file.parent / named[0], job.tasks) or {}
        elif _has_diverged(by_task):
            found[jobs[name, seed]] = {}
        else:
            missing.append(network)
    if missing:
        expected = f"must name a file for each network, but not for {first_few(missing, MOST_LISTED)}"
        problems.append(TableError(f"column {PREDICTIONS_COLUMN!r}", expected, hint=DIVERGED_HINT))
    raise_problems(problems, TableError)
    if not any(parts for parts in found.values()):
        raise TableError(file, "must include networks with predictions", "none")
    return found


def _score_all(
    networks: Networks,
    jobs: Mapping[tuple[str, int], Job],
    predictions: Mapping[Job, Parts],
    targets: ExternalTargets,
) -> list[Trained]:
    """Computes the losses of all networks, or raises an error that lists the problems of all predictions."""
    results, problems = [], []
    for key, job in jobs.items():
        parts, costs = predictions[job], _read_costs(networks[key])
        try:
            results.append(check_told_predictions(job, targets, parts.get("val"), parts.get("test"), **costs))
        except InvalidInput as error:
            named = next(cells[PREDICTIONS_COLUMN] for cells in networks[key].values() if cells[PREDICTIONS_COLUMN])
            for one in error.problems:
                place = f"{named}: {str(one.argument).replace('`', '')}"
                hint = DIVERGED_HINT if "diverged" in one.hint else one.hint
                problems.append(TableError(place, one.expected, one.found, hint))
    raise_problems(problems, TableError)
    return results


def tasks_in_csv(path: str | Path) -> tuple[str, ...]:
    """Returns the tasks in a table of losses, in order of first appearance."""
    return tuple(dict.fromkeys(_read_rows(Path(path), ())["task"]))


def _check_complete(networks: Networks, file: Path) -> None:
    tasks = dict.fromkeys(task for by_task in networks.values() for task in by_task)
    if not any(by_task.keys() == tasks.keys() for by_task in networks.values()):
        expected = f"must include a network that trains all tasks ({', '.join(tasks)}) as a baseline"
        raise TableError(file, expected, "none")
    # A network that is named after its tasks, such as age+ill, must have a row for each of them.
    problems: list[InvalidInput] = []
    for (name, seed), by_task in networks.items():
        named, trained = set(name.split("+")), set("+".join(by_task).split("+"))
        if named != trained and named & set("+".join(tasks).split("+")):
            expected = f"must have a row for each task of network {name} (seed {seed}) and no others"
            problems.append(TableError(file, expected, f"rows for {', '.join(by_task)}"))
    raise_problems(problems, TableError)


def _make_request(
    networks: Networks, columns: Sequence[str], budgets: Sequence[int] | None, averages: bool
) -> PlanRequest:
    tasks = tuple(dict.fromkeys(task for by_task in networks.values() for task in by_task))
    copies = {key: _read_copy(key, by_task) for key, by_task in networks.items()}
    seeds = tuple(sorted({seed for (_, seed), copy in copies.items() if not copy}))
    _check_copies(copies, seeds)
    subsets = list(dict.fromkeys(frozenset(by_task) for by_task in networks.values()))
    if "serves" in columns:
        if budgets is not None:
            hint = "omit `budgets`, or remove the columns 'serves' and 'decides'"
            raise InvalidInput("budgets", "cannot be used with a plan, which has its own", hint=hint)
        return _request_from_plan(networks, copies, tasks, seeds, averages)
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

    def subsets(self, backend: Runner) -> list[Subset]:
        return self._subsets

    def decide(self, backend: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return replace(super().decide(backend, budgets, seeds), deciding={})  # no networks were trained just to decide


def _read_copy(key: tuple[str, int], cells_by_task: Mapping[str, Cells]) -> int:
    named = {cells.get(COPY_COLUMN) or "0" for cells in cells_by_task.values()}
    if len(named) > 1 or not all(copy.isdigit() for copy in named):
        expected = f"must contain the number of the copy of {key[0]} (seed {key[1]}), the same in each row"
        raise TableError(f"column {COPY_COLUMN!r}", expected, ", ".join(map(repr, sorted(named))))
    return int(named.pop())


def _check_copies(copies: Mapping[tuple[str, int], int], seeds: Sequence[int]) -> None:
    """Checks that every copy was trained with the seed that is derived from a seed of the study."""
    problems: list[InvalidInput] = []
    for (name, seed), copy in copies.items():
        if copy and seed not in {member_seed(one, copy) for one in seeds}:
            expected = f"must be the seed that the plan lists for copy {copy} of {name}"
            problems.append(TableError("column 'seed'", expected, str(seed)))
    raise_problems(problems, TableError)


def _request_from_plan(
    networks: Networks,
    copies: Mapping[tuple[str, int], int],
    tasks: tuple[str, ...],
    seeds: tuple[int, ...],
    averages: bool,
) -> PlanRequest:
    served: dict[Label, dict[tuple[Subset, int], set[str]]] = {}
    waiting: dict[Label, set[int]] = {}  # the copies that are needed to decide
    for key, by_task in networks.items():
        for task, line in by_task.items():
            for label in map(read_label_key, line["serves"].split()):
                served.setdefault(label, {}).setdefault((frozenset(by_task), copies[key]), set()).add(task)
            for label in map(read_label_key, line.get("decides", "").split()):
                waiting.setdefault(label, set()).add(copies[key])
    groupings = {
        label: tuple(sorted(Group(trains, serves, copy=copy) for (trains, copy), serves in groups.items()))
        for label, groups in served.items()
    }
    groupings = {TOGETHER: (Group(tasks, tasks),)} | groupings
    copied = [numbers for (method, _), numbers in waiting.items() if method == BestOf.name]
    options = {BestOf.name: {"copies": len(copied[0])}} if copied else {}
    _check_served(groupings, tasks, averages)
    if copied and not averages:
        raise _averages_needed(BestOf.name)
    labels = [*groupings, *waiting]
    budgets = tuple(sorted({budget for _, budget in labels if budget is not None}))
    methods = [
        make_method(method, options)
        if any(label[0] == method for label in waiting)
        else PlannedGroups(method, {budget: groups for (name, budget), groups in groupings.items() if name == method})
        for method in dict.fromkeys(method for method, _ in labels)
    ]
    return PlanRequest(tasks, StudyRequest(tuple(methods), budgets, seeds))


def _averages_needed(label: str) -> InvalidInput:
    expected = f"averages the answers of several networks for {label}, so their predictions are required"
    return TableError("column 'serves'", expected, hint=FILE_HINT)


def _check_served(groupings: Mapping[Label, tuple[Group, ...]], tasks: Sequence[str], averages: bool) -> None:
    """Checks that every task is served by a network, and by only one unless answers can be averaged."""
    problems: list[InvalidInput] = []
    for label, groups in groupings.items():
        served = [task for group in groups for task in group.serves]
        wrong = sorted(set(tasks) ^ set(served))
        if not averages:
            wrong += sorted(task for task in set(served) if served.count(task) > 1)
        if not averages and any(group.copy for group in groups):
            problems.append(_averages_needed(label_key(label)))
        elif wrong:
            expected = f"must name {label_key(label)} exactly once for each task"
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


def _read_rows(file: Path, values: Sequence[str]) -> pd.DataFrame:
    """Reads the text in a table, in which the columns of values are required.

    Missing numbers become empty, and decimal commas become points.
    """
    table = read_table(file, as_text=True)
    required = (*KEY_COLUMNS, *values)
    missing = [column for column in required if column not in table.columns]
    if missing:
        raise TableError(file, f"must have the columns {', '.join(required)}", f"no {', '.join(missing)}")
    for column in set(NUMERIC_COLUMNS) & set(table.columns):
        # NaN is a measured value, not a missing one.
        cells = table[column].mask(table[column].str.lower().isin(MISSING_WORDS - {"nan"}), "")
        table[column] = cells.str.replace(",", ".") if table.attrs["decimal_comma"] else cells
    return table


def _group_by_network(table: pd.DataFrame, with_losses: bool) -> Networks:
    """Returns the rows by network and task, once all cells are known to be valid."""
    place = table.attrs["place"]
    problems: list[InvalidInput] = []
    is_named = table["seed"].str.isdigit() & (table["network"] != "") & (table["task"] != "")
    is_repeated = table.duplicated(list(KEY_COLUMNS))
    for lines, expected in (
        (table.index[~is_named], "must specify a network, a seed (a non-negative integer) and a task"),
        (table.index[is_repeated], "repeats a network, seed and task"),
    ):
        problems += [TableError(f"{place}, line {line}", expected) for line in lines]
    parse_numbers(table, [column for column in NUMERIC_COLUMNS if column in table.columns], problems)
    required = REQUIRED_COLUMNS if with_losses else ()
    rows = table["network"] + " (seed " + table["seed"] + ") " + table["task"]
    if empty := [f"{column} of {row}" for column in required for row in rows[table[column] == ""]]:
        problems.append(TableError(place, f"is missing required values: {first_few(empty, MOST_LISTED)}"))
    raise_problems(problems, TableError)
    return {
        (network, int(seed)): {cells["task"]: cells for cells in group.to_dict("records")}
        for (network, seed), group in table.groupby(["network", "seed"], sort=False)
    }
