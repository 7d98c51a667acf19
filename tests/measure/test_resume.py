"""A run that is stopped and resumed, or whose meter is reset, gives the same affinity as another one."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small import regression
from torch import Tensor

from tagalong import AffinityMeter
from tagalong.measure import Auto, RoundRobin

SCHEDULES: dict[str, Callable[[], Any]] = {
    "every": lambda: 2,
    "round robin": lambda: RoundRobin(every=2),
    "auto": lambda: Auto(max_overhead=1e9),  # measures at 0, 10, 11, ...
}


def test_a_resumed_meter_restores_more_than_the_history() -> None:
    left, right = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    x = torch.ones(5, 3)

    def closure() -> dict[str, Tensor]:
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
    with pytest.raises(ValueError, match="to every call or to none"):
        resumed(closure)


def test_states_that_do_not_fit_are_rejected() -> None:
    model, closure = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = AffinityMeter(model.encoder, optimizer, update="sgd")
    AffinityMeter(model.encoder, optimizer).load_state_dict(AffinityMeter(model.encoder, optimizer).state_dict())
    meter(closure)
    state = copy.deepcopy(meter.state_dict())
    for options in ({"estimator": "cosine"}, {"update": "optimizer"}, {"per_lr": True}, {"tasks": ["x", "y"]}):
        other = AffinityMeter(model.encoder, optimizer, **{"update": "sgd", **options})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="`state`"):
            other.load_state_dict(state)
    for wrong in (None, {}, {"version": 1}, {"version": 2}):
        with pytest.raises(ValueError, match="`state`"):
            meter.load_state_dict(wrong)  # type: ignore[arg-type]


def make(every: Any = 1, **options: Any) -> tuple[AffinityMeter, Callable[[], dict[str, Tensor]]]:
    model, closure = regression()
    return AffinityMeter(model.encoder, lr=0.1, every=every, estimator=["lookahead", "cosine"], **options), closure


def run(meter: AffinityMeter, closure: Callable[[], Any], calls: int = 14) -> np.ndarray:
    for _ in range(calls):
        meter(closure)
    return meter.affinity().history


def test_reset_forgets_what_was_measured_and_keeps_settings() -> None:
    meter, closure = make(every=2)
    for _ in range(2):
        meter(closure, held_out=closure)
    meter.reset()
    assert (meter.calls, meter.measured, meter.overhead, meter.tasks, meter.unconnected) == (0, 0, 0.0, None, [])
    with pytest.raises(RuntimeError, match="nothing was measured in 0 calls"):
        meter.affinity()
    meter(lambda: {task: closure()[task] for task in "ba"})  # other tasks, and no held-out losses this time
    assert (meter.calls, meter.measured, meter.tasks) == (1, 1, ("b", "a"))
    assert meter.affinity("cosine").settings["held_out"] is False
    named, _ = make(tasks=["c", "b", "a"])
    named.reset()
    assert named.tasks == ("c", "b", "a")
