"""Problems whose networks are trained elsewhere: labels and predictions are known, the inputs are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as short
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.errors import InvalidInput, raise_problems, task_name_problems
from tagalong.learn import Problem, Split, Task, require_in_memory

PARTS = ("val", "test")
NAME = "own training script"
DIVERGED_HINT = "if the network diverged, pass None for both `val` and `test`"
LOGITS_HINT = "pass logits with `logits=True`"
MAX_MAGNITUDE = 1e75  # the square of a larger number exceeds the largest loss
RANGE_TOLERANCE, SUM_TOLERANCE = 1e-6, 1e-3  # of probabilities, which may be rounded to half precision
TINY = float(np.finfo(np.float64).tiny)
Array = NDArray[np.float64]


def make_problem(tasks: Sequence[Task | str], targets: Any = None) -> Problem:
    """Returns a problem without inputs, or raises a single error that lists everything that is wrong.

    Args:
        tasks: the tasks, or only their names if the labels are unknown.
        targets: the labels by part ("val" and "test") and task. If None, there are no rows.
    """
    if not all(isinstance(task, Task) or (isinstance(task, str) and task) for task in tasks):
        raise InvalidInput("tasks", "must be non-empty names or Task objects", short(list(tasks)))
    known = [Task(task, "regression") if isinstance(task, str) else task for task in tasks]
    names = [task.name for task in known]
    problems = task_name_problems(tuple(names))
    labels: dict[str, dict[str, Array]] = {part: {name: np.empty(0) for name in names} for part in PARTS}
    if targets is not None:
        problems += [problem for task in tasks for problem in _task_problems(task)]
        for part, by_task in by_name(problems, "targets", targets, PARTS).items():
            for name, values in by_name(problems, f"`targets`: {part!r}", by_task, labels[part]).items():
                array = read_array(problems, f"`targets`: {part!r}, {name!r}", values)
                labels[part][name] = np.empty(0) if array is None else array
    if not problems and targets is not None:
        for part, arrays in labels.items():
            problems += [problem for task in known for problem in _label_problems(task, part, arrays[task.name])]
            if len({len(array) for array in arrays.values()}) > 1:
                rows = ", ".join(f"{len(array)} for {name!r}" for name, array in arrays.items())
                problems.append(InvalidInput(f"`targets`: {part!r}", "must have as many rows for every task", rows))
    raise_problems(problems)
    train = _split({name: np.empty(0) for name in names})
    return Problem(NAME, tuple(known), train, _split(labels["val"]), _split(labels["test"]), nn.Identity())


def labels_of(problem: Problem, part: str) -> dict[str, Tensor]:
    """Returns the labels of each task in "val" or "test"."""
    return dict(require_in_memory(problem.splits[part], "comparing networks").targets)


def _split(labels: Mapping[str, Array]) -> Split:
    rows = len(next(iter(labels.values())))
    return Split(torch.zeros(rows, 1), {name: torch.from_numpy(values) for name, values in labels.items()})


def _task_problems(task: Task | str) -> list[InvalidInput]:
    if isinstance(task, str):
        hint = "write, for example, Task('age', kind='regression')"
        return [InvalidInput("tasks", "must be Task objects if `targets` are given", repr(task), hint)]
    if task.loss is None and task.average is None and not callable(task.error):
        return []
    expected = "must have a built-in loss, error measure and average if `targets` are given"
    return [InvalidInput(f"task {task.name!r}", expected, hint="omit `targets`, and tell losses instead")]


def _label_problems(task: Task, part: str, labels: Array) -> list[InvalidInput]:
    place = f"`targets`: {part!r}, {task.name!r}"
    present = labels[~np.isnan(labels)]
    if not len(present) or (task.kind == "multiclass" and labels.ndim > 1):
        return [
            InvalidInput(place, "must have one label per row, not all missing", f"an array of shape {labels.shape}")
        ]
    if task.kind == "regression":
        wrong, expected = np.abs(present) > MAX_MAGNITUDE, f"must be at most {MAX_MAGNITUDE:g} in magnitude"
    else:
        last = 1 if task.kind == "binary" else (task.classes or 2) - 1
        wrong, expected = ~np.isin(present, np.arange(last + 1)), f"must be classes from 0 to {last}"
    return [InvalidInput(place, f"{expected}, or NaN if missing", _examples(present[wrong]))] if wrong.any() else []


def read_outputs(
    problems: list[InvalidInput], problem: Problem, part: str, predictions: Any, tasks: Iterable[str], logits: bool
) -> dict[str, Tensor]:
    """Returns the outputs of a network for the rows of a part, and reports invalid predictions.

    Outputs are what a network returns: values for regression, and logits for classes.

    Args:
        problems: the list to which problems are added.
        problem: the problem with the labels.
        part: "val" or "test".
        predictions: the predictions of each task.
        tasks: the tasks of the network.
        logits: whether predictions for classes are logits instead of probabilities.
    """
    outputs = {}
    for name, values in by_name(problems, f"`{part}`", predictions, tasks).items():
        place, task = f"`{part}`: the predictions for {name!r}", problem.task(name)
        labels = labels_of(problem, part)[name].numpy()
        predicted = read_array(problems, place, values)
        if predicted is None:
            continue
        shape = (len(labels), task.classes) if task.kind == "multiclass" else labels.shape
        if predicted.shape == (*shape, 1):
            predicted = predicted.reshape(shape)
        if wrong := _prediction_problem(task, predicted, labels, shape, logits):
            problems.append(InvalidInput(place, *wrong))
            continue
        if task.kind != "regression" and not logits:
            # A probability of 0 becomes a large finite logit, since the loss of an infinite one would not be a number.
            rest = 0.0 if task.kind == "multiclass" else np.log(np.clip(1 - predicted, TINY, 1))
            predicted = np.log(np.clip(predicted, TINY, 1)) - rest
        outputs[name] = torch.from_numpy(predicted)
    return outputs


def _prediction_problem(
    task: Task, predicted: Array, labels: Array, shape: tuple[Any, ...], logits: bool
) -> tuple[str, ...] | None:
    """Returns what was expected, what was found and a hint, or None if the predictions are valid."""
    if predicted.shape != shape:
        return f"must have the shape {shape}: one row per label, and one column per class", str(predicted.shape)
    if not np.isfinite(predicted).all():
        return "must be finite numbers", f"{int((~np.isfinite(predicted)).sum())} that are not", DIVERGED_HINT
    if task.kind == "regression" or logits:
        wrong = predicted[np.abs(predicted) > MAX_MAGNITUDE]
        return (f"must be at most {MAX_MAGNITUDE:g} in magnitude", _examples(wrong)) if len(wrong) else None
    wrong = predicted[(predicted < -RANGE_TOLERANCE) | (predicted > 1 + RANGE_TOLERANCE)]
    if len(wrong):
        return "must be probabilities between 0 and 1", _examples(wrong), LOGITS_HINT
    present = ~np.isnan(labels)
    if task.kind == "multiclass":
        sums = predicted.sum(1)
        wrong = sums[np.abs(sums - 1) > SUM_TOLERANCE]
        if len(wrong):
            return "must be probabilities that sum to 1 in each row", f"the sum {_examples(wrong)}", LOGITS_HINT
        of_label = predicted[present, labels[present].astype(int)]
    else:
        of_label = np.where(labels[present] == 1, predicted[present], 1 - predicted[present])
    if (of_label <= 0).any():
        expected = "must not be 0 for the class of the label, since the loss would be infinite"
        return expected, f"{int((of_label <= 0).sum())} that are", f"{LOGITS_HINT}, or clip the probabilities"
    return None


def read_array(problems: list[InvalidInput], place: str, values: Any) -> Array | None:
    """Converts an array, a tensor or a list to float64, or reports that it is something else."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
        if array.ndim and array.dtype.kind in "fiubO":
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    problems.append(InvalidInput(place, "must be an array of numbers with one entry per row", short(values)))
    return None


def by_name(problems: list[InvalidInput], argument: str, given: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of these names, and reports missing and unknown names."""
    wanted = list(names)
    expected = f"must be a mapping with the keys {', '.join(map(repr, wanted))}"
    if not isinstance(given, Mapping):
        problems.append(InvalidInput(argument, expected, short(given), DIVERGED_HINT if given is None else ""))
        return {}
    missing = [f"none for {name!r}" for name in wanted if name not in given]
    unknown = [f"the unknown {name!r}" for name in given if name not in wanted]
    if missing or unknown:
        problems.append(InvalidInput(argument, expected, ", ".join([*missing, *unknown])))
    return {name: given[name] for name in wanted if name in given}


def _examples(values: Array) -> str:
    distinct = np.unique(values)
    return ", ".join(f"{value:g}" for value in distinct[:3]) + (", …" if len(distinct) > 3 else "")
