"""A history that has reached its memory limit keeps block means: means and counts stay exact."""

import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import regression
from torch import nn

from tagalong import Affinity, AffinityMeter

TASKS = ("a", "b", "c", "d")
SMALL = 16 * 8 * len(TASKS) * (len(TASKS) + 1)  # bytes: 16 steps
CALLS = 2 * 67


def make(memory: float) -> tuple[nn.Module, torch.optim.Optimizer, AffinityMeter, Any]:
    model, closure = regression(TASKS, dropout=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    meter = AffinityMeter(model.encoder, optimizer, every=2, tasks=TASKS, estimator="gradient", history_memory=memory)
    return model, optimizer, meter, closure


@cache
def measure(memory: float, missing: bool = False, resumed_at: int = CALLS) -> AffinityMeter:
    """Returns a meter after 67 measured steps; in some of them, the labels of one task are missing.

    These are measured relative to the null step, and the others are not, so they are at different levels.
    """
    model, optimizer, meter, closure = make(memory)
    draw = np.random.default_rng(0)
    for call in range(CALLS):
        if call == resumed_at:
            file = io.BytesIO()
            torch.save([part.state_dict() for part in (model, optimizer, meter)], file)
            file.seek(0)
            model, optimizer, meter, closure = make(memory)
            for part, state in zip((model, optimizer, meter), torch.load(file, weights_only=True), strict=True):
                part.load_state_dict(state)
        torch.manual_seed(call)
        gone = TASKS[draw.integers(4)] if missing and draw.random() < 0.5 else ""
        losses = meter(lambda gone=gone, closure=closure: {t: x for t, x in closure().items() if t != gone})
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return meter


@pytest.mark.parametrize("missing", [False, True])
def test_means_and_counts_equal_those_of_the_unbounded_history(missing: bool) -> None:
    whole, small = (measure(memory, missing).affinity() for memory in (1e9, SMALL))
    assert (len(whole.steps), whole.block_counts) == (67, None)
    assert len(small.steps) <= 16 + 2
    assert small.settings["steps_per_block"] >= 4
    assert small.steps[0] == whole.steps[0]
    np.testing.assert_allclose(small.mean, whole.mean, rtol=1e-12)
    np.testing.assert_array_equal(small.count, whole.count)
    assert measure(SMALL, missing).latest().steps.tolist() == [CALLS - 2]
    # Steps at different levels are not averaged in one block.
    assert {*np.isfinite(small.null).any(axis=1)} == {False, True} if missing else {False}


@pytest.mark.parametrize(
    "part",
    [
        lambda a: a.averaged("median"),
        lambda a: a.averaged("trimmed"),
    ],
)
def test_what_becomes_coarser_is_said_where_it_is_asked(part: Any) -> None:
    small = measure(SMALL).affinity()
    with pytest.warns(UserWarning, match="block"):
        result = part(small)
    assert np.isfinite(result.mean).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small.averaged("mean")
        assert np.isfinite(small.between(0, 300).every(2).mean).all()
        small.only(["b", "a"])
        small.merge(small)


def test_tasks_merges_and_files_keep_the_blocks(tmp_path: Path) -> None:
    whole, small = (measure(memory, missing=True).affinity() for memory in (1e9, SMALL))
    np.testing.assert_allclose(small.only(["c", "a"]).mean, whole.only(["c", "a"]).mean)
    np.testing.assert_allclose(small.merge(whole).mean, whole.mean)
    np.testing.assert_array_equal(small.merge(whole).count, 2 * whole.count)
    small.save(tmp_path / "affinity.json")
    loaded = Affinity.load(tmp_path / "affinity.json")
    np.testing.assert_array_equal(loaded.block_counts, small.block_counts)
    np.testing.assert_array_equal(loaded.mean, small.mean)


@pytest.mark.parametrize("memory", [SMALL, 1e9])
def test_a_resumed_history_continues_bit_for_bit(memory: float) -> None:
    one, two = (measure(memory, missing=True, resumed_at=call) for call in (CALLS, 100))
    for name in ("history", "null", "steps", "mean", "stderr"):
        np.testing.assert_array_equal(getattr(one.affinity(), name), getattr(two.affinity(), name))
    np.testing.assert_array_equal(one.latest().history, two.latest().history)
    np.testing.assert_array_equal(one.affinity().skipped["missing"], two.affinity().skipped["missing"])
    if memory == SMALL:
        np.testing.assert_array_equal(one.affinity().block_counts, two.affinity().block_counts)
