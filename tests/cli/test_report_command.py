"""`tagalong report`: pages from files."""

import json
import sys
from pathlib import Path

import pytest
from terminal import Terminal

sys.path.append(str(Path(__file__).parents[1] / "report"))
from fake_run import make_run


def test_the_page_is_written_again_opened_and_its_path_is_printed(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    make_run(Path("mine"), ["age", "ill", "tall"])
    page = Path("mine/report.html")
    assert tagalong("report", "mine", "--open").out.endswith(f"report: {page}\n")
    assert opened == [page.absolute().as_uri()]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(tagalong("report", "mine", "--json", "--out", "page.html").out) == {"page": "page.html"}
    assert Path("page.html").exists()


def test_a_folder_that_is_not_a_run_is_rejected(tagalong: Terminal) -> None:
    make_run(Path("mine"), ["age", "ill", "tall"])
    Path("mine/results.json").write_text("{")
    Path("empty").mkdir()
    for folder, words in (("nowhere", "nowhere"), ("empty", "results.json"), ("mine", "results.json")):
        assert words in tagalong.error_of("report", folder)
