"""Averages of a history: the mean, trimmed and median, of raw steps and of steps relative to the null step."""

from itertools import combinations

import numpy as np
import pytest
from affinity_oracle import Floats, histories, names, slow_average, values
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from tagalong.affinity import Affinity

AVERAGES = ["mean", "trimmed", "median"]


def averaged(history: Floats, null: Floats, average: str, trim: float = 0.05) -> Floats:
    how = {"average": average, "trim": trim}
    return Affinity.from_history(history, names(history.shape[1]), null=null, settings=how).mean


@pytest.mark.parametrize("average", AVERAGES)
@given(data=histories(missing=True), trim=st.sampled_from([0.0, 0.05, 0.2, 0.49]))
@settings(deadline=None)
def test_averages_equal_the_direct_computation(average: str, data: tuple[Floats, Floats], trim: float) -> None:
    np.testing.assert_allclose(averaged(*data, average, trim), slow_average(*data, average, trim), atol=1e-9)


@pytest.mark.parametrize("average", AVERAGES)
@given(data=st.data())
@settings(deadline=None)
def test_constants_per_target_and_step_do_not_change_the_order_of_sources(average: str, data: st.DataObject) -> None:
    history, null = data.draw(histories())
    steps, n, _ = history.shape
    constants = data.draw(npst.arrays(np.float64, (steps, n), elements=values.map(lambda value: 100 * value)))
    before = averaged(history, null, average, 0.2)
    after = averaged(history + constants[:, None, :], null, average, 0.2)
    for target in range(n):
        for one, other in combinations(range(n), 2):
            gap = before[one, target] - before[other, target]
            assert after[one, target] - after[other, target] == pytest.approx(gap, abs=1e-8)


def test_trimming_ignores_outliers_and_keeps_the_level() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([[1.0, 0.2], [-0.3, 1.0]])
    clean = truth + 0.01 * rng.standard_normal((200, 2, 2))
    spoilt = clean.copy()
    spoilt[:4, 0, 1] += 1000
    null = np.zeros((200, 2))
    differences = averaged(spoilt, null, "trimmed")[0] - averaged(spoilt, null, "trimmed")[1]
    np.testing.assert_allclose(differences, truth[0] - truth[1], atol=0.01)
    assert abs(averaged(spoilt, null, "mean")[0, 1] - truth[0, 1]) > 10


@pytest.mark.parametrize("average", AVERAGES)
def test_raw_steps_of_merged_runs_are_centred_among_their_own_sources(average: str) -> None:
    rng = np.random.default_rng(0)
    history, common = rng.standard_normal((40, 3, 3)), 1000 * rng.standard_normal((40, 1, 3))
    for run, absent in ((slice(0, 20), 0), (slice(20, 40), 2)):
        history[run, absent] = np.nan
        common[run] -= common[run].mean(axis=0)
    null = np.full((40, 3), np.nan)
    np.testing.assert_allclose(averaged(history + common, null, average), averaged(history, null, average))


def test_skewed_self_affinities_do_not_shift_the_others() -> None:
    rng = np.random.default_rng(0)
    history = 0.01 * rng.standard_normal((400, 4, 4))
    history[:, range(4), range(4)] = rng.exponential(size=(400, 4))
    apart = ~np.eye(4, dtype=bool)
    for average in AVERAGES:
        affinity = Affinity.from_history(history, names(4)).averaged(average)  # type: ignore[arg-type]
        assert (np.abs(affinity.mean[apart]) < 4 * affinity.stderr[apart]).all()
        assert affinity.stderr[apart].max() < 0.002


def test_slices_and_further_averages_start_from_the_history() -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((40, 3, 3)), names(3))
    median = affinity.averaged("median")
    assert median.history is affinity.history
    assert median.settings["average"] == median.only(names(2)).settings["average"] == "median"
    np.testing.assert_array_equal(median.every(2).mean, affinity.every(2).averaged("median").mean)
    np.testing.assert_array_equal(median.between(5, 20).mean, affinity.between(5, 20).averaged("median").mean)
    again = median.averaged("trimmed").averaged("mean")
    assert "trim" not in again.settings
    np.testing.assert_array_equal(again.mean, affinity.mean)
    np.testing.assert_array_equal(again.stderr, affinity.stderr)


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


@pytest.mark.parametrize("average", AVERAGES)
def test_sources_with_different_counts_stay_comparable(average: str) -> None:
    history, null = mixed_history(np.random.default_rng(0), 2000, common=50.0)
    affinity = Affinity.from_history(history, names(4), null=null, settings={"average": average})
    assert len(set(affinity.count[:, 0].tolist())) == 4
    np.testing.assert_allclose(affinity.mean, TRUTH, atol=0.05)


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
