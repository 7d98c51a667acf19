"""Trains a system with and without a meter, and compares affinities with those of deep copies.

A system is any object that `copy.deepcopy` can copy: a model and its optimizer, or a library's trainer.
"""

import copy
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Losses = dict[str, Tensor]


@dataclass
class Case:
    """One way of using a library.

    Attributes:
        name: What the table calls it.
        make: Creates the system, always in the same state.
        model: Returns the system's model.
        optimizer: Returns the system's optimizer.
        shared: Returns the shared parameters of the system's model.
        losses: Computes the losses of a batch by task with the system's model.
        train: Trains the system on all batches. Its second argument is called before each training step with the batch,
            its third is the meter, or None.
        meter: Creates the meter of a system.
        state: Returns other numbers that training leaves behind, such as records of losses.
    """

    name: str
    make: Callable[[], Any]
    model: Callable[[Any], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    shared: Callable[[Any], Sequence[Tensor]]
    losses: Callable[[Any, Any], Losses]
    train: Callable[[Any, Callable[[Any], None], Any], None]
    meter: Callable[[Any], Any]
    state: Callable[[Any], object] = lambda system: None


@contextmanager
def _kept_randomness() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


def _seed() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - what the libraries draw from
    random.seed(1)


def reference(case: Case, system: Any, batch: Any) -> np.ndarray:
    """Returns the affinities of one step, from a deep copy of the whole system for every forward pass."""
    with _kept_randomness():
        before = case.losses(copy.deepcopy(system), batch)
    rows = []
    for task in before:
        with _kept_randomness():
            moved = copy.deepcopy(system)
            shared = case.shared(moved)
            for parameter in case.model(moved).parameters():
                parameter.grad = None
            gradients = torch.autograd.grad(case.losses(moved, batch)[task], shared, allow_unused=True)
            for parameter, gradient in zip(shared, gradients, strict=True):
                parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
            case.optimizer(moved).step()
        with _kept_randomness(), torch.no_grad():
            after = copy.deepcopy(system)
            for target, source in zip(case.shared(after), shared, strict=True):
                target.copy_(source)
            with torch.enable_grad():
                found = case.losses(after, batch)
        rows.append([1 - float(found[t].detach()) / float(before[t].detach()) for t in before])
    return np.array(rows)


def train_in_loop(system: Any, batches: Iterable[Any], before_step: Callable[[Any], None], meter: Any) -> None:
    """Trains a system that has `losses` and an `optimizer`, with or without a meter."""
    for batch in batches:
        before_step(batch)
        closure = partial(system.losses, batch)
        losses = closure() if meter is None else meter(closure)
        torch.stack(list(losses.values())).sum().backward()
        system.optimizer.step()
        system.optimizer.zero_grad()


def run(case: Case) -> str:
    """Returns a row of the table: whether training left no trace, and the largest error of an affinity."""
    _seed()
    plain = case.make()
    case.train(plain, lambda batch: None, None)
    expected = _trace(case, plain)

    _seed()
    system = case.make()
    meter = case.meter(system)
    references: list[np.ndarray] = []

    def before_step(batch: Any) -> None:
        if len(references) < 3:
            references.append(reference(case, system, batch))

    case.train(system, before_step, meter)
    found, affinity = _trace(case, system), meter.affinity()
    same = found.keys() == expected.keys() and all(_equal(found[key], expected[key]) for key in found)
    measured, exact = affinity.history[: len(references)], np.array(references)
    error = float(np.abs(measured - exact).max() / np.abs(exact).max())
    return f"| {case.name} | {meter.measured} | {'bit for bit' if same else 'DIFFERS'} | {error:.1e} |"


def _trace(case: Case, system: Any) -> dict[str, Any]:
    model, optimizer = case.model(system), case.optimizer(system)
    found: dict[str, Any] = {f"model {name}": value for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer {number} {name}": value for name, value in state.items()}
    found |= {"torch": torch.get_rng_state(), "numpy": repr(np.random.get_state()), "python": random.getstate()}  # noqa: NPY002
    return found | {"state": repr(case.state(system))}


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def main(cases: Sequence[Case]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| case | measured steps | training | largest error of an affinity |\n|---|---|---|---|")
    for case in cases:
        print(run(case), flush=True)
