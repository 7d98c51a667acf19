"""Whatever a file holds, commands print a result or an error message, never a traceback."""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tagalong.cli import main
from tagalong.study import Study

sys.path.append(str(Path(__file__).parents[1] / "study"))
from study_small import small_problem

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
COMMANDS = {
    "report": ("report", "run", "--out", "page.html"),
    "predict": ("predict", "run", "rows.npy", "--json"),
    "verdict": ("verdict", "run", "--json"),
}
FILES = {
    "results.json": ("report", "verdict"),
    "groupings.json": ("report",),
    "affinity.json": ("report",),
    "networks/networks.json": ("report", "predict"),
    "networks/network-1.pt": ("predict",),
    "networks/example.pt": ("predict",),
}


def status(*arguments: str) -> int:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(arguments)
    messages = [line for line in err.getvalue().splitlines() if not line.startswith("tagalong: warning: ")]
    assert (found == 2) == any(line.startswith("tagalong: ") for line in messages)
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a finished run and rows to predict."""
    folder, problem = tmp_path_factory.mktemp("finished"), small_problem("ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagalong.study.study.write_run_report", lambda out: None)
        Study(problem, folder / "run", device="cpu").run(["mtl", "tag"], [2], 2)
    np.save(folder / "rows.npy", problem.test.inputs[:3].numpy())
    return folder


@pytest.mark.usefixtures("one_thread")
@LENIENT
@given(
    file=st.sampled_from(sorted(FILES)),
    garbage=st.one_of(st.binary(max_size=40), DOCUMENTS.map(lambda found: json.dumps(found).encode())),
    place=st.floats(0, 1),
    how=st.sampled_from(["replaced", "truncated", "inserted", "other entries"]),
)
def test_no_file_of_a_run_causes_a_traceback(
    finished: Path, monkeypatch: pytest.MonkeyPatch, file: str, garbage: bytes, place: float, how: str
) -> None:
    monkeypatch.chdir(finished)
    path = Path("run", file)
    content = path.read_bytes()
    cut = int(place * len(content))
    if how == "other entries" and file.endswith(".json"):
        kept = {name: value for name, value in json.loads(content).items() if name in ("format", "version")}
        garbage = json.dumps({**kept, "tasks": garbage.decode(errors="replace")}).encode()
    damaged = {"truncated": content[:cut], "inserted": content[:cut] + garbage + content[cut:]}.get(how, garbage)
    try:
        path.write_bytes(damaged)
        for command in FILES[file]:
            assert status(*COMMANDS[command]) in (0, 2)
    finally:
        path.write_bytes(content)
