"""What the losses of trained networks say about others."""

import numpy as np

from tagalong.study.search.beliefs import Beliefs

SETS = (np.arange(15, 0, -1)[:, None] >> np.arange(4) & 1).astype(bool)
SEEDS = np.zeros(15, dtype=np.int64)


def test_estimates_for_trained_networks_are_close_to_their_results() -> None:
    draw = np.random.default_rng(0)
    effects = -0.05 * (~SETS).sum(1)[:, None] + 0.001 * draw.normal(size=SETS.shape)
    logs = np.where(SETS, effects, np.nan)
    means, deviations = Beliefs(SETS, SEEDS, logs).predict(SETS)
    np.testing.assert_allclose(means[SETS], (logs - logs[0])[SETS], atol=0.02)
    assert np.all(deviations[0] == 0)


def test_effects_of_omitting_tasks_are_predicted_for_untrained_sets() -> None:
    draw = np.random.default_rng(1)
    sets = (np.arange(63, 0, -1)[:, None] >> np.arange(6) & 1).astype(bool)
    effects = 0.03 * draw.normal(size=6)  # of omitting a task, on all others
    logs = np.where(sets, ((~sets) @ effects)[:, None] + 0.003 * draw.normal(size=sets.shape), np.nan)
    seen = [0, *draw.permutation(np.arange(1, 63))[:15]]
    means, _ = Beliefs(sets[seen], np.zeros(16, dtype=np.int64), logs[seen]).predict(sets)
    unseen = np.setdiff1d(np.arange(63), seen)
    assert np.nanmean((means - logs)[unseen] ** 2) < 0.25 * np.nanvar(logs[unseen])


def test_the_order_of_tasks_and_the_scale_of_losses_do_not_matter() -> None:
    logs = np.where(SETS, 0.1 * np.random.default_rng(1).normal(size=SETS.shape), np.nan)
    order = [2, 0, 3, 1]
    means = Beliefs(SETS, SEEDS, logs).predict(SETS)[0]
    turned = Beliefs(SETS[:, order], SEEDS, logs[:, order] + np.log([1, 10, 100, 0.1])).predict(SETS[:, order])[0]
    np.testing.assert_allclose(turned, means[:, order], atol=1e-6)
