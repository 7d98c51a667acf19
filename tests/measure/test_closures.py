"""What closures may return, and the errors for closures that cannot be measured."""

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tagalong import AffinityMeter
from tagalong.measure import ClosureError

Losses = dict[str, Tensor]


def meter_of(model: TwoLayers, **options: Any) -> AffinityMeter:
    return AffinityMeter(model.encoder, **{"update": "sgd", "lr": 0.1, **options})


def call_repeatedly(meter: AffinityMeter, closure: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        meter(closure)


def without_graph(losses: Callable[[], Losses]) -> Losses:
    with torch.no_grad():
        return losses()


def with_weights(losses: Callable[[], Losses], weight: Any) -> Any:
    return {task: (loss, weight) for task, loss in losses().items()}


# Closures, given one that returns suitable losses, and a part of the error.
UNSUITABLE: dict[str, tuple[Callable[[Callable[[], Losses]], Any], str]] = {
    "a tensor": (lambda losses: sum(losses().values()), "must return a dict"),
    "one task": (lambda losses: {"a": losses()["a"]}, "only one task"),
    "numbers as names": (lambda losses: dict(enumerate(losses().values())), "task 0.*strings"),
    "a float": (lambda losses: losses() | {"b": 3.0}, "'b' a float"),
    "several values": (lambda losses: losses() | {"b": losses()["b"].expand(3)}, r"'b' a loss of shape \(3,\)"),
    "a detached loss": (lambda losses: losses() | {"a": losses()["a"].detach()}, r"\['a'\].*autograd graph"),
    "no graph": (without_graph, "autograd graph"),
    "negative losses": (lambda losses: {t: x - 100 for t, x in losses().items()}, "negative loss.*'cosine'"),
    "a loss as weight": (lambda losses: {t: (x, x) for t, x in losses().items()}, "weight of the loss"),
    "text as weight": (lambda losses: with_weights(losses, "x"), "weight of the loss"),
    "a negative weight": (lambda losses: with_weights(losses, -2.0), "weight of the loss"),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_unsuitable_closures_are_refused(kind: str) -> None:
    model, losses = regression()
    change, part = UNSUITABLE[kind]
    with pytest.raises(ClosureError, match=part):
        meter_of(model)(lambda: change(losses))


def test_one_error_lists_all_problems() -> None:
    model, losses = regression()

    def broken() -> dict[Any, Any]:
        found = losses()
        return {"a": found["a"].detach(), "b": found["b"].expand(3), "c": found["c"].item(), 4: found["c"]}

    with pytest.raises(ClosureError) as caught:
        meter_of(model, tasks=["a", "b", "c"])(broken)
    assert all(part in str(caught.value) for part in ("['a']", "'b'", "'c'", "task 4"))


def test_closures_take_no_arguments_and_their_own_errors_pass() -> None:
    model, losses = regression()
    meter = meter_of(model, every=2)
    for _ in range(2):  # whether a measurement is due or not
        with pytest.raises(TypeError, match="'x' and 'y'"):
            meter(lambda x, y, z=3: losses())  # type: ignore[misc]
        meter(losses)
    with pytest.raises(TypeError, match="unsupported operand"):
        meter_of(model)(lambda: {"a": "text" - 1})  # type: ignore[operator]
    with pytest.raises(TypeError, match="lambda"):
        meter_of(model)(losses())  # type: ignore[arg-type]


def test_one_task_per_call_is_warned_about_unless_pairs_have_been_measured() -> None:
    model, losses = regression()
    meter, paired = (meter_of(model, every=1, tasks=["a", "b", "c"]) for _ in range(2))
    paired(losses)
    with pytest.warns(UserWarning, match="no pair of tasks"):
        meter(lambda: {"a": losses()["a"]})
    for task in "bcabc":
        meter(lambda task=task: {task: losses()[task]})
        paired(lambda task=task: {task: losses()[task]})
    assert paired.measured == meter.measured == 6


def test_tasks_that_appear_late_or_vanish_are_skipped_counted_and_warned_about_once() -> None:
    model, losses = regression()
    meter = meter_of(model, every=1)
    meter(lambda: {t: losses()[t] for t in "ab"})
    with pytest.warns(UserWarning, match="'[ac]'") as caught:
        call_repeatedly(meter, lambda: {t: losses()[t] for t in "bc"}, 12)  # the tenth is verified
    assert [str(warning.message)[:3] for warning in caught] == ["'c'", "'a'"]
    affinity = meter.affinity()
    assert (meter.measured, affinity.tasks) == (13, ("a", "b"))
    np.testing.assert_array_equal(affinity.count, [[1, 1], [1, 13]])
    np.testing.assert_array_equal(affinity.skipped["missing"], [[12, 12], [12, 0]])
    assert affinity.settings["late_tasks"] == {"c": 12}


def test_new_and_missing_closures_of_tasks_are_skipped() -> None:
    model, losses = regression()
    meter = meter_of(model, every=1)
    meter({t: lambda t=t: losses()[t] for t in "ab"})
    with pytest.warns(UserWarning, match="'[ac]' (is|has)"):
        returned = meter({t: lambda t=t: losses()[t] for t in "bc"})
    assert list(returned) == ["b", "c"]
    np.testing.assert_array_equal(meter.affinity().count, [[1, 1], [1, 2]])


@pytest.mark.parametrize(("factor", "reason"), [(0.0, "zero loss"), (-1.0, "negative loss")])
@pytest.mark.parametrize("resumed", [False, True])
def test_losses_that_become_zero_or_negative_are_skipped_counted_and_warned_about_once(
    factor: float, reason: str, resumed: bool
) -> None:
    model, losses = regression()
    meter, later = meter_of(model, every=1), meter_of(model, every=1)
    meter(losses)
    if resumed:
        later.load_state_dict(meter.state_dict())
        meter = later
    with pytest.warns(UserWarning, match="`b`") as caught:
        call_repeatedly(meter, lambda: losses() | {"b": factor * losses()["b"]}, 11)
    assert len(caught) == 1
    affinity = meter.affinity()
    np.testing.assert_array_equal(affinity.count, [[12, 1, 12]] * 3)
    np.testing.assert_array_equal(affinity.skipped[reason], [[0, 11, 0]] * 3)


def test_losses_must_depend_on_shared_parameters() -> None:
    (model, losses), (other, _) = regression(), regression()
    for meter, closure in ((meter_of(other), losses), (meter_of(model), partial(detached, model))):
        with pytest.raises(ClosureError, match="any parameter of `shared`"):
            meter(closure)


def detached(model: TwoLayers) -> Losses:
    x = torch.randn(8, 4).double()
    return {t: h(model.encoder(x).detach()).pow(2).mean() for t, h in model.heads.items()}


# What a loss may become after the first measured call, and a part of the warning.
WARNED_ABOUT = {
    name: UNSUITABLE[name] for name in ("a tensor", "a float", "several values", "a detached loss", "text as weight")
} | {"no shared parameters": (None, "any parameter of `shared`")}


@pytest.mark.parametrize("kind", WARNED_ABOUT)
def test_nothing_about_a_loss_stops_training_after_the_first_measured_call(kind: str) -> None:
    model, losses = regression()
    change, part = WARNED_ABOUT[kind]
    meter = meter_of(model, every=1)
    meter(losses)
    with pytest.warns(UserWarning, match=part) as caught:
        call_repeatedly(meter, partial(detached, model) if change is None else lambda: change(losses), 2)
    assert len({str(warning.message) for warning in caught}) == len(caught)
    meter(losses)
    assert (meter.calls, meter.measured) == (4, 2)


@pytest.mark.parametrize("what", ["closure", "held-out closure"])
def test_a_closure_that_cannot_be_repeated_is_rejected_whenever_it_is_checked(what: str) -> None:
    model, losses = regression()
    factors, drawing = itertools.count(1), random.SystemRandom()
    meter = meter_of(model, every=1)
    for _ in range(10):
        meter(losses)

    def moving() -> Losses:
        factor = next(factors)
        return {t: loss * factor for t, loss in losses().items()}

    with pytest.raises(ClosureError, match=f"the {what} is not repeatable"):
        meter_of(model)(*((moving, None) if what == "closure" else (losses, moving)))
    with pytest.warns(UserWarning, match="is not repeatable"):
        meter(lambda: {t: loss * drawing.random() for t, loss in losses().items()})


def test_checkpointing_changes_no_value_unless_it_is_reentrant() -> None:
    model, _ = regression(dropout=0.4)
    x = torch.randn(8, 4, requires_grad=True).double()

    def losses(reentrant: bool | None) -> Losses:
        z = model.encoder(x) if reentrant is None else checkpoint(model.encoder, x, use_reentrant=reentrant)
        return {t: h(z).pow(2).mean() for t, h in model.heads.items()}

    found = []
    for reentrant in (False, None):
        meter = meter_of(model, estimator=["lookahead", "gradient"])
        torch.manual_seed(3)
        meter(lambda reentrant=reentrant: losses(reentrant))
        found.append(meter.affinity("gradient").mean + meter.affinity().mean)
    np.testing.assert_allclose(*found, rtol=1e-12)
    with pytest.raises(ClosureError, match="use_reentrant=False"):
        meter_of(model)(lambda: losses(True))


def test_selective_checkpointing_is_named_and_works_with_one_closure_per_task() -> None:
    model, _ = regression()
    x = torch.randn(8, 4).double()
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

    def loss(task: str, **selective: Any) -> Tensor:
        return model.heads[task](checkpoint(model.encoder, x, use_reentrant=False, **selective)).pow(2).mean()

    def losses() -> Losses:
        features = checkpoint(model.encoder, x, use_reentrant=False, context_fn=contexts)
        return {t: head(features).pow(2).mean() for t, head in model.heads.items()}

    with pytest.raises(RuntimeError, match=r"^selective checkpointing \(`context_fn`\)"):
        meter_of(model)(losses)
    affinities = []
    for options in ({}, {"context_fn": contexts}):
        meter = meter_of(model)
        meter({t: partial(loss, t, **options) for t in model.heads})
        affinities.append(meter.affinity().mean)
    np.testing.assert_allclose(*affinities, rtol=1e-12)


def test_a_loss_that_is_not_finite_after_the_step_is_skipped_and_counted() -> None:
    model, losses = regression()
    before = losses()["a"].item()

    def fragile() -> Losses:
        found = losses()
        moved = found["a"].item() != before
        return {**found, "c": found["c"] * (float("inf") if moved else 1.0)}

    meter = meter_of(model)
    meter(fragile)
    affinity = meter.affinity()
    assert np.isnan(affinity.mean[:, 2]).all()
    np.testing.assert_array_equal(affinity.skipped["non-finite after the step"], [[0, 0, 1]] * 3)


def test_all_tasks_nan_warns_that_training_diverges() -> None:
    model, losses = regression()
    meter = meter_of(model, every=1)
    meter(losses)
    with pytest.warns(UserWarning, match="diverged"):
        meter(lambda: {t: loss * float("nan") for t, loss in losses().items()})
    assert meter.measured == 1


@pytest.mark.parametrize("how", ["absent", "none", "nan", "nan without graph"])
def test_a_missing_task_is_skipped_and_counted_per_pair(how: str) -> None:
    model, losses = regression()
    nan = torch.tensor(float("nan"))

    def incomplete() -> dict[str, Tensor | None]:
        found: dict[str, Tensor | None] = dict(losses())
        gap = {"none": None, "nan": found["b"] * nan, "nan without graph": nan}
        return {t: loss for t, loss in found.items() if t != "b"} if how == "absent" else found | {"b": gap[how]}

    meter = meter_of(model, every=1, tasks=["a", "b", "c"])
    meter(losses)
    meter(incomplete)
    affinity = meter.affinity()
    np.testing.assert_array_equal(affinity.count, [[2, 1, 2], [1, 1, 1], [2, 1, 2]])
    np.testing.assert_array_equal(affinity.skipped["missing"], [[0, 1, 0], [1, 1, 1], [0, 1, 0]])


def test_one_loader_per_task_measures_each_source_onto_held_out_tasks() -> None:
    model, losses = regression()
    meter = meter_of(model, every=1, tasks=["a", "b", "c"])
    for task in "abcabc":
        meter(lambda task=task: {task: losses()[task]}, held_out=losses)
    np.testing.assert_array_equal(meter.affinity().count, np.full((3, 3), 2))
    assert meter.affinity().settings["held_out"] is True
    with pytest.raises(ValueError, match="to every call or to none"):
        meter(losses)


def test_pairs_with_nothing_in_common_are_reported_as_unconnected() -> None:
    torch.manual_seed(0)
    left, right = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3)
    meter = AffinityMeter([left, right], update="sgd", lr=0.1)
    meter(lambda: {"a": left(x).pow(2).mean(), "b": right(x).pow(2).mean(), "c": (left(x) + right(x)).pow(2).mean()})
    assert meter.unconnected == [("a", "b")]
    affinity = meter.affinity()
    assert affinity.settings["unconnected"] == [["a", "b"]]
    assert affinity.mean[0, 1] == affinity.mean[1, 0] == 0.0
    assert (affinity.mean[2, :2] != 0).all()


def test_frozen_parameters_are_ignored_and_tied_ones_counted_once() -> None:
    model, losses = regression()
    model.encoder[0].weight.requires_grad_(False)
    parameters, names = list(model.encoder.parameters()), ["lookahead", "gradient"]
    twice, once = (
        AffinityMeter(shared, lr=0.1, estimator=names)
        for shared in (2 * parameters, [p for p in parameters if p.requires_grad])
    )
    twice(losses)
    once(losses)
    for name in names:
        np.testing.assert_array_equal(twice.affinity(name).mean, once.affinity(name).mean)


def test_a_closure_that_computes_gradients_itself_is_measured() -> None:
    model, _ = regression()
    x = torch.randn(8, 4).double().requires_grad_()

    def with_penalty() -> Losses:
        outputs = model(x)
        slopes = {t: torch.autograd.grad(o.sum(), x, create_graph=True)[0] for t, o in outputs.items()}
        return {t: o.pow(2).mean() + slopes[t].pow(2).mean() for t, o in outputs.items()}

    meter = meter_of(model, estimator=["lookahead", "gradient"], lr=1e-5)
    meter(with_penalty)
    exact, first = meter.affinity().mean, meter.affinity("gradient").mean
    np.testing.assert_allclose(first, exact, rtol=1e-3)  # nearly equal for a step this small, and far from zero
    assert np.abs(exact).min() > 1e-8


def test_what_the_closure_returns_comes_back_untouched() -> None:
    model, losses = regression()
    pairs: dict[str, Any] = {}

    def weighted() -> dict[str, Any]:
        pairs.update({t: (loss, 16) for t, loss in losses().items()})
        return pairs

    meter = meter_of(model)
    assert meter(weighted) is pairs
    assert meter.measured == 1
    meter, more = meter_of(model), object()
    assert meter(lambda: (losses(), more))[1] is more
    meter.backward()
    assert model.encoder[0].weight.grad is not None


class Donating(torch.autograd.Function):
    """Fails like compiled code that reuses memory of its graph in the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("This backward function was compiled with non-empty donated buffers")


def test_the_error_for_donated_buffers_says_how_to_keep_them() -> None:
    model, losses = regression()
    with pytest.raises(RuntimeError, match="donated_buffer = False") as caught:
        meter_of(model)(lambda: {t: Donating.apply(loss) for t, loss in losses().items()})
    with functorch_config.patch(donated_buffer=True):
        exec(str(caught.value).split("`")[1], {})
        assert not functorch_config.donated_buffer
