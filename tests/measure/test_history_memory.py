"""A history that has reached its memory limit keeps block means: means stay exact and standard errors valid."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import regression

from tagalong import Affinity, AffinityMeter
from tagalong.measure.history import EstimatorHistory, MeterHistory

N, STEPS = 4, 203
TASKS = ("a", "b", "c", "d")
SMALL = 16 * 8 * N * (N + 1)  # bytes: 16 steps


def measured_steps(seed: int = 0, *, missing: float = 0.0, raw: float = 0.0) -> list[tuple[int, Any, Any]]:
    draw = np.random.default_rng(seed)
    steps = []
    for step in range(STEPS):
        values = draw.normal(size=(N, N)) + np.arange(N)
        values[draw.random(N) < missing] = np.nan
        null = np.full(N, np.nan) if draw.random() < raw else draw.normal(size=N)
        steps.append((3 * step, values + (5.0 if np.isnan(null).any() else 0.0), null))
    return steps


def fill(memory: float, steps: list[tuple[int, Any, Any]]) -> EstimatorHistory:
    history = EstimatorHistory(TASKS, memory)
    for step in steps:
        history.add(*step)
    return history


@pytest.mark.parametrize("kind", [{}, {"missing": 0.3}, {"missing": 0.3, "raw": 0.4}])
def test_means_and_counts_equal_those_of_the_unbounded_history(kind: dict[str, float]) -> None:
    steps = measured_steps(**kind)
    whole, small = (fill(memory, steps).affinity({}) for memory in (np.inf, SMALL))
    assert len(small.steps) <= 16 + 2
    assert small.settings["steps_per_block"] >= 16
    np.testing.assert_allclose(small.mean, whole.mean, rtol=1e-12)
    np.testing.assert_array_equal(small.count, whole.count)
    assert small.steps[0] == whole.steps[0]


def test_standard_errors_agree_with_those_of_the_unbounded_history() -> None:
    ratios = []
    for seed in range(20):
        whole, small = (fill(memory, measured_steps(seed)).affinity({}) for memory in (np.inf, SMALL))
        ratios.append(small.stderr / whole.stderr)
    assert 0.85 < np.mean(ratios) < 1.15
    draws = small.bootstrap(400)
    np.testing.assert_allclose(draws.std(axis=0), small.stderr, rtol=0.3)


def test_a_history_within_its_memory_is_kept_as_it_is() -> None:
    steps = measured_steps()[:16]
    affinity = fill(SMALL, steps).affinity({})
    assert affinity.block_counts is None
    np.testing.assert_array_equal(affinity.history, [values for _, values, _ in steps])


def test_steps_at_different_levels_are_not_averaged_in_one_block() -> None:
    small = fill(SMALL, measured_steps(raw=0.5)).affinity({})
    assert {*np.isfinite(small.null).sum(axis=1)} == {0, N}


def test_the_null_effect_of_a_target_survives_steps_without_it() -> None:
    history = EstimatorHistory(TASKS, 1.0)
    for step in range(40):
        values, null = np.ones((N, N)), np.full(N, 2.0)
        values[:, step % N] = null[step % N] = np.nan
        history.add(step, values, null)
    affinity = history.affinity({})
    np.testing.assert_array_equal(affinity.null, np.full_like(affinity.null, 2.0))
    np.testing.assert_array_equal(affinity.count, np.full((N, N), 30))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda a: a.averaged("median"), "the median average is computed from block means"),
        (lambda a: a.averaged("trimmed"), "the trimmed average is computed from block means"),
        (lambda a: a.between(0, 300), "keeps the blocks that start"),
        (lambda a: a.every(2), "keeps every n-th block"),
    ],
)
def test_what_becomes_coarser_is_said_where_it_is_asked(part: Any, message: str) -> None:
    small = fill(SMALL, measured_steps()).affinity({})
    with pytest.warns(UserWarning, match=message):
        result = part(small)
    assert np.isfinite(result.mean).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small.averaged("mean")
        small.only(["b", "a"])
        small.merge(small)


def test_tasks_merges_and_files_keep_the_blocks(tmp_path: Path) -> None:
    whole, small = (fill(memory, measured_steps(missing=0.2)).affinity({}) for memory in (np.inf, SMALL))
    np.testing.assert_allclose(small.only(["c", "a"]).mean, whole.only(["c", "a"]).mean)
    np.testing.assert_allclose(small.merge(whole).mean, whole.mean)
    np.testing.assert_array_equal(small.merge(whole).count, 2 * whole.count)
    small.save(tmp_path / "affinity.json")
    loaded = Affinity.load(tmp_path / "affinity.json")
    np.testing.assert_array_equal(loaded.block_counts, small.block_counts)
    np.testing.assert_array_equal(loaded.mean, small.mean)


def test_block_counts_must_fit_the_history() -> None:
    with pytest.raises(ValueError, match="`block_counts` must be positive where `history` is known"):
        Affinity.from_history(np.ones((2, 1, 1)), ["a"], block_counts=np.zeros((2, 1, 1)))


def test_a_resumed_history_in_blocks_continues_bit_for_bit() -> None:
    steps = measured_steps(missing=0.2, raw=0.3)
    whole, first = fill(SMALL, steps), fill(SMALL, steps[:100])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed = EstimatorHistory(TASKS, SMALL)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(resumed.affinity({}, last=True).history[0], steps[99][1])
    for step in steps[100:]:
        resumed.add(*step)
    one, two = whole.affinity({}), resumed.affinity({})
    for name in ("history", "null", "steps", "block_counts", "mean", "stderr"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(whole.affinity({}, last=True).history, resumed.affinity({}, last=True).history)


def test_the_meter_has_a_limit() -> None:
    model, closure = regression()
    meters = [AffinityMeter(model.encoder, lr=0.1, every=1, history_memory=memory) for memory in (1e9, 1.0)]
    for _ in range(40):
        for meter in meters:
            meter(closure)
    whole, small = (meter.affinity() for meter in meters)
    assert (len(whole.steps), len(small.steps)) == (40, 10)
    np.testing.assert_allclose(small.mean, whole.mean, rtol=1e-12)
    assert meters[1].latest().steps.tolist() == [39]
    assert MeterHistory(None)._memory == 64 * 2**20
    with pytest.raises(ValueError, match="`history_memory` must be a positive number of bytes"):
        AffinityMeter(model.encoder, lr=0.1, history_memory=0)
