"""Measurements where a trainer runs the training step itself."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from small import regression
from torch import Tensor

from tagalong import AffinityMeter


def state(model: torch.nn.Module, *more: Any) -> list[Tensor]:
    return [*(v.clone() for v in model.state_dict().values()), torch.get_rng_state(), *more]


class Noisy(torch.nn.Module):
    """Has buffers and draws random numbers, so that running a closure leaves a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3))
        self.heads = torch.nn.ModuleDict({t: torch.nn.Linear(6, 1) for t in "ab"})

    def losses(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.train().encoder(x)
        return {t: head(hidden).square().mean() for t, head in self.heads.items()}


def test_measure_only_equals_a_call_and_leaves_no_trace_of_the_closure() -> None:
    x, found = torch.randn(8, 4), []
    ways: list[Callable[[AffinityMeter, Any], Any]] = [AffinityMeter.__call__, AffinityMeter.measure_only]
    for way in ways:
        torch.manual_seed(3)
        model = Noisy().eval()
        meter, before = AffinityMeter(model.encoder, lr=0.1, every=2), state(model)
        returned = [way(meter, lambda model=model: model.losses(x)) for _ in range(1)]
        found.append(meter.affinity().mean)
    assert returned == [True]
    assert all(torch.equal(a, b) for a, b in zip(before, state(model), strict=True))
    assert not model.training
    assert (found[0] == found[1]).all()


def test_measure_only_does_not_run_the_closure_when_nothing_is_due() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=2)
    runs: SimpleQueue[int] = SimpleQueue()  # unlike a list, not restored after a replay

    def counting() -> dict[str, Tensor]:
        runs.put(1)
        return closure()

    assert [bool(meter.measure_only(counting)) for _ in range(3)] == [True, False, True]
    before = runs.qsize()
    assert before > 2
    assert not meter.measure_only(counting)
    assert (runs.qsize(), meter.calls, meter.measured) == (before, 4, 2)


def test_the_forward_pass_of_measure_only_counts_as_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the closure takes a second here, a training step three, and nothing else takes any time."""
    clock: SimpleQueue[None] = SimpleQueue()
    monkeypatch.setattr("tagalong.measure.clock.time.perf_counter", lambda: float(clock.qsize()))
    model, closure = regression()

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            clock.put(None)

    def timed() -> dict[str, Tensor]:
        wait(1)
        return closure()

    aside, inside = (AffinityMeter(model.encoder, lr=0.1, every=2, estimator="gradient") for _ in range(2))
    for _ in range(5):
        aside.measure_only(timed)
        wait(3)
    for _ in range(5):
        inside(timed)
        wait(2)
    # Calls 0 and 2 of the first four are measured. Only the first is verified, with one more run.
    assert aside.overhead == pytest.approx((2 + 1) / (4 * 3))
    assert inside.overhead == pytest.approx((1 + 0) / (4 * 3))


def test_the_schedule_within_a_time_budget_counts_the_forward_pass_of_measure_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock: SimpleQueue[None] = SimpleQueue()
    monkeypatch.setattr("tagalong.measure.clock.time.perf_counter", lambda: float(clock.qsize()))
    model, closure = regression()

    def timed() -> dict[str, Tensor]:
        clock.put(None)
        return closure()

    meter = AffinityMeter(model.encoder, lr=0.1, every="auto", max_overhead=0.1, estimator="gradient")
    for _ in range(60):
        meter.measure_only(timed)
        clock.put(None)
    assert meter.affinity().steps.tolist() == [0, 10, 20, 30, 40, 50]  # a second of measuring per ten of training


def test_the_latest_step_is_the_last_of_the_history() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=1, estimator=["lookahead", "cosine"])
    for _ in range(3):
        meter(closure)
        with torch.no_grad():
            model.encoder[0].weight.mul_(0.9)
    for name in ("lookahead", "cosine"):
        latest, last = meter.latest(name), meter.affinity(name).history[-1]
        np.testing.assert_array_equal(latest.mean, last)
        assert (latest.tasks, list(latest.steps)) == (("a", "b", "c"), [2])
        assert latest.metrics()[f"{name} onto c/a"] == last[0, 2]
