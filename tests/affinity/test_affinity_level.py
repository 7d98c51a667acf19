"""Histories that mix raw steps (complete, null step unknown) with steps relative to the null step."""

import numpy as np
import pytest
from affinity_oracle import Floats, names

from tagalong.affinity import Affinity

TRUTH = np.array([[2.0, 0.5, 0.1, 0.0], [0.3, 2.0, 0.4, 0.2], [0.0, 0.1, 2.0, 0.3], [0.2, 0.0, 0.1, 2.0]])


def mixed_history(rng: np.random.Generator, steps: int, common: float) -> tuple[Floats, Floats]:
    """Draws steps: half are raw, with a large common term; in the others source i is present i + 1 times in 4."""
    n = len(TRUTH)
    history = TRUTH + 0.1 * rng.standard_normal((steps, n, n))
    null = np.zeros((steps, n))
    raw = np.arange(steps) % 2 == 0
    history[raw] += common + rng.standard_normal((int(raw.sum()), 1, n)) * common
    null[raw] = np.nan
    absent = rng.random((steps, n)) > (np.arange(n) + 1) / n
    history[np.broadcast_to((absent & ~raw[:, None])[:, :, None], history.shape)] = np.nan
    return history, null


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
def test_sources_with_different_counts_stay_comparable(average: str) -> None:
    history, null = mixed_history(np.random.default_rng(0), 2000, common=50.0)
    affinity = Affinity.from_history(history, names(4), null=null, settings={"average": average})
    assert len(set(affinity.count[:, 0].tolist())) == 4
    np.testing.assert_allclose(affinity.mean, TRUTH, atol=0.05)


def test_without_alignment_the_common_term_would_mix_in_by_count() -> None:
    history, _ = mixed_history(np.random.default_rng(0), 2000, common=50.0)
    plain = Affinity.from_history(history, names(4))
    assert np.abs(plain.mean - TRUTH - (plain.mean - TRUTH).mean(axis=0)).max() > 1


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_histories_of_one_kind_are_averaged_without_a_shift(fill: float) -> None:
    history, _ = mixed_history(np.random.default_rng(0), 60, common=50.0)
    affinity = Affinity.from_history(history, names(4), null=np.full((60, 4), fill))
    np.testing.assert_allclose(affinity.mean, np.nanmean(history, axis=0))


def test_only_targets_with_both_kinds_are_shifted() -> None:
    history, null = mixed_history(np.random.default_rng(0), 60, common=50.0)
    null[:, 1] = np.nan
    affinity = Affinity.from_history(history, names(4), null=null)
    np.testing.assert_allclose(affinity.mean[:, 1], np.nanmean(history[:, :, 1], axis=0))
    np.testing.assert_allclose(affinity.mean[:, 0], TRUTH[:, 0], atol=0.1)


def test_a_target_not_measured_at_all_is_nan() -> None:
    history, null = mixed_history(np.random.default_rng(0), 60, common=50.0)
    history[:, :, 2] = np.nan
    affinity = Affinity.from_history(history, names(4), null=null)
    assert np.isnan(affinity.mean[:, 2]).all()
    assert np.isfinite(affinity.mean[:, [0, 1, 3]]).all()


def test_history_is_kept_as_measured() -> None:
    history, null = mixed_history(np.random.default_rng(0), 60, common=50.0)
    affinity = Affinity.from_history(history, names(4), null=null)
    np.testing.assert_array_equal(affinity.history, history)


@pytest.mark.parametrize("average", ["mean", "trimmed"])
def test_errors_exclude_the_common_term_that_alignment_removes(average: str) -> None:
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(80):
        history, null = mixed_history(rng, 120, common=50.0)
        runs.append(Affinity.from_history(history, names(4), null=null, settings={"average": average}))
    truth = np.std([run.mean for run in runs], axis=0)
    found = np.mean([run.stderr for run in runs], axis=0)
    assert (truth < 0.1).all()
    np.testing.assert_allclose(found, truth, rtol=0.35)
    draws = runs[0].bootstrap(400)
    np.testing.assert_allclose(draws.std(axis=0), truth, rtol=0.6)
