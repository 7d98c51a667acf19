"""The meter as a whole: its arguments, mixed precision, user-defined estimators, and what it reports."""

import copy
import inspect
import re
import subprocess
import sys
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import Auto, Cosine, Estimator, Observed, RoundRobin, estimator_names, register_estimator
from tagalong.measure.gradients import TaskGradients


def measured(model: TwoLayers, closure: Any, **options: Any) -> AffinityMeter:
    meter = AffinityMeter(model.encoder, **{"update": "sgd", "lr": 0.1, **options})
    meter(closure)
    return meter


def test_several_estimators_in_one_meter_agree_with_one_meter_each() -> None:
    model, closure = regression(dropout=0.3)
    names = ["lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine"]
    torch.manual_seed(5)
    together = measured(model, closure, estimator=names)
    for name in names:
        torch.manual_seed(5)
        alone = measured(model, closure, estimator=name).affinity()
        np.testing.assert_allclose(together.affinity(name).mean, alone.mean, rtol=1e-12)
        assert alone.settings["estimator"] == name


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
    meter = measured(model, closure, estimator=["lookahead", "loss_drop"])
    before = np.array([loss.item() for loss in closure().values()])
    np.testing.assert_allclose(meter.affinity("loss_drop").mean, meter.affinity("lookahead").mean * before)


def test_estimators_can_be_given_as_objects() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, estimator=Cosine(kernels_only=True))
    meter(closure)
    assert meter.affinity().settings["estimator"] == "cosine_kernels"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"estimator": "hessian"},
            "`estimator` must be a known estimator, found 'hessian'; choose from lookahead",
        ),
        ({"estimator": []}, "`estimator` must contain at least one estimator"),
        ({"estimator": ["cosine", "cosine"]}, "`estimator` must not contain the same name twice"),
        ({"update": "newton"}, "`update` must be"),
        ({"update": "sgd"}, "the step size is unknown"),
        ({"update": "optimizer"}, "the step size is unknown"),
        ({}, "the step size is unknown"),
        ({"lr": -1.0}, "`lr` must be a positive number, found -1.0"),
        ({"lr": 0.1, "tasks": ["a", "a"]}, "`tasks` must be distinct"),
        ({"lr": 0.1, "tasks": "abc"}, "`tasks` must be a list of names"),
        ({"lr": 0.1, "tasks": []}, "`tasks` must name at least one task"),
    ],
)
def test_invalid_arguments_are_rejected_at_construction(options: dict[str, Any], message: str) -> None:
    model, _ = regression()
    with pytest.raises(ValueError, match=message):
        AffinityMeter(model.encoder, **options)


def test_a_learning_rate_with_the_optimisers_own_step_is_rejected() -> None:
    model, _ = regression()
    with pytest.raises(ValueError, match=r"`lr` can only be used with `update='sgd'`, found 0.1"):
        AffinityMeter(model.encoder, torch.optim.SGD(model.parameters(), lr=0.1), lr=0.1)


@pytest.mark.parametrize(
    ("shared", "error", "message"),
    [
        ([], ValueError, "contains no parameters"),
        (nn.ReLU(), ValueError, "contains no parameters"),
        ("encoder", ValueError, "patterns .* if `model` is given, found 'encoder' without `model`"),
        (3, ValueError, "must be a Module, an iterable of Parameters, or a pattern for their names, found int"),
        (nn.Linear(2, 2).requires_grad_(False), ValueError, "only frozen parameters"),
        ([nn.Linear(2, 2).weight * 2], ValueError, "computed from other tensors"),
        (nn.LazyLinear(2), ValueError, "lazy parameter"),
        (nn.Embedding(4, 2, sparse=True), ValueError, "sparse gradients"),
    ],
)
def test_invalid_shared_parameters_are_rejected(shared: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AffinityMeter(shared, lr=0.1)


def test_sparse_gradients_of_bare_parameters_are_rejected_when_they_appear() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    meter = AffinityMeter([embedding.weight], lr=0.1)
    index = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="sparse gradients"):
        meter(lambda: {"a": embedding(index).pow(2).mean(), "b": embedding(index).abs().mean()})


def test_weights_scale_the_step_on_the_source() -> None:
    model, closure = regression()
    weights = {"a": 2.0, "b": 0.5, "c": 1.0}
    plain = measured(model, closure, estimator="gradient").affinity().mean
    weighted = measured(model, closure, estimator="gradient", weights=weights).affinity().mean
    np.testing.assert_allclose(weighted, plain * np.array(list(weights.values()))[:, None], rtol=1e-12)


@pytest.mark.parametrize("kind", ["function", "tensor"])
def test_weights_may_change_or_be_tensors(kind: str) -> None:
    model, closure = regression()
    tensor = torch.tensor(3.0, requires_grad=True)
    given = {"a": tensor, "b": tensor, "c": tensor}
    fixed = measured(model, closure, weights=dict.fromkeys("abc", 3.0)).affinity().mean
    moving = measured(model, closure, weights=(lambda: given) if kind == "function" else given).affinity().mean
    np.testing.assert_allclose(moving, fixed, rtol=1e-12)


def test_the_error_names_a_missing_weight() -> None:
    model, closure = regression()
    with pytest.raises(ValueError, match=r"`weights` must have an entry for every task, found none for 'c'"):
        measured(model, closure, weights={"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "cosine", "centered_cosine"])
def test_a_scaler_changes_no_affinity(estimator: str) -> None:
    model, closure = regression(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = measured(model, closure, estimator=estimator).affinity().mean
    scaled = measured(model, closure, estimator=estimator, scaler=scaler).affinity().mean
    np.testing.assert_allclose(scaled, plain, rtol=1e-4, atol=1e-7)
    assert scaler._scale is None  # the meter has not initialized it


def test_gradients_that_overflow_skip_the_measurement_and_are_counted() -> None:
    model, closure = regression(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    large = lambda: {t: loss * 1e6 for t, loss in closure().items()}  # noqa: E731
    meter = AffinityMeter(model.encoder, lr=1e-7, every=1, scaler=scaler)
    meter(large)
    assert meter.measured == 0
    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
    meter(large)
    assert meter.measured == 1
    affinity = meter.affinity()
    assert affinity.steps.tolist() == [1]
    np.testing.assert_array_equal(affinity.skipped["non-finite gradient"], np.ones((3, 3)))


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


def test_bfloat16_parameters_are_measured() -> None:
    model, closure = regression(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    names = ["lookahead", "gradient", "cosine", "centered_cosine"]
    meter = AffinityMeter(model.encoder, optimizer, estimator=names)
    meter(closure)
    for name in names:
        assert np.isfinite(meter.affinity(name).mean).all()


def test_a_shared_parameter_without_optimizer_does_not_move() -> None:
    model, closure = regression()
    first, last = model.encoder[0], model.encoder[3]
    optimizer = torch.optim.SGD(last.parameters(), lr=0.1)
    partly = AffinityMeter(model.encoder, optimizer, estimator=["lookahead", "gradient"])
    only = AffinityMeter(last, optimizer, estimator=["lookahead", "gradient"])
    partly(closure)
    only(closure)
    assert first.weight.requires_grad
    for name in ("lookahead", "gradient"):
        np.testing.assert_allclose(partly.affinity(name).mean, only.affinity(name).mean, rtol=1e-12)


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


def test_the_affinity_of_an_unknown_estimator_is_rejected() -> None:
    model, closure = regression()
    with pytest.raises(
        ValueError, match="`estimator` must be a known estimator of this meter, found 'cosine'; choose from lookahead"
    ):
        measured(model, closure).affinity("cosine")


def test_the_meter_reports_what_it_measured() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=2)
    for _ in range(4):
        meter(closure)
    assert (meter.calls, meter.measured, meter.tasks) == (4, 2, ("a", "b", "c"))
    assert meter.overhead > 0
    assert "2 of 4 calls measured" in repr(meter)


def test_importing_the_meter_needs_no_plotly() -> None:
    code = "import sys; from tagalong import AffinityMeter; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_zero_step_changes_nothing_and_gives_no_warning() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, torch.optim.SGD(model.parameters(), lr=0.0), per_lr=True)
    meter(closure)
    assert np.isnan(meter.affinity().mean).all()
    plain = AffinityMeter(model.encoder, torch.optim.SGD(model.parameters(), lr=0.0))
    plain(closure)
    assert (plain.affinity().mean == 0).all()


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


def test_the_settings_record_whether_losses_were_held_out() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1)
    meter(closure, held_out=closure)
    assert meter.affinity().settings["held_out"] is True
    assert measured(model, closure).affinity().settings["held_out"] is False


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


def test_a_zero_learning_rate_is_a_separate_reason_to_skip() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, torch.optim.SGD(model.parameters(), lr=0.0), per_lr=True)
    meter(closure)
    assert meter.affinity().skipped["zero learning rate"].sum() == 9


def test_the_error_for_losses_instead_of_a_function_shows_how_to_write_one() -> None:
    model, closure = regression()
    with pytest.raises(TypeError, match="meter\\(lambda: task_losses"):
        AffinityMeter(model.encoder, lr=0.1)(closure())  # type: ignore[arg-type]


def test_one_error_lists_all_invalid_arguments() -> None:
    model, _ = regression()
    with pytest.raises(ValueError, match="several problems:") as caught:
        AffinityMeter(
            model.encoder, update="x", every=0, estimator="zz", tasks="ab", model="x", scaler=3, gradient_memory=-1,
            weights={"a": float("nan")}, lr="1", per_lr=2,
        )  # fmt: skip
    text = str(caught.value)
    for name in ("estimator", "every", "tasks", "model", "scaler", "gradient_memory", "weights", "lr", "per_lr"):
        assert f"`{name}`" in text


def test_several_learning_rates_and_per_lr_are_rejected_at_construction() -> None:
    model, _ = regression()
    groups = [{"params": [p], "lr": 0.1 * (k + 1)} for k, p in enumerate(model.encoder.parameters())]
    with pytest.raises(ValueError, match="have more than one"):
        AffinityMeter(model.encoder, torch.optim.SGD(groups), per_lr=True)


def test_a_copied_meter_is_independent() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=1)
    meter(closure)
    twin = copy.deepcopy(meter)
    meter(closure)
    assert (meter.measured, twin.measured) == (2, 1)


def test_meters_do_not_share_a_stateful_schedule() -> None:
    model, closure = regression()
    schedule = Auto(max_overhead=1e9)
    meters = [AffinityMeter(model.encoder, lr=0.1, every=schedule) for _ in range(2)]
    for meter in meters:
        meter(closure)
    assert [meter.measured for meter in meters] == [1, 1]


def test_unconnected_pairs_are_right_after_unfreezing() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))
    x = torch.randn(5, 3)
    layers[0].requires_grad_(False)
    meter = AffinityMeter(layers, lr=0.1, every=1)
    closure = lambda: {"a": layers[1](x).pow(2).mean(), "b": layers[2](x).pow(2).mean()}  # noqa: E731
    meter(closure)
    layers[0].requires_grad_(True)
    meter(closure)
    assert meter.unconnected == [("a", "b")]


def test_the_advice_for_donated_buffers_works_in_a_fresh_script() -> None:
    source = inspect.getsource(TaskGradients._differentiate).replace('" "', "").replace("\n", " ")
    (advice,) = re.findall(r"run\W+`(.*?)` before", re.sub(r'"\s+"', "", source))
    check = "import sys; sys.exit(torch._functorch.config.donated_buffer)"
    done = subprocess.run([sys.executable, "-c", f"import torch; {advice}; {check}"], timeout=120, check=False)
    assert done.returncode == 0
