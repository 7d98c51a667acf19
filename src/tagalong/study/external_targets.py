"""The targets of networks trained elsewhere: with them, losses and averages are computed from predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as short
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, pluralize, raise_problems, task_name_problems
from tagalong.files import checksum
from tagalong.learn import Task, average_answers, constant_output, score_outputs
from tagalong.score import Score

PARTS = {"val": "validation", "test": "test"}
KINDS = ("binary", "multiclass", "regression")
MAX_MAGNITUDE = 1e75  # the square of a larger number exceeds the largest loss
RANGE_TOLERANCE, SUM_TOLERANCE = 1e-6, 1e-3  # of probabilities, which may be rounded to half precision
TINY = float(np.finfo(np.float64).tiny)
Arrays = Mapping[str, NDArray[np.float64]]
Parts = Mapping[str, Arrays]  # arrays by "val" and "test", and by task


@dataclass(frozen=True, eq=False)
class ExternalTargets:
    """The tasks and their validation and test labels.

    Attributes:
        tasks: the tasks.
        labels: the labels of each task [rows, …], by part ("val" and "test"), with NaN for missing labels.
        logits: whether predictions for classes are logits instead of probabilities.
    """

    tasks: tuple[Task, ...]
    labels: Parts
    logits: bool = False

    @cached_property
    def document(self) -> dict[str, Any]:
        """The tasks as a JSON document, with a checksum of the labels."""
        tasks = [
            {
                "name": task.name,
                "kind": task.kind,
                "classes": task.classes,
                "error": task.error,
                "class_weights": None if task.class_weights is None else list(task.class_weights),
            }
            for task in self.tasks
        ]
        return {"tasks": tasks, "logits": self.logits, "checksum": arrays_checksum(flatten_parts(self.labels))}

    @cached_property
    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        """The labels as float64 tensors, by part and task."""
        return {
            part: {task: torch.from_numpy(values) for task, values in by_task.items()}
            for part, by_task in self.labels.items()
        }

    def task(self, name: str) -> Task:
        """Returns the task with this name."""
        return next(task for task in self.tasks if task.name == name)

    def outputs(self, predictions: Arrays) -> dict[str, Tensor]:
        """Converts checked predictions to outputs as a network returns them: values and logits, as float64."""
        return {name: torch.from_numpy(self._as_outputs(self.task(name), one)) for name, one in predictions.items()}

    def _as_outputs(self, task: Task, predicted: NDArray[np.float64]) -> NDArray[np.float64]:
        if task.kind == "regression" or self.logits:
            return predicted
        # A probability of 0 becomes a large finite logit, since the loss of an infinite one would not be a number.
        logarithms = np.log(np.clip(predicted, TINY, 1))
        return logarithms if task.kind == "multiclass" else logarithms - np.log(np.clip(1 - predicted, TINY, 1))

    def average_scores(self, members: Sequence[Mapping[str, Tensor]], part: str) -> dict[str, Score]:
        """Returns the scores of the average of several networks' outputs, including the loss of each row."""
        outputs = average_answers(members, {task.name: task.averaging for task in self.tasks})
        return {name: score_outputs(self.task(name), one, self.tensors[part][name]) for name, one in outputs.items()}

    def constant_rows(self, part: str) -> dict[str, NDArray[Any]]:
        """Returns the loss of the constant that is best for these very rows, by task and row.

        Tasks with several labels per row have no best constant and are left out.
        """
        found = {}
        for task in self.tasks:
            labels = self.tensors[part][task.name]
            if labels.dim() == 1:
                rows = score_outputs(task, constant_output(task, labels).expand(len(labels), -1), labels).rows
                assert rows is not None
                found[task.name] = rows
        return found

    def describe(self) -> dict[str, Any]:
        """Returns the fields of a `ProblemInfo` that are known from the targets."""
        return {
            "kinds": {task.name: task.kind for task in self.tasks},
            "errors": {task.name: task.error_name for task in self.tasks},
            "rows": {part: len(next(iter(labels.values()))) for part, labels in self.labels.items()},
            "labels": {
                part: {name: _count_labelled_rows(values) for name, values in labels.items()}
                for part, labels in self.labels.items()
            },
        }


def _count_labelled_rows(labels: NDArray[np.float64]) -> int:
    return int(np.isfinite(labels).reshape(len(labels), -1).any(1).sum())


def check_targets(tasks: Sequence[Task | str], targets: Any, logits: bool = False) -> ExternalTargets:
    """Returns validated targets, or raises a single error that lists every problem.

    Args:
        tasks: the tasks, as `Task` objects.
        targets: the labels by part ("val" and "test") and by task.
        logits: whether predictions for classes are logits instead of probabilities.
    """
    known = [task for task in tasks if isinstance(task, Task)]
    if len(known) < len(tasks):
        names = ", ".join(short(task) for task in tasks if not isinstance(task, Task))
        hint = "write, for example, Task('age', kind='regression')"
        raise InvalidInput("tasks", "must be Task objects if `targets` are given", names, hint)
    problems = [*task_name_problems(tuple(task.name for task in known))]
    problems += [one for task in known for one in _task_problems(task)]
    labels = {}
    given_parts = _by_name(problems, "targets", targets, list(PARTS), "the key")
    for part, given in given_parts.items():
        by_task = _by_name(problems, f"`targets`: {part!r}", given, [task.name for task in known], "labels for")
        read = {name: _read_numbers(problems, f"`targets`: {part!r}, {name!r}", one) for name, one in by_task.items()}
        labels[part] = {name: values for name, values in read.items() if values is not None}
        for task in known:
            if task.name in labels[part]:
                problems += _label_problems(task, part, labels[part][task.name])
        if len({len(values) for values in labels[part].values() if values.ndim}) > 1:
            found = ", ".join(f"{len(values)} for {name!r}" for name, values in labels[part].items())
            problems.append(InvalidInput(f"`targets`: {part!r}", "must have as many rows for every task", found))
    raise_problems(problems)
    return ExternalTargets(tuple(known), labels, bool(logits))


def _task_problems(task: Task) -> list[InvalidInput]:
    if task.loss is None and task.average is None and not callable(task.error):
        return []
    expected = "must have a built-in loss, error measure and average if `targets` are given"
    return [InvalidInput(f"task {task.name!r}", expected, hint="omit `targets`, and tell losses instead")]


def _label_problems(task: Task, part: str, labels: NDArray[np.float64]) -> list[InvalidInput]:
    place = f"`targets`: {part!r}, {task.name!r}"
    dimensions = 1 if task.kind == "multiclass" else max(labels.ndim, 1)
    if labels.ndim != dimensions or not labels.size:
        return [InvalidInput(place, "must have one label per row", f"an array of shape {labels.shape}")]
    present = labels[~np.isnan(labels)]
    if not len(present):
        return [InvalidInput(place, "must have labels", f"{len(labels)} missing ones (NaN)")]
    if task.kind == "regression":
        wrong, expected = np.abs(present) > MAX_MAGNITUDE, f"must be at most {MAX_MAGNITUDE:g} in magnitude"
    else:
        last = 1 if task.kind == "binary" else (task.classes or 2) - 1
        wrong = ~np.isin(present, np.arange(last + 1))
        expected = "must be 0 or 1" if last == 1 else f"must be classes from 0 to {last}"
    return [InvalidInput(place, f"{expected}, or NaN if missing", _examples(present[wrong]))] if wrong.any() else []


def check_predictions(
    problems: list[InvalidInput], targets: ExternalTargets, part: str, given: Any, tasks: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Returns the predictions of a network for the rows of one part, and reports problems.

    Args:
        problems: the list to which problems are added.
        targets: the targets.
        part: "val" or "test".
        given: the predictions of each task.
        tasks: the tasks of the network.
    """
    found = {}
    for name, one in _by_name(problems, part, given, tasks, "predictions for").items():
        place, task = f"`{part}`: the predictions for {name!r}", targets.task(name)
        values = _read_numbers(problems, place, one)
        if values is None:
            continue
        values, wrong = _fit_predictions(task, place, part, values, targets)
        problems += wrong
        found[name] = values
    return found


def _fit_predictions(
    task: Task, place: str, part: str, values: NDArray[np.float64], targets: ExternalTargets
) -> tuple[NDArray[np.float64], list[InvalidInput]]:
    labels = targets.labels[part][task.name]
    shape = (len(labels), task.classes) if task.kind == "multiclass" else labels.shape
    if values.shape == (*shape, 1):
        values = values.reshape(shape)
    if values.ndim and len(values) != len(labels):
        expected = f"must have {pluralize(len(labels), 'row')}, one for each {PARTS[part]} label"
        return values, [InvalidInput(place, expected, str(len(values)))]
    if values.shape != shape:
        what = f"one column for each of {task.classes} classes" if task.kind == "multiclass" else "one value per label"
        return values, [InvalidInput(place, f"must have {what}", f"an array of shape {values.shape}")]
    return values, _value_problems(task, place, values, labels, targets.logits)


def _value_problems(
    task: Task, place: str, values: NDArray[np.float64], labels: NDArray[np.float64], logits: bool
) -> list[InvalidInput]:
    if not np.isfinite(values).all():
        hint = "if the network diverged, pass None for both `val` and `test`"
        found = f"{int((~np.isfinite(values)).sum())} of {values.size} that are not"
        return [InvalidInput(place, "must be finite numbers", found, hint)]
    if task.kind == "regression" or logits:
        wrong = np.abs(values) > MAX_MAGNITUDE
        expected = f"must be at most {MAX_MAGNITUDE:g} in magnitude"
        return [InvalidInput(place, expected, _examples(values[wrong]))] if wrong.any() else []
    hint = "for logits, pass `logits=True`"
    wrong = (values < -RANGE_TOLERANCE) | (values > 1 + RANGE_TOLERANCE)
    if wrong.any():
        return [InvalidInput(place, "must be probabilities between 0 and 1", _examples(values[wrong]), hint)]
    if task.kind == "multiclass":
        sums = values.sum(1)
        wrong = np.abs(sums - 1) > SUM_TOLERANCE
        if wrong.any():
            expected = "must be probabilities that sum to 1 in each row"
            return [InvalidInput(place, expected, f"the sum {_examples(sums[wrong])}", hint)]
    impossible = _probability_of_label(task, values, labels) <= 0
    if not impossible.any():
        return []
    expected = "must not be 0 for the class of the label, since the loss would be infinite"
    found = f"{pluralize(int(impossible.sum()), 'label')} with probability 0"
    return [InvalidInput(place, expected, found, "pass logits with `logits=True`, or clip the probabilities")]


def _probability_of_label(task: Task, values: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the probability of each label that is not missing."""
    present = ~np.isnan(labels)
    if task.kind == "multiclass":
        found: NDArray[np.float64] = values[present, labels[present].astype(int)]
        return found
    return np.where(labels[present] == 1, values[present], 1 - values[present])


def _examples(values: NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:g}" for value in np.unique(values)[:3])
    return shown if len(np.unique(values)) <= 3 else f"{shown}, …"


def _read_numbers(problems: list[InvalidInput], place: str, given: Any) -> NDArray[np.float64] | None:
    """Converts an array, a tensor or a list to float64; a scalar becomes an array without dimensions."""
    values = given.detach().cpu() if isinstance(given, Tensor) else given
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiubO":
            raise TypeError
        found = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        problems.append(InvalidInput(place, "must be an array of numbers", short(given)))
        return None
    if not found.ndim:
        problems.append(InvalidInput(place, "must be an array with one entry per row", f"the number {found:g}"))
        return None
    return found


def _by_name(
    problems: list[InvalidInput], argument: str, given: Any, names: Sequence[str], what: str
) -> dict[str, Any]:
    """Returns the values of these names, and reports missing and unknown names."""
    if not isinstance(given, Mapping):
        expected = f"must be a mapping with {what} {', '.join(map(repr, names))}"
        hint = "if the network diverged, pass None for both `val` and `test`" if given is None else ""
        problems.append(InvalidInput(argument, expected, short(given), hint))
        return {}
    missing = [f"none for {name!r}" for name in names if name not in given]
    extra = [f"the unknown {name!r}" for name in given if name not in names]
    if missing or extra:
        expected = f"must have {what} {', '.join(map(repr, names))}"
        problems.append(InvalidInput(argument, expected, ", ".join([*missing, *extra])))
    return {name: given[name] for name in names if name in given}


def flatten_parts(parts: Parts) -> dict[str, NDArray[np.float64]]:
    """Returns the arrays by names such as "val_0", since the name of a task may not be valid in an archive."""
    return {
        f"{part}_{number}": values for part, by_task in parts.items() for number, values in enumerate(by_task.values())
    }


def read_flat_parts(arrays: Arrays, tasks: Sequence[str]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Returns the arrays of `flatten_parts` by part and task."""
    return {part: {task: arrays[f"{part}_{number}"] for number, task in enumerate(tasks)} for part in PARTS}


def arrays_checksum(arrays: Arrays) -> str:
    """Returns a checksum of named arrays, which does not depend on how a file stores them."""
    parts = (
        f"{name} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes() for name, values in arrays.items()
    )
    return checksum(b"".join(parts))
