"""A learning rate that falls when the training loss no longer does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st
from learn_small import TASKS, small_problem

from tagalong.learn import Job, Recipe, train
from tagalong.learn.recipe import LossWindows

RECIPE = Recipe("sgd", lr=1.0, batch_size=4, epochs=9, patience=None, schedule="windows", window=64)


def rates_by_hand(losses: list[float], epochs: list[int], first: int = 16) -> list[float]:
    """The published rule, slowly: the whole history is kept, and tested with scipy's paired t-test."""
    rate, window, last, rates = 1.0, first, 0, []
    for step, epoch in enumerate(epochs, start=1):
        if epoch >= 2 and step - last > window:
            seen = losses[step - window : step]
            size = int(window * 3 / 8)
            beginning, end = (
                sorted(part)[int(size * 0.05) : size - int(size * 0.05)] for part in (seen[:size], seen[-size:])
            )
            statistic, chance = scipy.stats.ttest_rel(beginning, end)
            if statistic < 0 or chance > 0.99:
                rate, window, last = rate / 2, min(2 * window, 4 * first), step
        rates.append(rate)
    return rates


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), slope=st.floats(-0.01, 0.003))
def test_learning_rates_equal_the_published_rule(seed: int, slope: float) -> None:
    random = np.random.default_rng(seed)
    losses = (2 + slope * np.arange(300) + 0.2 * random.normal(size=300)).tolist()
    epochs = [step // 30 for step in range(300)]
    windows, rates = LossWindows(RECIPE), []
    for loss, epoch in zip(losses, epochs, strict=True):
        windows.add_loss(loss, epoch)
        rates.append(windows.rate)
    assert rates == rates_by_hand(losses, epochs)


def test_training_lowers_the_rate_and_stops_at_the_lowest() -> None:
    recipe = replace(RECIPE, lr=0.5, batch_size=8, epochs=30, window=24)
    free = train(small_problem(recipe), Job(TASKS))
    assert len(free.curve) == 30
    ended = train(small_problem(replace(recipe, lowest_lr=0.2)), Job(TASKS))
    assert 2 < len(ended.curve) < 30
    np.testing.assert_array_equal(ended.curve, free.curve[: len(ended.curve)])
    constant = train(small_problem(replace(recipe, schedule="constant")), Job(TASKS))
    np.testing.assert_array_equal(constant.curve[:2], free.curve[:2])
    assert (constant.curve[-1] != free.curve[-1]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "window"}, "`schedule`"),
        ({"window": 0}, "`window`"),
        ({"lowest_lr": -1.0}, "`lowest_lr`"),
        ({"lowest_lr": 0.1, "keep": "last"}, "`lowest_lr`"),
        ({"keep": "first"}, "`keep`"),
        ({"keep": "last", "patience": 10}, "`patience`"),
    ],
)
def test_invalid_settings_raise_an_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(RECIPE, **changes)
