import numpy as np
import pytest
from affinity_oracle import ar1, ar1_mean_deviation, names

from tagalong.affinity import Affinity
from tagalong.affinity.averaging import Average, averages, target_history
from tagalong.affinity.bootstrap import block_length, block_weights, lag_one_autocorrelation


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


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
@pytest.mark.parametrize("kind", ["complete", "round robin"])
def test_bootstrap_averages_each_resample_of_whole_steps(average: str, kind: str) -> None:
    history = ar1(np.random.default_rng(0), 61, (3, 3), 0.6)
    null = np.full((61, 3), np.nan)
    if kind == "round robin":
        history[(np.arange(61)[:, None] % 3) != np.arange(3)] = np.nan
        null = np.zeros((61, 3))
    affinity = Affinity.from_history(history, names(3), null=null, settings={"average": average})
    draws = affinity.bootstrap(n=7, seed=3)
    length = block_length([target_history(history, null, j) for j in range(3)], 61)
    for draw, weights in zip(draws, block_weights(61, length, 7, 3), strict=True):
        steps = np.repeat(np.arange(61), weights.astype(int))
        np.testing.assert_allclose(draw, averages(history[steps], null[steps], Average(average)), atol=1e-12)


def test_bootstrap_repeats_with_its_seed() -> None:
    affinity = Affinity.from_history(ar1(np.random.default_rng(0), 50, (2, 2), 0.3), ["a", "b"])
    np.testing.assert_array_equal(affinity.bootstrap(5, seed=1), affinity.bootstrap(5, seed=1))
    assert (affinity.bootstrap(5, seed=1) != affinity.bootstrap(5, seed=2)).any()
    assert affinity.bootstrap().shape == (200, 2, 2)
    with pytest.raises(ValueError, match="`n` must be a positive integer, found 0"):
        affinity.bootstrap(0)


def test_a_resample_without_a_value_of_a_pair_is_nan() -> None:
    history = np.ones((6, 2, 2))
    history[1:, 0, 1] = np.nan
    draws = Affinity.from_history(history, ["a", "b"], null=np.zeros((6, 2))).bootstrap(60)
    assert np.isnan(draws[:, 0, 1]).any()
    assert np.isfinite(draws[:, 1, 0]).all()


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
def test_fewer_than_two_values_have_no_error(average: str) -> None:
    history = np.random.default_rng(0).standard_normal((8, 2, 2))
    history[1:, 0, 1], history[:, 1, 1] = np.nan, np.nan
    affinity = Affinity.from_history(history, names(2), null=np.zeros((8, 2)), settings={"average": average})
    assert np.isnan(affinity.stderr[:, 1]).all()
    assert (affinity.stderr[:, 0] > 0).all()


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
def test_equal_values_have_no_scatter(average: str) -> None:
    affinity = Affinity.from_history(np.full((20, 2, 2), 0.1), names(2), settings={"average": average})
    np.testing.assert_allclose(affinity.stderr, 0, atol=1e-15)


def test_block_lengths_follow_the_stated_rule() -> None:
    history = ar1(np.random.default_rng(0), 1000, (8, 8), 0.6)
    rho = np.median([lag_one_autocorrelation(history[:, i, j]) for i in range(8) for j in range(8)])
    length = block_length([target_history(history, np.full((1000, 8), np.nan), j) for j in range(8)], 1000)
    assert length == round((2 * rho / (1 - rho**2)) ** (2 / 3) * 1000 ** (1 / 3))
    assert lag_one_autocorrelation(history[:, 0, 0]) == pytest.approx(
        np.corrcoef(history[1:, 0, 0], history[:-1, 0, 0])[0, 1], abs=0.01
    )


def test_blocks_are_at_least_one_step_and_at_most_a_quarter() -> None:
    rising = np.arange(40.0).reshape(40, 1, 1)
    falling_back = (-1.0) ** np.arange(40).reshape(40, 1, 1)
    lengths = [block_length([target_history(h, np.full((40, 1), np.nan), 0)], 40) for h in (rising, falling_back)]
    assert lengths == [10, 1]


def test_resamples_draw_blocks_that_wrap_around() -> None:
    weights = block_weights(steps=12, length=4, n=200, seed=0)
    assert (weights.sum(axis=1) == 12).all()
    assert np.corrcoef(weights[:, 0], weights[:, 11])[0, 1] > 0.4  # the last step is followed by the first
    assert np.corrcoef(weights[:, 0], weights[:, 6])[0, 1] < 0.2


def test_invalid_arguments_are_rejected() -> None:
    affinity = Affinity.from_history(np.zeros((2, 2, 2)), ["a", "b"])
    with pytest.raises(TypeError, match="`other` must be an Affinity, found int"):
        affinity.merge(5)  # type: ignore[arg-type]
    for wrong in (1.5, True):
        with pytest.raises(ValueError, match="positive integer"):
            affinity.every(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="array of numbers"):
        Affinity.from_matrix([[1j, 0], [0, 1]])


def test_resamples_are_the_same_in_any_number_of_parts(monkeypatch):
    affinity = Affinity.from_history(np.random.default_rng(0).normal(size=(20, 3, 3)), ["a", "b", "c"])
    whole = affinity.bootstrap(n=30, seed=1)
    monkeypatch.setattr("tagalong.affinity.bootstrap.WEIGHTS_AT_ONCE", 7 * 20)
    np.testing.assert_allclose(affinity.bootstrap(n=30, seed=1), whole, rtol=1e-12)


def test_resamples_that_do_not_fit_into_memory_are_rejected():
    affinity = Affinity.from_history(np.zeros((2, 3, 3)), ["a", "b", "c"])
    with pytest.raises(ValueError, match="`n` must be at most 100,000 for 3 tasks, found 1,000,000,000; for more"):
        affinity.bootstrap(n=10**9)
