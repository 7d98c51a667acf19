"""The training steps that `measure_cost.py` compares, plain and measured, each with its own model and optimizer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop

from image_networks import MultiTaskNetwork
from tagalong import AffinityMeter

LR, MOMENTUM = 5e-4, 0.9
PLAIN, GRAPH_KEPT, USUAL = "plain step", "plain step, graph kept", "usual loop"
Batch = tuple[Tensor, Tensor]
Closure = Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Contender:
    """One way to take a training step.

    Attributes:
        name: Its name in the table.
        step: Takes one full training step, including the measurement.
        floor: The minimum time for its passes, in plain steps, or None if it is not timed.
        time_target: Whether it must stay near its floor.
        rival: Whether it does the same as the usual loop, and therefore must not be slower.
        copies: The number of copies of the shared parameters that it may keep in memory, beyond a plain step that
            keeps its graph.
    """

    name: str
    step: Callable[[], object]
    floor: float | None
    time_target: bool = False
    rival: bool = False
    copies: float | None = None


class TrainingSetup:
    """A network, an optimizer, and closures over a training batch and a held-out batch."""

    def __init__(
        self, kind: str, tasks: Sequence[str], batches: Sequence[Batch], optimizer: type[Optimizer] = SGD
    ) -> None:
        torch.manual_seed(0)
        device = batches[0][0].device
        self.network = MultiTaskNetwork(kind, tasks).to(device)
        momentum = {"momentum": MOMENTUM} if optimizer is SGD else {}
        self.optimizer = optimizer(self.network.parameters(), lr=LR, **momentum)
        self.closure, self.held_out = (partial(self.network.losses, *batch) for batch in batches)

    @property
    def shared(self) -> list[nn.Parameter]:
        return list(self.network.encoder.parameters())

    def plain_step(self, *, retain_graph: bool = False) -> None:
        """Runs the forward pass, sums the losses, and runs the backward pass and the optimizer step."""
        total = torch.stack(list(self.closure().values())).sum()
        total.backward(retain_graph=retain_graph)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def usual_step(self) -> Tensor:
        """Computes affinities as public implementations do: step in place, evaluate, read the losses, step back."""
        losses = self.closure()
        before = {task: loss.item() for task, loss in losses.items()}
        affinity = torch.zeros(len(losses), len(losses))
        for row, loss in enumerate(losses.values()):
            gradients = torch.autograd.grad(loss, self.shared, retain_graph=True)
            for parameter, gradient in zip(self.shared, gradients, strict=True):
                parameter.data -= LR * gradient
            with torch.no_grad():
                after = self.closure()
            for column, task in enumerate(losses):
                affinity[row, column] = 1 - after[task].item() / before[task]
            for parameter, gradient in zip(self.shared, gradients, strict=True):
                parameter.data += LR * gradient
        torch.stack(list(losses.values())).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return affinity

    def metered_step(self, *, held_out: bool = False, **settings: Any) -> Callable[[], None]:
        """Returns a step that measures and trains."""
        meter = AffinityMeter(self.network.encoder, self.optimizer, every=1, **settings)

        def step() -> None:
            meter(self.closure, self.held_out if held_out else None)
            meter.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        return step


def make_contenders(kind: str, n: int, batches: Sequence[Batch]) -> Iterator[Contender]:
    """Yields the plain step first. Floors count a forward pass as 1/3 of a plain step, and a backward pass as 2/3."""
    setup = partial(TrainingSetup, kind, [f"task {number}" for number in range(n)], batches)
    yield Contender(PLAIN, setup().plain_step, 1.0)
    yield Contender(GRAPH_KEPT, partial(setup().plain_step, retain_graph=True), None)
    yield Contender(USUAL, setup().usual_step, (3 + 3 * n) / 3)

    lookahead = (1 + 3 * n) / 3
    yield Contender("lookahead", setup().metered_step(), lookahead, time_target=True, rival=True, copies=3)
    step = setup().metered_step(held_out=True)
    yield Contender("lookahead, held out", step, (2 + 3 * n) / 3, time_target=True, copies=3)
    # An optimizer without a closed formula for its step; the fourth copy is its state.
    step = setup(RMSprop).metered_step()
    yield Contender("lookahead, RMSprop", step, lookahead, copies=3 + 1)

    gradient = (1 + 2 * n) / 3
    step = setup().metered_step(estimator="gradient")
    yield Contender("gradient", step, gradient, time_target=True, rival=True, copies=n)
