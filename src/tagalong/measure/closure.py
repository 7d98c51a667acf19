"""One run of a closure, the means to replay it, and the checks that replays can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from .gradients import reach
from .isolation import ModuleState, RandomState, Replayer, Writes, compiled, watching
from .losses import TaskLosses

if TYPE_CHECKING:
    from .setup import Setup

Closure = Callable[[], Any]
T = TypeVar("T")


class Stage:
    """A closure to `run` once, which remembers the surroundings before and after.

    Args:
        closure: What to run.
        models: Modules whose state is protected; found by watching if there are none.
        replayer: Runs it again.
        what: How errors call it.
        graph: Whether its losses will be differentiated; if not, no activations are kept.
        verify: Whether to find out what it writes.

    Attributes:
        what: How errors call it.
        returned: What the closure returned, untouched.
        losses: The same, read.
        written: Names of what the closure wrote and nothing puts back.
        lazy: Names of parameters that had no shape before.
        began: The number that autograd gave its last node before the first run.
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

    def _again(self) -> Any:
        return self._replayer.run(self._closure, self._modules, self._randomness)

    def modules(self) -> list[nn.Module]:
        return self._modules.modules()

    @property
    def compiled(self) -> bool:
        return self._modules.compiled or compiled(self.modules())

    @property
    def buffer_bytes(self) -> int:
        return self._modules.buffer_bytes

    def replay(self) -> TaskLosses:
        """The closure once more, from the same random numbers, buffers and modes as the first time."""
        return TaskLosses.read(self._again(), self.what)

    def to_start(self) -> None:
        """Everything as it was before the closure ran."""
        self._modules.restore()
        self._randomness.restore()

    def to_end(self) -> None:
        """Everything as the closure's first run left it."""
        self._modules_after.restore()
        self._randomness_after.restore()

    def settled(self, differentiate: Callable[[], T]) -> T:
        """Differentiates with buffers and modes as the first run left them.

        Replays write buffers that the graph holds, another closure may have changed modes, and a checkpointed
        forward, which runs again within every gradient, needs both and moves BatchNorm statistics.
        """
        self._modules_after.restore()
        return differentiate()


def _autograd_number() -> int:
    with torch.enable_grad():
        node = (torch.zeros((), requires_grad=True) * 1).grad_fn
    return 0 if node is None else int(node._sequence_nr())  # none under inference mode


UNREACHED = (
    "no loss depends on any parameter of `shared`; pass the module that the closure calls (not a copy), and check for "
    ".detach() or torch.no_grad() between it and the losses."
)


def structure_problems(stage: Stage, setup: Setup, tasks: Sequence[str]) -> Iterable[str]:
    """What the graph of the losses and the modules behind them give away."""
    what, found = stage.what, reach(stage.losses.losses.values(), stage.began)
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) < 2:
        yield (
            f"there is only one task, {list(tasks)}; affinity is between tasks: return the loss of each by name, not "
            "their sum, or name all tasks with `tasks=[...]` if a batch holds only some."
        )
    if not setup.models and (found.compiled or stage.compiled):
        yield (
            f"the {what} calls compiled code, whose modules cannot be watched; pass `model=` with all modules that "
            "the closure calls."
        )
    if stage.lazy:
        yield (
            f"the {what} calls lazy modules that have no shape yet ({', '.join(stage.lazy)}); run the model once "
            "before measuring."
        )
    elif stage.written:
        yield (
            f"the {what} writes {', '.join(stage.written)}, which is not undone when it is run again; write "
            "parameters after the optimiser's step, register other tensors as buffers, and use torch.autograd.grad "
            "inside the closure instead of .backward()."
        )
    if found.cudnn_rnn and any(_inner_dropout(module) for module in stage.modules()):
        yield (
            f"the {what} uses dropout inside a recurrent network of cuDNN, whose random state cannot be put back; "
            "use single layers with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    if found.reentrant:
        yield (
            f"the {what} uses reentrant checkpointing, which hides the shared parameters from task gradients; "
            "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & found.earlier.keys() and not any(isinstance(m, nn.DataParallel) for m in stage.modules()):
        # (The threads of DataParallel number their nodes on their own.)
        yield (
            f"the {what} goes on from what was computed of the shared parameters before it ran, which running it again "
            "does not compute anew; put the whole forward pass of the shared layers into the closure."
        )
    elif what == "closure" and found.leaves and not shared & found.leaves.keys():
        yield UNREACHED


def repeat_problems(stage: Stage, tasks: Sequence[str]) -> Iterable[str]:
    """Whether the closure, run once more unchanged, gives the same losses."""
    first, again = stage.losses.losses, stage.replay().losses
    differ = [task for task in tasks if not _same(first.get(task), again.get(task))]
    if differ:
        yield (
            f"the {stage.what} cannot be repeated: run again with the same weights, buffers and random state it gave "
            f"other losses of {differ}. It must use the same batch each time (fetch it outside the closure), and no "
            "generator of its own, counter or cache that the first run moved."
        )


def _inner_dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1


def _same(first: Tensor | None, again: Tensor | None) -> bool:
    """Equal up to what kernels that add in no fixed order do to a loss."""
    if first is None or again is None:
        return first is again
    tolerance = min(64 * torch.finfo(first.dtype).eps, 1e-3)
    return bool(torch.isclose(first.detach(), again.detach(), rtol=tolerance, atol=0.0, equal_nan=True))
