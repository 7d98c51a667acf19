"""How much the rows that choose an epoch flatter it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from tagalong.learn import Job, Problem, Recipe, Task, Training, train, train_many
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


def make_problem(**settings: object) -> Problem:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(240, 4))
    targets = np.stack([inputs.sum(1) + draw.normal(size=240), inputs[:, 0] > 0, draw.integers(3, size=240)], 1)
    targets[::7, 0] = np.nan
    tasks = [Task("age", kind="regression", weight=2.0), Task("ill"), Task("kind", kind="multiclass", classes=3)]
    given: dict[str, object] = {
        "recipe": Recipe(epochs=6, batch_size=32, lr=0.02),
        "split": (0.4, 0.4, 0.2),
        **settings,
    }
    return Problem.from_arrays(inputs, targets, tasks, **given)  # type: ignore[arg-type]


JOBS = [Job(("age", "ill", "kind"), 0), Job(("age",), 0), Job(("ill", "kind"), 0)]


@pytest.mark.parametrize("groups", [None, np.arange(240) // 3])
def test_losses_on_both_halves_are_those_of_their_rows(groups: NDArray[np.int64] | None) -> None:
    problem = make_problem(groups=groups)
    with torch.random.fork_rng():
        training = Training(problem, JOBS[:1])
        training.run_epoch()
    (trained,) = training.results()
    scores = trained.val
    val = problem.val
    first = first_half(len(val), val.groups).numpy()
    for task, halves in zip(JOBS[0].tasks, training.curve[-1][0, :, 1:], strict=True):
        rows = scores[task].rows
        assert halves == pytest.approx([np.nanmean(rows[first]), np.nanmean(rows[~first])], rel=1e-5)


def test_weights_of_the_last_epoch_flatter_nothing() -> None:
    problem = make_problem(recipe=Recipe(epochs=3, patience=None, keep="last", batch_size=32))
    assert train(problem, JOBS[1]).flattery == {"age": 0.0}
    assert [trained.flattery for trained in train_many(problem, JOBS[1:2])] == [{"age": 0.0}]


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_without_labels_says_nothing_about_flattery(half: int) -> None:
    """Its loss is not 0 in every epoch, which would make the first epoch its choice."""
    problem = make_problem()
    targets = dict(problem.val.targets)
    targets["age"] = targets["age"].clone()
    targets["age"][half::2] = torch.nan
    problem = replace(problem, val=replace(problem.val, targets=targets))
    trained = [*train_many(problem, JOBS), *(train(problem, job) for job in JOBS)]
    assert [one.flattery["age"] for one in trained if "age" in one.job.tasks] == [0.0] * 4
    assert any(value for one in trained for value in one.flattery.values())


def test_tasks_without_labels_in_a_half_do_not_choose_its_epoch() -> None:
    curve = np.array([[[1.0, np.nan], [1.0, 1.2]], [[5.0, np.nan], [0.8, 1.4]]])
    assert stopping_flattery(curve, [0.01, 1.0]) == pytest.approx([0.0, 0.1])
    assert stopping_flattery(curve[:, :1], [1.0]).tolist() == [0.0]


def relative_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of each row that depends on the other rows too."""
    return (outputs.squeeze(-1) - targets).square() / targets.square().mean()


def test_losses_of_the_user_see_all_rows_whichever_half_is_judged() -> None:
    tasks = [Task("age", kind="regression", loss=relative_error), Task("ill"), Task("kind", "multiclass", classes=3)]
    problem = replace(make_problem(), tasks=tuple(tasks))
    for trained in train_many(problem, JOBS):
        assert trained.flattery == pytest.approx(train(problem, trained.job).flattery, abs=1e-6)
