"""What closures may return, and the errors for closures that cannot be measured."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tagalong import AffinityMeter
from tagalong.measure import ClosureError


def meter_of(model: TwoLayers, **options: Any) -> AffinityMeter:
    return AffinityMeter(model.encoder, **{"update": "sgd", "lr": 0.1, **options})


def problems(closure: Callable[[], Any], model: TwoLayers, **options: Any) -> str:
    with pytest.raises(ClosureError) as caught:
        meter_of(model, **options)(closure)
    return str(caught.value)


def test_a_tensor_instead_of_a_dict_is_rejected() -> None:
    model, closure = regression()
    assert "must return a dict {task name: scalar loss}" in problems(lambda: sum(closure().values()), model)


def test_a_single_task_is_rejected() -> None:
    model, closure = regression(["a"])
    assert "only one task" in problems(closure, model)


def test_one_error_lists_all_problems() -> None:
    model, closure = regression()

    def broken() -> dict[Any, Any]:
        losses = closure()
        return {"a": losses["a"].detach(), "b": losses["b"].expand(3), "c": losses["c"].item(), 4: losses["c"]}

    found = problems(broken, model, tasks=["a", "b", "c"])
    for part in ("['a'] have no autograd graph", "`b` has shape (3,)", "`c` is a float", "task 4"):
        assert part in found


def test_one_sentence_explains_that_task_names_must_be_strings() -> None:
    model, closure = regression()
    found = problems(lambda: dict(enumerate(closure().values())), model)
    assert found.count("\n") == 1
    assert "returns a loss for tasks 0, 1, 2, but task names must be strings; return {str(task): loss}" in found


@pytest.mark.parametrize("due", [True, False])
def test_one_sentence_explains_that_a_closure_takes_no_arguments(due: bool) -> None:
    model, closure = regression()
    meter = meter_of(model, every=2)
    if not due:
        meter(closure)
    with pytest.raises(TypeError, match=r"requires `x, y`; wrap it, e\.g\. meter\(lambda: task_losses\(x, y\)\)"):
        meter(lambda x, y, z=3: closure())  # type: ignore[misc]


def test_type_errors_inside_the_closure_are_not_explained_away() -> None:
    model, _ = regression()
    with pytest.raises(TypeError, match="unsupported operand"):
        meter_of(model)(lambda: {"a": "text" - 1})  # type: ignore[operator]


def test_a_total_along_with_the_tasks_is_noted() -> None:
    model, closure = regression()

    def with_total() -> dict[str, Tensor]:
        return {"loss": torch.stack(list(closure().values())).sum(), **closure()}

    meter = meter_of(model, every=1)
    with pytest.warns(UserWarning, match=r"returns `loss` along with the other tasks.*return \(losses, total\)"):
        meter(with_total)
    for _ in range(11):
        meter(with_total)  # checked again after ten measurements, but warned about only once
    assert any("`loss`" in note for note in meter.check(with_total).notes)
    assert not any("`loss`" in note for note in meter_of(model).check(lambda: closure()).notes)


def test_one_task_per_call_is_warned_about_after_three_measurements() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1, tasks=["a", "b", "c"])
    for task in "ab":
        meter(lambda task=task: {task: closure()[task]})
    with pytest.warns(UserWarning, match="no pair of tasks has been measured"):
        meter(lambda: {"c": closure()["c"]})
    for task in "abcabc":
        meter(lambda task=task: {task: closure()[task]})


def test_batches_with_single_tasks_among_others_are_not_warned_about() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1, tasks=["a", "b", "c"])
    meter(closure)
    for task in "abcabc":
        meter(lambda task=task: {task: closure()[task]})
    assert meter.measured == 7


def test_the_error_for_negative_losses_gives_the_reason_and_a_remedy() -> None:
    model, closure = regression()
    found = problems(lambda: {t: loss - 100 for t, loss in closure().items()}, model)
    assert "meaningless for a negative loss" in found
    assert "estimator='cosine'" in found


def test_negative_losses_do_not_matter_for_cosines() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, estimator="cosine")
    meter(lambda: {t: loss - 100 for t, loss in closure().items()})
    assert np.isfinite(meter.affinity().mean).all()


def test_changing_task_names_are_rejected() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1)
    meter(lambda: {t: closure()[t] for t in "ab"})
    with pytest.raises(ClosureError, match=r"\['c'\] that are not among"):
        meter(closure)


def test_shared_parameters_that_no_loss_depends_on_are_rejected() -> None:
    _, closure = regression()
    other, _ = regression()
    assert "no loss depends on any parameter of `shared`" in problems(closure, other)


def test_a_detached_representation_is_rejected() -> None:
    model, _ = regression()
    x = torch.randn(8, 4).double()
    found = problems(lambda: {t: h(model.encoder(x).detach()).pow(2).mean() for t, h in model.heads.items()}, model)
    assert "no loss depends on any parameter of `shared`" in found


@pytest.mark.parametrize("what", ["closure", "held-out closure"])
def test_a_closure_that_cannot_be_repeated_is_rejected(what: str) -> None:
    model, closure = regression()
    batches = itertools.count(1)

    def moving() -> dict[str, Tensor]:
        factor = next(batches)
        return {t: loss * factor for t, loss in closure().items()}

    main, held_out = (moving, None) if what == "closure" else (closure, moving)
    with pytest.raises(ClosureError, match=f"the {what} is not repeatable"):
        meter_of(model)(main, held_out)


def test_augmentation_from_torch_numpy_and_random_can_be_repeated() -> None:
    model, _ = regression(dropout=0.5)
    x = torch.randn(8, 4).double()

    def augmented() -> dict[str, Tensor]:
        noise = torch.randn_like(x) * random.random() * float(np.random.rand())  # noqa: NPY002
        return {t: out.pow(2).mean() for t, out in model(x + noise).items()}

    meter = meter_of(model)
    meter(augmented)
    assert np.isfinite(meter.affinity().mean).all()


def test_reentrant_checkpointing_is_rejected() -> None:
    model, _ = regression()
    x = torch.randn(8, 4, requires_grad=True).double()

    def closure() -> dict[str, Tensor]:
        z = checkpoint(model.encoder, x, use_reentrant=True)
        return {t: h(z).pow(2).mean() for t, h in model.heads.items()}

    found = problems(closure, model)
    assert "use_reentrant=False" in found
    assert "no loss depends" not in found


def test_non_reentrant_checkpointing_changes_no_value() -> None:
    model, _ = regression(dropout=0.4)
    x = torch.randn(8, 4).double()

    def losses(checkpointed: bool) -> dict[str, Tensor]:
        z = checkpoint(model.encoder, x, use_reentrant=False) if checkpointed else model.encoder(x)
        return {t: h(z).pow(2).mean() for t, h in model.heads.items()}

    found = []
    for checkpointed in (True, False):
        meter = meter_of(model, estimator=["lookahead", "gradient"])
        torch.manual_seed(3)
        meter(lambda checkpointed=checkpointed: losses(checkpointed))
        found.append(meter.affinity("gradient").mean + meter.affinity().mean)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_losses_without_a_graph_are_rejected() -> None:
    model, closure = regression()

    def graphless() -> dict[str, Tensor]:
        with torch.no_grad():
            return closure()

    assert "have no autograd graph" in problems(graphless, model)


def test_a_zero_loss_is_skipped_and_counted() -> None:
    model, closure = regression()
    meter = meter_of(model)
    meter(lambda: {t: loss * (0.0 if t == "b" else 1.0) for t, loss in closure().items()})
    affinity = meter.affinity()
    assert np.isnan(affinity.mean[:, 1]).all()
    assert np.isfinite(affinity.mean[:, [0, 2]]).all()
    np.testing.assert_array_equal(affinity.skipped["zero loss"], [[0, 1, 0]] * 3)


def test_a_loss_that_is_not_finite_after_the_step_is_skipped_and_counted() -> None:
    model, closure = regression()
    before = {t: loss.item() for t, loss in closure().items()}

    def fragile() -> dict[str, Tensor]:
        losses = closure()
        moved = losses["a"].item() != before["a"]
        return {**losses, "c": losses["c"] * (float("inf") if moved else 1.0)}

    meter = meter_of(model)
    meter(fragile)
    affinity = meter.affinity()
    assert np.isnan(affinity.mean[:, 2]).all()
    np.testing.assert_array_equal(affinity.skipped["non-finite after the step"], [[0, 0, 1]] * 3)


def test_an_infinite_loss_is_skipped_and_counted() -> None:
    model, closure = regression()
    meter = meter_of(model)
    meter(lambda: {t: loss + (float("inf") if t == "a" else 0.0) for t, loss in closure().items()})
    affinity = meter.affinity()
    assert np.isnan(affinity.mean[0]).all()
    assert np.isnan(affinity.mean[:, 0]).all()
    assert affinity.skipped["non-finite loss"].sum() == 5


def test_all_tasks_nan_warns_that_training_diverges() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1)
    meter(closure)
    with pytest.warns(UserWarning, match="training has diverged"):
        meter(lambda: {t: loss * float("nan") for t, loss in closure().items()})
    assert meter.measured == 1


@pytest.mark.parametrize("how", ["absent", "none", "nan", "nan without graph"])
def test_a_missing_task_is_skipped_and_counted_per_pair(how: str) -> None:
    model, closure = regression()
    gap = {"none": None, "nan": 0.0, "nan without graph": torch.tensor(float("nan"))}

    def partial() -> dict[str, Tensor | None]:
        losses: dict[str, Tensor | None] = dict(closure())
        if how == "absent":
            del losses["b"]
        else:
            losses["b"] = losses["b"] * float("nan") if how == "nan" else gap[how]
        return losses

    meter = meter_of(model, every=1)
    meter(closure)
    meter(partial)
    affinity = meter.affinity()
    np.testing.assert_array_equal(affinity.count, [[2, 1, 2], [1, 1, 1], [2, 1, 2]])
    np.testing.assert_array_equal(affinity.skipped["missing"], [[0, 1, 0], [1, 1, 1], [0, 1, 0]])


def test_one_loader_per_task_measures_each_source_onto_held_out_tasks() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1, tasks=["a", "b", "c"])
    for task in "abcabc":
        meter(lambda task=task: {task: closure()[task]}, held_out=closure)
    np.testing.assert_array_equal(meter.affinity().count, np.full((3, 3), 2))


def test_held_out_must_be_given_always_or_never() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1)
    meter(closure)
    with pytest.raises(ValueError, match="to every call or to none"):
        meter(closure, held_out=closure)


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
    model, closure = regression()
    model.encoder[0].weight.requires_grad_(False)
    twice = [*model.encoder.parameters(), *model.encoder.parameters()]
    meter = AffinityMeter(twice, update="sgd", lr=0.1, estimator=["lookahead", "gradient"])
    once = AffinityMeter(
        [p for p in model.encoder.parameters() if p.requires_grad], update="sgd", lr=0.1,
        estimator=["lookahead", "gradient"],
    )  # fmt: skip
    meter(closure)
    once(closure)
    for name in ("lookahead", "gradient"):
        np.testing.assert_array_equal(meter.affinity(name).mean, once.affinity(name).mean)


def test_a_closure_that_computes_gradients_itself_is_measured() -> None:
    model, _ = regression()
    x = torch.randn(8, 4).double().requires_grad_()

    def with_penalty() -> dict[str, Tensor]:
        outputs = model(x)
        slopes = {t: torch.autograd.grad(o.sum(), x, create_graph=True)[0] for t, o in outputs.items()}
        return {t: o.pow(2).mean() + slopes[t].pow(2).mean() for t, o in outputs.items()}

    meter = meter_of(model, estimator=["lookahead", "gradient"], lr=1e-5)
    meter(with_penalty)
    exact, first = meter.affinity().mean, meter.affinity("gradient").mean
    np.testing.assert_allclose(first, exact, rtol=1e-3)  # nearly equal for a step this small, and far from zero
    assert np.abs(exact).min() > 1e-8


def test_the_closures_return_value_comes_back_untouched() -> None:
    model, closure = regression()
    meter = meter_of(model)
    given: dict[str, Any] = {}

    def weighted() -> dict[str, Any]:
        given.update({t: (loss, 16) for t, loss in closure().items()})
        return given

    assert meter(weighted) is given
    assert meter.measured == 1


def test_a_closure_that_uses_torch_func_is_measured() -> None:
    model, closure = regression()
    shift = torch.zeros((), dtype=torch.float64)

    def with_jacobian() -> dict[str, Tensor]:
        slope = torch.func.grad(lambda s: (s + 1.0) ** 2)(shift)
        return {t: loss * slope for t, loss in closure().items()}

    meter = meter_of(model)
    meter(with_jacobian)
    plain = meter_of(model)
    plain(lambda: {t: 2.0 * loss for t, loss in closure().items()})
    np.testing.assert_allclose(meter.affinity().mean, plain.affinity().mean, rtol=1e-12)


def test_problems_are_listed_even_if_the_task_names_are_not_given() -> None:
    model, closure = regression()
    found = problems(lambda: {"a": closure()["a"], "b": 3.0}, model)
    assert "`b` is a float" in found
    assert "only one task" not in found


@pytest.mark.parametrize("second", ["loss", "text", "negative"])
def test_pairs_other_than_a_loss_and_its_weight_are_rejected(second: str) -> None:
    model, closure = regression()
    found = problems(
        lambda: {t: (x, {"loss": x.abs(), "text": "x", "negative": -2.0}[second]) for t, x in closure().items()}, model
    )
    assert "it must be the weight of the loss" in found


def test_a_representation_that_is_detached_later_is_rejected() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1)
    meter(closure)
    x = torch.randn(8, 4).double()
    with pytest.raises(ClosureError, match="no loss depends on any parameter of `shared`"):
        meter(lambda: {t: h(model.encoder(x).detach()).pow(2).mean() for t, h in model.heads.items()})


def test_closures_are_checked_again_later() -> None:
    model, closure = regression()
    meter = meter_of(model, every=1)
    for _ in range(10):
        meter(closure)
    drawing = random.SystemRandom()
    with pytest.raises(ClosureError, match="is not repeatable"):
        meter(lambda: {t: loss * drawing.random() for t, loss in closure().items()})
