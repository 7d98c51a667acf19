"""Files of scores are read back as written, in every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tagalong.affinity import Affinity
from tagalong.cli.group import read_scores
from tagalong.group import Candidate, select_groups
from tagalong.tabular import TableError

NAMES = st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), separator=st.sampled_from([",", ";", "\t", "|"]), turned=st.booleans())
def test_square_tables_are_read_back(tmp_path: Path, data: Any, separator: str, turned: bool) -> None:
    plain = NAMES.filter(lambda name: not set(name) & set('"' + separator + ",;\t|") and name[0] not in "[{")
    names = data.draw(st.lists(plain, min_size=2, max_size=5, unique=True))
    matrix = data.draw(
        st.lists(
            st.lists(st.floats(-1e9, 1e9), min_size=len(names), max_size=len(names)),
            min_size=len(names),
            max_size=len(names),
        )
    )
    rows = [["", *names], *([name, *map(repr, row)] for name, row in zip(names, matrix, strict=True))]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(separator.join(row) for row in rows) + "\n", encoding="utf-8")
    table = read_scores(path, "target" if turned else "source")
    assert table.tasks == tuple(names)
    np.testing.assert_array_equal(table.scores.mean, np.array(matrix).T if turned else matrix)


def test_saved_affinities_keep_their_history(tmp_path: Path) -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).standard_normal((9, 3, 3)), list("abc"))
    affinity.save(tmp_path / "affinity.json")
    table = read_scores(tmp_path / "affinity.json")
    assert table.kind == "affinity"
    np.testing.assert_array_equal(table.scores.history, affinity.history)


def test_a_task_may_be_called_group(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("source,group,cost\ngroup,0,1\ncost,1,0\n")
    assert read_scores(path).kind == "square"
    path.write_text("a,group,cost\n1,a,0.5\n")
    assert read_scores(path).scores == [Candidate({"a"}, {"a": 1.0}, 0.5)]


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("a+b", {"a", "b"}),
        (" b + a ", {"a", "b"}),
        ("a+c", None),
        ("a+a", None),
        ("", None),
    ],
)
def test_groups_are_read_from_cells(tmp_path: Path, cell: str, names: set[str] | None) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"group,a,b,x+y\na,5,,\nb,,5,\nx+y,,,5\n{cell},1,,\n")
    if names is None:
        with pytest.raises(TableError, match="line 5"):
            read_scores(path)
    else:
        assert read_scores(path).scores[frozenset(names)] == {"a": 1.0}


def test_tasks_without_a_result_only_help(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("group,a,b\na,1,\nb,,2\na+b,3,\n")
    table = read_scores(path)
    assert table.scores[frozenset("ab")] == {"a": 3.0}
    assert select_groups(table.scores, 2).value == 5
