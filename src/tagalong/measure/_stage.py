"""One run of a closure, with the means to run it again as if nothing had happened in between."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

from ._isolation import ModuleState, RandomState, Replayer, compiled
from ._losses import TaskLosses
from ._watching import watching
from ._writes import Writes

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
