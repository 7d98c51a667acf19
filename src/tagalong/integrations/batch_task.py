"""Finds the task of a batch, for training on one dataset at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tagalong.errors import InvalidInput, first_few

TaskOf = str | Callable[[Any], Any]
MIXED_HINT = (
    "draw each batch from one dataset; for mixed batches, pass `task_losses`, which may split the rows by task, and an "
    "estimator such as 'lookahead'"
)


def check_task_options(task_losses: object, task_of: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the meter's options. Without `task_losses`, the estimator is "streaming" by default.

    Args:
        task_losses: the function for closures, or None.
        task_of: the column or function that names the task of a batch, or None.
        options: the meter's options.
    """
    if task_losses is None and task_of is None:
        raise InvalidInput("task_losses", "is required unless `task_of` names the task of each batch")
    if task_of is not None and not isinstance(task_of, str) and not callable(task_of):
        raise InvalidInput("task_of", "must be the name of a column or a function of the batch", repr(task_of))
    return ({"estimator": "streaming"} if task_losses is None else {}) | dict(options)


def find_task(batch: Any, task_of: TaskOf, tasks: Sequence[str] | None) -> str:
    """Returns the task of a batch whose rows all belong to one task.

    Args:
        batch: the batch. If `task_of` is a column, this must be a mapping.
        task_of: the column that contains the task, once or for every row, or a function that returns it.
        tasks: the task names, by which numbers in the column are replaced. If None, numbers become strings.

    Example:
        >>> find_task({"task": [1, 1]}, "task", ["qa", "code"]), find_task({"task": "qa"}, "task", None)
        ('code', 'qa')
    """
    if callable(task_of):
        labels = task_of(batch)
    elif isinstance(batch, Mapping) and task_of in batch:
        labels = batch[task_of]
    else:
        columns = first_few([repr(name) for name in batch]) if isinstance(batch, Mapping) else type(batch).__name__
        hint = "Hugging Face's default collator drops strings: number the tasks, and pass their names as `tasks`"
        raise InvalidInput("task_of", f"must be a column of the batch ({task_of!r})", columns, hint)
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    values = values if isinstance(values, (list, tuple)) else [values]
    names = dict.fromkeys(_task_name(value, tasks) for value in values)
    if len(names) != 1:
        listed = first_few([repr(name) for name in names]) if names else "no rows"
        raise InvalidInput("task_of", "must give the same task for all rows of a batch", listed, MIXED_HINT)
    return next(iter(names))


def _task_name(value: Any, tasks: Sequence[str] | None) -> str:
    if isinstance(value, str) or tasks is None:
        return str(value)
    if not isinstance(value, int) or not 0 <= value < len(tasks):
        raise InvalidInput("task_of", f"must give names, or numbers from 0 to {len(tasks) - 1}", repr(value))
    return tasks[value]
