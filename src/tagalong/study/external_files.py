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

from .external_arrays import PARTS, Array, read_mapping

if TYPE_CHECKING:
    import pandas as pd

KEY_COLUMNS = ("network", "seed", "task")
LOSS_COLUMNS = ("val_loss", "test_loss")
ERROR_COLUMNS = ("val_error", "test_error")
COST_COLUMNS = ("steps", "seconds", "parameters")
NUMBER_COLUMNS = (*LOSS_COLUMNS, *ERROR_COLUMNS, *COST_COLUMNS)
PREDICTIONS = "predictions"  # the column with the names of files
KINDS = ("binary", "multiclass", "regression")


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
            test_error, steps, seconds and parameters. A network diverged if all its losses are nan.
        predictions: whether a table names a file with predictions for each network in a column `predictions`, instead
            of losses (see `read_parts`). A network diverged if this name is nan.

    Returns:
        The arguments of `ExternalStudy.tell` for each network.

    Raises:
        InvalidInput: If the file is invalid. The message lists everything that is missing or wrong.
    """
    if path.suffix.lower() == ".json":
        with report_damage(path, TableError, "save a list of results"):
            return [entry.model_dump() for entry in build(list[NetworkEntry], json.loads(path.read_bytes()))]
    columns = [PREDICTIONS] if predictions else [*LOSS_COLUMNS]
    table, numbers = _read_rows(path, columns)
    cells = table[columns].apply(lambda column: column.str.lower())
    # A loss of nan was measured, whereas other words for missing values stand for networks that are not trained yet.
    is_nan, is_empty = cells.eq("nan"), cells.isin(MISSING_WORDS - {"nan"})
    problems: list[InvalidInput] = []
    results = []
    for (name, seed), rows in table.groupby(["network", "seed"], sort=False):
        if is_empty.loc[rows.index].all(axis=None):
            continue
        network = {"tasks": list(rows["task"]), "seed": int(seed)}
        named = set(name.split("+"))
        if named != set(rows["task"]) and named & set(table["task"]):
            expected = f"must have a row for each task of network {name} (seed {seed}) and no others"
            problems.append(TableError(path, expected, f"rows for {', '.join(rows['task'])}"))
        elif is_nan.loc[rows.index].all(axis=None):
            results.append(network | {"val": None, "test": None})
        elif (is_nan | is_empty).loc[rows.index].any(axis=None):
            expected = f"must have {' and '.join(columns)} for every task of {name} (seed {seed})"
            problems.append(TableError(path, expected, hint="or nan in every cell if the network diverged"))
        else:
            result = collect(problems, _read_network, path, rows, numbers.loc[rows.index], predictions)
            results.append(network | (result or {}))
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
    is_named = table["seed"].str.isdigit() & (table["network"] != "") & (table["task"] != "")
    wrong_lines = table.index[~is_named | table.duplicated(list(KEY_COLUMNS))]
    expected = "must have a network, a seed (a non-negative integer) and a task, and each combination only once"
    problems += [TableError(f"{path}, line {line}", expected) for line in wrong_lines]
    raise_problems(problems, TableError)
    return table, numbers


def _read_network(path: Path, rows: pd.DataFrame, numbers: pd.DataFrame, predictions: bool) -> dict[str, Any]:
    """Returns the results and costs of the network in these rows of a table."""
    tasks = list(rows["task"])
    result: dict[str, Any] = {}
    for column in COST_COLUMNS:
        if column in numbers and numbers[column].notna().any():
            result[column] = numbers[column].dropna().iloc[0]
    if predictions:
        files = list(rows[PREDICTIONS].unique())
        if len(files) > 1:
            raise TableError(f"column {PREDICTIONS!r}", f"must name one file for {rows['network'].iloc[0]}")
        return result | read_parts(path.parent / files[0], tasks)
    for part in PARTS:
        columns = [column for column in (f"{part}_loss", f"{part}_error") if column in numbers]
        result[part] = dict(zip(tasks, map(tuple, numbers[columns].to_numpy().tolist()), strict=True))
    return result


def read_parts(path: Path, tasks: Sequence[str]) -> dict[str, dict[str, Array]]:
    """Reads labels or predictions by part ("val" and "test") and task.

    Args:
        path: an npz file with arrays named val_TASK and test_TASK.
        tasks: the names of the tasks.

    Raises:
        InvalidInput: If the file does not exist or has other contents.
    """
    if not path.is_file():
        raise TableError(path, "must be an npz file", "no such file")
    with report_damage(path, TableError, "save plain arrays with numpy.savez"):
        arrays = unpack_arrays(path.read_bytes())
    arrays = read_mapping(str(path), arrays, [f"{part}_{task}" for part in PARTS for task in tasks])
    return {part: {task: arrays[f"{part}_{task}"] for task in tasks} for part in PARTS}


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
