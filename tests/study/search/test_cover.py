"""The fast solver for covers, compared with enumeration."""

import itertools

import numpy as np
from hypothesis import given, settings, strategies as st

from tagalong.study.search.proposals import select_cover


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 3))
def test_covers_are_nearly_as_good_as_those_of_enumeration(seed: int, tasks: int, budget: int) -> None:
    draw = np.random.default_rng(seed)
    inside = (np.arange(2**tasks - 1, 0, -1)[:, None] >> np.arange(tasks) & 1).astype(bool)
    values = np.where(inside, draw.normal(size=inside.shape), np.inf)
    values[0] = 0.0
    rows = select_cover(values, budget)
    best = min(
        values[list(some)].min(0).sum()
        for size in range(1, budget + 1)
        for some in itertools.combinations(range(len(values)), size)
    )
    found = values[list(rows)].min(0).sum()
    assert len(rows) <= budget
    assert np.isfinite(found)
    assert found - best <= 0.35 * abs(best) + 1e-9


def test_networks_that_serve_nothing_are_left_out() -> None:
    values = np.array([[0.0, 0.0], [1.0, np.inf], [np.inf, 2.0]])
    assert select_cover(values, 3) == (0,)
