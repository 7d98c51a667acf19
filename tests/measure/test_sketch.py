"""The projection of a gradient equals the product with an explicit matrix, and keeps inner products."""

import numpy as np
import pytest
import torch
from torch import nn

from tagalong.measure import sketch as sketch_module
from tagalong.measure.sketch import DAMPING, GradientSketch

DIMENSION = 13


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def set_gradients(model: nn.Module, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw, dtype=p.dtype)
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def explicit_matrix(sketch: GradientSketch, size: int, dimension: int = DIMENSION) -> torch.Tensor:
    """Builds the projection element by element, from the same signs."""
    sketch._plan()
    (part,) = sketch._parts
    matrix = torch.zeros(dimension, size, dtype=torch.float64)
    for i in range(size):
        matrix[i % dimension, i] = part.signs[i % len(part.signs)] * part.row_signs[i // dimension]
    return matrix


def test_the_projection_equals_a_matrix_product() -> None:
    model = network()
    sketch = GradientSketch(list(model.parameters()), [], DIMENSION, seed=3)
    gradient = set_gradients(model, 1)
    torch.testing.assert_close(sketch(), explicit_matrix(sketch, len(gradient)) @ gradient)


def test_adams_metric_equals_its_formula() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03, betas=(0.8, 0.95), eps=1e-3)
    sketch = GradientSketch(list(model.parameters()), [optimizer], DIMENSION, seed=0)
    set_gradients(model, 0)
    assert sketch() is None  # there are no moments yet
    for seed in range(4):
        set_gradients(model, seed)
        optimizer.step()
    gradient = set_gradients(model, 9)
    moments = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in model.parameters()]) / (1 - 0.95**4)
    denominator = (moments + DAMPING * moments.mean() + 1e-6).sqrt()
    metric = 0.03 * (1 - 0.8) / (1 - 0.8**5) / denominator
    found = sketch()
    torch.testing.assert_close(found, explicit_matrix(sketch, len(gradient)) @ (metric.sqrt() * gradient))
    plain = GradientSketch(list(model.parameters()), [optimizer], DIMENSION, seed=0, precondition=False, per_lr=True)
    torch.testing.assert_close(plain(), explicit_matrix(plain, len(gradient)) @ gradient)


def test_an_inner_product_with_adams_metric_is_the_first_order_effect_of_its_step() -> None:
    """⟨g_j, P g_i⟩ equals the effect of Adam's step on g_i, beyond that of its step on zero, up to g_i's part in v."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99999))
    for seed in range(200):
        set_gradients(model, seed)
        optimizer.step()
    one, two = set_gradients(model, 900), set_gradients(model, 901)
    sketch = GradientSketch(list(model.parameters()), [optimizer], 1021, seed=0)
    sketch._plan()
    moments = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in model.parameters()])
    metric = 0.01 * 0.1 / (moments / (1 - 0.99999**200)).sqrt()
    set_gradients(model, 900)
    first = sketch()
    set_gradients(model, 901)
    torch.testing.assert_close(first @ sketch(), (one * metric) @ two, rtol=2e-2, atol=2e-4)


def test_projections_are_linear_and_the_same_for_the_same_seed() -> None:
    model = network()
    make = [GradientSketch(list(model.parameters()), [], DIMENSION, seed=seed) for seed in (0, 0, 1)]
    one = set_gradients(model, 1)
    first, again, other = (s() for s in make)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    two = set_gradients(model, 2)
    second = make[0]()
    with torch.no_grad():
        for p, g in zip(
            model.parameters(), torch.split(one + two, [p.numel() for p in model.parameters()]), strict=True
        ):
            p.grad = g.view_as(p)
    torch.testing.assert_close(make[0](), first + second)


@pytest.mark.parametrize("shape", [(300, 200), (997, 61)])
def test_inner_products_of_low_rank_gradients_are_unbiased_and_accurate(shape: tuple[int, int]) -> None:
    """The rows of a gradient matrix are often multiples of one another; a projection must not confuse them."""
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, shape[0], generator=draw), torch.randn(2, shape[1], generator=draw).exp()
    left[1] = left[0] + left[1]  # a cosine of about 0.7 × that of the right vectors
    gradients = [torch.outer(a, b) for a, b in zip(left, right, strict=True)]
    exact = float((gradients[0] * gradients[1]).sum() / (gradients[0].norm() * gradients[1].norm()))
    found = []
    for seed in range(60):
        parameter = nn.Parameter(torch.zeros(shape))
        sketch = GradientSketch([parameter], [], 101, seed=seed)
        projections = []
        for gradient in gradients:
            parameter.grad = gradient
            projections.append(sketch())
        found.append(float(projections[0] @ projections[1]) / float(gradients[0].norm() * gradients[1].norm()))
    assert np.std(found) < 2.0 / 101**0.5
    assert abs(np.mean(found) - exact) < 3 * np.std(found) / 60**0.5


@pytest.mark.parametrize("limit", [13, 27, 40])
@pytest.mark.parametrize("kind", ["none", "AdamW"])
def test_projecting_in_tiles_changes_nothing(limit: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizers = [] if kind == "none" else [torch.optim.AdamW(model.parameters())]
    for optimizer in optimizers:
        set_gradients(model, 0)
        optimizer.step()
    set_gradients(model, 1)
    model[0].bias.grad = None
    whole = GradientSketch(list(model.parameters()), optimizers, DIMENSION, seed=0)
    expected = whole()
    monkeypatch.setattr(sketch_module, "CPU_TILE", limit)
    tiled = GradientSketch(list(model.parameters()), optimizers, DIMENSION, seed=0)
    torch.testing.assert_close(tiled(), expected)
    assert len(whole._parts[0].tiles) == 1
    assert len(tiled._parts[0].tiles) == -(-66 // (limit // DIMENSION * DIMENSION))


def test_transposed_gradients_are_projected_in_the_order_of_the_parameter() -> None:
    parameter = nn.Parameter(torch.zeros(6, 5))
    sketch = GradientSketch([parameter], [], DIMENSION, seed=0)
    parameter.grad = torch.randn(6, 5)
    expected = sketch()
    parameter.grad = parameter.grad.t().contiguous().t()
    torch.testing.assert_close(sketch(), expected)


def test_frozen_parameters_are_left_out_and_missing_gradients_are_zero() -> None:
    model = network()
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    sketch = GradientSketch(parameters, [], DIMENSION, seed=0)
    set_gradients(model, 0)
    layout = (sketch(), sketch.layout)[1]
    parameters[1].grad = None
    missing = sketch()
    parameters[1].grad = torch.zeros_like(parameters[1])
    assert torch.equal(missing, sketch())
    parameters[0].requires_grad_(True)
    sketch()
    assert sketch.layout != layout


def test_half_precision_gradients_are_projected_in_float32() -> None:
    parameter = nn.Parameter(torch.zeros(50, 40, dtype=torch.bfloat16))
    parameter.grad = torch.randn(50, 40).to(torch.bfloat16)
    found = GradientSketch([parameter], [], DIMENSION, seed=0)()
    exact = nn.Parameter(torch.zeros(50, 40))
    exact.grad = parameter.grad.float()
    assert found is not None
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, GradientSketch([exact], [], DIMENSION, seed=0)())


@pytest.mark.parametrize("shape", [(70, 13), (13,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_larger_than_a_tile_are_only_read(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_module, "CPU_TILE", 10 * DIMENSION)
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.randn(shape, dtype=dtype)
    optimizer.step()
    state = optimizer.state[parameter]
    before = [t.clone() for t in (parameter.grad, state["exp_avg_sq"], parameter)]
    sketch = GradientSketch([parameter], [optimizer], DIMENSION, seed=0)
    first, again = sketch(), sketch()
    assert all(map(torch.equal, before, (parameter.grad, state["exp_avg_sq"], parameter)))
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)


def test_mixed_precision_does_not_round_projections() -> None:
    model = network().float()
    set_gradients(model, 0)
    sketch = GradientSketch(list(model.parameters()), [], DIMENSION, seed=0)
    expected = sketch()
    assert expected is not None
    with torch.autocast("cpu", torch.bfloat16):
        found = sketch()
    assert found is not None
    assert torch.equal(found, expected)
