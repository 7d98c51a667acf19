"""The matrix that turns a gradient into an optimizer's step equals the derivative of the optimizer's own step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from tagalong import AffinityMeter
from tagalong.measure.sketch import GradientSketch

LR, STEPS = 0.03, 60
SLOW = (0.9, 0.9999)  # the gradient's own contribution to the second moments, which is left out, is then small


class OtherAdam(Optimizer):
    """An implementation of Adam without bias correction, whose state has the usual names."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                for name, value, beta in zip(
                    ("exp_avg", "exp_avg_sq"), (p.grad, p.grad**2), group["betas"], strict=True
                ):
                    state[name] = beta * state.get(name, torch.zeros_like(p)) + (1 - beta) * value
                p -= group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])


class QuantizedAdam(OtherAdam):
    """Has the settings of Adam, but keeps its state in another form."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["state2"] = torch.zeros(3)


class Lion(Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: SGD(p, LR, weight_decay=0.1),
    "SGD with momentum": lambda p: SGD(p, LR, momentum=0.9),
    "SGD with dampening": lambda p: SGD(p, LR, momentum=0.9, dampening=0.4),
    "SGD with Nesterov momentum": lambda p: SGD(p, LR, momentum=0.9, nesterov=True),
    "Adam": lambda p: Adam(p, LR, SLOW, weight_decay=0.1),
    "Adam with AMSGrad": lambda p: Adam(p, LR, SLOW, amsgrad=True),
    "AdamW": lambda p: AdamW(p, LR, SLOW),
    "NAdam": lambda p: NAdam(p, LR, SLOW, momentum_decay=0.05),
    "RAdam": lambda p: RAdam(p, LR, SLOW),
    "Adamax": lambda p: Adamax(p, LR, SLOW),
    "RMSprop": lambda p: RMSprop(p, LR, alpha=0.9999),
    "centered RMSprop with momentum": lambda p: RMSprop(p, LR, alpha=0.99, centered=True, momentum=0.9),
    "Adagrad": lambda p: Adagrad(p, LR, lr_decay=0.05),
    "Adadelta": lambda p: Adadelta(p, LR, rho=0.9999),
    "another Adam": lambda p: OtherAdam(p, LR, SLOW),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def set_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = scale * (0.5 + torch.rand(p.shape, generator=draw, dtype=p.dtype))
        p.grad *= torch.randint(0, 2, p.shape, generator=draw) * 2 - 1
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def step_of(model: nn.Module, optimizer: Optimizer, scale: float) -> Tensor:
    """Returns the step that a copy of the optimizer takes on a gradient."""
    model, optimizer = copy.deepcopy((model, optimizer))
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    set_gradients(model, 999, scale)
    optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - before


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_matrix_is_the_derivative_of_the_optimizers_step(kind: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for seed in range(STEPS):
        set_gradients(model, seed)
        optimizer.step()
    small = 1e-4
    exact = (step_of(model, optimizer, 0.0) - step_of(model, optimizer, small)) / set_gradients(model, 999, small)
    # Longer than the gradient, so that the projection only changes signs: it is ±√P g.
    found = GradientSketch(list(model.parameters()), [optimizer], dimension=101, seed=0)()
    assert found is not None
    matrix = (found[: len(exact)] / set_gradients(model, 999, small)) ** 2
    torch.testing.assert_close(matrix, exact, rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_are_not_projected_before_the_optimizer_has_a_state(kind: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    sketch = GradientSketch(list(model.parameters()), [optimizer], dimension=101, seed=0)
    ready = []
    for seed in range(8):
        set_gradients(model, seed)
        ready.append(sketch() is not None)
        optimizer.step()
    waits = {"SGD": 0, "RAdam": 5}.get(kind.split()[0], 1)  # RAdam's first five steps are plain
    assert ready == [False] * waits + [True] * (8 - waits)


@pytest.mark.parametrize("make", [lambda p: Adafactor(p), lambda p: Rprop(p), lambda p: Lion(p, lr=LR)])
def test_unknown_optimizers_are_refused_with_a_remedy(make: Callable[[Any], Optimizer]) -> None:
    model = network()
    optimizer = make(model.parameters())
    message = f"`optimizer` is {type(optimizer).__name__}, whose steps streaming estimators cannot predict; they know"
    with pytest.raises(ValueError, match=rf"{message} Adadelta, .* RMSprop, SGD; pass `update='sgd'`"):
        AffinityMeter(model, optimizer, estimator="streaming")
    AffinityMeter(model, optimizer, estimator="streaming", update="sgd")
    AffinityMeter(model[0], [SGD(model[0].parameters(), LR), make(model[2].parameters())], estimator="streaming")


def test_an_optimizer_that_only_looks_like_adam_is_refused_when_its_state_is_seen() -> None:
    model = network()
    optimizer = QuantizedAdam(model.parameters(), LR, SLOW)
    meter = AffinityMeter(model, optimizer, estimator="streaming")
    set_gradients(model, 0)
    meter.observe("a")
    optimizer.step()
    with pytest.raises(ValueError, match="`optimizer` is QuantizedAdam, whose steps streaming estimators cannot"):
        meter.observe("b")


def test_maximizing_optimizers_are_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"`optimizer` \(AdamW\) has maximize=True, but streaming estimators measure"):
        AffinityMeter(model, AdamW(model.parameters(), maximize=True), estimator="streaming")
