"""`tagalong report`: pages from files, and two runs side by side."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal, environment

sys.path.append(str(Path(__file__).parents[1] / "report"))
from fake_run import make_run

TASKS = ("age", "ill", "tall")


def test_it_makes_the_page_again_and_says_where(tagalong: Terminal, tmp_path: Path) -> None:
    make_run(tmp_path / "mine", TASKS)
    ran = tagalong("report", "mine")
    assert (ran.status, ran.out) == (0, "the report: mine/report.html\n")
    assert (tmp_path / "mine" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(tagalong("report", "mine", "--json", "--out", "page.html").out) == {"page": "page.html"}
    assert (tmp_path / "page.html").exists()


def test_it_opens_the_page(tagalong: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    make_run(tmp_path / "mine", TASKS)
    tagalong("report", "mine", "--open")
    assert opened == [(tmp_path / "mine" / "report.html").as_uri()]


def test_two_runs_are_put_side_by_side(tagalong: Terminal, tmp_path: Path) -> None:
    make_run(tmp_path / "one", TASKS)
    make_run(tmp_path / "two", TASKS, budgets=[2], gain=-0.1)
    ran = tagalong("report", "one", "two")
    lines = [line.split() for line in ran.out.splitlines()]
    assert "Grouping is worth it" in ran.out
    assert "Train them all together" in ran.out
    assert ["method", "budget", "loss", "one", "loss", "two", "cost", "one", "cost", "two"] in lines
    missing = next(line for line in lines if line[:2] == ["tag", "3"])
    assert missing[-1] == "-"
    assert max(map(len, ran.out.splitlines())) <= 104
    found = json.loads(tagalong("report", "one", "two", "--json").out)
    assert [verdict["worth_it"] for verdict in found["verdicts"]] == [True, False]


def test_runs_of_other_tasks_are_remarked_upon(tagalong: Terminal, tmp_path: Path) -> None:
    make_run(tmp_path / "one", TASKS)
    make_run(tmp_path / "two", [*TASKS, "thin"])
    assert "note: the runs have different tasks" in tagalong("report", "one", "two").out


def test_what_is_no_run_is_refused(tagalong: Terminal, tmp_path: Path) -> None:
    assert tagalong.refused("report", "nowhere").startswith("nowhere is not the folder of a finished run")
    assert "results.json" in tagalong.refused("report", str(tmp_path))
    make_run(tmp_path / "one", TASKS)
    assert tagalong.refused("report", "one", "one", "--open").startswith("--out and --open need a single run")
    (tmp_path / "one" / "results.json").write_text("{")
    assert "must be valid JSON" in tagalong.refused("report", "one")


def test_it_does_not_wait_for_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "mine", TASKS)
    code = "from tagalong.cli import main; import sys; main(['report', 'mine']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
