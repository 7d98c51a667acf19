"""Can this be learnt? What is wrong with the data of a problem, however it was made, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from tagalong._names import counted

from ._problem import Problem
from ._rows import Rows, Split, held
from ._split import PARTS
from ._task import Task

ROWS_AT_ONCE = 4096
LARGEST = 1e18  # the square of a much larger number is no float32


def data_problems(problem: Problem) -> list[str]:
    """Parts without rows, inputs that are not finite, and labels that a task cannot be learnt from or judged by.

    Of rows that are read from files only the number is looked at: reading all of them would take longer than an epoch.
    """
    found = [wrong for part, split in problem.splits.items() for wrong in _part_problems(part, split)]
    if not all(isinstance(split, Split) for split in problem.splits.values()):
        return found
    return found + [wrong for task in problem.tasks for wrong in _task_problems(problem, task)]


def _part_problems(part: str, split: Rows) -> list[str]:
    if not len(split):
        return [f"`{part}` must have rows, found none"]
    if not isinstance(split, Split) or not split.inputs.is_floating_point():
        return []
    rows = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(ROWS_AT_ONCE))
    return [f"`{part}`: inputs must be finite, found NaN or inf in {rows} rows"] if rows else []


def _task_problems(problem: Problem, task: Task) -> list[str]:
    targets = {part: held(split, "this").targets[task.name] for part, split in problem.splits.items()}
    whole = [part for part, labels in targets.items() if not labels.is_floating_point()]
    if whole:
        found = str(targets[whole[0]].dtype).removeprefix("torch.")
        return [f"the target of {task.name!r} must be floating point (NaN where a label is missing), found {found}"]
    beyond = [part for part, labels in targets.items() if bool((labels.abs() > LARGEST).any())]
    if beyond and task.kind != "custom" and task.loss is None:
        return [_too_large(task, part, targets[part]) for part in beyond]
    values = {part: torch.unique(labels[labels.isfinite()]) for part, labels in targets.items()}
    unlabelled = [part for part in PARTS if not len(values[part]) and len(problem.splits[part])]
    if unlabelled:
        return [f"`{part}`: {task.name!r} must have labels, found none; leave the task out" for part in unlabelled]
    if task.kind == "custom" or not len(values["train"]):
        return []
    if len(values["train"]) == 1:
        return [f"`train`: {task.name!r} must vary, found {float(values['train'][0]):g} wherever it is known"]
    return [] if task.kind == "regression" or task.loss is not None else _class_problems(task, values)


def _too_large(task: Task, part: str, labels: Tensor) -> str:
    rows = int((labels.abs() > LARGEST).reshape(len(labels), -1).any(1).sum())
    return (
        f"`{part}`: labels of {task.name!r} must be at most {LARGEST:g} in size (standardised, if they are), found "
        f"{counted(rows, 'row')} beyond; if that stands for a missing label, leave it empty"
    )


def _class_problems(task: Task, values: dict[str, Tensor]) -> list[str]:
    """Labels that are no class, or that train lacks."""
    classes = torch.arange(task.classes or 2, device=values["train"].device)
    problems = []
    for part in PARTS:
        odd = values[part][~torch.isin(values[part], classes.to(values[part]))]
        if len(odd):
            last, other = len(classes) - 1, float(odd[0])
            problems.append(f"`{part}`: labels of {task.name!r} must be whole numbers 0 to {last}, found {other:g}")
    lacking = [
        f"`{part}`: {task.name!r} has the class {float(label):g} that train lacks; leave those rows out"
        for part in ("val", "test")
        for label in values[part][~torch.isin(values[part], values["train"])]
    ]
    return problems or lacking
