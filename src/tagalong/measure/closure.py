"""The user's closure, or one per task: runs and replays it, and reads its losses and their autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.graph import Node

from tagalong.errors import is_nonnegative

from .isolation import Replayer, save_called_modules
from .objects import ClosureState
from .schedules import Stopwatch

if TYPE_CHECKING:
    from .setup import Setup


class ClosureError(ValueError):
    """Raised if the losses of a closure cannot be measured.

    Attributes:
        problems: All problems found, one sentence each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the affinity cannot be measured:\n" + "\n".join(f"- {p}" for p in problems))


def raise_closure_problems(problems: Sequence[str]) -> None:
    # Raises one error that lists all `problems`, if there are any.
    if problems:
        raise ClosureError(problems)


class ReplayableClosure:
    """Runs and replays a closure, saving the state of everything it reaches before and after the first run.

    Args:
        closure: The user's closure.
        setup: The meter's settings.
        replayer: The replayer that runs the closure.
        verify: Whether to run all checks on the closure, not only those that cost nothing.
        held_out: Whether this is the closure that computes the held-out losses.

    Attributes:
        held_out: Whether this is the closure that computes the held-out losses.
        verify: Whether to run all checks on it.
        what: The name of the closure in messages.
        returned: The return value of the closure, unchanged.
        losses: The losses in the return value.
        changed: What the closure changed and cannot be restored.
        state: The state of what the closure reaches.
        start_nr: Autograd's sequence number just before the first run.
        graphs: The graph of each task's loss, if the closure is verified.
    """

    returned: Any
    losses: TaskLosses
    changed: list[str]

    def __init__(
        self,
        closure: Any,
        setup: Setup,
        replayer: Replayer,
        *,
        verify: bool,
        held_out: bool = False,
    ) -> None:
        self._closure, self._replayer, self.held_out, self.verify = closure, replayer, held_out, verify
        self.what = "held-out closure" if held_out else "closure"
        self.graphs: dict[str, LossGraph] = {}
        is_per_task = isinstance(closure, LazyLosses)
        functions = [*closure.closures.values()] if is_per_task else [closure]
        # Held-out losses that are not differentiated need no graph, and with one closure per task, one at a time does.
        self._keeps_graph = not is_per_task and (setup.uses_gradients or not held_out)
        self._detects_modules = not setup.models
        self.state = ClosureState(setup.state_memory, replayer.constants, verify=verify)
        for function in functions:
            if isinstance(function, MethodType):
                self.state.add(function.__self__, "self")
            self.state.add(function, "closure" if isinstance(function, FunctionType) else "self")
        wrappers = [setup.wrapper] if setup.models and setup.wrapper is not None else []
        for model in [*setup.models, *wrappers]:
            self.state.add_module(model)

    @property
    def names(self) -> list[str]:
        # The names of all tasks that the closure returned, whether or not they have a loss.
        return [name for name in returned_losses(self.returned) or () if isinstance(name, str)]

    def run(self, watch: Stopwatch | None = None) -> None:
        """Runs the closure for the first time, saves the state after the run, and reads the losses.

        Args:
            watch: A stopwatch that pauses while the closure runs.
        """
        self.start_nr = _autograd_sequence_nr()
        with save_called_modules(self.state) if self._detects_modules else nullcontext():
            if watch is not None:
                watch.stop()
            self.returned = self._compute() if self._keeps_graph else self._rerun()
            if watch is not None:
                watch.start()
        self.changed = self.state.save_end()
        self.losses = TaskLosses.read(self.returned)
        if self.verify and not self.graphs:
            self.graphs = {task: LossGraph([loss], self.start_nr) for task, loss in self.losses.by_task.items()}

    def replay(self, tasks: Sequence[str] | None = None) -> TaskLosses:
        """Runs the closure again, from the same random state, buffers and modes as the first time.

        Args:
            tasks: The tasks whose losses are needed; all by default. Only closures of single tasks use this.
        """
        return TaskLosses.read(self._rerun(tasks))

    def restore_start(self) -> None:
        self.state.restore(self.state.start)

    def restore_end(self) -> None:
        self.state.restore(self.state.end)

    def loss_with_graph(self, task: str) -> Tensor:
        """Returns a loss of the first run that can be differentiated now.

        Replays overwrite buffers that the graph refers to, and another closure may have changed modes. Checkpointed
        forward passes run again for every gradient, so they depend on these buffers and modes, and they update
        BatchNorm statistics. The state at the end of the first run is therefore restored first.
        """
        self.restore_end()
        return self.losses.by_task[task]

    def _rerun(self, tasks: Sequence[str] | None = None) -> Any:
        return self._replayer.run(partial(self._compute, tasks), self.state)

    def _compute(self, tasks: Sequence[str] | None = None) -> Any:
        return self._closure()


def _autograd_sequence_nr() -> int:
    with torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).clone().grad_fn
    return int(node._sequence_nr())


@dataclass
class TaskLosses:
    """The scalar losses by task from one run of a closure, and their weights for data parallelism."""

    by_task: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, returned: Any) -> TaskLosses:
        # Reads the return value of a closure: losses, or (losses, anything). A loss that is None counts as missing.
        task_losses, losses = cls(), returned_losses(returned)
        if losses is None:
            task_losses.problems.append(
                "the closure must return a dict {task name: scalar loss}, one entry per task, or a tuple that starts "
                f"with it, found {type(returned).__name__}."
            )
        for task, item in (losses or {}).items():
            loss, weight = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
            problem = None if loss is None else _loss_problem(task, loss, weight)
            if problem is not None:
                task_losses.problems.append(f"the closure returned for task {task!r} {problem}")
            elif loss is not None:
                task_losses.by_task[task], task_losses.weights[task] = loss, weight
        return task_losses

    def stacked(self, tasks: Sequence[str]) -> Tensor:
        # Returns detached losses in the order of `tasks` (NaN if missing), without synchronizing with the device.
        if not self.by_task or not tasks:
            return torch.full((len(tasks),), float("nan"), dtype=torch.float64)
        like = next(iter(self.by_task.values())).detach()
        missing = torch.full_like(like, float("nan"))
        losses = [self.by_task.get(t, missing).detach().reshape(()) for t in tasks]
        if len({(loss.device, loss.dtype) for loss in losses}) > 1:
            losses = [loss.to(like.device, torch.float64) for loss in losses]
        return torch.stack(losses).to(torch.float32 if like.device.type == "mps" else torch.float64)


def returned_losses(returned: Any) -> Mapping[Any, Any] | None:
    # Returns the losses in what a closure returned, which may be a tuple that starts with them.
    losses = returned[0] if isinstance(returned, tuple) and returned else returned
    return losses if isinstance(losses, Mapping) else None


def _loss_problem(task: Any, loss: Any, weight: Any) -> str | None:
    if not isinstance(task, str):
        return "a loss, but task names must be strings; return {str(task): loss}."
    if not isinstance(loss, Tensor):
        return f"a {type(loss).__name__}; return the tensor, without .item(), or None if there are no labels for it."
    if loss.numel() != 1:
        return f"a loss of shape {tuple(loss.shape)}; reduce it to a scalar, e.g. with .mean()."
    if not loss.is_floating_point():
        return f"a loss of dtype {loss.dtype}; it must be a real floating-point tensor."
    if is_nonnegative(weight) or (isinstance(weight, Tensor) and weight.numel() == 1 and not weight.requires_grad):
        return None
    return (
        "a pair whose second item is not the weight of the loss among data-parallel ranks, a non-negative number such "
        "as the number of labels."
    )


class LossGraph:
    """What the autograd graph of some losses contains.

    Args:
        losses: The losses, from which the graph is followed back to its leaves.
        start_nr: Autograd's sequence number when the closure started.

    Attributes:
        leaves: The leaf tensors, by id.
        earlier: The leaves reached through tensors that were computed before the closure ran.
        operations: The names of the nodes.
    """

    def __init__(self, losses: Iterable[Tensor] = (), start_nr: int = 0) -> None:
        self.leaves, nodes = _walk_graph(loss.grad_fn for loss in losses)
        self.operations = {node.name() for node in nodes}
        self.earlier, older = _walk_graph(node for node in nodes if node._sequence_nr() < start_nr)
        # A node is created after the nodes it leads to. If it leads to newer ones, it was numbered by another thread
        # (such as the backward thread of a GPU), and the numbers cannot be compared.
        if any(node._sequence_nr() >= start_nr for node in older):
            self.earlier = {}


def _walk_graph(start: Iterable[Node | None]) -> tuple[dict[int, Tensor], set[Node]]:
    # Returns the leaves that nodes lead to, and the nodes on the way.
    leaves: dict[int, Tensor] = {}
    nodes: set[Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            leaves[id(leaf)] = leaf
        elif node is not None and node not in nodes:
            nodes.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return leaves, nodes


def is_task_closures(closure: object) -> TypeGuard[Mapping[str, Callable[[], Any]]]:
    # Whether `closure` is a mapping from tasks to closures, as opposed to one closure or the losses themselves.
    return isinstance(closure, Mapping) and any(map(callable, closure.values()))


class LazyLosses(Mapping[str, Any]):
    """The losses of a call with one closure per task. Each loss is computed when it is first read.

    Only the closures of the tasks that are read run, in the order in which they are read, exactly as if they were
    called directly. To keep one graph at a time, call ``backward()`` on one loss before reading the next.

    Args:
        closures: The closure of each task.
    """

    def __init__(self, closures: Mapping[str, Callable[[], Any]]) -> None:
        for task, closure in closures.items():
            if not isinstance(task, str) or not callable(closure):
                problem = (
                    f"the closure of task {task!r} must be given under a string, and be a function without arguments."
                )
                raise ClosureError([problem])
        self.closures = closures
        self._losses: dict[str, Any] = {}

    def __getitem__(self, task: str) -> Any:
        if task not in self._losses:
            self._losses[task] = self.closures[task]()
        return self._losses[task]

    def __contains__(self, task: object) -> bool:
        return task in self.closures

    def __iter__(self) -> Iterator[str]:
        return iter(self.closures)

    def __len__(self) -> int:
        return len(self.closures)


class ReplayableTasks(ReplayableClosure):
    """Runs and replays one closure per task, each from the same state of modules and random generators."""

    _closure: LazyLosses

    def loss_with_graph(self, task: str) -> Tensor:
        # Runs the task's closure again, and returns its loss with its graph.
        self.restore_start()
        return TaskLosses.read({task: self._closure.closures[task]()}).by_task[task]

    def _compute(self, tasks: Sequence[str] | None = None) -> dict[str, Any]:
        items = {}
        for task in tasks or self._closure:
            self.restore_start()
            items[task] = self._closure.closures[task]()
            losses = TaskLosses.read({task: items[task]})
            if self.verify and task not in self.graphs:
                self.graphs[task] = LossGraph(losses.by_task.values(), self.start_nr)
            for loss in losses.by_task.values():  # kept without its graph, but with the knowledge whether there was one
                items[task] = loss.detach().requires_grad_(loss.requires_grad), losses.weights[task]
        return items
