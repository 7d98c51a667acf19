"""Standard errors and resamples of histories whose steps are correlated."""

import numpy as np
import pytest
from affinity_oracle import ar1, ar1_mean_deviation, names, slow_average

from tagalong.affinity import Affinity

AVERAGES = ["mean", "trimmed", "median"]


@pytest.mark.parametrize("average", ["mean", "trimmed"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_errors_match_the_true_scatter_of_means_of_correlated_steps(average: str, rho: float) -> None:
    history = ar1(np.random.default_rng(0), 600, (12, 12), rho)  # 144 runs at once: every pair is one
    affinity = Affinity.from_history(history, names(12), settings={"average": average})
    truth, naive = ar1_mean_deviation(600, rho), 1 / np.sqrt(600)
    assert affinity.mean.std() == pytest.approx(truth, rel=0.2)
    assert np.sqrt((affinity.stderr**2).mean()) == pytest.approx(truth, rel=0.2)
    if rho:
        assert affinity.stderr.mean() > 1.3 * naive


def test_errors_match_if_values_are_missing() -> None:
    rng = np.random.default_rng(0)
    history = ar1(rng, 800, (10, 10), 0.7)
    history[np.arange(800) % 10 != 0, 0] = np.nan  # one source every tenth step
    history[:, 1:][rng.random((800, 9, 10)) < 0.4] = np.nan
    affinity = Affinity.from_history(history, names(10), null=np.zeros((800, 10)))
    rms = np.sqrt((affinity.stderr**2).mean(axis=1))
    assert rms[0] == pytest.approx(1 / np.sqrt(80), rel=0.25)  # values ten steps apart are practically independent
    assert rms[1:] == pytest.approx(np.full(9, affinity.mean[1:].std()), rel=0.25)


def test_without_correlation_the_error_is_the_textbook_one() -> None:
    history = np.array([1.0, -1.0, 1.0, -1.0, 2.0, -2.0, 0.5]).reshape(7, 1, 1)
    affinity = Affinity.from_history(history, ["a"])
    assert affinity.stderr.item() == pytest.approx(history.std(ddof=1) / np.sqrt(7))


def test_closed_form_is_the_limit_of_many_resamples() -> None:
    history = ar1(np.random.default_rng(0), 240, (3, 3), 0.7)
    history[np.random.default_rng(1).random(history.shape) < 0.1] = np.nan
    affinity = Affinity.from_history(history, names(3), null=np.zeros((240, 3)))
    np.testing.assert_allclose(affinity.bootstrap(4000).std(axis=0), affinity.stderr, rtol=0.1)


@pytest.mark.parametrize("alternating", [False, True])
def test_every_resample_is_the_average_of_whole_steps_drawn_in_blocks(alternating: bool) -> None:
    steps, n = 20, 7
    history, null = ar1(np.random.default_rng(0), steps, (n, n), 0.6), np.zeros((steps, n))
    if alternating:  # the last three sources take turns
        for source in (4, 5, 6):
            history[np.arange(steps) % 3 != source - 4, source] = np.nan
    affinity = Affinity.from_history(history, names(n), null=null)
    # There are more complete pairs than steps, so their means tell how often each step was drawn.
    complete = history[:, :4].reshape(steps, -1)
    counts = steps * affinity.bootstrap(300, seed=3)[:, :4].reshape(300, -1) @ np.linalg.pinv(complete)
    drawn = np.rint(counts).astype(int)
    np.testing.assert_allclose(counts, drawn, atol=1e-6)
    assert (drawn.sum(axis=1) == steps).all()
    assert np.corrcoef(drawn[:, 0], drawn[:, steps - 1])[0, 1] > 0.4  # blocks wrap around
    assert np.corrcoef(drawn[:, 0], drawn[:, steps // 2])[0, 1] < 0.2
    for average in AVERAGES:
        resamples = affinity.averaged(average).bootstrap(7, seed=3)  # type: ignore[arg-type]
        for resample, times in zip(resamples, drawn, strict=False):
            rows = np.repeat(np.arange(steps), times)
            np.testing.assert_allclose(resample, slow_average(history[rows], null[rows], average, 0.05), atol=1e-9)


def test_resamples_repeat_with_their_seed_in_any_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = Affinity.from_history(ar1(np.random.default_rng(0), 50, (2, 2), 0.3), ["a", "b"])
    whole = affinity.bootstrap(30, seed=1)
    assert (whole != affinity.bootstrap(30, seed=2)).any()
    assert affinity.bootstrap().shape == (200, 2, 2)
    monkeypatch.setattr("tagalong.affinity.bootstrap.VALUES_AT_ONCE", 7 * 50)
    np.testing.assert_allclose(affinity.bootstrap(30, seed=1), whole, rtol=1e-12)


def test_a_resample_without_a_value_of_a_pair_is_nan() -> None:
    history = np.ones((6, 2, 2))
    history[1:, 0, 1] = np.nan
    draws = Affinity.from_history(history, ["a", "b"], null=np.zeros((6, 2))).bootstrap(60)
    assert np.isnan(draws[:, 0, 1]).any()
    assert np.isfinite(draws[:, 1, 0]).all()


@pytest.mark.parametrize("average", AVERAGES)
def test_errors_need_two_values_and_are_zero_if_all_are_equal(average: str) -> None:
    history = np.random.default_rng(0).standard_normal((8, 2, 2))
    history[1:, 0, 1], history[:, 1, 1] = np.nan, np.nan
    affinity = Affinity.from_history(history, names(2), null=np.zeros((8, 2)), settings={"average": average})
    assert np.isnan(affinity.stderr[:, 1]).all()
    assert (affinity.stderr[:, 0] > 0).all()
    equal = Affinity.from_history(np.full((20, 2, 2), 0.1), names(2), settings={"average": average})
    np.testing.assert_allclose(equal.stderr, 0, atol=1e-15)


def test_without_a_history_resamples_have_the_standard_errors() -> None:
    mean, errors = np.arange(16.0).reshape(4, 4), np.arange(1.0, 17.0).reshape(4, 4)
    errors[0, 1], mean[2, 3] = np.nan, np.nan
    draws = Affinity.from_matrix(mean, stderr=errors).bootstrap(4000, seed=1)
    errors[0, 1], errors[2, 3] = 15, np.nan  # an unknown error is as large as the largest of a pair
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=1)
    np.testing.assert_allclose(draws.std(axis=0), errors, rtol=0.1)
    assert abs(np.corrcoef(draws[:, 1, 0], draws[:, 0, 1])[0, 1]) < 0.1
    np.testing.assert_array_equal(draws[:5], Affinity.from_matrix(mean, stderr=errors).bootstrap(5, seed=1))


def test_resamples_of_a_symmetric_quantity_are_symmetric() -> None:
    cosines = Affinity.from_matrix(np.eye(3), stderr=0.1 * (1 - np.eye(3)))
    draws = cosines.bootstrap(2000)
    np.testing.assert_array_equal(draws, draws.swapaxes(1, 2))
    np.testing.assert_array_equal(draws[:, range(3), range(3)], 1)
    np.testing.assert_allclose(draws[:, 0, 1:].std(axis=0), 0.1, rtol=0.1)


def test_resamples_need_a_history_or_standard_errors() -> None:
    for errors in (None, np.where(np.eye(3), 0.0, np.nan)):  # those of self-affinities alone do not count
        with pytest.raises(ValueError, match=r"bootstrap\(\) requires"):
            Affinity.from_matrix(np.eye(3), stderr=errors).bootstrap()
