"""`meter.backward` gives the training gradient that the losses' own backward would."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def expected_gradients(model: nn.Module, total: Callable[[], Tensor], times: int = 1) -> dict[str, Tensor | None]:
    model.zero_grad()
    for _ in range(times):
        total().backward()
    found = gradients(model)
    model.zero_grad()
    return found


def assert_close(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)


def run(meter: AffinityMeter, model: TwoLayers, closure: Callable[[], Any], **options: Any) -> list[dict[str, Any]]:
    found = []
    for _ in range(3):
        meter(closure)
        meter.backward(**options)
        found.append(gradients(model))
        model.zero_grad()
    return found


SETTINGS = {
    "lookahead": {},
    "gradient": {"estimator": "gradient"},
    "both": {"estimator": ["lookahead", "gradient"]},
    "blocks": {"estimator": "gradient", "gradient_memory": 200},
    "round robin": {"every": RoundRobin(1)},
    "not measured": {"every": 1000},
    "weights": {"weights": {"a": 0.5, "b": 2.0, "c": 1.5}},
    "held weights": {"weights": {"a": 0.5, "b": 2.0, "c": 1.5}, "estimator": "cosine"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_backward_equals_the_backward_of_the_weighted_sum(name: str) -> None:
    model, closure = regression()
    options = {"every": 1, "update": "sgd", "lr": 0.1, **SETTINGS[name]}
    weights = options.get("weights", dict.fromkeys("abc", 1.0))
    expected = expected_gradients(model, lambda: sum(weights[t] * loss for t, loss in closure().items()))
    for found in run(AffinityMeter(model.encoder, **options), model, closure):
        assert_close(found, expected)


def test_a_measured_step_does_not_backpropagate_through_the_shared_layers_again() -> None:
    model, _ = regression()
    x = torch.randn(8, 4).double()
    passes: SimpleQueue[int] = SimpleQueue()  # unlike a list, not restored after a replay

    def closure() -> dict[str, Tensor]:
        z = model.encoder(x)
        z.register_hook(lambda gradient: passes.put(1))
        return {t: head(z).pow(2).mean() for t, head in model.heads.items()}

    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1)
    for expected_passes in (3 + 1, 3):  # one per task; at the first call `backward` has not been used yet
        before = passes.qsize()
        meter(closure)
        meter.backward()
        assert passes.qsize() - before == expected_passes
    assert all(p.grad is not None for p in model.parameters())


def test_extra_terms_and_other_weights_are_added() -> None:
    model, closure = regression()
    weights = {"a": 3.0, "b": 0.0, "c": 1.0}
    decay = lambda: sum(p.pow(2).sum() for p in model.parameters())  # noqa: E731
    expected = expected_gradients(model, lambda: sum(weights[t] * x for t, x in closure().items()) + decay())
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1)
    for _ in range(3):
        meter(closure)
        meter.backward(weights=weights, extra=decay())
        assert_close(gradients(model), expected)
        model.zero_grad()


def test_gradients_accumulate_over_calls() -> None:
    model, closure = regression()
    expected = expected_gradients(model, lambda: sum(closure().values()), times=3)
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=2)
    for _ in range(3):
        meter(closure)
        meter.backward()
    assert_close(gradients(model), expected)


def test_learned_weights_get_their_gradient_too() -> None:
    """Uncertainty weights: L / exp(2s) + s, with s trained as well."""
    model, closure = regression()
    s = nn.Parameter(torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64))
    weights = lambda: dict(zip("abc", torch.exp(-2 * s), strict=True))  # noqa: E731
    (sum(weights()[t] * x for t, x in closure().items()) + s.sum()).backward()
    expected, expected_s = gradients(model), s.grad.clone()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1, weights=weights)
    for _ in range(3):
        s.grad = None
        model.zero_grad()
        meter(closure)
        meter.backward(extra=s.sum())
        assert_close(gradients(model), expected)
        torch.testing.assert_close(s.grad, expected_s)


def test_missing_tasks_are_left_out() -> None:
    model, closure = regression()
    expected = expected_gradients(model, lambda: closure()["a"] + closure()["c"])
    partial = lambda: {**closure(), "b": closure()["b"] * float("nan")}  # noqa: E731
    for every in (1, 1000):
        meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=every, tasks=["a", "b", "c"])
        for found in run(meter, model, partial):
            assert_close(found, expected)


def test_a_scaler_scales_the_training_gradient() -> None:
    model, closure = regression(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    expected = expected_gradients(model, lambda: sum(closure().values()) * 8.0)
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1, scaler=scaler)
    for found in run(meter, model, closure):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


def test_backward_needs_a_call_first() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    with pytest.raises(RuntimeError, match="call the meter first"):
        meter.backward()
    meter(closure)
    meter.backward()
    with pytest.raises(RuntimeError, match="can only be called once per call"):
        meter.backward()


def test_the_error_names_missing_weights() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    meter(closure)
    with pytest.raises(ValueError, match=r"`weights` must have an entry for every task, found none for 'c'"):
        meter.backward(weights={"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("kind", ["tensor hook", "post-accumulate hook"])
def test_hooks_on_shared_parameters_see_the_training_gradient_pass(kind: str) -> None:
    model, closure = regression()
    weight = model.encoder[0].weight
    expected = expected_gradients(model, lambda: sum(closure().values()))["encoder.0.weight"]
    assert expected is not None
    seen: list[Tensor] = []
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1)
    meter(closure)
    meter.backward()
    model.zero_grad()
    if kind == "tensor hook":
        weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    else:
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    meter(closure)
    meter.backward()
    torch.testing.assert_close(seen[-1], expected)
