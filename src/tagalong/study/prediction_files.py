"""Reads the labels and predictions of networks trained elsewhere from npz files and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, did_you_mean, raise_problems
from tagalong.files import report_damage, unpack_arrays
from tagalong.learn import Task, read_columns, typing_errors
from tagalong.tabular import TableError

from .external_targets import KINDS, PARTS, ExternalTargets, Parts, check_targets

if TYPE_CHECKING:
    import pandas as pd

SPLIT_COLUMN = "split"
CLASS_SEPARATOR = ":"  # between a task and a class in the name of a column


def read_parts(path: Path, tasks: Sequence[str]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Reads arrays by part ("val" and "test") and task.

    Args:
        path: an npz file with arrays named val_TASK and test_TASK, or a table with a column `split`, which contains
            val or test in each row, and a column for each task. For the probabilities of a multiclass task, the table
            has a column TASK:CLASS for each class 0, 1, ….
        tasks: the names of the tasks.

    Raises:
        TableError: If the file does not exist or has other contents. The message lists every problem.
    """
    if not path.is_file():
        raise TableError(path, "must be an npz file or a table", "no such file")
    found = _read_archive(path, tasks) if path.suffix.lower() == ".npz" else _read_table(path, tasks)
    missing = [f"{part} of {task!r}" for part in PARTS for task in tasks if task not in found[part]]
    if missing:
        raise TableError(path, f"must have values for {', '.join(map(repr, tasks))}", f"none for {', '.join(missing)}")
    return found


def _read_archive(path: Path, tasks: Sequence[str]) -> dict[str, dict[str, NDArray[np.float64]]]:
    with report_damage(path, TableError, "save plain arrays with numpy.savez"):
        arrays = unpack_arrays(path.read_bytes())
    names = {f"{part}_{task}": (part, task) for part in PARTS for task in tasks}
    unknown = [name for name in arrays if name not in names]
    problems = [_unknown(path, "an array", name, did_you_mean(name, names)) for name in unknown]
    problems += [
        TableError(f"{path}, array {name!r}", "must be an array of numbers", str(values.dtype))
        for name, values in arrays.items()
        if values.dtype.kind not in "fiub"
    ]
    raise_problems(problems, TableError)
    found: dict[str, dict[str, NDArray[np.float64]]] = {part: {} for part in PARTS}
    for name, (part, task) in names.items():
        if name in arrays:
            found[part][task] = arrays[name].astype(np.float64)
    return found


def _read_table(path: Path, tasks: Sequence[str]) -> dict[str, dict[str, NDArray[np.float64]]]:
    columns = read_columns(path)
    by_task = _columns_by_task(path, columns, tasks)
    splits = columns[SPLIT_COLUMN]
    wrong = sorted({repr(value) for value in splits.tolist() if value not in PARTS})
    if wrong:
        raise TableError(
            f"{path}, column {SPLIT_COLUMN!r}", "must contain val or test in each row", ", ".join(wrong[:5])
        )
    found = {}
    for part in PARTS:
        rows = splits == part
        found[part] = {
            task: columns.loc[rows, names[0] if names == [task] else names].to_numpy()
            for task, names in by_task.items()
        }
    return found


def _columns_by_task(path: Path, columns: pd.DataFrame, tasks: Sequence[str]) -> dict[str, list[str]]:
    """Returns the columns of each task that has any: its name, or one column for each class."""
    problems: list[InvalidInput] = []
    if SPLIT_COLUMN not in columns:
        found = ", ".join(map(repr, columns))
        problems.append(TableError(path, f"must have a column {SPLIT_COLUMN!r} with val or test in each row", found))
    by_task: dict[str, list[str]] = {}
    for name in columns:
        task, _, number = name.rpartition(CLASS_SEPARATOR)
        if name in tasks:
            by_task.setdefault(name, []).append(name)
        elif task in tasks and number.isdigit():
            by_task.setdefault(task, []).append(name)
        elif name != SPLIT_COLUMN:
            problems.append(_unknown_column(path, name, tasks))
            continue
        if name != SPLIT_COLUMN and columns[name].dtype == object:
            cells = typing_errors(columns[name]) or "text"
            problems.append(TableError(f"{path}, column {name!r}", "must contain numbers", cells))
    for task, names in by_task.items():
        classes = [f"{task}{CLASS_SEPARATOR}{number}" for number in range(len(names))]
        if names != [task] and sorted(names) != sorted(classes):
            expected = f"must have the columns {', '.join(map(repr, classes))} for the classes of {task!r}"
            problems.append(TableError(path, expected, ", ".join(map(repr, names))))
        by_task[task] = names if names == [task] else classes
    raise_problems(problems, TableError)
    return by_task


def _unknown_column(path: Path, name: str, tasks: Sequence[str]) -> TableError:
    task, equals, _ = name.partition("=")
    if equals and task in tasks:  # as `tagalong predict` names them
        return _unknown(path, "a column", name, f"name the columns of its classes {task}{CLASS_SEPARATOR}0, …")
    return _unknown(path, "a column", name, did_you_mean(name, tasks))


def _unknown(path: Path, what: str, name: str, hint: str) -> TableError:
    return TableError(path, f"must not have {what} for an unknown task", repr(name), hint)


def read_targets_file(
    path: Path, tasks: Sequence[str], predictions: Parts, kinds: Mapping[str, str] | None = None, logits: bool = False
) -> ExternalTargets:
    """Reads the labels of all tasks.

    A task with a prediction for each class is multiclass. Any other task is binary if all of its labels are 0 or 1, and
    regression otherwise, unless `kinds` says otherwise.

    Args:
        path: a file with labels; see `read_parts`.
        tasks: the names of the tasks.
        predictions: the predictions of a network for all tasks.
        kinds: the kinds of some tasks.
        logits: whether predictions for classes are logits instead of probabilities.
    """
    labels = read_parts(path, tasks)
    given = dict(kinds or {})
    problems = [
        InvalidInput("kinds", "must contain only tasks", repr(name), did_you_mean(name, tasks))
        for name in given
        if name not in tasks
    ]
    problems += [
        InvalidInput(f"`kinds`: {name!r}", f"must be one of {', '.join(KINDS)}", repr(kind))
        for name, kind in given.items()
        if kind not in KINDS
    ]
    raise_problems(problems)
    try:
        made = [_make_task(name, given.get(name), labels, predictions) for name in tasks]
        return check_targets(made, labels, logits)
    except InvalidInput as error:
        renamed = [
            TableError(str(one.argument).replace("`targets`", str(path)), one.expected, one.found, one.hint)
            for one in error.problems
        ]
        raise TableError.join(renamed) from error


def _make_task(name: str, kind: str | None, labels: Parts, predictions: Parts) -> Task:
    predicted = predictions["val"][name]
    classes = predicted.shape[1] if predicted.ndim == 2 else 1
    if kind is None:
        known = np.concatenate([labels[part][name].ravel() for part in PARTS])
        binary = np.isin(known[~np.isnan(known)], (0, 1)).all()
        kind = "multiclass" if classes > 1 else "binary" if binary else "regression"
    if kind == "multiclass":
        return Task(name, "multiclass", classes=max(classes, 2))
    return Task(name, "binary" if kind == "binary" else "regression")
