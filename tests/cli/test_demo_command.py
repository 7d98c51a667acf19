"""`tagalong demo`: an overview on one screen, or every method."""

import json
import re
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from terminal import Terminal

from tagalong.cli import main
from tagalong.learn import Recipe
from tagalong.problems import DEMOS, Demo

pytestmark = pytest.mark.usefixtures("one_thread")
TASKS = ("Black_Hair", "Blond_Hair", "Wearing_Hat")
OPTIONS = {"rows": 400, "pixels": 8, "channels": 4, "recipe": Recipe(lr=1e-2, epochs=8, batch_size=64)}
METHODS = ("mtl", "ensemble", "best-of", "tag", "auto")
SMALL = Demo("faces", "tiny faces", TASKS, seeds=2, effort=4, methods=METHODS, options=OPTIONS)
MAX_LINES = 25


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `tagalong demo faces` small enough for a test."""
    monkeypatch.setitem(DEMOS, "faces", SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The default folder of a small demo, and the progress that was shown."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as progress:
        patch.setitem(DEMOS, "faces", SMALL)
        patch.chdir(folder)
        assert main(["demo", "faces"]) == 0
    return folder / "runs" / "demo-faces", progress.getvalue()


@pytest.fixture
def run(tagalong: Terminal, finished: tuple[Path, str], small_demo: None) -> str:
    """A copy of that folder, whose networks the next demo uses."""
    shutil.copytree(finished[0], "run")
    return "run"


def test_the_demo_shows_the_best_way_for_each_number_of_networks(tagalong: Terminal, run: str) -> None:
    status, out, _ = tagalong("demo", "faces", "--out", run)
    assert status == 0
    introduction, _, overview = out.partition("\n\n")
    assert introduction.splitlines() == [
        "Data   tiny faces",
        f"Tasks  {', '.join(TASKS)}",
        "Rows   280 train, 40 val, 80 test",
    ]
    lines = overview.splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80
    assert not any(line != line.rstrip() for line in lines)
    assert re.findall(r"^[* ] +(\d)  ", overview, re.MULTILINE)[:2] == ["1", "2"]
    assert any(line.startswith("Use ") for line in lines)
    assert lines[-2] == f"report: {Path('run/report.html')}"


def test_the_demo_shows_progress_and_writes_a_page(finished: tuple[Path, str]) -> None:
    folder, progress = finished
    assert re.search(r"^copies: \d+ of \d+ networks, \d+ s$", progress, re.MULTILINE)
    assert (folder / "report.html").exists()


@pytest.mark.usefixtures("small_demo")
def test_nothing_but_named_methods_is_trained(tagalong: Terminal) -> None:
    out = tagalong("demo", "faces", "--methods", "mtl,stl", "--budgets", "2", "--seeds", "1", "--out", "run").out
    assert re.findall(r"^[* ] +\d  (\w+)", out, re.MULTILINE) == ["mtl", "stl"]
    settings = json.loads(Path("run/results.json").read_text(encoding="utf-8"))["settings"]
    assert settings["spent"]["networks"] == 1 + len(TASKS)
