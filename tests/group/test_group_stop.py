"""A solve that is stopped, or runs out of time, returns the best choice found with its bound."""

import threading
from typing import Any

import numpy as np
import pytest

from group_oracle import Floats, assert_valid, score_of
from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.group.solvers.local_search import pack_units


class StopAfter:
    """Returns True after the given number of calls."""

    def __init__(self, questions: int) -> None:
        self.calls, self.questions = 0, questions

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls > self.questions


def matrix(n: int) -> Floats:
    return np.random.default_rng(n).standard_normal((n, n))


@pytest.mark.parametrize(("solver", "n"), [("exact", 10), ("lp", 10), ("milp", 7), ("search", 10), ("auto", 16)])
@pytest.mark.parametrize("questions", [0, 1, 30, 200, 10**9])
def test_a_stopped_solve_returns_the_best_found_with_its_bound(solver: Any, n: int, questions: int) -> None:
    best = select_groups(matrix(n), 3)
    stop = StopAfter(questions)
    grouping = select_groups(matrix(n), 3, solver=solver, stop=stop)
    assert stop.calls
    assert_valid(grouping, n)
    assert grouping.value == pytest.approx(score_of(matrix(n), grouping))
    assert grouping.bound >= best.value - 1e-8
    if grouping.status == "optimal":
        assert grouping.value == pytest.approx(best.value)
    if questions == 10**9 and solver != "search":
        assert grouping.status == "optimal"


def test_stop_is_called_in_the_thread_of_the_caller() -> None:
    threads = set()

    def stop() -> bool:
        threads.add(threading.get_ident())
        return False

    select_groups(matrix(8), 3, solver="lp", stop=stop)
    assert threads == {threading.get_ident()}


def test_stopping_also_ends_the_resamples() -> None:
    history = np.random.default_rng(0).standard_normal((50, 4, 4))
    affinity = Affinity.from_history(history, list("abcd"))
    stop = StopAfter(40)
    resampled = select_groups(affinity, 2, resamples=100, stop=stop).resampled
    assert resampled is not None
    assert 0 < resampled.resamples < 100
    assert select_groups(affinity, 2, stop=lambda: True).resampled is None


def test_stop_must_be_callable() -> None:
    with pytest.raises(ValueError, match="`stop` must be a callable"):
        select_groups(matrix(4), 2, stop=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "places", "room", "fits"),
    [
        ([3, 3, 2, 2, 2], 2, 6, True),  # the emptiest place first fails
        ([4, 4, 3, 3, 3, 3], 2, 10, True),  # so does the fullest: 4 + 3 + 3 twice
        ([6, 5, 4, 4, 3, 2], 2, 12, True),
        ([3, 3, 3, 3], 3, 5, False),
        ([1] * 9, 3, 3, True),
        ([1] * 10, 3, 3, False),
        ([4], 3, 3, False),
    ],
)
def test_units_are_packed_whenever_they_fit(sizes: list[int], places: int, room: int, fits: bool) -> None:
    place = pack_units(sizes, places, room)
    assert (place is not None) == fits
    if place is not None:
        assert np.bincount(place, weights=sizes, minlength=places).max() <= room


@pytest.mark.parametrize("solver", ["exact", "lp", "search"])
def test_tight_packings_are_found_and_impossible_ones_raise_an_error(solver: Any) -> None:
    links = [("0", "1", "2"), ("3", "4", "5"), ("6", "7"), ("8", "9"), ("10", "11")]
    grouping = select_groups(matrix(12), 2, solver=solver, max_size=6, must_link=links)
    assert sorted(len(group.serves) for group in grouping.groups) == [6, 6]
    with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks"):
        select_groups(matrix(12), 2, solver=solver, max_size=5, must_link=links)
