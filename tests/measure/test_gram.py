"""The Gram matrix of the task gradients equals a direct computation; a measured step does not compute it again."""

import pytest
import torch
from small import regression
from torch import Tensor

from tagalong import AffinityMeter


def slow_gram(losses: dict[str, Tensor], shared: torch.nn.Module) -> Tensor:
    rows = [torch.autograd.grad(loss, list(shared.parameters()), retain_graph=True) for loss in losses.values()]
    flat = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])
    return flat @ flat.T


def count_gradients(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
    return calls


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "cosine", "centered_cosine", ["gradient", "lookahead"]])
@pytest.mark.parametrize("memory", [1e9, 300.0])
@pytest.mark.parametrize("every", [1, 2])
def test_gram_equals_the_direct_computation_at_measured_and_other_calls(
    estimator: str | list[str], memory: float, every: int
) -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=every, estimator=estimator, gradient_memory=memory)
    for _ in range(4):
        losses = meter(closure)
        torch.testing.assert_close(meter.gram(), slow_gram(losses, model.encoder))


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "cosine", "centered_cosine"])
def test_measuring_and_gram_share_one_gradient_per_task(monkeypatch: pytest.MonkeyPatch, estimator: str) -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=1, estimator=estimator)
    meter(closure)
    meter.gram()
    calls = count_gradients(monkeypatch)
    meter(closure)
    meter.gram()
    assert len(calls) == 3


def test_affinities_are_the_same_with_gram() -> None:
    found = []
    for ask in (False, True):
        model, closure = regression()
        meter = AffinityMeter(model.encoder, lr=0.1, every=1)
        for _ in range(3):
            meter(closure)
            if ask:
                meter.gram()
        found.append(torch.from_numpy(meter.affinity().history.copy()))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "centered_cosine"])
def test_gram_with_held_out_losses_and_missing_tasks(estimator: str) -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=1, estimator=estimator, tasks=["c", "a", "b"])
    for missing in ("a", "b", "c"):
        losses = meter(lambda missing=missing: {t: x for t, x in closure().items() if t != missing}, held_out=closure)
        torch.testing.assert_close(meter.gram(), slow_gram(losses, model.encoder))


def test_gram_before_any_call_is_rejected() -> None:
    model, _ = regression()
    with pytest.raises(RuntimeError, match="call the meter first"):
        AffinityMeter(model.encoder, lr=0.1).gram()
