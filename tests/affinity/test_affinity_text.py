"""Affinities as text."""

import sys
from itertools import pairwise

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


def test_tables_that_do_not_fit_are_shortened_or_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((20, 9, 9)), names(9))
    assert len(str(affinity).splitlines()) == 12
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for columns, has_errors in ((200, True), (100, False), (60, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = str(affinity).splitlines()[1:]
        assert max(map(len, lines)) <= columns
        assert all(name in "".join(lines) for name in names(9))
        assert any("±" in line for line in lines) == has_errors
    assert "task" in lines[1].split()


def test_many_tasks_are_summarized_by_the_strongest_pairs_sorted_by_groups() -> None:
    family = np.arange(60) % 3
    matrix = np.where(family[:, None] == family, 0.5, -0.2) + 0.01 * np.random.default_rng(0).random((60, 60))
    matrix[0, 30], matrix[1, 4] = 0.9, np.nan
    tasks = [f"{'abc'[f]}{i}" for i, f in enumerate(family)]
    affinity = Affinity.from_matrix(matrix, tasks)
    rows = [line.split() for line in str(affinity).splitlines()[2:-1]]
    assert len(rows) == 40
    assert all(helper[0] == task[0] != conflict[0] for task, helper, _, conflict, _ in rows)
    assert ["a30", "a0", "0.900"] in [row[:3] for row in rows]
    families = "".join(row[0][0] for row in rows)
    assert sum(one != other for one, other in pairwise(families)) == 2
    frame = affinity.to_frame()
    assert len(frame) == 3600
    assert frame.query("source == 'a0' and target == 'a30'")["mean"].item() == 0.9
    assert "a30" in affinity._repr_html_()


def test_streaming_affinities_say_how_many_gradients_they_have_seen() -> None:
    settings = {"estimator": "streaming"}
    affinity = Affinity.from_matrix(np.eye(2), count=[[900, 3], [3, 500]], settings=settings)
    assert "1,400 gradients" in str(affinity)
    assert "1,400 gradients" in repr(affinity)
    assert "step" not in repr(affinity)


def test_values_with_a_common_null_step_are_not_compared_with_zero() -> None:
    history = np.random.default_rng(0).standard_normal((20, 3, 3))
    marked = Affinity.from_history(history, names(3), settings={"update": "sgd"})
    assert "~" in str(marked)
    assert "~" in marked._repr_html_()
    unmarked = Affinity.from_history(history, names(3), settings={"update": "optimizer"})
    assert "~" not in str(unmarked)
    assert "~" not in unmarked._repr_html_()
    assert "zero gradient" in str(unmarked).splitlines()[-1]


def test_unmeasured_and_extreme_values_are_printable() -> None:
    assert str(Affinity.from_matrix([[np.nan, 1.0], [2.0, 3.0]])).splitlines()[2].split() == ["0", "-", "1.00"]
    for value in (0.0, 1e-320, 1e-30, 1e30, 1e300, np.nan):
        assert str(Affinity.from_matrix(np.full((2, 2), value), stderr=np.full((2, 2), abs(value))))
    assert str(Affinity.from_matrix([[1.0]]))
