"""One closure per task: only the closures that a measurement needs are run, and one graph at a time is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

from .closure import LossGraph, ReplayableClosure, TaskLosses, loss_graph, raise_closure_problems

if TYPE_CHECKING:
    from .distributed import Replicas

TaskClosure = Callable[[], Any] | tuple[Callable[[], Any], Callable[[Any], Any]]
"""A function that returns the loss of one task, or a function that fetches a batch and one that returns its loss."""


def is_task_closures(closure: object) -> TypeGuard[Mapping[str, TaskClosure]]:
    """Whether `closure` is a mapping from tasks to closures, as opposed to one closure or the losses themselves."""
    given = closure.values() if isinstance(closure, Mapping) else ()
    return any(callable(c[0] if isinstance(c, tuple) and c else c) for c in given)


def require_single_process(replicas: Replicas) -> None:
    """Raises an error under data parallelism, where ranks would have to agree on which closures to run."""
    if not replicas.alone:
        raise_closure_problems(
            [
                "one closure per task is not supported under data parallelism; pass one closure that returns the "
                "losses of all tasks."
            ]
        )


class TaskFunctions:
    """The functions that compute the losses of one call, by task.

    Batches are fetched when they are first needed, and kept for the rest of the call.

    Args:
        closures: The closure of each task.
        what: The name of the closures in messages.
    """

    def __init__(self, closures: Mapping[str, TaskClosure], what: str = "closure") -> None:
        raise_closure_problems([p for task, closure in closures.items() for p in _problems(task, closure, what)])
        self._closures = closures
        self._batches: dict[str, Any] = {}

    @property
    def tasks(self) -> list[str]:
        return list(self._closures)

    def functions(self, tasks: Sequence[str]) -> list[Callable[..., Any]]:
        """Returns the functions that compute the losses of `tasks`."""
        closures = [self._closures[task] for task in tasks]
        return [closure[1] if isinstance(closure, tuple) else closure for closure in closures]

    def fetch(self, tasks: Sequence[str]) -> None:
        """Fetches the batches of `tasks`, unless this has been done already."""
        for task in tasks:
            closure = self._closures[task]
            if isinstance(closure, tuple) and task not in self._batches:
                self._batches[task] = closure[0]()

    def loss(self, task: str) -> Any:
        """Runs a task's closure, and returns what it returns: a loss, or a loss and its weight."""
        self.fetch([task])
        closure = self._closures[task]
        return closure[1](self._batches[task]) if isinstance(closure, tuple) else closure()


def _problems(task: object, closure: object, what: str) -> Iterator[str]:
    if not isinstance(task, str):
        yield f"the {what} of task {task!r} must be given under a string, e.g. str(task)."
    pair = isinstance(closure, tuple) and len(closure) == 2 and all(map(callable, closure))
    if not pair and not callable(closure):
        yield (
            f"the {what} of task {task!r} must be a function that returns its loss, or a pair of functions that fetch "
            f"a batch and return the loss of the batch, found {type(closure).__name__}."
        )


class LazyLosses(Mapping[str, Any]):
    """The losses of a call with one closure per task. Each loss is computed when it is first read.

    Only the closures of the tasks that are read run, in the order in which they are read, exactly as if they were
    called directly. To keep one graph at a time, call ``backward()`` on one loss before reading the next.
    """

    def __init__(self, functions: TaskFunctions) -> None:
        self._functions = functions
        self._found: dict[str, Any] = {}

    def __getitem__(self, task: str) -> Any:
        if task not in self:
            raise KeyError(task)
        if task not in self._found:
            self._found[task] = self._functions.loss(task)
        return self._found[task]

    def __contains__(self, task: object) -> bool:
        return task in self._functions.tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions.tasks)

    def __len__(self) -> int:
        return len(self._functions.tasks)

    def __repr__(self) -> str:
        return f"LazyLosses({', '.join(map(repr, self))})"


class ReplayableTasks(ReplayableClosure):
    """Runs and replays some of the closures of a call, each from the same state of modules and random generators.

    Args:
        functions: The functions of all tasks.
        needed: The tasks whose losses the measurement needs.
        options: The arguments of `ReplayableClosure`.
    """

    def __init__(self, functions: TaskFunctions, needed: Sequence[str], *arguments: Any, **options: Any) -> None:
        self._functions, self._needed = functions, list(dict.fromkeys(needed))
        functions.fetch(self._needed)  # before the random state is saved, which replays start from
        self._graphs: dict[str, LossGraph] = {}
        self._verify = options.get("verify", True)
        options |= {"graph": False, "functions": functions.functions(self._needed)}
        super().__init__(lambda: self._run_each(self._needed), *arguments, **options)

    def replay(self, tasks: Sequence[str] | None = None) -> TaskLosses:
        needed, self._needed = self._needed, self._needed if tasks is None else list(tasks)
        try:
            return super().replay()
        finally:
            self._needed = needed

    def loss_graph(self) -> LossGraph:
        whole = LossGraph()
        for graph in self._graphs.values():
            whole.update(graph)
        return whole

    def touched(self, parameters: Sequence[Tensor]) -> dict[str, set[int]]:
        return {t: {k for k, p in enumerate(parameters) if id(p) in g.leaves} for t, g in self._graphs.items()}

    def differentiable_losses(self, losses: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _LossesWithGraph(self, losses)

    def differentiate_at_end(self, differentiate: Callable[[], Any]) -> Any:
        return differentiate()  # the closure has only just run

    def loss_with_graph(self, task: str) -> Tensor:
        self.restore_start()
        return TaskLosses.read({task: self._functions.loss(task)}, self.what).losses[task]

    def _run_each(self, tasks: Sequence[str]) -> dict[str, Any]:
        found = {}
        for task in tasks:
            self.restore_start()
            item = self._functions.loss(task)
            losses = TaskLosses.read({task: item}).losses.values() if self._verify else ()
            if losses and task not in self._graphs:
                self._graphs[task] = loss_graph(losses, self.start_nr)
            found[task] = _without_graph(item)
        return found


def _without_graph(item: Any) -> Any:
    """Returns a loss (or a loss and its weight) without its graph, but remembers whether there was one."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return _without_graph(item[0]), item[1]
    if isinstance(item, Tensor) and item.is_floating_point():
        return item.detach().requires_grad_(item.requires_grad)
    return item


class _LossesWithGraph(Mapping[str, Tensor]):
    """Losses that are computed again, with their graph, each time they are read."""

    def __init__(self, closures: ReplayableTasks, losses: Mapping[str, Tensor]) -> None:
        self._closures, self._losses = closures, losses

    def __getitem__(self, task: str) -> Tensor:
        if task not in self._losses:
            raise KeyError(task)
        return self._closures.loss_with_graph(task)

    def __iter__(self) -> Iterator[str]:
        return iter(self._losses)

    def __len__(self) -> int:
        return len(self._losses)
