"""Standard errors and intervals, compared with simulations and obvious formulas."""

import math

import numpy as np
import pytest

from tagalong.study.noise import below_zero, half_width, row_stderr, seed_interval


def test_rows_of_a_cluster_count_as_one() -> None:
    draw = np.random.default_rng(0)
    clusters = draw.integers(0, 40, 200)
    effects = draw.normal(size=40)
    influences = effects[clusters] + 0.1 * draw.normal(size=200)
    sums = np.array([(influences[clusters == one] - influences.mean()).sum() for one in np.unique(clusters)])
    expected = math.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)) / 200
    assert row_stderr(influences, clusters) == pytest.approx(expected)
    assert row_stderr(influences, clusters) > 1.5 * row_stderr(influences)
    assert row_stderr(influences) == pytest.approx(influences.std(ddof=1) / math.sqrt(200))
    assert math.isnan(row_stderr(np.ones(1)))


@pytest.mark.parametrize("seeds", [2, 3, 10])
@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_intervals_of_rows_and_seeds_cover_and_are_no_wider_than_needed(seeds: int, noise: float) -> None:
    draw, covered = np.random.default_rng(seeds), 0
    for _ in range(4000):
        rows, values = draw.normal(), noise * np.sqrt(seeds) * draw.normal(size=seeds)
        half = half_width(1.0, float(values.std(ddof=1) / math.sqrt(seeds)), seeds)
        covered += abs(rows + values.mean()) <= half
    assert 0.94 <= covered / 4000 <= (0.98 if seeds == 2 else 0.96)


def test_an_interval_over_seeds_is_that_of_students_t() -> None:
    interval = seed_interval([0.1, 0.2, 0.3])
    assert (interval.estimate, interval.above_zero) == (pytest.approx(0.2), False)
    assert interval.high == pytest.approx(0.2 + 4.302653 * 0.1 / math.sqrt(3))
    assert seed_interval([0.1]).low is None


def test_few_tasks_are_called_worse_by_chance() -> None:
    draw = np.random.default_rng(0)
    named = 0
    for _ in range(1000):
        named += bool(below_zero({str(task): (float(value), 1.0) for task, value in enumerate(draw.normal(size=20))}))
    assert named <= 70, "5 % of 1000, and three standard errors"
    assert below_zero({"a": (-9.0, 1.0), "b": (-1.0, 1.0), "c": (-0.1, math.nan)}) == ("a",)
