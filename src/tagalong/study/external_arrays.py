"""Labels and predictions of networks that are trained elsewhere, by part ("val" and "test") and task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as short
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.errors import InvalidInput, collect, raise_problems
from tagalong.learn import Problem, Split, Task

PARTS = ("val", "test")
DIVERGED_HINT = "if the network diverged, pass None for both `val` and `test`"
LOGITS_HINT = "pass logits with `logits=True`"
RANGE_TOLERANCE, SUM_TOLERANCE = 1e-6, 1e-3  # of probabilities, which may be rounded to half precision
TINY = float(np.finfo(np.float64).tiny)
Array = NDArray[np.float64]
Labels = Mapping[str, Mapping[str, Tensor]]  # by part and task


def problem_with_labels(name: str, tasks: Sequence[Task], labels: Labels) -> Problem:
    """Returns a problem of which the labels are known, but not the inputs."""
    train = {task.name: torch.zeros(0, dtype=torch.float64) for task in tasks}
    return Problem(name, tuple(tasks), _split(train), _split(labels["val"]), _split(labels["test"]), nn.Identity())


def _split(labels: Mapping[str, Tensor]) -> Split:
    rows = len(next(iter(labels.values())))
    return Split(torch.zeros(rows, 1), dict(labels))


def read_labels(tasks: Sequence[Task | str], targets: Any) -> dict[str, dict[str, Tensor]]:
    """Returns the labels of each part and task, or raises a single error that lists everything that is wrong.

    Args:
        tasks: the tasks.
        targets: arrays by part and task.
    """
    problems: list[InvalidInput] = []
    for task in tasks:
        if isinstance(task, str):
            hint = "write, for example, Task('age', kind='regression')"
            problems.append(InvalidInput("tasks", "must be Task objects if `targets` are given", repr(task), hint))
        elif task.loss is not None or task.average is not None or callable(task.error):
            expected = "must have a built-in loss, error measure and average if `targets` are given"
            hint = "omit `targets`, and tell losses instead"
            problems.append(InvalidInput(f"task {task.name!r}", expected, hint=hint))
    raise_problems(problems)
    known = {task.name: task for task in tasks if isinstance(task, Task)}
    labels: dict[str, dict[str, Tensor]] = {}
    for part, by_task in read_mapping("targets", targets, PARTS).items():
        place = f"`targets`: {part!r}"
        labels[part] = {}
        for name, values in read_mapping(place, by_task, known).items():
            array = collect(problems, _read_label_array, f"{place}, {name!r}", known[name], values)
            if array is not None:
                labels[part][name] = torch.from_numpy(array)
        if len({len(array) for array in labels[part].values()}) > 1:
            rows = ", ".join(f"{len(array)} for {name!r}" for name, array in labels[part].items())
            problems.append(InvalidInput(place, "must have as many rows for every task", rows))
    raise_problems(problems)
    return labels


def _read_label_array(place: str, task: Task, values: Any) -> Array:
    labels = read_array(place, values)
    present = labels[~np.isnan(labels)]
    if not len(present) or (task.kind == "multiclass" and labels.ndim > 1):
        expected = "must have one label per row, not all missing"
        raise InvalidInput(place, expected, f"an array of shape {labels.shape}")
    if task.kind != "regression":
        last = 1 if task.kind == "binary" else (task.classes or 2) - 1
        unknown = np.unique(present[~np.isin(present, np.arange(last + 1))])
        if len(unknown):
            raise InvalidInput(place, f"must be classes from 0 to {last}, or NaN if missing", short(unknown.tolist()))
    return labels


def read_prediction(place: str, task: Task, values: Any, labels: Array, logits: bool) -> Tensor:
    """Returns the outputs of a network for a task: values for regression, and logits for classes.

    Args:
        place: the place of the predictions in messages.
        task: the task.
        values: the predictions, one per row.
        labels: the labels of the same rows.
        logits: whether predictions for classes are logits instead of probabilities.

    Raises:
        InvalidInput: If they are no predictions for these rows.
    """
    predicted = read_array(place, values)
    shape = (len(labels), task.classes) if task.kind == "multiclass" else labels.shape
    if predicted.shape == (*shape, 1):
        predicted = predicted.reshape(shape)
    if predicted.shape != shape:
        expected = f"must have the shape {shape}: one row per label, and one column per class"
        raise InvalidInput(place, expected, str(predicted.shape))
    if not np.isfinite(predicted).all():
        found = f"{int((~np.isfinite(predicted)).sum())} that are not"
        raise InvalidInput(place, "must be finite numbers", found, DIVERGED_HINT)
    if task.kind == "regression" or logits:
        return torch.from_numpy(predicted)

    # [rows, classes]
    probabilities = predicted if task.kind == "multiclass" else np.stack([1 - predicted, predicted], axis=-1)
    if probabilities.min() < -RANGE_TOLERANCE or abs(probabilities.sum(-1) - 1).max() > SUM_TOLERANCE:
        expected = "must be probabilities between 0 and 1, which sum to 1 in each row"
        raise InvalidInput(place, expected, short(predicted), LOGITS_HINT)
    present = ~np.isnan(labels)
    of_label = np.take_along_axis(probabilities[present], labels[present].astype(int)[:, None], axis=1)
    if (of_label <= 0).any():
        expected = "must not be 0 for the class of the label, since the loss would be infinite"
        hint = f"{LOGITS_HINT}, or clip the probabilities"
        raise InvalidInput(place, expected, f"{int((of_label <= 0).sum())} that are", hint)
    # A probability of 0 becomes a large finite logit, since the loss of an infinite one would not be a number.
    logs = np.log(np.clip(probabilities, TINY, 1))
    return torch.from_numpy(logs if task.kind == "multiclass" else logs[..., 1] - logs[..., 0])


def read_array(place: str, values: Any) -> Array:
    """Converts an array, a tensor or a list to float64."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
        if array.ndim and array.dtype.kind in "fiubO":
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidInput(place, "must be an array of numbers with one entry per row", short(values))


def read_mapping(place: str, values: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of these names in order, or raises an error that lists missing and unknown names."""
    wanted = list(names)
    expected = f"must have values for {', '.join(map(repr, wanted))}, and no others"
    if not isinstance(values, Mapping):
        raise InvalidInput(place, expected, short(values), DIVERGED_HINT if values is None else "")
    missing = [f"none for {name!r}" for name in wanted if name not in values]
    unknown = [f"the unknown {name!r}" for name in values if name not in wanted]
    if missing or unknown:
        raise InvalidInput(place, expected, ", ".join([*missing, *unknown]))
    return {name: values[name] for name in wanted}
