"""Tables of networks to train elsewhere, and files with their results, predictions and labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from tagalong.documents import build
from tagalong.errors import InvalidInput, collect, did_you_mean, raise_problems
from tagalong.files import report_damage, unpack_arrays, write_atomic
from tagalong.learn import Task
from tagalong.tabular import MISSING_WORDS, TableError, parse_numbers, read_table

from .external_targets import PARTS, Array

if TYPE_CHECKING:
    import pandas as pd

KEY_COLUMNS = ("network", "seed", "task")
LOSS_COLUMNS = ("val_loss", "test_loss")
ERROR_COLUMNS = ("val_error", "test_error")
COST_COLUMNS = ("steps", "seconds", "parameters")
NUMBER_COLUMNS = (*LOSS_COLUMNS, *ERROR_COLUMNS, *COST_COLUMNS)
PREDICTIONS, TEST_ROWS = "predictions", "test_rows"  # columns with the names of files
KINDS = ("binary", "multiclass", "regression")
Parts = Mapping[str, Mapping[str, Any]]  # arrays by part ("val" and "test") and task


class NetworkEntry(BaseModel, extra="forbid"):
    """The result of a network in a JSON file: the arguments of `ExternalStudy.tell`."""

    tasks: list[str]
    seed: int
    val: dict[str, Any] | None
    test: dict[str, Any] | None
    rows: dict[str, list[float | None]] | None = None
    val_rows: dict[str, list[float | None]] | None = None
    steps: int = 0
    seconds: float = 0.0
    parameters: int = 0


def write_plan(path: Path, networks: Iterable[tuple[Sequence[str], int]], *, predictions: bool = False) -> None:
    """Writes a CSV file with a row for each network, seed and task, whose results are left empty.

    Args:
        path: the file.
        networks: the tasks and the seed of each network.
        predictions: whether to ask for files with predictions instead of losses.
    """
    columns = (PREDICTIONS,) if predictions else (*LOSS_COLUMNS, *ERROR_COLUMNS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*KEY_COLUMNS, *columns))
    for tasks, seed in networks:
        if wrong := [task for task in tasks if "+" in task]:
            hint = "rename them, since '+' joins the tasks of a network in the table"
            raise InvalidInput("task names", "must not contain '+'", ", ".join(map(repr, wrong)), hint)
        writer.writerows(("+".join(tasks), seed, task, *[""] * len(columns)) for task in tasks)
    write_atomic(path, text.getvalue())


def read_results(path: Path, *, predictions: bool = False) -> list[dict[str, Any]]:
    """Reads the results of networks. Networks without any are left out.

    Args:
        path: a JSON file with a list of results (see `NetworkEntry`), or a table with a row for each network, seed and
            task. Its columns are network, seed, task, val_loss and test_loss. Optional columns are val_error,
            test_error, steps, seconds, parameters, and test_rows with the names of npy files that contain the loss of
            every test row. A network diverged if all its losses are nan.
        predictions: whether a table names a file with predictions for each network in a column `predictions`, instead
            of losses (see `read_parts`).

    Returns:
        The arguments of `ExternalStudy.tell` for each network.

    Raises:
        InvalidInput: If the file is invalid. The message lists everything that is missing or wrong.
    """
    if path.suffix.lower() == ".json":
        with report_damage(path, TableError, "save a list of results"):
            return [entry.model_dump() for entry in build(list[NetworkEntry], json.loads(path.read_bytes()))]
    values = [PREDICTIONS] if predictions else [*LOSS_COLUMNS]
    table, numbers = _read_rows(path, values)

    # A loss of nan was measured, whereas other words for missing values stand for networks that are not trained yet.
    given = ~table[values].apply(lambda cells: cells.str.lower()).isin(MISSING_WORDS - {"nan"})
    problems: list[InvalidInput] = []
    results = []
    for (name, seed), rows in table.groupby(["network", "seed"], sort=False):
        filled = given.loc[rows.index]
        losses = numbers.loc[rows.index]
        diverged = all(column in rows and rows[column].str.lower().eq("nan").all() for column in LOSS_COLUMNS)
        if not filled.any(axis=None) and not diverged:
            continue
        named = set(name.split("+"))
        if named != set(rows["task"]) and named & set(table["task"]):
            expected = f"must have a row for each task of network {name} (seed {seed}) and no others"
            problems.append(TableError(path, expected, f"rows for {', '.join(rows['task'])}"))
            continue
        if not diverged and not (filled.all(axis=None) and (predictions or losses[values].notna().all(axis=None))):
            expected = f"must have finite values of {' and '.join(values)} for {name} (seed {seed})"
            problems.append(TableError(path, expected, hint="or nan in every cell if the network diverged"))
            continue
        result = collect(problems, _read_network, path, rows, losses, predictions and not diverged)
        if result is not None:
            parts = {"val": None, "test": None} if diverged else {}
            results.append({"tasks": list(rows["task"]), "seed": int(seed), **result, **parts})
    if not results and not problems:
        problems.append(TableError(path, "must contain the results of at least one network", "none"))
    raise_problems(problems, TableError)
    return results


def _read_rows(path: Path, values: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads a table as text, and its numbers, once it is known that each row is about a network, seed and task."""
    table = read_table(path, as_text=True)
    if missing := [column for column in (*KEY_COLUMNS, *values) if column not in table]:
        expected = f"must have the columns {', '.join((*KEY_COLUMNS, *values))}"
        raise TableError(path, expected, f"no {', '.join(missing)}")
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, [column for column in NUMBER_COLUMNS if column in table], problems)
    # The order of the tasks of a network means nothing.
    table["network"] = ["+".join(sorted(name.split("+"))) for name in table["network"]]
    unnamed = ~table["seed"].str.isdigit() | (table["network"] == "") | (table["task"] == "")
    expected = "must have a network, a seed (a non-negative integer) and a task, and each combination only once"
    wrong_lines = table.index[unnamed | table.duplicated(list(KEY_COLUMNS))]
    problems += [TableError(f"{path}, line {line}", expected) for line in wrong_lines]
    raise_problems(problems, TableError)
    return table, numbers


def _read_network(path: Path, rows: pd.DataFrame, numbers: pd.DataFrame, predictions: bool) -> dict[str, Any]:
    """Returns the results and costs of the network in these rows of a table."""
    result: dict[str, Any] = {}
    for column in COST_COLUMNS:
        if column in numbers and numbers[column].notna().any():
            cost = numbers[column].dropna().iloc[0]
            result[column] = float(cost) if column == "seconds" else int(cost)
    tasks = list(rows["task"])
    if predictions:
        files = list(rows[PREDICTIONS].unique())
        if len(files) > 1:
            raise TableError(f"column {PREDICTIONS!r}", f"must name one file for {rows['network'].iloc[0]}")
        return result | read_parts(path.parent / files[0], tasks)
    for part in PARTS:
        columns = [column for column in (f"{part}_loss", f"{part}_error") if column in numbers]
        result[part] = dict(zip(tasks, map(tuple, numbers[columns].to_numpy().tolist()), strict=True))
    if TEST_ROWS in rows and rows[TEST_ROWS].ne("").all():
        result["rows"] = {}
        for task, file in zip(tasks, rows[TEST_ROWS], strict=True):
            with report_damage(path.parent / file, TableError, "save an array with numpy.save"):
                result["rows"][task] = np.load(path.parent / file, allow_pickle=False)
    return result


def read_parts(path: Path, tasks: Sequence[str]) -> dict[str, dict[str, Array]]:
    """Reads labels or predictions by part ("val" and "test") and task.

    Args:
        path: an npz file with arrays named val_TASK and test_TASK, or a table with a column `split`, which contains
            val or test in each row, and a column for each task. For the probabilities of a multiclass task, the table
            has a column TASK:CLASS for each class 0, 1, ….
        tasks: the names of the tasks.

    Raises:
        TableError: If the file does not exist or has other contents.
    """
    if not path.is_file():
        raise TableError(path, "must be an npz file or a table", "no such file")
    if path.suffix.lower() == ".npz":
        with report_damage(path, TableError, "save plain arrays with numpy.savez"):
            arrays = unpack_arrays(path.read_bytes())
    else:
        arrays = _read_columns(path, tasks)
    names = [f"{part}_{task}" for part in PARTS for task in tasks]
    unknown = [name for name in arrays if name not in names]
    if missing := [name for name in names if name not in arrays]:
        raise TableError(path, f"must have values for {', '.join(tasks)}", f"none for {', '.join(missing)}")
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise TableError(path, f"must have values for {', '.join(tasks)} only", ", ".join(unknown), hint)
    return {part: {task: arrays[f"{part}_{task}"] for task in tasks} for part in PARTS}


def _read_columns(path: Path, tasks: Sequence[str]) -> dict[str, Any]:
    """Returns the columns of a table under the names that arrays have in an npz file."""
    table = read_table(path, as_text=True)
    if "split" not in table or not table["split"].isin(PARTS).all():
        raise TableError(f"{path}, column 'split'", "must contain val or test in each row")
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, [column for column in table if column not in ("", "split")], problems)
    raise_problems(problems, TableError)
    columns_by_task: dict[str, list[str]] = {}
    for column in numbers:
        task, _, number = column.rpartition(":")
        of_class = column not in tasks and task in tasks and number.isdigit()
        columns_by_task.setdefault(task if of_class else column, []).append(column)
    arrays = {}
    for task, columns in columns_by_task.items():
        classes = [f"{task}:{number}" for number in range(len(columns))]
        if columns != [task] and sorted(columns) != sorted(classes):
            expected = f"must have the columns {', '.join(classes)} for the classes of {task!r}"
            raise TableError(path, expected, ", ".join(columns))
        for part in PARTS:
            cells = numbers[table["split"] == part]
            arrays[f"{part}_{task}"] = cells[columns[0]] if columns == [task] else cells[classes]
    return {name: cells.to_numpy() for name, cells in arrays.items()}


def read_targets(
    path: Path, tasks: Sequence[str], kinds: Mapping[str, str] | None = None, classes: Mapping[str, int] | None = None
) -> tuple[list[Task], dict[str, dict[str, Array]]]:
    """Reads the labels of all tasks, and infers what the tasks are.

    Args:
        path: a file with labels; see `read_parts`.
        tasks: the names of the tasks.
        kinds: the kinds of some tasks. By default, a task is multiclass if it is among `classes`, binary if all of its
            labels are 0 or 1, and regression otherwise.
        classes: the number of classes of multiclass tasks, as far as known from predictions.
    """
    kinds, classes = kinds or {}, classes or {}
    if wrong := [name for name in kinds if name not in tasks or kinds[name] not in KINDS]:
        expected = f"must give tasks one of the kinds {', '.join(KINDS)}"
        raise InvalidInput("kinds", expected, f"{wrong[0]}={kinds[wrong[0]]}", did_you_mean(wrong[0], tasks))
    labels = read_parts(path, tasks)
    found = []
    for name in tasks:
        values = np.concatenate([labels[part][name].ravel() for part in PARTS])
        present = values[~np.isnan(values)]
        inferred = "binary" if np.isin(present, (0, 1)).all() else "regression"
        kind = kinds.get(name, "multiclass" if name in classes else inferred)
        if kind == "multiclass":
            count = max(2, classes.get(name, 0), 1 + int(present.max(initial=0)))
            found.append(Task(name, "multiclass", classes=count))
        else:
            found.append(Task(name, "binary" if kind == "binary" else "regression"))
    return found, labels
