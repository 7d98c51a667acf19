"""Schedules: which steps and which sources are measured."""

import numpy as np
import pytest
from small import regression

from tagalong import AffinityMeter
from tagalong.measure import Auto, Every, RoundRobin


def measured_calls(every: object, calls: int, **options: object) -> list[int]:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=every, **options)
    for _ in range(calls):
        meter(closure)
    assert meter.calls == calls
    return meter.affinity().steps.tolist()


def test_every_k_measures_the_first_call_and_every_kth_after_it() -> None:
    assert measured_calls(4, 10) == [0, 4, 8]


def test_auto_keeps_to_the_allowed_share_of_time() -> None:
    schedule = Auto(max_overhead=0.1)
    spent = plain = 0.0
    due = []
    for call in range(10_000):
        if schedule.due(call):
            due.append(call)
            spent += 7.0
            schedule.timed(call, measured_seconds=7.0, plain_seconds=1.0 if call else 0.0)
        plain += 1.0
    assert due[0] == 0
    assert 0.09 < spent / plain <= 0.101


def test_auto_measures_within_a_meter() -> None:
    calls = measured_calls("auto", 40, max_overhead=1e9)
    assert calls[:2] == [0, 10]
    assert calls[2:] == list(range(11, 40))


@pytest.mark.parametrize("sources", [1, 2])
def test_round_robin_gives_every_source_its_turn(sources: int) -> None:
    model, closure = regression("abcde")
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=RoundRobin(2, sources))
    for _ in range(20):
        meter(closure)
    affinity = meter.affinity()
    per_step = np.isfinite(affinity.history).all(axis=2).sum(axis=1)
    assert (per_step == sources).all()
    assert (affinity.count == 10 * sources // 5).all()
    assert affinity.skipped.get("missing", np.zeros(1)).sum() == 0


def test_round_robin_takes_turns_among_the_tasks_that_are_present() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, update="sgd", lr=0.1, every=RoundRobin(1), tasks=["a", "b", "c"])
    for call in range(12):
        present = "ab" if call % 2 else "bc"
        meter(lambda present=present: {t: closure()[t] for t in present})
    count = np.diag(meter.affinity().count)
    assert count.sum() == 12
    assert count.max() - count.min() <= 1


def test_the_seed_decides_ties() -> None:
    orders = {tuple(RoundRobin(1).choose("abcdef", {}, seed)) for seed in range(30)}
    assert len(orders) > 3
    assert RoundRobin(1).choose("abcdef", {}, 7) == RoundRobin(1).choose("abcdef", {}, 7)


def test_invalid_schedules_are_rejected() -> None:
    with pytest.raises(ValueError, match="`max_overhead`"):
        Auto(0.0)
    with pytest.raises(ValueError, match="`sources`"):
        RoundRobin(1, 0)
    assert Every(3).interval == 3
