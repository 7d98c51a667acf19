"""One closure per task: only the closures that a measurement needs are run, and one graph at a time is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor

from .closure import ClosureError, LossGraph, ReplayableClosure, TaskLosses

TaskClosure = Callable[[], Any] | tuple[Callable[[], Any], Callable[[Any], Any]]
"""A function that returns the loss of one task, or a function that fetches a batch and one that returns its loss."""


def is_task_closures(closure: object) -> TypeGuard[Mapping[str, TaskClosure]]:
    """Whether `closure` is a mapping from tasks to closures, as opposed to one closure or the losses themselves."""
    values = closure.values() if isinstance(closure, Mapping) else ()
    return any(callable(c[0] if isinstance(c, tuple) and c else c) for c in values)


class LazyLosses(Mapping[str, Any]):
    """The losses of a call with one closure per task. Each loss is computed when it is first read.

    Only the closures of the tasks that are read run, in the order in which they are read, exactly as if they were
    called directly. To keep one graph at a time, call ``backward()`` on one loss before reading the next. Batches are
    fetched when they are first needed, and kept for the rest of the call.

    Args:
        closures: The closure of each task.
    """

    def __init__(self, closures: Mapping[str, TaskClosure]) -> None:
        for task, closure in closures.items():
            is_pair = isinstance(closure, tuple) and len(closure) == 2 and all(map(callable, closure))
            if not isinstance(task, str) or not (is_pair or callable(closure)):
                raise ClosureError(
                    [
                        f"the closure of task {task!r} must be given under a string, and be a function that returns a "
                        "loss, or a pair of functions that fetch a batch and return the loss of the batch."
                    ]
                )
        self._closures = closures
        self._batches: dict[str, Any] = {}
        self._losses: dict[str, Any] = {}

    def __getitem__(self, task: str) -> Any:
        if task not in self._losses:
            self._losses[task] = self.compute(task)
        return self._losses[task]

    def __contains__(self, task: object) -> bool:
        return task in self._closures

    def __iter__(self) -> Iterator[str]:
        return iter(self._closures)

    def __len__(self) -> int:
        return len(self._closures)

    def function(self, task: str) -> Callable[..., Any]:
        closure = self._closures[task]
        return closure[1] if isinstance(closure, tuple) else closure

    def fetch(self, task: str) -> list[Any]:
        # Returns the arguments of a task's function: its batch, fetched if this is the first time, or nothing.
        closure = self._closures[task]
        if not isinstance(closure, tuple):
            return []
        if task not in self._batches:
            self._batches[task] = closure[0]()
        return [self._batches[task]]

    def compute(self, task: str) -> Any:
        # Runs a task's closure, and returns what it returns: a loss, or a loss and its weight.
        return self.function(task)(*self.fetch(task))


class ReplayableTasks(ReplayableClosure):
    """Runs and replays some of the closures of a call, each from the same state of modules and random generators."""

    _closure: LazyLosses

    @property
    def names(self) -> list[str]:
        return list(self._closure)

    def loss_with_graph(self, task: str) -> Tensor:
        # Runs the task's closure again, and returns its loss with its graph.
        self.restore_start()
        return TaskLosses.read({task: self._closure.compute(task)}).by_task[task]

    def _functions(self) -> list[Callable[..., Any]]:
        self._keeps_graph = False  # one at a time is enough
        for task in self.needed:
            self._closure.fetch(task)  # before the random state is saved, which replays start from
        return [self._closure.function(task) for task in self.needed]

    def _compute(self, tasks: Sequence[str]) -> dict[str, Any]:
        items = {}
        for task in tasks:
            self.restore_start()
            item = self._closure.compute(task)
            if self.verify and task not in self.graphs:
                self.graphs[task] = LossGraph(TaskLosses.read({task: item}).by_task.values(), self.start_nr)
            items[task] = _without_graph(item)
        return items


def _without_graph(item: Any) -> Any:
    # Returns a loss (or a loss and its weight) without its graph, but remembers whether there was one.
    if isinstance(item, tuple | list) and len(item) == 2:
        return _without_graph(item[0]), item[1]
    if isinstance(item, Tensor) and item.is_floating_point():
        return item.detach().requires_grad_(item.requires_grad)
    return item
