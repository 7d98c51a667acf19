"""The user's closure: running and replaying it, reading its losses, and checking that they can be measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from .isolation import Replayer, has_compiled_modules, save_called_modules
from .objects import ClosureState

if TYPE_CHECKING:
    from .setup import Setup

Closure = Callable[[], Any]
T = TypeVar("T")

NO_SHARED_PARAMETER = (
    "no loss depends on any parameter of `shared`; pass the module that the closure calls (not a copy), and check for "
    ".detach() or torch.no_grad() between it and the losses."
)


class ClosureError(ValueError):
    """Raised if the losses of a closure cannot be measured.

    Attributes:
        problems: All problems found, one sentence each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the affinity cannot be measured:\n" + "\n".join(f"- {p}" for p in problems))


def raise_closure_problems(problems: Sequence[str]) -> None:
    """Raises one error that lists all `problems`, if there are any."""
    if problems:
        raise ClosureError(problems)


class ReplayableClosure:
    """Runs and replays a closure, saving the state of everything it reaches before and after the first run.

    Args:
        closure: The user's closure.
        models: Modules whose state is protected; by default, those that the closure uses.
        replayer: The replayer that runs the closure.
        what: The name of the closure in messages.
        graph: Whether the losses will be differentiated, which requires keeping the activations.
        verify: Whether to detect writes to parameters, which cannot be undone.
        state_memory: The number of bytes available for copies of what the closure may change outside modules.
        functions: The user's functions that the closure calls; by default, the closure itself.

    Attributes:
        what: The name of the closure in messages.
        returned: The return value of the closure, unchanged.
        losses: The losses in the return value.
        changed: What the closure changed and cannot be restored.
        state: The state of what the closure reaches.
        start_nr: Autograd's sequence number just before the first run.
    """

    returned: Any
    losses: TaskLosses
    changed: list[str]

    def __init__(
        self,
        closure: Closure,
        models: Sequence[nn.Module],
        replayer: Replayer,
        what: str = "closure",
        *,
        graph: bool = True,
        verify: bool = True,
        state_memory: float,
        functions: Sequence[Callable[..., Any]] | None = None,
    ) -> None:
        self._closure, self._replayer, self.what, self._graph = closure, replayer, what, graph
        self.state = ClosureState(state_memory, replayer.constants, verify=verify)
        for function in [closure] if functions is None else functions:
            if isinstance(function, MethodType):
                self.state.add(function.__self__, "self")
            self.state.add(function, "closure" if isinstance(function, FunctionType) else "self")
        for model in models:
            self.state.add_module(model)
        self._watch = not models

    def run(self) -> None:
        """Runs the closure for the first time. Call `save_end` afterward."""
        self.start_nr = _autograd_sequence_nr()
        # Without `model`, the modules that the closure calls are detected as they are called.
        with save_called_modules(self.state) if self._watch else nullcontext():
            self.returned = self._closure() if self._graph else self._rerun()

    def save_end(self) -> None:
        """Saves the state after the first run, and reads the losses."""
        self.changed = self.state.save_end()
        self.losses = TaskLosses.read(self.returned, self.what)

    def replay(self, tasks: Sequence[str] | None = None) -> TaskLosses:
        """Runs the closure again, starting from the same random state, buffers and modes as the first time.

        Args:
            tasks: The tasks whose losses are needed; a closure that computes all losses at once ignores this.
        """
        return TaskLosses.read(self._rerun(), self.what)

    def _rerun(self) -> Any:
        return self._replayer.run(self._closure, self.state)

    def restore_start(self) -> None:
        """Restores the state from before the first run."""
        self.state.restore(self.state.start)

    def restore_end(self) -> None:
        """Restores the state from just after the first run."""
        self.state.restore(self.state.end)

    def differentiate_at_end(self, differentiate: Callable[[], T]) -> T:
        """Calls `differentiate` after restoring the buffers and modes to their state at the end of the first run.

        Replays overwrite buffers that the graph refers to, and another closure may have changed modes. Checkpointed
        forward passes run again for every gradient, so they depend on these buffers and modes, and they update
        BatchNorm statistics.
        """
        self.restore_end()
        return differentiate()

    def loss_graph(self) -> LossGraph:
        return loss_graph(self.losses.losses.values(), self.start_nr)

    def touched(self, parameters: Sequence[Tensor]) -> dict[str, set[int]]:
        """Returns the indices of the parameters that each task depends on, if this is known from the first run."""
        return {}

    def differentiable_losses(self, losses: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the losses of the first run with their graph."""
        return losses

    def modules(self) -> list[nn.Module]:
        return list(self.state.modules.values())

    @property
    def compiled(self) -> bool:
        return self.state.compiled or has_compiled_modules(self.modules())


def _autograd_sequence_nr() -> int:
    with torch.enable_grad():
        node = (torch.zeros((), requires_grad=True) * 1).grad_fn
    return 0 if node is None else int(node._sequence_nr())  # inference mode creates no node


@dataclass
class TaskLosses:
    """The scalar losses by task from one run of a closure, and their weights for data parallelism."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, returned: Any, what: str = "closure") -> TaskLosses:
        """Reads the return value of a closure: losses, or (losses, anything). A loss that is None counts as missing."""
        read = cls()
        found = returned_losses(returned)
        if found is None:
            read.problems.append(_mapping_problem(returned, what))
            return read
        other = [name for name in found if not isinstance(name, str)]
        if other:
            names = f"task{'s' * (len(other) > 1)} {', '.join(map(repr, other))}"
            read.problems.append(
                f"the {what} returns a loss for {names}, but task names must be strings; return {{str(task): loss}}."
            )
        for name, item in found.items():
            if isinstance(name, str) and item is not None:
                read._add(name, item, what)
        return read

    def _add(self, name: str, item: Any, what: str) -> None:
        loss, weight = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
        if loss is None:
            return
        if not isinstance(loss, Tensor):
            self.problems.append(
                f"the {what}'s loss for `{name}` is a {type(loss).__name__}; return the tensor itself, without "
                ".item(), or None if the batch has no labels for it."
            )
        elif loss.numel() != 1:
            self.problems.append(
                f"the {what}'s loss for `{name}` has shape {tuple(loss.shape)}; reduce it to a scalar, e.g. with "
                ".mean()."
            )
        elif not loss.is_floating_point():
            self.problems.append(
                f"the {what}'s loss for `{name}` has dtype {loss.dtype}; it must be a real floating-point tensor."
            )
        elif not _is_weight(weight):
            self.problems.append(
                f"the {what} returned a pair for `{name}` whose second item is {_describe_weight(weight)}; it must be "
                "the weight of the loss among data-parallel ranks, a non-negative number such as the number of labels."
            )
        else:
            self.losses[name] = loss
            self.weights[name] = weight

    def values(self, tasks: Sequence[str]) -> Tensor:
        """Returns detached losses in the order of `tasks` (NaN if missing), without synchronizing with the device."""
        if not self.losses or not tasks:
            return torch.full((len(tasks),), float("nan"), dtype=torch.float64)
        like = next(iter(self.losses.values())).detach()
        missing = torch.full_like(like, float("nan"))
        found = [self.losses.get(t, missing).detach().reshape(()) for t in tasks]
        if len({(loss.device, loss.dtype) for loss in found}) > 1:
            found = [loss.to(like.device, torch.float64) for loss in found]
        return torch.stack(found).to(torch.float32 if like.device.type == "mps" else torch.float64)


def returned_losses(returned: Any) -> Mapping[Any, Any] | None:
    """Returns the losses in what a closure returned, which may be a tuple that starts with them."""
    losses = returned[0] if isinstance(returned, tuple) and returned else returned
    return losses if isinstance(losses, Mapping) else None


def _mapping_problem(returned: Any, what: str) -> str:
    found = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
    return (
        f"the {what} must return a dict {{task name: scalar loss}}, one entry per task, or a tuple that starts with "
        f"it, found {found}."
    )


def _is_weight(weight: Any) -> bool:
    if isinstance(weight, Tensor):
        return weight.numel() == 1 and not weight.requires_grad and not weight.is_complex()
    return isinstance(weight, Real) and float(weight) >= 0


def _describe_weight(value: Any) -> str:
    return "a tensor that is not a detached real scalar" if isinstance(value, Tensor) else repr(value)[:40]


def raise_if_it_takes_arguments(closure: Closure, error: TypeError) -> None:
    """Raises a clear error if `closure` cannot be called without arguments."""
    try:
        parameters = inspect.signature(closure).parameters.values()
    except (TypeError, ValueError):
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        arguments = ", ".join(needed)
        raise TypeError(
            f"the meter calls the closure without arguments, but it requires `{arguments}`; wrap it, e.g. "
            f"meter(lambda: task_losses({arguments}))"
        ) from error


def name_problems(read: TaskLosses, tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    unknown = [name for name in read.losses if name not in tasks]
    if unknown:
        yield (
            f"the {what} returned tasks {unknown} that are not among {list(tasks)}; task names must not change. "
            "Pass the names of all tasks to the meter with `tasks=[...]`; tasks that a batch lacks may be omitted or "
            "None."
        )


def graph_problems(read: TaskLosses, present: Iterable[str], what: str = "closure") -> Iterable[str]:
    bare = [name for name in present if name in read.losses and not read.losses[name].requires_grad]
    if bare:
        yield (
            f"the {what}'s losses for {bare} have no autograd graph; compute them without .detach() and outside "
            "torch.no_grad(), and return None if the batch has no labels for a task."
        )


def sign_problems(values: Sequence[float], tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    negative = [f"`{t}` ({v:.4g})" for t, v in zip(tasks, values, strict=True) if v < 0]
    if negative:
        yield (
            f"the {what}'s losses for {', '.join(negative)} are negative. Affinity is the fraction of a loss that a "
            "step removes, 1 − after/before, which is meaningless for a negative loss; add a constant that keeps the "
            "loss positive, or use estimator='cosine', which does not divide by the loss."
        )


def structure_problems(replayable: ReplayableClosure, setup: Setup, tasks: Sequence[str]) -> Iterable[str]:
    """Yields the problems found in the graph of the losses and in the modules that computed them."""
    what, found = replayable.what, replayable.loss_graph()
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) < 2 and not replayable.losses.problems:
        yield (
            f"there is only one task, {list(tasks)}, but affinity is defined between tasks; return the loss of each "
            "task by name, not their sum. If a batch has labels for only some tasks, pass all names with "
            "`tasks=[...]`; if every step trains on one task, return the losses of all tasks, each on its own batch, "
            "or use estimator='streaming' and call meter.observe(task) after backward()."
        )
    if not setup.models and (found.compiled or replayable.compiled):
        yield (
            f"the {what} calls compiled code, whose modules cannot be detected; pass all modules that the closure "
            "calls as `model=`."
        )
    if found.cudnn_rnn and any(_has_inner_dropout(module) for module in replayable.modules()):
        yield (
            f"the {what} uses dropout inside a cuDNN recurrent network, whose random state cannot be restored; "
            "use single layers with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    if found.reentrant:
        yield (
            f"the {what} uses reentrant checkpointing, which hides the shared parameters from task gradients; "
            "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & found.earlier.keys() and not any(isinstance(m, nn.DataParallel) for m in replayable.modules()):
        # DataParallel's threads number their nodes independently.
        yield (
            f"the {what} uses results that were computed from the shared parameters before it ran, and a replay does "
            "not recompute them; put the whole forward pass of the shared layers inside the closure."
        )
    elif what == "closure" and found.leaves and not shared & found.leaves.keys():
        yield NO_SHARED_PARAMETER


def _has_inner_dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1


def change_problems(replayable: ReplayableClosure) -> Iterable[str]:
    """Yields a problem if the closure has changed objects that cannot be restored."""
    if replayable.changed:
        yield (
            f"the {replayable.what} changes {', '.join(replayable.changed)}, which cannot be undone when it is "
            "replayed; do this outside the closure, with what the meter returns (a closure may return "
            "`(losses, anything)`). Fetch batches outside the closure, modify parameters after the optimizer step, "
            "freeze copies of a network (requires_grad_(False)), and use torch.autograd.grad inside the closure "
            "instead of .backward()."
        )


def repeat_problems(replayable: ReplayableClosure, tasks: Sequence[str]) -> Iterable[str]:
    """Yields a problem if replaying the closure does not return the same losses."""
    first, second = replayable.losses.losses, replayable.replay().losses
    differ = [task for task in tasks if not _equal_losses(first.get(task), second.get(task))]
    if differ:
        yield (
            f"the {replayable.what} is not repeatable: run again with the same weights, buffers and random state, it "
            f"returned different losses for {differ}. It must use the same batch each time (fetch it outside the "
            "closure), and must not depend on a private random generator, counter or cache that the first run changed."
        )


def _equal_losses(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether two losses are equal up to the rounding errors of nondeterministic kernels."""
    if first is None or second is None:
        return first is second
    tolerance = min(64 * torch.finfo(first.dtype).eps, 1e-3)
    return bool(torch.isclose(first.detach(), second.detach(), rtol=tolerance, atol=0.0, equal_nan=True))


@dataclass
class LossGraph:
    """The leaves of the losses' autograd graph, and properties of the graph that prevent a replay.

    Attributes:
        leaves: The leaf tensors, by id.
        reentrant: Whether a reentrant checkpoint hides some of the leaves.
        compiled: Whether part of the graph comes from torch.compile.
        cudnn_rnn: Whether part of the graph comes from a cuDNN recurrent network.
        earlier: The leaves reached through tensors that were computed before the closure ran.
        latest: The largest sequence number among the nodes.
    """

    leaves: dict[int, Tensor] = field(default_factory=dict)
    reentrant: bool = False
    compiled: bool = False
    cudnn_rnn: bool = False
    earlier: dict[int, Tensor] = field(default_factory=dict)
    latest: int = 0

    def update(self, other: LossGraph) -> None:
        """Adds the leaves and properties of another graph."""
        self.leaves.update(other.leaves)
        self.earlier.update(other.earlier)
        self.reentrant |= other.reentrant
        self.compiled |= other.compiled
        self.cudnn_rnn |= other.cudnn_rnn
        self.latest = max(self.latest, other.latest)


def loss_graph(losses: Iterable[Tensor], start_nr: int = 0) -> LossGraph:
    """Walks the graph of `losses` back to its leaves.

    Args:
        losses: The losses to start from.
        start_nr: The sequence number at which the closure started. Leaves of nodes with smaller numbers are listed as
            `earlier`.
    """
    return _walk_graph({loss.grad_fn for loss in losses if loss.grad_fn is not None}, start_nr)


def _walk_graph(visited: set[Node], start_nr: int) -> LossGraph:
    found = LossGraph()
    waiting = list(visited)
    earlier: set[Node] = set()
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.leaves[id(leaf)] = leaf
        else:
            found.latest = max(found.latest, node._sequence_nr())
            if node._sequence_nr() < start_nr:
                earlier.add(node)
        found.compiled |= node.name().startswith("CompiledFunction")
        found.cudnn_rnn |= node.name().startswith("CudnnRnn")
        found.reentrant |= node.name().startswith("CheckpointFunctionBackward")
        for parent, _ in node.next_functions:
            if parent is not None and parent not in visited:
                visited.add(parent)
                waiting.append(parent)
    if earlier:
        before = _walk_graph(earlier, 0)
        # A node is created after the nodes it leads to. If it leads to newer ones, it was numbered by another thread
        # (such as the backward thread of a GPU), and the numbers cannot be compared.
        found.earlier = before.leaves if before.latest < start_nr else {}
    return found
