"""Affinities as text."""

import sys

import numpy as np
import pytest
from affinity_oracle import names

from tagalong.affinity import Affinity


def test_small_affinities_show_errors_scale_steps_and_estimator() -> None:
    history = np.full((50, 2, 2), 0.002)
    history[:25, 0, 1] = 0.001
    history[:, 1, 0] = np.tile([0.01, -0.01], 25) + 0.0001
    affinity = Affinity.from_history(history, ["age", "ill"], settings={"estimator": "lookahead"})
    heading, columns, *rows, footnote = str(affinity).splitlines()
    assert all(part in heading for part in ("10⁻³", "mean", "50", "lookahead"))
    assert columns.split() == ["age", "ill"]
    assert rows[0].split()[:4] == ["age", "2.00", "±", "0.00"]
    assert rows[1].split()[:4] == ["ill", "0.10", "±", "1.43~"]
    assert footnote.startswith("~")
    assert repr(affinity) == "Affinity(2 tasks, 50 steps, estimator='lookahead')"


def test_many_tasks_fit_the_terminal_and_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [f"a rather long name for task {i}" for i in range(60)]
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((20, 60, 60)), tasks)
    assert all(task in str(affinity) for task in tasks)
    assert len(str(Affinity.from_matrix(np.random.default_rng(0).standard_normal((300, 300))))) < 200_000
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    assert max(map(len, str(affinity).splitlines())) <= 110
    few = str(Affinity.from_history(np.random.default_rng(0).standard_normal((20, 9, 9)), names(9)))
    assert all(name in few for name in names(9))


def test_unmeasured_and_extreme_values_are_printable() -> None:
    assert str(Affinity.from_matrix([[np.nan, 1.0], [2.0, 3.0]])).splitlines()[2].split() == ["0", "-", "1.00"]
    for value in (0.0, 1e-320, 1e-30, 1e30, 1e300, np.nan):
        assert str(Affinity.from_matrix(np.full((2, 2), value), stderr=np.full((2, 2), abs(value))))
    assert str(Affinity.from_matrix([[1.0]]))
