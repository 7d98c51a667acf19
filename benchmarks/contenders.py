"""Everything that is compared with a plain training step, each with a model and an optimizer of its own."""

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
        name: As the table has it.
        step: Takes one full training step, with the measurement that belongs to it.
        floor: What the arithmetic alone costs, in plain steps.
        time_target: Whether it must stay near its floor.
        rival: Whether it does what the usual loop does, and must not be slower.
        copies: Copies of the shared parameters that it may hold above a plain step that keeps its graph.
        timed: Whether it is timed, or only its memory measured.
    """

    name: str
    step: Callable[[], object]
    floor: float | None = None
    time_target: bool = False
    rival: bool = False
    copies: float | None = None
    timed: bool = True


@dataclass
class Bench:
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


class Benches:
    """Makes equal benches, all on the same two batches."""

    def __init__(self, network: str, tasks: int, batch: int, device: torch.device) -> None:
        self._network, self._device = network, device
        self.tasks = [f"task {k}" for k in range(tasks)]
        self._batches = [random_batch(batch, tasks, device) for _ in range(2)]

    def make(self, *, generic: bool = False) -> Bench:
        """One more; `generic` with an optimizer whose step the meter has no formula for."""
        torch.manual_seed(0)
        network = MultiTaskNetwork(self._network, self.tasks).to(self._device)
        parameters = network.parameters()
        optimizer = RMSprop(parameters, lr=LR) if generic else SGD(parameters, lr=LR, momentum=MOMENTUM)
        return Bench(network, optimizer, *(partial(network.losses, *batch) for batch in self._batches))


def metered_step(meter: AffinityMeter, bench: Bench, *, held_out: bool) -> None:
    meter(bench.closure, bench.held_out if held_out else None)
    meter.backward()
    bench.optimizer.step()
    bench.optimizer.zero_grad()


def _metered(bench: Bench, *, held_out: bool = False, **settings: Any) -> Callable[[], None]:
    meter = AffinityMeter(bench.network.encoder, bench.optimizer, every=1, **settings)
    return partial(metered_step, meter, bench, held_out=held_out)


def contenders(benches: Benches) -> Iterator[Contender]:
    """All of them, the plain step first. A floor counts a forward pass as 1/3 of a plain step, a backward as 2/3."""
    n = len(benches.tasks)
    plain, kept, usual = benches.make(), benches.make(), benches.make()
    yield Contender(PLAIN, partial(plain_step, plain.closure, plain.optimizer), 1.0)
    keeping = partial(plain_step, kept.closure, kept.optimizer, retain_graph=True)
    yield Contender(GRAPH_KEPT, keeping, timed=False)
    measuring = partial(usual_measured_step, usual.closure, usual.optimizer, usual.shared, LR)
    yield Contender(USUAL, measuring, (3 + 3 * n) / 3)
    yield from _lookahead(benches, n)
    yield from _gradient(benches, n)


def _lookahead(benches: Benches, n: int) -> Iterator[Contender]:
    floor, held_out_floor = (1 + 3 * n) / 3, (2 + 3 * n) / 3
    yield Contender("lookahead", _metered(benches.make()), floor, time_target=True, rival=True, copies=3)
    step = _metered(benches.make(), held_out=True)
    yield Contender("lookahead, held out", step, held_out_floor, time_target=True, copies=3)
    # Three copies and RMSprop's state, which is one more.
    yield Contender("lookahead, RMSprop", _metered(benches.make(generic=True)), floor, copies=3 + 1)


def _gradient(benches: Benches, n: int) -> Iterator[Contender]:
    floor = (1 + 2 * n) / 3
    step = _metered(benches.make(), estimator="gradient")
    yield Contender("gradient", step, floor, time_target=True, rival=True, copies=n)
    bench = benches.make()
    room = n * bench.shared_bytes / BLOCKS
    step = _metered(bench, estimator="gradient", gradient_memory=room)
    # The gradients that fit into the room, and one copy that autograd hands out before they are packed.
    yield Contender("gradient, in blocks", step, floor, copies=n / BLOCKS + 1)
