"""Training without early stopping: all epochs, and the best or the last weights."""

from dataclasses import replace

import numpy as np
import pytest
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
