"""The user's closure: running and replaying it, reading its losses, and checking that they can be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from .isolation import ModuleState, RandomState, Replayer, Writes, compiled, watching

if TYPE_CHECKING:
    from .setup import Setup

Closure = Callable[[], Any]
T = TypeVar("T")

UNREACHED = (
    "no loss depends on any parameter of `shared`; pass the module that the closure calls (not a copy), and check for "
    ".detach() or torch.no_grad() between it and the losses."
)


class ClosureError(ValueError):
    """The losses of a closure cannot be measured.

    Attributes:
        problems: One sentence per problem; all that were found.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the affinity cannot be measured:\n" + "\n".join(f"- {p}" for p in problems))


def raise_all(problems: Sequence[str]) -> None:
    """Raises one error that lists `problems`, or returns if there are none."""
    if problems:
        raise ClosureError(problems)


class ReplayableClosure:
    """A closure that is run once and can be replayed; keeps the state of modules and generators before and after.

    Args:
        closure: The user's closure.
        models: Modules whose state is protected; if there are none, the modules that the closure uses are found.
        replayer: Runs the closure again.
        what: The name of the closure in messages.
        graph: Whether its losses will be differentiated; if not, no activations are kept.
        verify: Whether to detect what it writes.

    Attributes:
        what: The name of the closure in messages.
        returned: The return value of the closure, unchanged.
        losses: The losses in it.
        written: Names of what the closure wrote and what is not restored.
        lazy: Names of parameters that had no shape before.
        began: The sequence number of autograd's last node before the first run.
    """

    returned: Any
    losses: TaskLosses
    written: list[str]
    lazy: list[str]

    def __init__(
        self,
        closure: Closure,
        models: Sequence[nn.Module],
        replayer: Replayer,
        what: str = "closure",
        *,
        graph: bool = True,
        verify: bool = True,
    ) -> None:
        self._closure, self._replayer, self.what, self._graph = closure, replayer, what, graph
        self._writes = Writes() if verify else None
        self._modules, self._randomness = ModuleState(self._writes), RandomState()
        for model in models:
            self._modules.add(model)
        self._watch = not models

    def run(self) -> None:
        """Runs the closure for the first time."""
        self.began = _autograd_number()
        # Without a model the modules that the closure calls are found while they are called.
        with watching(self._modules) if self._watch else nullcontext():
            self.returned = self._closure() if self._graph else self._again()
        self.written = [] if self._writes is None else self._writes.found()
        self.lazy = [] if self._writes is None else self._writes.lazy
        self._modules_after, self._randomness_after = self._modules.again(), RandomState()
        self.losses = TaskLosses.read(self.returned, self.what)

    def replay(self) -> TaskLosses:
        """Runs the closure once more, from the same random numbers, buffers and modes as the first time."""
        return TaskLosses.read(self._again(), self.what)

    def _again(self) -> Any:
        return self._replayer.run(self._closure, self._modules, self._randomness)

    def to_start(self) -> None:
        """Restores everything as it was before the closure ran."""
        self._modules.restore()
        self._randomness.restore()

    def to_end(self) -> None:
        """Restores everything as the closure's first run left it."""
        self._modules_after.restore()
        self._randomness_after.restore()

    def settled(self, differentiate: Callable[[], T]) -> T:
        """Differentiates with buffers and modes as the first run left them.

        Replays write buffers that the graph holds, another closure may have changed modes, and a checkpointed
        forward, which runs again within every gradient, needs both and moves BatchNorm statistics.
        """
        self._modules_after.restore()
        return differentiate()

    def modules(self) -> list[nn.Module]:
        return self._modules.modules()

    @property
    def compiled(self) -> bool:
        return self._modules.compiled or compiled(self.modules())

    @property
    def buffer_bytes(self) -> int:
        return self._modules.buffer_bytes


def _autograd_number() -> int:
    with torch.enable_grad():
        node = (torch.zeros((), requires_grad=True) * 1).grad_fn
    return 0 if node is None else int(node._sequence_nr())  # none under inference mode


@dataclass
class TaskLosses:
    """The scalar losses of one run of a closure, by task, with the weight of each under data parallelism."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, returned: Any, what: str = "closure") -> TaskLosses:
        """Reads what a closure returned; a task whose loss is None is missing."""
        read = cls()
        if not isinstance(returned, Mapping):
            read.problems.append(_not_a_mapping(returned, what))
            return read
        for name, item in returned.items():
            if not isinstance(name, str):
                read.problems.append(f"the {what} names a task {name!r}; task names must be strings.")
            elif item is not None:
                read._add(name, item, what)
        return read

    def _add(self, name: str, item: Any, what: str) -> None:
        loss, weight = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
        if loss is None:
            return
        if not isinstance(loss, Tensor):
            self.problems.append(
                f"the {what}'s loss of `{name}` is a {type(loss).__name__}; return the tensor itself, before .item(), "
                "or None where the batch has no label."
            )
        elif loss.numel() != 1:
            self.problems.append(
                f"the {what}'s loss of `{name}` has shape {tuple(loss.shape)}; reduce it to a scalar, e.g. by .mean()."
            )
        elif not loss.is_floating_point():
            self.problems.append(
                f"the {what}'s loss of `{name}` is of {loss.dtype}; it must be a real floating number."
            )
        elif not _is_weight(weight):
            self.problems.append(
                f"the {what} returned a pair for `{name}` whose second part is {_short(weight)}; it must be the loss's "
                "weight among data-parallel ranks, a number of at least 0 such as the count of labels."
            )
        else:
            self.losses[name] = loss
            self.weights[name] = weight

    def values(self, tasks: Sequence[str]) -> Tensor:
        """Losses in the order of `tasks`, detached, in double precision; NaN where missing. No host read."""
        if not self.losses or not tasks:
            return torch.full((len(tasks),), float("nan"), dtype=torch.float64)
        like = next(iter(self.losses.values())).detach()
        missing = torch.full_like(like, float("nan"))
        found = [self.losses.get(t, missing).detach().reshape(()) for t in tasks]
        if len({(loss.device, loss.dtype) for loss in found}) > 1:
            found = [loss.to(like.device, torch.float64) for loss in found]
        return torch.stack(found).to(torch.float32 if like.device.type == "mps" else torch.float64)


def _not_a_mapping(returned: Any, what: str) -> str:
    found = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
    return f"the {what} must return a dict {{task name: scalar loss}}, one entry per task, found {found}."


def _is_weight(weight: Any) -> bool:
    if isinstance(weight, Tensor):
        return weight.numel() == 1 and not weight.requires_grad and not weight.is_complex()
    return isinstance(weight, Real) and float(weight) >= 0


def _short(value: Any) -> str:
    return "a loss of its own" if isinstance(value, Tensor) else repr(value)[:40]


def name_problems(read: TaskLosses, tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    unknown = [name for name in read.losses if name not in tasks]
    if unknown:
        yield (
            f"the {what} returned tasks {unknown} that are not among {list(tasks)}; task names must not change. "
            "Name all tasks beforehand with `tasks=[...]`; those missing from a batch may be left out or None."
        )


def graph_problems(read: TaskLosses, present: Iterable[str], what: str = "closure") -> Iterable[str]:
    bare = [name for name in present if name in read.losses and not read.losses[name].requires_grad]
    if bare:
        yield (
            f"the {what}'s losses of {bare} carry no graph; return them as computed, without .detach() and outside "
            "torch.no_grad(), or None where the batch has no label for a task."
        )


def sign_problems(values: Sequence[float], tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    negative = [f"`{t}` ({v:.4g})" for t, v in zip(tasks, values, strict=True) if v < 0]
    if negative:
        yield (
            f"the {what}'s losses of {', '.join(negative)} are negative. Affinity is the share of a loss that a step "
            "removes, 1 − after/before, which has no meaning for a negative loss; add a constant that keeps the loss "
            "positive (a likelihood's lower bound, say), or use estimator='cosine', which needs no ratio."
        )


def structure_problems(replayable: ReplayableClosure, setup: Setup, tasks: Sequence[str]) -> Iterable[str]:
    """Problems that show in the graph of the losses and in the modules that computed them."""
    what, found = replayable.what, loss_graph(replayable.losses.losses.values(), replayable.began)
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) < 2:
        yield (
            f"there is only one task, {list(tasks)}; affinity is between tasks: return the loss of each by name, not "
            "their sum, or name all tasks with `tasks=[...]` if a batch holds only some."
        )
    if not setup.models and (found.compiled or replayable.compiled):
        yield (
            f"the {what} calls compiled code, whose modules cannot be watched; pass `model=` with all modules that "
            "the closure calls."
        )
    if replayable.lazy:
        yield (
            f"the {what} calls lazy modules that have no shape yet ({', '.join(replayable.lazy)}); run the model once "
            "before measuring."
        )
    elif replayable.written:
        yield (
            f"the {what} writes {', '.join(replayable.written)}, which is not undone when it is run again; write "
            "parameters after the optimizer's step, register other tensors as buffers, and use torch.autograd.grad "
            "inside the closure instead of .backward()."
        )
    if found.cudnn_rnn and any(_inner_dropout(module) for module in replayable.modules()):
        yield (
            f"the {what} uses dropout inside a recurrent network of cuDNN, whose random state cannot be put back; "
            "use single layers with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    if found.reentrant:
        yield (
            f"the {what} uses reentrant checkpointing, which hides the shared parameters from task gradients; "
            "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & found.earlier.keys() and not any(isinstance(m, nn.DataParallel) for m in replayable.modules()):
        # (The threads of DataParallel number their nodes on their own.)
        yield (
            f"the {what} continues from what was computed of the shared parameters before it ran, which a replay does "
            "not compute again; put the whole forward pass of the shared layers into the closure."
        )
    elif what == "closure" and found.leaves and not shared & found.leaves.keys():
        yield UNREACHED


def _inner_dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1


def repeat_problems(replayable: ReplayableClosure, tasks: Sequence[str]) -> Iterable[str]:
    """Whether the closure, run once more unchanged, gives the same losses."""
    first, again = replayable.losses.losses, replayable.replay().losses
    differ = [task for task in tasks if not _same(first.get(task), again.get(task))]
    if differ:
        yield (
            f"the {replayable.what} cannot be repeated: run again with the same weights, buffers and random state it "
            f"gave other losses of {differ}. It must use the same batch each time (fetch it outside the closure), and "
            "no generator of its own, counter or cache that the first run moved."
        )


def _same(first: Tensor | None, again: Tensor | None) -> bool:
    """Equal up to what kernels that add in no fixed order do to a loss."""
    if first is None or again is None:
        return first is again
    tolerance = min(64 * torch.finfo(first.dtype).eps, 1e-3)
    return bool(torch.isclose(first.detach(), again.detach(), rtol=tolerance, atol=0.0, equal_nan=True))


@dataclass
class LossGraph:
    """The leaves of the graph of some losses, and what in the graph prevents a replay.

    Attributes:
        leaves: By id.
        reentrant: Whether a reentrant checkpoint hides more of them.
        compiled: Whether torch.compile made part of the graph.
        cudnn_rnn: Whether a recurrent network of cuDNN did.
        earlier: The leaves that are reached through what was computed before the closure ran.
        latest: The largest number of a node.
    """

    leaves: dict[int, Tensor] = field(default_factory=dict)
    reentrant: bool = False
    compiled: bool = False
    cudnn_rnn: bool = False
    earlier: dict[int, Tensor] = field(default_factory=dict)
    latest: int = 0


def loss_graph(losses: Iterable[Tensor], began: int = 0) -> LossGraph:
    """Walks the graph of `losses` back to its leaves.

    Args:
        losses: Where to start.
        began: Nodes with a smaller number were made before and are listed as `earlier`.
    """
    return _walk({loss.grad_fn for loss in losses if loss.grad_fn is not None}, began)


def _walk(seen: set[Node], began: int) -> LossGraph:
    found = LossGraph()
    waiting = list(seen)
    earlier: set[Node] = set()
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.leaves[id(leaf)] = leaf
        else:
            found.latest = max(found.latest, node._sequence_nr())
            if node._sequence_nr() < began:
                earlier.add(node)
        found.compiled |= node.name().startswith("CompiledFunction")
        found.cudnn_rnn |= node.name().startswith("CudnnRnn")
        found.reentrant |= node.name().startswith("CheckpointFunctionBackward")
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    if earlier:
        before = _walk(earlier, 0)
        # A node is made after those it leads to. One that leads to newer ones was numbered by another thread, such
        # as the one that differentiates on a GPU, and such numbers say nothing.
        found.earlier = before.leaves if before.latest < began else {}
    return found
