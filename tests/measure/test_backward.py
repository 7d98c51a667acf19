"""`meter.backward` gives the training gradient that the losses' own backward would."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from small import regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin

Closure = Callable[[], dict[str, Tensor]]


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Returns the gradients and clears them."""
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def gradients_of(model: nn.Module, total: Tensor) -> dict[str, Tensor | None]:
    total.backward()
    return gradients(model)


def assert_close(found: dict[str, Tensor | None], expected: dict[str, Tensor | None], tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=tolerance, atol=tolerance / 100)


def assert_backward_gives(
    expected: dict[str, Tensor | None], model: Any, closure: Callable[[], Any], extra: Any = None, **options: Any
) -> None:
    """Asserts the gradients of several calls, since from the second one on the measured gradients are used again."""
    backward = {"weights": options.pop("other_weights")} if "other_weights" in options else {}
    meter = AffinityMeter(model.encoder, **{"every": 1, "update": "sgd", "lr": 0.1} | options)
    for _ in range(3):
        meter(closure)
        meter.backward(**backward | ({} if extra is None else {"extra": extra()}))
        assert_close(gradients(model), expected)


SETTINGS: dict[str, dict[str, Any]] = {
    "lookahead": {},
    "gradient": {"estimator": "gradient"},
    "both": {"estimator": ["lookahead", "gradient"]},
    "round robin": {"every": RoundRobin(1)},
    "not measured": {"every": 1000},
    "weights": {"weights": {"a": 0.5, "b": 2.0, "c": 1.5}},
    "held weights": {"weights": {"a": 0.5, "b": 2.0, "c": 1.5}, "estimator": "cosine"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_backward_equals_the_backward_of_the_weighted_sum(name: str) -> None:
    model, closure = regression()
    weights = SETTINGS[name].get("weights", dict.fromkeys("abc", 1.0))
    expected = gradients_of(model, sum(weights[t] * loss for t, loss in closure().items()))
    assert_backward_gives(expected, model, closure, **SETTINGS[name])


def test_missing_tasks_are_left_out() -> None:
    model, closure = regression()
    expected = gradients_of(model, closure()["a"] + closure()["c"])
    partial = lambda: {**closure(), "b": closure()["b"] * float("nan")}  # noqa: E731
    for every in (1, 1000):
        assert_backward_gives(expected, model, partial, every=every, tasks=["a", "b", "c"])


def test_gradients_accumulate_and_are_scaled() -> None:
    model, closure = regression(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    expected = gradients_of(model, sum(closure().values()) * 8.0 * 3)
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=2, scaler=scaler)
    for _ in range(3):
        meter(closure)
        meter.backward()
    assert_close(gradients(model), expected, 1e-5)


def test_learned_weights_get_their_gradient_too() -> None:
    """Uncertainty weights: L / exp(2s) + s, with s trained as well."""
    model, closure = regression()
    s = nn.Parameter(torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64))
    weights = lambda: dict(zip("abc", torch.exp(-2 * s), strict=True))  # noqa: E731
    expected = gradients_of(model, sum(weights()[t] * x for t, x in closure().items()) + s.sum())
    expected_s, s.grad = s.grad, None
    assert_backward_gives(expected, model, closure, extra=s.sum, weights=weights)
    torch.testing.assert_close(s.grad, 3 * expected_s)


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


def test_backward_follows_a_call_and_needs_all_weights() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    with pytest.raises(RuntimeError, match="call the meter first"):
        meter.backward()
    meter(closure)
    with pytest.raises(ValueError, match=r"`weights`.*'c'"):
        meter.backward(weights={"a": 1.0, "b": 1.0})
    meter(closure)
    meter.backward()
    with pytest.raises(RuntimeError, match="once"):
        meter.backward()


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_shared_parameters_see_the_training_gradient_pass(kind: str) -> None:
    model, closure = regression()
    weight = model.encoder[0].weight
    expected = gradients_of(model, sum(closure().values()))["encoder.0.weight"]
    seen: list[Tensor] = []
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1)
    meter(closure)
    meter.backward()
    model.zero_grad()
    getattr(weight, kind)(lambda given: seen.append((given if given.grad is None else given.grad).clone()))
    meter(closure)
    meter.backward()
    torch.testing.assert_close(seen[-1], expected)
