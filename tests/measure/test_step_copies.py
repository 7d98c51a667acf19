"""The generic step runs the optimiser on copies: the original is unaffected, whatever its class."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from step_oracle import assert_identical, look_ahead, parameters_for, random_like, snapshot, train, true_step
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tagalong.measure.step_rules import ParameterSlice
from tagalong.measure.steps import Steps, optimizer_steps


class ClippedDescent(Optimizer):
    """A typical third-party optimiser: a required argument, a global norm, gradients changed in place, a counter."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, *, largest: float) -> None:
        super().__init__(params, {"lr": lr})
        self.largest = largest
        self.log: dict[str, Any] = {"steps": 0, "norms": []}
        self.count = torch.zeros(())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.log["steps"] += 1
        self.count += 1
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        self.log["norms"].append(norm)
        for gradient in gradients:
            gradient.mul_(self.largest / norm.clamp(min=self.largest))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["seen"] = self.state[p].get("seen", 0) + 1
                    p.data.add_(p.grad, alpha=-group["lr"])


class Wrapper(Optimizer):
    """Shares groups and state with the optimizer inside."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups, self.state = inner.param_groups, inner.state

    def add_param_group(self, group: dict[str, Any]) -> None:
        assert self.inner is not None  # set before the base class's __init__
        super().add_param_group(group)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class GlobalCount(Optimizer):
    """Keeps a counter in the same dict as the parameters' state."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {})
        self.state["count"] = 1  # type: ignore[index]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["count"] += 1  # type: ignore[index]
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data = p.data - p.grad / self.state["count"]  # type: ignore[index]


class InterruptedOptimizer(SGD):
    """Is interrupted half-way through a step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        raise KeyboardInterrupt


OTHERS = {
    "clipped": lambda p: ClippedDescent(p, 0.1, largest=0.5),
    "wrapper": lambda p: Wrapper(SGD(p, lr=0.1, momentum=0.9)),
    "other wrapper": lambda p: Wrapper(Adam(p, lr=0.1)),
    "own count": GlobalCount,
}


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_third_party_optimizers_are_run_as_they_are(make: Any, trained: int) -> None:
    parameters, heads = parameters_for(SGD, torch.float64), parameters_for(SGD, torch.float64)
    optimizer = make([*parameters, *heads])
    train([*parameters, *heads], [optimizer], trained)
    before = snapshot([*parameters, *heads], [])
    own = {k: v for k, v in optimizer.state.items() if not isinstance(k, Tensor)}
    gradients = random_like(parameters)
    found = look_ahead(optimizer_steps(parameters, [optimizer]), parameters, gradients)
    assert_identical(snapshot([*parameters, *heads], []), before)
    assert own == {k: v for k, v in optimizer.state.items() if not isinstance(k, Tensor)}
    optimizer.zero_grad()
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient.clone()
    optimizer.step()
    assert_identical(found, [p.detach() for p in parameters])


def test_attributes_of_the_optimizer_are_untouched() -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = ClippedDescent(parameters, 0.1, largest=0.5)
    train(parameters, [optimizer], 2)
    before = snapshot(parameters, [optimizer])
    look_ahead(optimizer_steps(parameters, [optimizer]), parameters, random_like(parameters))
    assert optimizer.log["steps"] == len(optimizer.log["norms"]) == optimizer.count == 2
    assert_identical(snapshot(parameters, [optimizer]), before)


def test_optimizer_without_a_learning_rate_reports_none() -> None:
    parameters = parameters_for(SGD, torch.float64)
    steps = optimizer_steps(parameters, [GlobalCount(parameters)])
    with pytest.raises(ValueError, match="`per_lr` divides by the learning rate, but the shared parameters have none"):
        _ = steps.lr


@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_scheduled_optimizer_steps_with_the_current_rate(kind: type[Optimizer], generic: bool) -> None:
    parameters = parameters_for(kind, torch.float64)
    optimizer = kind(parameters, lr=0.1)  # type: ignore[call-arg]
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    train(parameters, [optimizer], 1)
    scheduler.step()
    assert "step" in vars(optimizer)  # the scheduler has replaced it
    gradients = random_like(parameters)
    steps = optimizer_steps(parameters, [optimizer], generic=generic)
    found, expected = look_ahead(steps, parameters, gradients), true_step(parameters, [optimizer], gradients)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert steps.lr == 0.05


def test_steps_do_not_count_as_steps_for_a_scheduler() -> None:
    """A scheduler warns when it moves before the optimizer has; a looked-ahead step must not silence it."""
    parameters = parameters_for(SGD, torch.float64)
    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
    look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, random_like(parameters))
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1), OTHERS["wrapper"], OTHERS["clipped"]])
def test_step_hooks_do_not_fire(make: Any) -> None:
    parameters = parameters_for(SGD, torch.float64)
    optimizer = make(parameters)
    fired: list[Optimizer] = []

    def note(who: Optimizer, *_: Any) -> None:
        fired.append(who)

    handles = [
        register_optimizer_step_pre_hook(note), register_optimizer_step_post_hook(note),
        optimizer.register_step_pre_hook(note), optimizer.register_step_post_hook(note),
    ]  # fmt: skip
    try:
        look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, random_like(parameters))
        assert fired == []
        train(parameters, [optimizer], 1)
        assert fired.count(optimizer) >= 4  # and fire again for the true step
    finally:
        for handle in handles:
            handle.remove()


def test_interrupted_step_can_be_undone() -> None:
    """The copy from which the meter restores must not be what the optimizer was moving."""
    parameters = parameters_for(SGD, torch.float64)
    optimizer = InterruptedOptimizer(parameters, lr=0.1)
    saved = [p.detach().clone() for p in parameters]
    origin = [s.clone() for s in saved]
    steps: Steps = optimizer_steps(parameters, [optimizer])
    pieces = [ParameterSlice(i) for i in range(len(parameters))]
    with pytest.raises(KeyboardInterrupt):
        steps.add([p.data for p in parameters], pieces, random_like(parameters), origin)
    assert_identical(origin, saved)


def test_attributes_set_by_a_gradient_scaler_are_ignored() -> None:
    parameters = parameters_for(SGD, torch.float32)
    optimizer = Adam(parameters, lr=0.1, fused=True)
    train(parameters, [optimizer], 1)
    gradients = random_like(parameters)
    expected = true_step(parameters, [optimizer], gradients)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(1.0)  # type: ignore[attr-defined]
    found = look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, gradients)
    assert_identical(found, expected)


def test_named_parameters_are_accepted() -> None:
    encoder = nn.Linear(3, 2)
    optimizer = SGD(encoder.named_parameters(), lr=0.1, momentum=0.9)  # type: ignore[arg-type]
    parameters = list(encoder.parameters())
    train(parameters, [optimizer], 2)
    gradients = random_like(parameters)
    expected = true_step(parameters, [optimizer], gradients)
    assert_identical(
        look_ahead(optimizer_steps(parameters, [optimizer], generic=True), parameters, gradients), expected
    )
