"""The meter as a whole: its arguments, mixed precision, user-defined estimators, and what it reports."""

import copy
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import Auto, Cosine, Estimator, Observed, RoundRobin, estimator_names, register_estimator


def measured(model: TwoLayers, closure: Any, **options: Any) -> AffinityMeter:
    meter = AffinityMeter(model.encoder, **{"update": "sgd", "lr": 0.1, **options})
    meter(closure)
    return meter


def test_task_gradients_are_computed_once_for_several_estimators() -> None:
    model, closure = regression()
    passes: SimpleQueue[int] = SimpleQueue()  # unlike a list, not restored after a replay

    def counted() -> dict[str, Tensor]:
        losses = closure()
        for loss in losses.values():
            loss.register_hook(lambda gradient: passes.put(1))
        return losses

    measured(model, counted, estimator=["lookahead", "gradient", "cosine", "centered_cosine"])
    assert passes.qsize() == 3


def test_a_user_defined_estimator_is_known_by_its_name() -> None:
    class LossDrop(Estimator):
        name, needs, ratio = "loss_drop", frozenset({"after"}), False

        def __call__(self, seen: Observed) -> Tensor:
            assert seen.after is not None
            return seen.before - seen.after

    register_estimator("loss_drop", LossDrop())
    assert "loss_drop" in estimator_names()
    model, closure = regression()
    assert (
        measured(model, closure, estimator=Cosine(kernels_only=True)).affinity().settings["estimator"]
        == "cosine_kernels"
    )
    meter = measured(model, closure, estimator=["lookahead", "loss_drop"])
    before = np.array([loss.item() for loss in closure().values()])
    np.testing.assert_allclose(meter.affinity("loss_drop").mean, meter.affinity("lookahead").mean * before)


@pytest.mark.parametrize("where", ["inside", "around"])
def test_autocast_changes_affinities_only_by_rounding(where: str) -> None:
    model, closure = regression(dtype=torch.float32)
    names = ["lookahead", "gradient", "cosine", "centered_cosine"]
    autocast = torch.autocast("cpu", torch.bfloat16)

    def inside() -> dict[str, Tensor]:
        with autocast:
            return closure()

    meter = AffinityMeter(model.encoder, lr=0.5, estimator=names)
    if where == "inside":
        meter(inside)
    else:
        with autocast:
            meter(closure)
    full = AffinityMeter(model.encoder, lr=0.5, estimator=names)
    full(closure)
    for name in names:
        exact = full.affinity(name).mean
        np.testing.assert_allclose(meter.affinity(name).mean, exact, atol=0.05 * np.abs(exact).max())


def test_parameters_unfrozen_later_count_from_then_on() -> None:
    model, closure = regression()
    model.encoder[0].requires_grad_(False)
    meter = AffinityMeter(model.encoder, lr=0.1, every=1)
    meter(closure)
    model.encoder[0].requires_grad_(True)
    meter(closure)
    history = meter.affinity().history
    np.testing.assert_array_equal(history[1], measured(model, closure).affinity().history[0])
    assert not np.array_equal(history[0], history[1])


def test_the_meter_warns_about_a_closure_that_reads_a_cached_copy_of_the_weights() -> None:
    """A prebuilt autocast region within another one keeps the weights' casts from one replay to the next."""
    model, closure = regression(dtype=torch.float32)
    prebuilt = torch.autocast("cpu", torch.bfloat16)

    def nested() -> dict[str, Tensor]:
        with prebuilt:
            return closure()

    meter = AffinityMeter(model.encoder, lr=0.5)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.warns(UserWarning, match="does not see changes to the shared parameters"),
    ):
        meter(nested)


def test_another_forward_pass_in_the_same_autocast_region_is_not_disturbed() -> None:
    """The region keeps the weights' casts; both passes must use the same ones, or gradients round differently."""
    gradients = []
    for with_meter in (False, True):
        model, closure = regression(dtype=torch.float32)
        meter = AffinityMeter(model.encoder, lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            losses = meter(closure) if with_meter else closure()
            more = model(torch.ones(3, 4))["a"].sum()
        (sum(losses.values()) + more).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_per_lr_divides_the_null_step_too() -> None:
    def history(per_lr: bool) -> tuple[np.ndarray, np.ndarray]:
        model, closure = regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        sum(closure().values()).backward()
        optimizer.step()
        meter = AffinityMeter(model.encoder, optimizer, every=RoundRobin(1), per_lr=per_lr)
        meter(closure)
        affinity = meter.affinity()
        return affinity.history, affinity.null

    for divided, plain in zip(history(True), history(False), strict=True):
        assert np.isfinite(plain).any()
        np.testing.assert_allclose(divided * 0.05, plain, rtol=1e-12)


def test_weights_scale_the_step_on_the_source_and_may_change_or_be_tensors() -> None:
    model, closure = regression()
    weights = {"a": 2.0, "b": 0.5, "c": 1.0}
    tensors = {task: torch.tensor(weight, requires_grad=True) for task, weight in weights.items()}
    plain = measured(model, closure, estimator="gradient").affinity().mean
    for form in (weights, tensors, lambda: tensors):
        weighted = measured(model, closure, estimator="gradient", weights=form).affinity().mean
        np.testing.assert_allclose(weighted, plain * np.array(list(weights.values()))[:, None], rtol=1e-12)
    with pytest.raises(ValueError, match=r"`weights`.*'c'"):
        measured(model, closure, weights={"a": 1.0, "b": 1.0})


def test_weights_that_the_closure_writes_are_not_those_of_the_held_out_closure() -> None:
    model, closure = regression()
    weights = dict.fromkeys("abc", 1.0)

    def weigh(weight: float) -> dict[str, Tensor]:
        weights.update(dict.fromkeys("abc", weight))
        return closure()

    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=1, weights=lambda: weights)
    for _ in range(2):  # replays check only the first measurement
        meter(lambda: weigh(1.0), lambda: weigh(5.0))
    first, second = meter.affinity().history
    np.testing.assert_array_equal(first, second)


def test_a_zero_step_changes_nothing_and_has_no_value_per_learning_rate() -> None:
    model, closure = regression()
    for per_lr in (False, True):
        meter = AffinityMeter(model.encoder, torch.optim.SGD(model.parameters(), lr=0.0), per_lr=per_lr)
        meter(closure)
        affinity = meter.affinity()
        assert np.isnan(affinity.mean).all() if per_lr else (affinity.mean == 0).all()
    assert affinity.skipped["zero learning rate"].sum() == 9


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("estimator", {"estimator": "hessian"}), ("estimator", {"estimator": []}),
        ("estimator", {"estimator": ["cosine", "cosine"]}), ("update", {"update": "newton"}),
        ("lr", {"lr": -1.0}), ("tasks", {"lr": 0.1, "tasks": ["a", "a"]}), ("tasks", {"lr": 0.1, "tasks": "abc"}),
        ("tasks", {"lr": 0.1, "tasks": []}), ("model", {"lr": 0.1, "model": "encoder"}),
        ("every", {"lr": 0.1, "every": 0}), ("every", {"lr": 0.1, "every": 2.5}), ("every", {"lr": 0.1, "every": True}),
        ("every", {"lr": 0.1, "every": "often"}), ("every", {"lr": 0.1, "every": None}),
        ("optimizer", {}), ("optimizer", {"update": "sgd"}), ("optimizer", {"update": "optimizer"}),
        ("lr", {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), "lr": 0.1}),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected_at_construction(argument: str, options: dict[str, Any]) -> None:
    model, _ = regression()
    with pytest.raises(ValueError, match=f"`{argument}`"):
        AffinityMeter(model.encoder, **options)


def test_an_estimator_that_was_not_measured_is_rejected() -> None:
    model, closure = regression()
    with pytest.raises(ValueError, match=r"`estimator`.*'cosine'"):
        measured(model, closure).affinity("cosine")


@pytest.mark.parametrize(
    ("shared", "part"),
    [
        ([], "no parameters"),
        (nn.ReLU(), "no parameters"),
        ("encoder", "`model`"),
        (3, "found 3"),
        (nn.Linear(2, 2).requires_grad_(False), "frozen"),
    ],
)
def test_invalid_shared_parameters_are_rejected(shared: Any, part: str) -> None:
    with pytest.raises(ValueError, match=f"`shared`.*{part}"):
        AffinityMeter(shared, lr=0.1)


def test_copied_meters_and_meters_with_one_schedule_are_independent() -> None:
    model, closure = regression()
    schedule = Auto(max_overhead=1e9)
    meters = [AffinityMeter(model.encoder, lr=0.1, every=schedule) for _ in range(2)]
    for meter in meters:
        meter(closure)
    twin = copy.deepcopy(meters[0])
    for _ in range(20):
        meters[0](closure)
    assert [meters[1].measured, twin.measured] == [1, 1] != [meters[0].measured] * 2
