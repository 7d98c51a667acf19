"""A meter that was reset measures as a new one does."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small import regression
from torch import Tensor

from tagalong import AffinityMeter
from tagalong.measure import About, Auto, RoundRobin, Window

SCHEDULES: dict[str, Callable[[], Any]] = {
    "every": lambda: 2,
    "window": lambda: Window(8, "middle"),
    "about": lambda: About(3, steps=8),
    "round robin": lambda: RoundRobin(every=2),
}


def make(every: Any = 1, **options: Any) -> tuple[AffinityMeter, Callable[[], dict[str, Tensor]]]:
    model, closure = regression()
    return AffinityMeter(model.encoder, lr=0.1, every=every, estimator=["lookahead", "cosine"], **options), closure


def run(meter: AffinityMeter, closure: Callable[[], Any], calls: int = 8) -> np.ndarray:
    for _ in range(calls):
        meter(closure)
    return meter.affinity().history


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_reset_meter_measures_what_a_new_one_does(schedule: str) -> None:
    meter, closure = make(SCHEDULES[schedule]())
    expected = run(meter, closure)
    steps = meter.affinity().steps
    meter.reset()
    np.testing.assert_array_equal(run(meter, closure), expected)
    np.testing.assert_array_equal(meter.affinity().steps, steps)


def test_reset_forgets_what_was_measured_and_keeps_settings() -> None:
    meter, closure = make(every=2)
    meter(closure, held_out=closure)
    meter(closure, held_out=closure)
    meter.reset()
    assert (meter.calls, meter.measured, meter.overhead, meter.tasks, meter.unconnected) == (0, 0, 0.0, None, [])
    with pytest.raises(RuntimeError, match="nothing was measured in 0 calls"):
        meter.affinity()
    meter(closure)  # without held-out losses this time
    meter(closure)
    assert (meter.calls, meter.measured) == (2, 1)
    assert meter.affinity("cosine").settings["held_out"] is False


def test_reset_keeps_the_tasks_of_the_constructor_and_finds_others_again() -> None:
    given, closure = make(tasks=["c", "b", "a"])
    run(given, closure, 1)
    given.reset()
    assert given.tasks == ("c", "b", "a")
    found, closure = make()
    found(lambda: {"first": closure()["a"], "second": closure()["b"]})
    found.reset()
    run(found, closure, 1)
    assert found.tasks == ("a", "b", "c")


def test_the_state_of_a_reset_meter_is_that_of_a_new_one() -> None:
    meter, closure = make(every=Auto(max_overhead=0.5))
    new = copy.deepcopy(meter.state_dict())
    run(meter, closure, 12)
    used = copy.deepcopy(meter.state_dict())
    meter.reset()
    assert meter.state_dict() == new
    meter.load_state_dict(used)
    assert (meter.calls, meter.measured) == (used["calls"], used["ledger"]["measured"])
    meter.reset()
    assert meter.state_dict() == new


def test_a_meter_resumed_from_a_reset_one_goes_on_as_it_would() -> None:
    meter, closure = make(every=3)
    run(meter, closure, 4)
    meter.reset()
    run(meter, closure, 4)
    resumed, same_closure = make(every=3)
    resumed.load_state_dict(meter.state_dict())
    np.testing.assert_array_equal(run(resumed, same_closure, 4), run(meter, closure, 4))
    assert (resumed.calls, resumed.measured) == (8, 3)


def test_reset_does_not_disturb_the_training_step_under_way() -> None:
    gradients = []
    for reset in (False, True):
        model, closure = regression()
        meter = AffinityMeter(model.encoder, lr=0.1, every=1)
        for _ in range(2):  # from the second time on the measured gradients are used again
            model.zero_grad()
            meter(closure)
            if reset:
                meter.reset()
            meter.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
