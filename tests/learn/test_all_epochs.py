"""Training without early stopping: all epochs, and the best or the last weights."""

from dataclasses import replace

import numpy as np
import pytest
from batched_problems import CNN_WITH_BATCHNORM, all_jobs, assert_same, images, make_problem, trained_together
from learn_small import TASKS, small_problem

from tagalong.learn import Diverged, Job, Recipe, train, train_many

OVERFITTING = Recipe("sgd", lr=0.5, batch_size=8, epochs=12, patience=2)


def test_without_patience_every_epoch_is_trained_and_the_best_is_kept() -> None:
    stopped = train(small_problem(OVERFITTING), Job(TASKS))
    trained = train(small_problem(replace(OVERFITTING, patience=None)), Job(TASKS))
    assert len(stopped.curve) < len(trained.curve) == 12
    np.testing.assert_array_equal(trained.curve[: len(stopped.curve)], stopped.curve)
    assert trained.best_epoch == (trained.curve @ [1, 0.5, 1]).argmin()


def test_the_last_weights_are_those_of_the_last_epoch() -> None:
    trained = train(small_problem(replace(OVERFITTING, patience=None, keep="last")), Job(TASKS))
    assert trained.best_epoch == 11
    assert (trained.curve @ [1, 0.5, 1]).argmin() != 11, "the best epoch should be another one here"
    found = [trained.val[task].loss for task in TASKS]
    np.testing.assert_allclose(found, trained.curve[-1], rtol=1e-9)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_networks_trained_together_equal_those_trained_alone(keep: str) -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, optimizer="sgd", lr=0.05, epochs=6, patience=None, keep=keep)
    jobs = all_jobs(problem)
    found = trained_together(problem, jobs)
    for job in jobs[::2]:
        assert_same(found[job], train(problem, job))
    assert all(len(trained.curve) == 6 for trained in found.values())
    epochs = {trained.best_epoch for trained in found.values()}
    assert epochs == {5} if keep == "last" else len(epochs) > 1


def test_last_weights_that_diverged_are_not_returned() -> None:
    recipe = replace(OVERFITTING, lr=1e200, patience=None, keep="last")
    with pytest.raises(Diverged, match=r"diverged before the last epoch; lower `recipe.lr`"):
        train(small_problem(recipe), Job(TASKS))
    with pytest.raises(Diverged, match=r"lower `recipe.lr`"):
        list(train_many(small_problem(recipe), [Job(("age",)), Job(("age", "ill"))]))


def test_a_job_with_fewer_epochs_keeps_the_weights_of_its_last() -> None:
    problem = small_problem(replace(OVERFITTING, patience=None, keep="last"))
    looks = [
        train(problem, Job(TASKS, epochs=3)),
        *train_many(problem, [Job(TASKS[:1], epochs=3), Job(TASKS, epochs=3)]),
    ]
    assert [look.best_epoch for look in looks] == [2, 2, 2]


def test_contradictory_settings_raise_an_error() -> None:
    with pytest.raises(
        ValueError, match="`patience` must be None with `keep='last'`, which trains for all epochs, found 10"
    ):
        Recipe(keep="last")
    with pytest.raises(ValueError, match="`keep` must be one of 'best', 'last', found 'first'"):
        Recipe(keep="first", patience=None)  # type: ignore[arg-type]
