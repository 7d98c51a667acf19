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
    lines = str(affinity).splitlines()
    assert lines[0] == ("Affinity (row helps column, values × 10⁻³), mean over 50 measured steps, lookahead estimator")
    assert lines[1].split() == ["age", "ill"]
    assert lines[2].split()[:4] == ["age", "2.00", "±", "0.00"]
    assert lines[3].split()[:4] == ["ill", "0.10", "±", "1.43~"]
    assert lines[4] == "~ within two standard errors of zero"


def test_unmeasured_values_are_dashes() -> None:
    lines = str(Affinity.from_matrix([[np.nan, 1.0], [2.0, 3.0]])).splitlines()
    assert lines[2].split() == ["0", "-", "1.00"]


def many_tasks() -> Affinity:
    tasks = [f"a rather long name for task {i}" for i in range(60)]
    return Affinity.from_history(np.random.default_rng(0).standard_normal((20, 60, 60)), tasks)


def test_text_for_many_tasks_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    text = str(many_tasks())
    assert max(map(len, text.splitlines())) <= 110
    assert "±" not in text
    assert "of 60 tasks shown" in text


def test_nothing_is_shortened_without_a_terminal() -> None:
    affinity = many_tasks()
    heading, *rows = str(affinity).splitlines()[1:-1]
    assert all(task in heading for task in affinity.tasks)
    assert len(rows) == 60
    assert all(row.startswith(task) and row.count("±") == 60 for row, task in zip(rows, affinity.tasks, strict=True))


def test_hundreds_of_tasks_are_summarized_without_a_terminal() -> None:
    text = str(Affinity.from_matrix(np.random.default_rng(0).standard_normal((300, 300))))
    assert text.splitlines()[-1].startswith("100 of 300 tasks shown")
    assert len(text) < 200_000


def test_nine_tasks_are_all_shown() -> None:
    text = str(Affinity.from_history(np.random.default_rng(0).standard_normal((20, 9, 9)), names(9)))
    assert "shown" not in text
    assert all(name in text for name in names(9))


def test_extreme_values_are_printable() -> None:
    for value in (0.0, 1e-320, 1e-30, 1e30, 1e300, np.nan):
        assert str(Affinity.from_matrix(np.full((2, 2), value), stderr=np.full((2, 2), abs(value))))
    assert str(Affinity.from_matrix([[1.0]]))


def test_repr_is_short() -> None:
    affinity = Affinity.from_history(np.zeros((3, 2, 2)), ["a", "b"], settings={"estimator": "cosine"})
    assert repr(affinity) == "Affinity(2 tasks, 3 steps, estimator='cosine')"
