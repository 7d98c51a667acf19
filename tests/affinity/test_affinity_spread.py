import numpy as np
import pytest
from affinity_oracle import names

from tagalong.affinity import Affinity, Spread

# Published affinities onto a1 … a9 (rows: target, columns: source), Fifty et al. 2021, CelebA, rounded.
CELEBA = np.array(
    [
        [239.72, -83.34, -86.05, -82.42, -81.97, -86.02, -49.04, -87.37, -86.77],
        [-188.16, 378.85, -184.53, -147.50, -189.46, -191.00, -185.28, -190.66, -189.42],
        [-121.05, -109.58, 310.71, -106.02, -122.62, -124.40, -117.20, -120.56, -123.26],
        [-143.72, -112.18, -139.85, 321.54, -145.43, -146.78, -142.40, -146.30, -146.23],
        [-85.53, -92.21, -95.75, -91.74, 238.42, -65.43, -45.95, -98.60, -95.68],
        [-30.22, -32.70, -34.78, -33.48, -0.84, 178.67, -15.27, -35.21, -34.37],
        [-109.48, -147.50, -152.39, -148.49, -127.32, -147.14, 291.85, -157.48, -156.16],
        [-74.98, -74.25, -72.05, -73.83, -76.45, -76.50, -75.21, 240.39, -77.00],
        [-109.37, -100.85, -113.52, -110.65, -110.26, -116.10, -106.51, -119.35, 374.63],
    ]
)
# The paper's table "difference in normalized inter-task affinity" (appendix), in the same order.
PRINTED = np.array([0.35, 0.39, 0.16, 0.31, 0.47, 0.31, 0.43, 0.04, 0.17])
NORMALISED = 0.0090  # one factor for all tasks turns the published matrix into the printed table


def published() -> Affinity:
    return Affinity.from_matrix(CELEBA, [f"a{i}" for i in range(1, 10)], axis="target")


def test_the_papers_table_is_reproduced_up_to_one_scale() -> None:
    values = np.array(list(published().spread().values.values()))
    np.testing.assert_allclose(values * NORMALISED, PRINTED, atol=0.0065)


def test_only_a8_is_flagged_in_the_published_matrix() -> None:
    spread = published().spread()
    assert spread.flagged == ("a8",)
    assert spread.best["a1"] == "a7"
    assert spread.worst["a1"] == "a8"
    assert all(np.isnan(noise) for noise in spread.noise.values())


def test_only_a8_is_flagged_by_the_printed_differences() -> None:
    n = len(PRINTED)
    matrix = np.zeros((n, n))
    matrix[(np.arange(n) + 1) % n, np.arange(n)] = PRINTED  # one partner stands out by the printed difference
    assert Affinity.from_matrix(matrix).spread().flagged == ("7",)


def test_flags_do_not_change_with_scale_or_level() -> None:
    other = Affinity.from_matrix(1e-5 * CELEBA + np.arange(9)[:, None], published().tasks, axis="target")
    assert other.spread().flagged == ("a8",)


def test_self_affinity_is_ignored() -> None:
    matrix = np.where(np.eye(3, dtype=bool), 1e6, [[0, 1, 2], [5, 0, 4], [6, 3, 0]])
    spread = Affinity.from_matrix(matrix).spread()
    assert spread.values == {"0": 1.0, "1": 2.0, "2": 2.0}


def test_a_spread_within_given_errors_is_flagged() -> None:
    matrix = [[0, 9, 9, 9], [9, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    errors = np.full((4, 4), 0.1)
    errors[:, 1] = 8.0
    spread = Affinity.from_matrix(matrix, stderr=errors).spread()
    assert spread.flagged == ("1",)
    assert spread.noise["1"] > 8
    assert spread.noise["0"] == pytest.approx(0.33, abs=0.05)  # the range of three normal errors, 95%


def test_a_spread_within_the_noise_of_the_history_is_flagged() -> None:
    rng = np.random.default_rng(0)
    truth = np.zeros((5, 5))
    truth[1, 0] = truth[0, 1] = truth[3, 2] = truth[2, 3] = 1.0
    history = truth + rng.standard_normal((200, 5, 5))
    history[:, :, 4] *= 5
    assert Affinity.from_history(history, names(5)).spread().flagged == ("task4",)


def test_noise_common_to_all_sources_hides_no_partner() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]])
    history = truth + 100 * rng.standard_normal((200, 1, 3)) + 0.1 * rng.standard_normal((200, 3, 3))
    for average in ("mean", "median"):
        affinity = Affinity.from_history(history, names(3), settings={"average": average})
        assert affinity.spread().flagged == ()
        assert affinity.stderr[0, 1] > 1


def test_unmeasured_pairs_are_left_out() -> None:
    matrix = np.array([[0, 1.0, np.nan], [np.nan, 0, 4.0], [2.0, 5.0, 0]])
    spread = Affinity.from_matrix(matrix).spread()
    assert spread.values["1"] == 4
    assert np.isnan(spread.values["0"])
    assert np.isnan(spread.values["2"])
    assert spread.best == {"0": "2", "1": "2", "2": "1"}


def test_two_tasks_have_nothing_to_compare() -> None:
    spread = Affinity.from_matrix(np.ones((2, 2))).spread()
    assert isinstance(spread, Spread)
    assert spread.flagged == ()
    assert "0" in str(spread)


def test_the_text_marks_flagged_tasks() -> None:
    lines = str(published().spread()).splitlines()
    assert [line.split()[0] for line in lines[1:] if "no partner stands out" in line] == ["a8"]
    assert "a7 / a8" in lines[1]
