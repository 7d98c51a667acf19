"""Laws that affinities obey for any network."""

import numpy as np
import pytest
import torch
from small import regression

from tagalong import AffinityMeter

ALL = ["lookahead", "gradient", "cosine", "centered_cosine"]


@pytest.mark.parametrize("name", ALL)
def test_permuting_the_tasks_permutes_the_matrix(name: str) -> None:
    model, closure = regression()
    found = {}
    for order in ("abc", "cab"):
        meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, estimator=name)
        meter(lambda order=order: {t: closure()[t] for t in order})
        found[order] = meter.affinity()
    np.testing.assert_allclose(found["abc"].mean, found["cab"].only(["a", "b", "c"]).mean, rtol=1e-13)


@pytest.mark.parametrize("name", ["lookahead", "gradient"])
def test_scaling_a_target_leaves_the_affinity_onto_it_unchanged_for_a_fixed_step(name: str) -> None:
    model, closure = regression()
    plain = AffinityMeter(model.encoder, update="sgd", lr=0.1, estimator=name)
    plain(closure)
    # The weight takes the factor out of the step again, so that only the target is scaled.
    scaled = AffinityMeter(
        model.encoder, update="sgd", lr=0.1, estimator=name, weights={"a": 1.0, "b": 1 / 7.0, "c": 1.0}
    )
    scaled(lambda: {t: loss * (7.0 if t == "b" else 1.0) for t, loss in closure().items()})
    np.testing.assert_allclose(scaled.affinity().mean, plain.affinity().mean, rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_first_order_converges_to_lookahead_as_the_step_shrinks(momentum: float) -> None:
    gaps = []
    for lr in (1e-1, 1e-2, 1e-3):
        model, closure = regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        sum(closure().values()).backward()
        optimizer.step()
        meter = AffinityMeter(model.encoder, optimizer, estimator=["lookahead", "gradient"])
        meter(closure)
        exact, first = meter.affinity("lookahead").mean, meter.affinity("gradient").mean
        gaps.append(np.abs(exact - first).max() / np.abs(exact).max())
    assert gaps[1] < gaps[0] / 5
    assert gaps[2] < gaps[1] / 5


def test_gradient_with_sgd_is_the_learning_rate_times_the_gram_matrix_over_the_loss() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.3, estimator="gradient")
    losses = meter(closure)
    shared = list(model.encoder.parameters())
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(losses[t], shared, retain_graph=True)]) for t in "abc"]
    gram = torch.stack(rows) @ torch.stack(rows).T
    expected = 0.3 * gram / torch.stack([losses[t] for t in "abc"])
    np.testing.assert_allclose(meter.affinity().mean, expected.detach().numpy(), rtol=1e-10)


def test_centered_cosines_ignore_a_gradient_that_all_tasks_share() -> None:
    model, closure = regression()
    shared = list(model.encoder.parameters())

    def shifted() -> dict[str, torch.Tensor]:
        common = 3 * torch.cat([p.flatten() for p in shared]).sum()
        return {task: loss + common for task, loss in closure().items()}

    plain, moved = (AffinityMeter(model.encoder, estimator=["cosine", "centered_cosine"]) for _ in range(2))
    plain(closure)
    moved(shifted)
    centered = plain.affinity("centered_cosine").mean
    np.testing.assert_allclose(moved.affinity("centered_cosine").mean, centered, rtol=1e-9)
    assert not np.allclose(moved.affinity("cosine").mean, plain.affinity("cosine").mean)
    np.testing.assert_allclose(np.diag(centered), 1.0)


def test_momentum_adds_the_same_constant_to_every_source_of_a_target_to_first_order() -> None:
    model, closure = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sum(closure().values()).backward()
    optimizer.step()
    by_optimizer = AffinityMeter(model.encoder, optimizer, estimator="gradient")
    by_sgd = AffinityMeter(model.encoder, optimizer, estimator="gradient", update="sgd")
    by_optimizer(closure)
    by_sgd(closure)
    constant = by_optimizer.affinity().mean - by_sgd.affinity().mean
    np.testing.assert_allclose(constant, np.broadcast_to(constant[0], constant.shape), rtol=1e-9)
    assert np.abs(constant).max() > 1e-6
