"""`tagalong run` where networks diverge: the other methods go on, and the table says which did not."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

pytestmark = pytest.mark.usefixtures("forked_workers", "one_thread")
STUDY_TESTS = Path(__file__).parents[1] / "study"


@pytest.fixture
def wild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a problem that another package brings."""
    packages = tmp_path / "packages"
    about = packages / "wild-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wild\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tagalong.problems]\nwild = diverging_small:diverging_problem\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(STUDY_TESTS))
    return "wild"


@pytest.mark.parametrize("executor", ["serial", "processes:2"])
def test_the_other_methods_go_on(tagalong: Terminal, wild: str, executor: str) -> None:
    if executor != "serial":
        pytest.importorskip("cloudpickle")
    asked = ("--methods", "stl,hoa,auto", "--budgets", "2", "--seeds", "2", "--effort", "12", "--out", "out")
    ran = tagalong("run", wild, *asked, "--executor", executor, "--device", "cpu")
    assert ran.status == 0, ran.err
    assert "Traceback" not in ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[0] for row in rows if "diverged" in row[1:] and row[0] in ("mtl", "stl", "hoa", "auto")] == ["stl"]
    said = " ".join(ran.out.split())
    assert "Diverged: with at least one seed, a network had no finite validation loss" in said
    assert "diverged; measuring affinities took" in said
    (hoa,) = [row for row in rows if row[:2] == ["hoa", "2"]]
    assert "%" in hoa
    shown = tagalong("run", wild, *asked, "--executor", executor, "--device", "cpu", "--json")
    found = json.loads(shown.out)
    assert found["verdict"]["diverged"] == [["stl", None]]
    assert [line["diverged"] for line in found["table"] if line["method"] == "stl"] == [2]
    assert "networks" not in shown.err, "nothing is trained again"
    compared = tagalong("report", "out", "out")
    assert [row.split()[1:3] for row in compared.out.splitlines() if row.startswith("stl")] == [["diverged"] * 2]
    assert json.loads(tagalong("report", "out", "out", "--json").out)["lines"][1]["runs"][0]["total"] is None


def test_where_all_together_diverges_the_option_to_change_is_named(tagalong: Terminal, wild: str) -> None:
    pytest.importorskip("cloudpickle")
    asked = ("--methods", "stl,auto", "--budgets", "2", "--seeds", "2", "--executor", "processes:2", "--quiet")
    said = tagalong.refused("run", wild, *asked, "--recipe", "lr=1e300")
    assert said == (
        "one network for all tasks diverged with seeds 0, 1, and everything is compared with it; lower --recipe lr"
    )
