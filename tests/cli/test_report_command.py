"""`tagalong report`: pages from files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal, environment

sys.path.append(str(Path(__file__).parents[1] / "report"))
from fake_run import make_run

TASKS = ("age", "ill", "tall")


def test_the_page_is_written_again_and_its_path_is_printed(tagalong: Terminal, tmp_path: Path) -> None:
    make_run(tmp_path / "mine", TASKS)
    result = tagalong("report", "mine")
    assert (result.status, result.out) == (0, "report: mine/report.html\n")
    assert (tmp_path / "mine" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(tagalong("report", "mine", "--json", "--out", "page.html").out) == {"page": "page.html"}
    assert (tmp_path / "page.html").exists()


def test_the_page_is_opened(tagalong: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    make_run(tmp_path / "mine", TASKS)
    tagalong("report", "mine", "--open")
    assert opened == [(tmp_path / "mine" / "report.html").as_uri()]


def test_a_folder_that_is_not_a_run_is_rejected(tagalong: Terminal, tmp_path: Path) -> None:
    assert tagalong.error_of("report", "nowhere").startswith("nowhere is not the folder of a finished run")
    assert "results.json" in tagalong.error_of("report", str(tmp_path))
    make_run(tmp_path / "one", TASKS)
    (tmp_path / "one" / "results.json").write_text("{")
    assert "is not valid JSON" in tagalong.error_of("report", "one")


def test_report_does_not_import_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "mine", TASKS)
    code = "from tagalong.cli import main; import sys; main(['report', 'mine']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
