"""Whatever a file holds, the command prints a result or an error message, never a traceback."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tagalong.cli import main

pytestmark = pytest.mark.slow

CELLS = st.sampled_from(
    ["", "a", "b", "c", "a+b", "group", "cost", "task", "value", "source", "1", "-2.5", "nan", "inf", "1,5"]
)
TABLES = st.lists(st.lists(CELLS, min_size=1, max_size=5).map(",".join), max_size=6).map("\n".join)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(["a", "b", "a+b", ""]))
KEYS = st.sampled_from(
    ["a", "b", "a+b", "tasks", "matrix", "trains", "values", "cost", "groups", "format", "direction"]
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
LENIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def status(*arguments: str) -> int:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(arguments)
    assert (found == 2) == err.getvalue().startswith("tagalong: ")
    assert (found == 0) == bool(out.getvalue())
    return found


@LENIENT
@given(
    st.one_of(TABLES.map(str.encode), st.binary(max_size=40), DOCUMENTS.map(lambda found: json.dumps(found).encode()))
)
def test_no_file_of_scores_causes_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "scores"
    path.write_bytes(content)
    assert status("group", str(path), "--budget", "1") in (0, 2)


@LENIENT
@given(st.one_of(TABLES, st.text(max_size=40), DOCUMENTS.map(json.dumps)))
def test_no_file_of_groups_or_costs_causes_a_traceback(tmp_path: Path, text: str) -> None:
    table, other = tmp_path / "table.csv", tmp_path / "other"
    table.write_text(",a,b,c\na,0,1,2\nb,3,0,4\nc,5,6,0\n")
    other.write_text(text, encoding="utf-8", errors="replace")
    assert status("group", str(table), "--budget", "2", "--compare", str(other)) in (0, 2)
    assert status("group", str(table), "--budget", "2", "--cost", str(other)) in (0, 2)
