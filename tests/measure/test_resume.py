"""A run stopped and resumed gives the same affinity."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from small import regression

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin


def train(steps: range, state: dict[str, Any] | None, **options: Any) -> tuple[AffinityMeter, dict[str, Any]]:
    """Trains from a checkpoint to a checkpoint, as a script that is stopped and restarted does."""
    model, closure = regression(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    meter = AffinityMeter(model.encoder, optimizer, estimator=["lookahead", "cosine"], **options)
    if state is not None:
        saved = torch.load(state["file"], weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        meter.load_state_dict(saved["meter"])
    for step in steps:
        torch.manual_seed(step)
        losses = meter(lambda step=step: {t: x for t, x in closure().items() if step % 3 or t != "b"})
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    file = io.BytesIO()
    parts = {"model": model, "optimizer": optimizer, "meter": meter}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    return meter, {"file": file}


@pytest.mark.parametrize("every", [1, 2, "round robin"])
def test_a_resumed_run_gives_the_same_affinity(every: Any) -> None:
    def options() -> dict[str, Any]:
        return {"every": RoundRobin(2) if every == "round robin" else every, "tasks": ["a", "b", "c"]}

    whole, _ = train(range(20), None, **options())
    _, checkpoint = train(range(9), None, **options())
    resumed, _ = train(range(9, 20), checkpoint, **options())
    for name in ("lookahead", "cosine"):
        one, two = whole.affinity(name), resumed.affinity(name)
        np.testing.assert_array_equal(one.history, two.history)
        np.testing.assert_array_equal(one.null, two.null)
        np.testing.assert_array_equal(one.steps, two.steps)
        np.testing.assert_array_equal(one.mean, two.mean)
        for reason, count in one.skipped.items():
            np.testing.assert_array_equal(count, two.skipped[reason])
    assert (resumed.calls, resumed.measured) == (whole.calls, whole.measured)


def test_a_state_of_other_estimators_or_tasks_is_rejected() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    meter(closure)
    state = copy.deepcopy(meter.state_dict())
    with pytest.raises(ValueError, match="`state` must come from a meter with the same settings"):
        AffinityMeter(model.encoder, estimator="cosine").load_state_dict(state)
    with pytest.raises(ValueError, match="`state` must have the tasks"):
        AffinityMeter(model.encoder, update="sgd", lr=0.1, tasks=["x", "y"]).load_state_dict(state)


def test_a_meter_that_measured_nothing_says_so_and_can_be_saved() -> None:
    model, _ = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    with pytest.raises(RuntimeError, match="nothing was measured in 0 calls"):
        meter.affinity()
    other = AffinityMeter(model.encoder, update="sgd", lr=0.1)
    other.load_state_dict(meter.state_dict())
    assert other.tasks is None


@pytest.mark.parametrize("options", [{"update": "optimizer"}, {"update": "sgd", "per_lr": True}])
def test_a_state_of_other_settings_is_rejected(options: dict[str, Any]) -> None:
    model, closure = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = AffinityMeter(model.encoder, optimizer, update="sgd")
    meter(closure)
    with pytest.raises(ValueError, match="cannot be combined"):
        AffinityMeter(model.encoder, optimizer, **options).load_state_dict(meter.state_dict())


@pytest.mark.parametrize("state", [None, {}, {"version": 1}, {"version": 2}])
def test_an_invalid_state_is_rejected(state: Any) -> None:
    model, _ = regression()
    with pytest.raises(ValueError, match=r"`state` must come from AffinityMeter.state_dict"):
        AffinityMeter(model.encoder, update="sgd", lr=0.1).load_state_dict(state)


def test_a_resumed_meter_restores_more_than_the_history() -> None:
    left, right = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    x = torch.ones(5, 3)

    def closure() -> dict[str, torch.Tensor]:
        return {"a": left(x).pow(2).mean(), "b": right(x).pow(2).mean()}

    def make() -> AffinityMeter:
        return AffinityMeter([left, right], update="sgd", lr=0.1, every="auto", max_overhead=1e9)

    first = make()
    for _ in range(13):
        first(closure, held_out=closure)
    resumed = make()
    resumed.load_state_dict(first.state_dict())
    assert resumed.unconnected == [("a", "b")]
    assert resumed.affinity().settings["held_out"] is True
    assert resumed.overhead == pytest.approx(first.overhead)
    measured = resumed.measured
    resumed(closure, held_out=closure)  # due at once, as the schedule said before; a new one would start over
    assert resumed.measured == measured + 1
    with pytest.raises(ValueError, match="to every call or to none"):
        resumed(closure)
