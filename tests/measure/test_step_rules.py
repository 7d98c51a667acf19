"""Steps on pieces of tensors, and the properties that a step declares."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from step_oracle import look_ahead, parameters_for, random_like, step_delta, train, true_step
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from tagalong.measure import step_rules
from tagalong.measure.step_rules import ParameterSlice, split_tensor
from tagalong.measure.steps import optimizer_steps, sgd_steps

Maker = Callable[[list[nn.Parameter]], Optimizer]
FAST: dict[str, Maker] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: Adam(p, lr=0.1, weight_decay=0.1),
    "amsgrad": lambda p: Adam(p, lr=0.1, amsgrad=True, maximize=True),
    "adamw": lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
}


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], scale: float = 1e-12) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=scale, atol=scale)


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("limit", [1, 5, 100])
@pytest.mark.parametrize("make", FAST.values(), ids=FAST)
def test_step_on_pieces_is_the_step_on_the_whole(make: Maker, limit: int, trained: int) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = make(parameters)
    train(parameters, [optimizer], trained)
    gradients, steps = random_like(parameters), optimizer_steps(parameters, [optimizer])
    assert steps.elementwise
    out, values = [torch.zeros_like(p) for p in parameters], [p.data for p in parameters]
    pieces = [piece for i, p in enumerate(parameters) for piece in split_tensor(i, p, limit)]
    for part in (pieces[::2], pieces[1::2]):
        here = [[piece.select(tensors[piece.index]) for piece in part] for tensors in (out, gradients, values)]
        steps.add(here[0], part, here[1], here[2])
    assert_close(out, step_delta(steps, parameters, gradients))


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("chunk", [1, 5, 13])
@pytest.mark.parametrize("make", FAST.values(), ids=FAST)
def test_chunks_smaller_than_tensors_change_nothing(
    make: Maker, chunk: int, trained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = make(parameters)
    train(parameters, [optimizer], trained)
    gradients = random_like(parameters)
    expected = true_step(parameters, [optimizer], gradients)
    monkeypatch.setattr(step_rules, "CHUNK_SIZE", chunk)
    assert_close(look_ahead(optimizer_steps(parameters, [optimizer]), parameters, gradients), expected)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12, 1000])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4), (1, 12), (7, 1, 2)])
def test_split_covers_every_number_once(shape: tuple[int, ...], limit: int) -> None:
    tensor = torch.zeros(shape)
    for piece in split_tensor(0, tensor, limit):
        part = piece.select(tensor)
        part += 1
        assert part.numel() <= max(limit, tensor[:1].numel() if tensor.dim() else 1)
    assert torch.equal(tensor, torch.ones(shape))


def test_steps_declare_whether_a_zero_gradient_moves_anything() -> None:
    parameters = parameters_for(SGD, torch.float64)
    idle: dict[bool, list[Optimizer]] = {
        True: [SGD(parameters, lr=0.1), SGD(parameters, lr=0.1, maximize=True)],
        False: [
            SGD(parameters, lr=0.1, momentum=0.9),
            SGD(parameters, lr=0.1, weight_decay=0.1),
            Adam(parameters, lr=0.1),
            RMSprop(parameters, lr=0.1),
        ],
    }
    for expected, optimizers in idle.items():
        for optimizer in optimizers:
            assert optimizer_steps(parameters, [optimizer]).idle is expected
    assert sgd_steps(parameters, [], 0.1).idle
    assert sgd_steps(parameters, [Adam(parameters, lr=0.1)], None).idle
    mixed = [SGD(parameters[:1], lr=0.1), SGD(parameters[1:], lr=0.1, momentum=0.9)]
    assert not optimizer_steps(parameters, mixed).idle


@pytest.mark.parametrize("make", [FAST["sgd"], lambda p: SGD(p, lr=0.1, maximize=True)], ids=["sgd", "maximize"])
def test_idle_steps_do_not_move_on_a_zero_gradient(make: Maker) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = make(parameters)
    train(parameters, [optimizer], 2)
    zeros = [torch.zeros_like(p) for p in parameters]
    steps = optimizer_steps(parameters, [optimizer])
    assert steps.idle
    assert all(torch.equal(a, p) for a, p in zip(look_ahead(steps, parameters, zeros), parameters, strict=True))


def test_steps_declare_how_they_can_be_split() -> None:
    parameters = parameters_for(SGD, torch.float64)

    class Clipped(SGD):
        """Not one of torch's optimisers, so it might use several tensors at once."""

    fast, own, other = (
        optimizer_steps(parameters, [o]) for o in (SGD(parameters), RMSprop(parameters), Clipped(parameters))
    )
    assert (fast.elementwise, fast.separable) == (True, True)
    assert (own.elementwise, own.separable) == (False, True)
    assert (other.elementwise, other.separable) == (False, False)


def test_generic_step_of_some_tensors_is_that_of_all() -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = torch.optim.NAdam(parameters, lr=0.1, weight_decay=0.1)
    train(parameters, [optimizer], 3)
    gradients, steps = random_like(parameters), optimizer_steps(parameters, [optimizer])
    out = [torch.zeros_like(p) for p in parameters]
    for part in ([2, 0], [3], [1]):
        origin = [parameters[i].detach().clone() for i in part]
        steps.add([out[i] for i in part], [ParameterSlice(i) for i in part], [gradients[i] for i in part], origin)
    assert_close(out, step_delta(steps, parameters, gradients))


shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=4)
numbers = st.floats(1e-4, 0.5)
shares = st.floats(0.0, 0.99)


def assert_agree(shapes: list[tuple[int, ...]], trained: int, seed: int, make: Maker) -> None:
    torch.manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
    optimizer = make(parameters)
    train(parameters, [optimizer], trained)
    gradients = random_like(parameters)
    fast = look_ahead(optimizer_steps(parameters, [optimizer]), parameters, gradients)
    generic = look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, gradients)
    assert_close(fast, generic, 1e-10)


@settings(deadline=None, max_examples=60)
@given(
    shapes=shapes, trained=st.integers(0, 3), seed=st.integers(0, 99), lr=numbers, momentum=shares,
    dampening=shares, decay=shares, nesterov=st.booleans(), maximize=st.booleans(),
)  # fmt: skip
def test_sgd_fast_and_generic_agree(
    shapes: list[tuple[int, ...]], trained: int, seed: int, lr: float, momentum: float, dampening: float,
    decay: float, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    nesterov = nesterov and momentum > 0
    options: dict[str, Any] = {"momentum": momentum, "weight_decay": decay, "nesterov": nesterov, "maximize": maximize}
    options["dampening"] = 0.0 if nesterov else dampening
    assert_agree(shapes, trained, seed, lambda p: SGD(p, lr=lr, **options))


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from([Adam, AdamW]), shapes=shapes, trained=st.integers(0, 3), seed=st.integers(0, 99), lr=numbers,
    betas=st.tuples(shares, shares), eps=st.floats(1e-8, 1e-2), decay=shares, amsgrad=st.booleans(),
    maximize=st.booleans(),
)  # fmt: skip
def test_adam_fast_and_generic_agree(
    kind: type[Adam], shapes: list[tuple[int, ...]], trained: int, seed: int, lr: float, betas: tuple[float, float],
    eps: float, decay: float, amsgrad: bool, maximize: bool,
) -> None:  # fmt: skip
    options: dict[str, Any] = {"weight_decay": decay, "amsgrad": amsgrad, "maximize": maximize}
    assert_agree(shapes, trained, seed, lambda p: kind(p, lr=lr, betas=betas, eps=eps, **options))
