"""`tagalong run` with diverging networks: the other methods continue, and the table marks those that diverged."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_workers", "one_thread")]
STUDY_TESTS = Path(__file__).parents[1] / "study"


@pytest.fixture
def wild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_plugins: None) -> str:
    """Returns the name of a problem provided by another package."""
    packages = tmp_path / "packages"
    about = packages / "wild-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wild\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tagalong.problems]\nwild = diverging_small:diverging_problem\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(STUDY_TESTS))
    return "wild"


@pytest.mark.parametrize("executor", ["serial", "processes:2"])
def test_the_other_methods_continue(tagalong: Terminal, wild: str, executor: str) -> None:
    if executor != "serial":
        pytest.importorskip("cloudpickle")
    options = ("--methods", "stl,hoa,auto", "--budgets", "2", "--seeds", "2", "--effort", "12", "--out", "out")
    result = tagalong("run", wild, *options, "--executor", executor, "--device", "cpu")
    assert result.status == 0, result.err
    assert "Traceback" not in result.err
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[0] for row in rows if "diverged" in row[1:] and row[0] in ("mtl", "stl", "hoa", "auto")] == ["stl"]
    (hoa,) = [row for row in rows if row[:2] == ["hoa", "2"]]
    assert any(cell.endswith("%") for cell in hoa)
    shown = tagalong("run", wild, *options, "--executor", executor, "--device", "cpu", "--json")
    found = json.loads(shown.out)
    assert found["verdict"]["diverged"] == [["stl", None]]
    assert [line["diverged"] for line in found["table"] if line["method"] == "stl"] == [2]
    assert "networks" not in shown.err, "nothing is trained again"


def test_the_error_names_the_option_to_change_if_all_tasks_together_diverge(tagalong: Terminal, wild: str) -> None:
    pytest.importorskip("cloudpickle")
    options = ("--methods", "stl,auto", "--budgets", "2", "--seeds", "2", "--executor", "processes:2", "--quiet")
    assert "--recipe lr" in tagalong.error_of("run", wild, *options, "--recipe", "lr=1e300")
