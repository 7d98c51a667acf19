"""How much the rows that choose an epoch flatter it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from learn_small import TASKS, small_problem
from numpy.typing import NDArray

from tagalong.learn import Job, Recipe, Training, train
from tagalong.learn.early_stopping import first_half, stopping_flattery


def slow_flattery(curve: NDArray[np.float64], weights: list[float]) -> NDArray[np.float64]:
    """The definition: half of the mean gap between the half that chose an epoch and the other half's choice."""
    epochs = [min(range(len(curve)), key=lambda e: float(curve[e, :, half] @ np.array(weights))) for half in (0, 1)]
    gaps = [curve[epochs[1 - half], :, half] - curve[epochs[half], :, half] for half in (0, 1)]
    return np.asarray(np.mean(gaps, axis=0) / 2)


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4))
def test_flattery_is_half_the_gap_between_the_choices_of_two_halves(seed: int, epochs: int, tasks: int) -> None:
    draw = np.random.default_rng(seed)
    curve, weights = draw.random((epochs, tasks, 2)), (draw.random(tasks) + 0.1).tolist()
    found = stopping_flattery(curve, weights)
    np.testing.assert_allclose(found, slow_flattery(curve, weights), atol=1e-12)
    assert found @ np.array(weights) >= -1e-12


def test_epochs_that_diverged_are_not_chosen() -> None:
    curve = [[[1.0, 1.2]], [[np.nan, 0.5]], [[0.8, 1.4]], [[0.7, np.inf]]]
    assert stopping_flattery(curve, [1.0]) == pytest.approx([0.1])
    assert stopping_flattery([[[np.nan, np.nan]]], [1.0]).tolist() == [0.0]


def test_the_luck_of_an_epoch_is_the_flattery_on_fresh_rows() -> None:
    """Every epoch is equally good, and its losses on each row are noise, so that fresh rows have a mean loss of 1."""
    draw, rows, found, truth = np.random.default_rng(0), 64, [], []
    for _ in range(400):
        losses = 1 + draw.normal(size=(8, rows, 3))  # epochs, rows, tasks
        halves = np.stack([losses[:, ::2].mean(1), losses[:, 1::2].mean(1)], -1)
        best = losses.mean(1).sum(1).argmin()
        truth.append(1 - losses[best].mean(0))
        found.append(stopping_flattery(halves, [1.0] * 3))
    assert np.mean(found) == pytest.approx(np.mean(truth), rel=0.35)
    assert np.mean(truth) > 0.05


@pytest.mark.parametrize("groups", [None, torch.arange(24) // 3])
def test_losses_on_both_halves_are_those_of_their_rows(groups: torch.Tensor | None) -> None:
    problem = small_problem()
    problem.val.targets["weight"][::2] = torch.nan  # without groups, all rows of the first half
    problem = replace(problem, val=replace(problem.val, groups=groups))
    with torch.random.fork_rng():
        training = Training(problem, [Job(TASKS)])
        training.run_epoch()
    (trained,) = training.results()
    first = first_half(24, groups)
    for task, halves in zip(TASKS, training.curve[-1][0, :, 1:], strict=True):
        rows = torch.from_numpy(trained.val[task].rows)
        np.testing.assert_allclose(halves, [rows[first].nanmean(), rows[~first].nanmean()], rtol=1e-5)


def test_weights_of_the_last_epoch_flatter_nothing() -> None:
    recipe = Recipe(epochs=3, patience=None, keep="last", batch_size=8)
    assert train(small_problem(recipe), Job(("age",))).flattery == {"age": 0.0}


def test_tasks_without_labels_in_a_half_do_not_choose_its_epoch() -> None:
    curve = np.array([[[1.0, np.nan], [1.0, 1.2]], [[5.0, np.nan], [0.8, 1.4]]])
    assert stopping_flattery(curve, [0.01, 1.0]) == pytest.approx([0.0, 0.1])
    assert stopping_flattery(curve[:, :1], [1.0]).tolist() == [0.0]  # though they would choose the first epoch
