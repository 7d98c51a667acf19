from itertools import combinations

import numpy as np
import pytest
from affinity_oracle import Floats, histories, names, slow_average, values
from hypothesis import given, settings
from hypothesis import strategies as st
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


@pytest.mark.parametrize("average", AVERAGES)
def test_averages_of_round_robin_keep_the_differences_between_sources(average: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.array([[3.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 2.0, 3.0]])
    history = np.full((300, 3, 3), np.nan)
    for step in range(300):
        source = step % 3
        history[step, source] = truth[source] + 0.1 * rng.standard_normal(3)
    for null in (np.zeros((300, 3)), np.full((300, 3), np.nan)):
        np.testing.assert_allclose(averaged(history, null, average), truth, atol=0.05)


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
    np.testing.assert_allclose(averaged(clean, null, "median"), truth, atol=0.01)


def test_the_median_is_exact_despite_a_common_term_far_larger_than_the_differences() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.4], [0.0, 0.3, 1.0]])
    common = 1000 * rng.standard_normal((101, 1, 3))
    noise = 0.1 * rng.standard_normal((101, 3, 3))
    median = averaged(truth + common + noise, np.full((101, 3), np.nan), "median")
    np.testing.assert_allclose(median - median.mean(axis=0), truth - truth.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(median.mean(axis=0), (truth + common).mean(axis=(0, 1)), rtol=0.05)


@pytest.mark.parametrize("average", AVERAGES)
def test_raw_steps_of_merged_runs_are_centred_among_their_own_sources(average: str) -> None:
    rng = np.random.default_rng(0)
    history, common = rng.standard_normal((40, 3, 3)), 1000 * rng.standard_normal((40, 1, 3))
    for run, absent in ((slice(0, 20), 0), (slice(20, 40), 2)):
        history[run, absent] = np.nan
        common[run] -= common[run].mean(axis=0)
    null = np.full((40, 3), np.nan)
    np.testing.assert_allclose(averaged(history + common, null, average), averaged(history, null, average))


def test_averaged_keeps_the_history_and_records_the_average() -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((9, 2, 2)), ["a", "b"])
    median = affinity.averaged("median")
    assert median.history is affinity.history
    assert median.settings["average"] == "median"
    assert "trim" not in affinity.averaged("trimmed").averaged("mean").settings
    np.testing.assert_array_equal(median.averaged("mean").mean, affinity.mean)
    np.testing.assert_array_equal(median.averaged("mean").stderr, affinity.stderr)


def test_slices_keep_the_average() -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((40, 3, 3)), names(3))
    median = affinity.averaged("median")
    np.testing.assert_array_equal(median.every(2).mean, affinity.every(2).averaged("median").mean)
    np.testing.assert_array_equal(median.between(5, 20).mean, affinity.between(5, 20).averaged("median").mean)
    assert median.only(names(2)).settings["average"] == "median"


@pytest.mark.parametrize(("average", "trim"), [("mode", 0.05), ("trimmed", 0.5), ("trimmed", -0.1)])
def test_unknown_averages_and_shares_are_rejected(average: str, trim: float) -> None:
    affinity = Affinity.from_history(np.zeros((2, 1, 1)), ["a"])
    with pytest.raises(ValueError, match=r"`average` must be one of|`trim` must be a fraction"):
        affinity.averaged(average, trim)  # type: ignore[arg-type]


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
def test_skewed_self_affinities_do_not_shift_the_others(average: str) -> None:
    rng = np.random.default_rng(0)
    history = 0.01 * rng.standard_normal((400, 4, 4))
    history[:, range(4), range(4)] = rng.exponential(size=(400, 4))
    affinity = Affinity.from_history(history, names(4)).averaged(average)  # type: ignore[arg-type]
    apart = ~np.eye(4, dtype=bool)
    assert (np.abs(affinity.mean[apart]) < 4 * affinity.stderr[apart]).all()
    assert affinity.stderr[apart].max() < 0.002
