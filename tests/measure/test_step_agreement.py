"""The fast and the generic step against the true optimizer, for every dense optimizer that torch ships."""

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from step_oracle import (
    assert_identical,
    case_id,
    cases,
    dense_optimizers,
    look_ahead,
    parameters_for,
    random_like,
    snapshot,
    step_delta,
    train,
    true_step,
)
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tagalong.measure.steps import optimizer_steps, sgd_steps

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def assert_float_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Compares up to the rounding of a few operations on numbers of order one."""
    for a, b in zip(found, expected, strict=True):
        tolerance = 64 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def make(kind: type[Optimizer], settings: dict[str, Any], parameters: list[nn.Parameter]) -> Optimizer:
    """Makes an optimiser whose learning rate is as precise as the parameters; fused kernels need a float."""
    like = parameters[0].float() if settings.get("fused") else parameters[0]
    given = {k: v.to(like) if isinstance(v, Tensor) else v for k, v in settings.items()}
    return kind(parameters, **given)  # type: ignore[arg-type]


def test_every_dense_optimizer_of_torch_is_tested() -> None:
    names = {kind.__name__ for kind in dense_optimizers()}
    assert names >= {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adadelta"}
    assert names >= {"Adagrad", "Adafactor"}
    assert {kind.__name__ for kind, _ in cases()} == names


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_steps_equal_the_true_optimizer(
    case: tuple[type[Optimizer], dict[str, Any]], dtype: torch.dtype, trained: int, device: str
) -> None:
    kind, settings = case
    if device == "cuda" and kind is torch.optim.Adagrad and settings.get("fused"):
        pytest.skip("torch has no such kernel")
    parameters = parameters_for(kind, dtype, device)
    optimizer = make(kind, settings, parameters)
    train(parameters, [optimizer], trained)
    before = snapshot(parameters, [optimizer])
    for gradients in (random_like(parameters), [torch.zeros_like(p) for p in parameters]):
        expected = true_step(parameters, [optimizer], gradients)
        fast, generic = optimizer_steps(parameters, [optimizer]), optimizer_steps(parameters, [optimizer], generic=True)
        assert_float_close(look_ahead(fast, parameters, gradients), expected)
        assert_identical(look_ahead(generic, parameters, gradients), expected)
        alone = [new - p.detach() for new, p in zip(expected, parameters, strict=True)]
        assert_float_close(step_delta(fast, parameters, gradients), alone)
        assert_identical(step_delta(generic, parameters, gradients), alone)
    assert_identical(snapshot(parameters, [optimizer]), before)


@pytest.mark.cuda
@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize(
    "kind", [k for k in dense_optimizers() if "capturable" in inspect.signature(k).parameters], ids=lambda k: k.__name__
)
def test_capturable_steps_equal_the_true_optimizer(kind: type[Optimizer], trained: int) -> None:
    parameters = parameters_for(kind, torch.float32, "cuda")
    optimizer = make(kind, {"capturable": True, "lr": torch.tensor(0.0625)}, parameters)
    train(parameters, [optimizer], trained)
    gradients = random_like(parameters)
    expected = true_step(parameters, [optimizer], gradients)
    assert_float_close(look_ahead(optimizer_steps(parameters, [optimizer]), parameters, gradients), expected)
    assert_identical(
        look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, gradients), expected
    )


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_half_precision_parameters_are_stepped_by_the_optimizer_itself(kind: type[Optimizer]) -> None:
    parameters = parameters_for(kind, torch.bfloat16)
    optimizer = make(kind, {"lr": 0.05, "weight_decay": 0.1}, parameters)
    train(parameters, [optimizer], 3)
    gradients = random_like(parameters)
    found = look_ahead(optimizer_steps(parameters, [optimizer]), parameters, gradients)
    assert_identical(found, true_step(parameters, [optimizer], gradients))


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
@pytest.mark.parametrize("kind", [k for k in dense_optimizers() if k.__name__ != "Muon"], ids=lambda k: k.__name__)
def test_groups_keep_their_own_settings(kind: type[Optimizer], generic: bool, trained: int) -> None:
    parameters = parameters_for(kind, torch.float64)
    heads = parameters_for(kind, torch.float64)
    groups = [
        {"params": [parameters[0], heads[0]], "lr": 0.01},
        {"params": heads[1:2], "lr": 0.5},
        {"params": [heads[2], *parameters[1:]], "lr": 0.3, "maximize": True},
    ]
    optimizer = kind(groups, lr=0.1)  # type: ignore[call-arg, arg-type]
    train([*parameters, *heads[:3]], [optimizer], trained)
    gradients = random_like(parameters)
    steps = optimizer_steps(parameters, [optimizer], generic=generic)
    assert_float_close(look_ahead(steps, parameters, gradients), true_step(parameters, [optimizer], gradients))


@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
def test_several_optimizers_each_move_their_own_parameters(generic: bool) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizers: list[Optimizer] = [
        SGD(parameters[:1], lr=0.1, momentum=0.9),
        AdamW(parameters[1:2], lr=0.2),
        torch.optim.RMSprop(parameters[2:3], lr=0.3),
    ]
    train(parameters, optimizers, 3)
    before = snapshot(parameters, optimizers)
    gradients = random_like(parameters)
    found = look_ahead(optimizer_steps(parameters, optimizers, generic=generic), parameters, gradients)
    assert_float_close(found, true_step(parameters, optimizers, gradients))
    assert torch.equal(found[3], parameters[3])  # in no optimiser, so it does not move
    assert_identical(snapshot(parameters, optimizers), before)


@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
@pytest.mark.parametrize("kind", [k for k in dense_optimizers() if k.__name__ != "Muon"], ids=lambda k: k.__name__)
def test_only_some_parameters_may_have_state(kind: type[Optimizer], generic: bool) -> None:
    """One parameter has had no gradient so far, while others have."""
    parameters = parameters_for(kind, torch.float64)
    optimizer = kind(parameters, lr=0.05)  # type: ignore[call-arg]
    train(parameters[:2], [optimizer], 3)
    keys = list(optimizer.state)
    gradients = random_like(parameters)
    steps = optimizer_steps(parameters, [optimizer], generic=generic)
    assert_float_close(look_ahead(steps, parameters, gradients), true_step(parameters, [optimizer], gradients))
    assert len(optimizer.state) == len(keys)


@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
def test_parameters_may_come_in_any_order(generic: bool) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = Adam(parameters, lr=0.05)
    train(parameters, [optimizer], 2)
    some = [parameters[3], parameters[0]]
    gradients = random_like(some)
    found = look_ahead(optimizer_steps(some, [optimizer], generic=generic), some, gradients)
    assert_float_close(found, true_step(some, [optimizer], gradients))


def test_plain_sgd_is_the_learning_rate_times_the_gradient() -> None:
    parameters = parameters_for(SGD, torch.float64)
    gradients = random_like(parameters)
    found = step_delta(sgd_steps(parameters, [], 0.1), parameters, gradients)
    assert_float_close(found, [-0.1 * g for g in gradients])
    optimizer = Adam([{"params": parameters[:2], "lr": 0.2}, {"params": parameters[2:], "lr": torch.tensor(0.3)}])
    train(parameters, [optimizer], 2)
    found = step_delta(sgd_steps(parameters, [optimizer], None), parameters, gradients)
    assert_float_close(found[:2], [-0.2 * g for g in gradients[:2]])
    assert_float_close(found[2:], [-float(torch.tensor(0.3)) * g for g in gradients[2:]])


def test_learning_rate_is_reported_if_there_is_one() -> None:
    parameters = parameters_for(SGD, torch.float64)
    assert optimizer_steps(parameters, [SGD(parameters, lr=0.1)]).lr == 0.1
    several = SGD([{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": 0.2}])
    with pytest.raises(ValueError, match=r"`per_lr`.*more than one: \[0\.1, 0\.2\]; pass `per_lr=False`"):
        _ = optimizer_steps(parameters, [several]).lr
