"""The training steps that the benchmark compares, plain and measured, each with its own model and optimizer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer, RMSprop

from networks import MultiTaskNetwork, random_batch
from plain_loop import Closure, plain_step, usual_measured_step
from tagalong import AffinityMeter

LR, MOMENTUM = 5e-4, 0.9
BLOCKS = 4
PLAIN, GRAPH_KEPT, USUAL = "plain step", "plain step, graph kept", "usual loop"


@dataclass(frozen=True)
class Contender:
    """One way to take a training step.

    Attributes:
        name: Its name in the table.
        step: Takes one full training step, including the measurement.
        floor: The minimum time for its passes, in plain steps.
        time_target: Whether it must stay near its floor.
        rival: Whether it does the same as the usual loop, and therefore must not be slower.
        copies: The number of copies of the shared parameters that it may keep in memory, beyond a plain step that
            keeps its graph.
        timed: Whether to measure its time, or only its memory.
    """

    name: str
    step: Callable[[], object]
    floor: float | None = None
    time_target: bool = False
    rival: bool = False
    copies: float | None = None
    timed: bool = True


@dataclass
class TrainingSetup:
    """A network, an optimizer, and closures over two batches."""

    network: MultiTaskNetwork
    optimizer: Optimizer
    closure: Closure
    held_out: Closure

    @property
    def shared(self) -> list[nn.Parameter]:
        return list(self.network.encoder.parameters())

    @property
    def shared_bytes(self) -> int:
        return sum(p.nbytes for p in self.shared)


class SetupFactory:
    """Makes identical training setups, all on the same two batches."""

    def __init__(self, network: str, tasks: int, batch: int, device: torch.device) -> None:
        self._network, self._device = network, device
        self.tasks = [f"task {k}" for k in range(tasks)]
        self._batches = [random_batch(batch, tasks, device) for _ in range(2)]

    def make(self, *, generic: bool = False) -> TrainingSetup:
        """Makes a setup; if `generic`, with an optimizer for which the meter has no closed formula."""
        torch.manual_seed(0)
        network = MultiTaskNetwork(self._network, self.tasks).to(self._device)
        parameters = network.parameters()
        optimizer = RMSprop(parameters, lr=LR) if generic else SGD(parameters, lr=LR, momentum=MOMENTUM)
        return TrainingSetup(network, optimizer, *(partial(network.losses, *batch) for batch in self._batches))


def metered_step(meter: AffinityMeter, setup: TrainingSetup, *, held_out: bool) -> None:
    meter(setup.closure, setup.held_out if held_out else None)
    meter.backward()
    setup.optimizer.step()
    setup.optimizer.zero_grad()


def _make_metered_step(setup: TrainingSetup, *, held_out: bool = False, **settings: Any) -> Callable[[], None]:
    meter = AffinityMeter(setup.network.encoder, setup.optimizer, every=1, **settings)
    return partial(metered_step, meter, setup, held_out=held_out)


def make_contenders(setups: SetupFactory) -> Iterator[Contender]:
    """Yields the plain step first. Floors count a forward pass as 1/3 of a plain step, and a backward pass as 2/3."""
    n = len(setups.tasks)
    plain, keeping, usual = setups.make(), setups.make(), setups.make()
    yield Contender(PLAIN, partial(plain_step, plain.closure, plain.optimizer), 1.0)
    step = partial(plain_step, keeping.closure, keeping.optimizer, retain_graph=True)
    yield Contender(GRAPH_KEPT, step, timed=False)
    step = partial(usual_measured_step, usual.closure, usual.optimizer, usual.shared, LR)
    yield Contender(USUAL, step, (3 + 3 * n) / 3)
    yield from _lookahead(setups, n)
    yield from _gradient(setups, n)


def _lookahead(setups: SetupFactory, n: int) -> Iterator[Contender]:
    floor, held_out_floor = (1 + 3 * n) / 3, (2 + 3 * n) / 3
    yield Contender("lookahead", _make_metered_step(setups.make()), floor, time_target=True, rival=True, copies=3)
    step = _make_metered_step(setups.make(), held_out=True)
    yield Contender("lookahead, held out", step, held_out_floor, time_target=True, copies=3)
    # Three copies, and one more for RMSprop's state.
    yield Contender("lookahead, RMSprop", _make_metered_step(setups.make(generic=True)), floor, copies=3 + 1)


def _gradient(setups: SetupFactory, n: int) -> Iterator[Contender]:
    floor = (1 + 2 * n) / 3
    step = _make_metered_step(setups.make(), estimator="gradient")
    yield Contender("gradient", step, floor, time_target=True, rival=True, copies=n)
    setup = setups.make()
    memory = n * setup.shared_bytes / BLOCKS
    step = _make_metered_step(setup, estimator="gradient", gradient_memory=memory)
    # The gradients of one block, and the copy that autograd returns before they are packed.
    yield Contender("gradient, in blocks", step, floor, copies=n / BLOCKS + 1)
