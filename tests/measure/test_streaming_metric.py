"""Streaming affinities measure gradients in the metric of the optimizer, through projections that keep products."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Optimizer, RMSprop, Rprop

from tagalong import Affinity, AffinityMeter
from tagalong.measure.distributed import Replicas
from tagalong.measure.sketch import GradientSketch

LR = 0.03
SLOW = (0.9, 0.9999)  # the gradient's own contribution to the second moments, which is left out, is then small
EXACT = 101  # numbers in a projection, more than parameters, so that it only changes signs


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
    "SGD with dampening": lambda p: SGD(p, LR, momentum=0.9, dampening=0.4),
    "SGD with Nesterov momentum": lambda p: SGD(p, LR, momentum=0.9, nesterov=True),
    "Adam": lambda p: Adam(p, LR, SLOW, weight_decay=0.1),
    "Adam with AMSGrad": lambda p: Adam(p, LR, SLOW, amsgrad=True),
    "AdamW": lambda p: AdamW(p, LR, SLOW, eps=100.0),
    "another Adam": lambda p: OtherAdam(p, LR, SLOW),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def random_gradients(parameters: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Returns gradients without small numbers."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (0.5 + torch.rand(p.shape, generator=draw, dtype=p.dtype))
        * (2 * torch.randint(0, 2, p.shape, generator=draw) - 1)
        for p in parameters
    ]


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient.clone()


@torch.no_grad()
def products(
    parameters: Sequence[Tensor],
    optimizers: Sequence[Optimizer],
    gradients: Sequence[Sequence[Tensor]],
    *,
    dimension: int = EXACT,
    seed: int = 0,
    precondition: bool = True,
) -> np.ndarray:
    """Returns the inner products of the projections of gradients."""
    sketch = GradientSketch(parameters, optimizers, dimension, seed, precondition=precondition)
    projections = []
    for gradient in gradients:
        set_gradients(parameters, gradient)
        projections.append(sketch(Replicas(None)))
    rows = torch.stack(projections).double().numpy()
    return rows @ rows.T


def step_of(model: nn.Module, optimizer: Optimizer, gradients: Sequence[Tensor], scale: float) -> list[Tensor]:
    """Returns the step that a copy of the optimizer takes on a multiple of the gradients."""
    model, optimizer = copy.deepcopy((model, optimizer))
    before = [p.detach().clone() for p in model.parameters()]
    set_gradients(list(model.parameters()), [scale * g for g in gradients])
    optimizer.step()
    return [p.detach() - old for p, old in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_products_are_the_effects_of_the_optimizers_step(kind: str) -> None:
    """⟨g_j, P g_i⟩ is what the step on g_i, beyond that on zero, changes in task j to first order.

    Momentum may scale all of it, which does not change cosines.
    """
    model = network()
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS[kind](parameters)
    for seed in range(60):
        set_gradients(parameters, random_gradients(parameters, seed))
        optimizer.step()
    ratios = []
    for part in range(len(parameters)):  # one tensor at a time, with the same signs so that nothing cancels
        first = [g * (k == part) for k, g in enumerate(random_gradients(parameters, 900))]
        other = [g.sign() * h.abs() for g, h in zip(first, random_gradients(parameters, 901), strict=True)]
        small = 1e-4
        steps = [step_of(model, optimizer, first, scale) for scale in (0.0, small)]
        effect = sum(float((h * (rest - moved)).sum()) for h, rest, moved in zip(other, *steps, strict=True)) / small
        found = products(parameters, [optimizer], [first, other])
        ratios.append(found[0, 1] / effect)
        assert found[0, 1] == pytest.approx(found[1, 0])
    scale = ratios[0] if "dampening" in kind or "Nesterov" in kind else 1.0
    assert ratios == pytest.approx([scale] * len(parameters), rel=2e-2)


def test_without_an_optimizers_metric_products_are_plain() -> None:
    parameters = list(network().parameters())
    gradients = [random_gradients(parameters, seed) for seed in (1, 2)]
    rows = torch.stack([torch.cat([g.reshape(-1) for g in gradient]) for gradient in gradients])
    gram, adam = (rows @ rows.T).numpy(), Adam(parameters, LR)
    plain = products(parameters, [adam], gradients, precondition=False)
    np.testing.assert_allclose(plain, LR * gram, rtol=1e-5)
    np.testing.assert_allclose(products(parameters, [SGD(parameters, LR)], gradients), LR * gram, rtol=1e-5)
    # Projections of other seeds change other signs, and a parameter without a gradient counts as zero.
    np.testing.assert_allclose(products(parameters, [], gradients, seed=5), gram, rtol=1e-5)
    transposed = [[g.t().contiguous().t() if g.dim() > 1 else g for g in gradient] for gradient in gradients]
    np.testing.assert_allclose(products(parameters, [], transposed), gram, rtol=1e-5)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_are_not_projected_before_the_optimizer_has_a_state(kind: str) -> None:
    parameters = list(network().parameters())
    optimizer = OPTIMIZERS[kind](parameters)
    meter = AffinityMeter(parameters, optimizer, estimator="streaming")
    for seed in range(8):
        set_gradients(parameters, random_gradients(parameters, seed))
        meter.observe("ab"[seed % 2])
        optimizer.step()
    waits = 0 if kind.startswith("SGD") else 1
    skipped = meter.affinity().skipped.get("no optimizer state yet", np.zeros((2, 2)))
    assert skipped.diagonal().sum() == waits


UNKNOWN: list[Callable[[Any], Optimizer]] = [
    Adafactor, Adadelta, Adagrad, RMSprop, Rprop, lambda p: Lion(p, lr=LR)
]  # fmt: skip


@pytest.mark.parametrize("make", UNKNOWN)
def test_unknown_optimizers_are_refused_with_a_remedy(make: Callable[[Any], Optimizer]) -> None:
    model = network()
    parameters = list(model.parameters())
    set_gradients(parameters, random_gradients(parameters, 0))
    with pytest.raises(ValueError, match=r"`optimizer`.*`update='sgd'`"):
        AffinityMeter(model, make(model.parameters()), estimator="streaming").observe("a")
    AffinityMeter(model, make(model.parameters()), estimator="streaming", update="sgd").observe("a")
    others = [SGD(model[0].parameters(), LR), make(model[2].parameters())]
    AffinityMeter(model[0], others, estimator="streaming").observe("a")


def test_an_optimizer_that_only_looks_like_adam_is_refused_when_its_state_is_seen() -> None:
    parameters = list(network().parameters())
    optimizer = QuantizedAdam(parameters, LR, SLOW)
    meter = AffinityMeter(parameters, optimizer, estimator="streaming")
    set_gradients(parameters, random_gradients(parameters, 0))
    meter.observe("a")
    optimizer.step()
    with pytest.raises(ValueError, match="`optimizer`"):
        meter.observe("b")


@pytest.mark.parametrize("shape", [(300, 200), (997, 61)])
def test_cosines_of_low_rank_gradients_are_unbiased_and_accurate(shape: tuple[int, int]) -> None:
    """The rows of a gradient matrix are often multiples of one another; a projection must not confuse them."""
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, shape[0], generator=draw), torch.randn(2, shape[1], generator=draw).exp()
    left[1] = left[0] + left[1]  # a cosine of about 0.7 × that of the right vectors
    gradients = [[torch.outer(a, b)] for a, b in zip(left, right, strict=True)]
    exact = torch.cosine_similarity(*(g.reshape(1, -1) for (g,) in gradients)).item()
    norms = float(torch.stack([g.norm() for (g,) in gradients]).prod())
    found = [products([nn.Parameter(torch.zeros(shape))], [], gradients, seed=seed)[0, 1] / norms for seed in range(60)]
    assert np.std(found) < 2.0 / EXACT**0.5
    assert abs(np.mean(found) - exact) < 3 * np.std(found) / 60**0.5


@pytest.mark.parametrize("limit", [13, 27, 40])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_projecting_in_tiles_changes_nothing_and_only_reads(
    limit: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[np.ndarray, list[Tensor]]:
        parameters = list(network().parameters())
        optimizer = kind(parameters, lr=LR)
        set_gradients(parameters, random_gradients(parameters, 0))
        optimizer.step()
        gradients = [random_gradients(parameters, seed) for seed in (1, 2)]
        state = [v for p in parameters for v in optimizer.state[p].values() if isinstance(v, Tensor)]
        before = [t.clone() for t in (*parameters, *state)]
        found = products(parameters, [optimizer], gradients, dimension=13)
        assert all(map(torch.equal, before, (*parameters, *state)))
        return found, parameters

    whole, _ = run()
    monkeypatch.setattr("tagalong.measure.sketch.CPU_TILE", limit)
    tiled, parameters = run()
    np.testing.assert_allclose(tiled, whole, rtol=1e-5)
    assert sum(p.numel() for p in parameters) > limit


def test_half_precision_and_autocast_do_not_round_projections() -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(50, 40, generator=draw).bfloat16()] for _ in "ab"]
    exact = products([nn.Parameter(torch.zeros(50, 40))], [], [[g.float()] for (g,) in gradients])
    parameter = nn.Parameter(torch.zeros(50, 40, dtype=torch.bfloat16))
    np.testing.assert_allclose(products([parameter], [], gradients), exact, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_allclose(products([parameter], [], gradients), exact, rtol=1e-5)


def test_parameters_that_are_unfrozen_later_are_left_out() -> None:
    def observe(gradually: bool) -> Affinity:
        parameters = list(network().parameters())
        parameters[0].requires_grad_(False)
        meter = AffinityMeter(parameters, estimator="streaming", sketch_dimension=EXACT)
        for number, task in enumerate(4 * "abc"):
            parameters[0].requires_grad_(gradually and number > 4)
            set_gradients(parameters, random_gradients(parameters, ord(task)))
            meter.observe(task)
        return meter.affinity()

    np.testing.assert_array_equal(observe(gradually=True).mean, observe(gradually=False).mean)
