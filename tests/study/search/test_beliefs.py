"""Hints count only once trained networks show that they predict."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tagalong.study.search.beliefs import Beliefs, TrialArrays

N_TASKS = 6
SETS = (np.arange(2**N_TASKS - 1, 0, -1)[:, None] >> np.arange(N_TASKS) & 1).astype(bool)


def make_trials(inside: NDArray[np.bool_], effects: NDArray[np.float64], seed: int = 0) -> TrialArrays:
    """Networks in which leaving out source i changes the log loss of target j by effects[i, j], with noise."""
    noise = 0.005 * np.random.default_rng(seed).normal(size=inside.shape)
    logs = np.where(inside, (~inside).astype(float) @ effects + noise, np.nan)
    return TrialArrays(inside, np.zeros(len(inside), dtype=np.int64), np.zeros(len(inside), dtype=bool), logs)


def hint_effects(seed: int) -> NDArray[np.float64]:
    draw = np.random.default_rng(seed).normal(size=(N_TASKS, N_TASKS))
    return np.where(np.eye(N_TASKS, dtype=bool), 0.0, draw)


def test_hints_have_no_weight_before_any_set_of_tasks_is_trained() -> None:
    trials = make_trials(np.ones((4, N_TASKS), dtype=bool), np.zeros((N_TASKS, N_TASKS)))
    means, deviations = Beliefs(trials).predict(SETS)
    hinted_means, hinted_deviations = Beliefs(trials, 100 * hint_effects(1)).predict(SETS)
    np.testing.assert_allclose(hinted_means, means, atol=1e-9)
    np.testing.assert_allclose(hinted_deviations, deviations, atol=1e-9)


def prediction_errors(hints_seed: int | None) -> list[float]:
    """Returns the mean squared errors for untrained sets after 14 trainings, for several draws."""
    errors = []
    for seed in range(8):
        effects = 0.02 * hint_effects(seed)
        effects -= effects.sum(0) / (N_TASKS - 1) * ~np.eye(N_TASKS, dtype=bool)
        chosen = np.random.default_rng(seed).permutation(np.arange(1, len(SETS)))[:12]
        trials = make_trials(SETS[[0, 0, *chosen]], effects, seed)
        hints = None if hints_seed is None else hint_effects(seed + hints_seed)
        means, _ = Beliefs(trials, hints).predict(SETS)
        truth = np.where(SETS, (~SETS).astype(float) @ effects, np.nan)
        others = np.setdiff1d(np.arange(1, len(SETS)), chosen)
        errors.append(float(np.nanmean((means - truth)[others] ** 2)))
    return errors


def test_hints_that_predict_are_used_and_others_do_no_harm() -> None:
    none, true, random = (np.mean(prediction_errors(seed)) for seed in (None, 0, 1000))
    assert true < 0.8 * none
    assert random == pytest.approx(none, rel=0.1)
