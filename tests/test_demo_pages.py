"""The pages about the demos show what the demos printed, and `make demo` installs only what it needs."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from tagalong.problems import DEMOS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCRIPT = runpy.run_path(str(DOCS / "demos.py"))
CODE = re.compile(r"^```.*?^```$|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+−]?\d+(?:[.,]\d+)*%?")


def page(name: str) -> str:
    return (DOCS / f"demo_{name}.md").read_text(encoding="utf-8")


def stored(name: str) -> str:
    return (DOCS / "demos" / f"{name}.txt").read_text(encoding="utf-8")


def test_every_demo_has_a_page_in_the_navigation() -> None:
    assert list(SCRIPT["NAMES"]) == list(DEMOS)
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in DEMOS if f"demo_{name}.md" not in navigation] == []


@pytest.mark.parametrize("name", DEMOS)
def test_a_page_shows_what_the_demo_printed(name: str) -> None:
    assert SCRIPT["OUTPUT"].findall(page(name)) == [stored(name)]


@pytest.mark.parametrize("name", DEMOS)
def test_numbers_in_the_text_of_a_page_are_printed_by_the_demo(name: str) -> None:
    numbers = NUMBER.findall(CODE.sub("", page(name)))
    printed = set(NUMBER.findall(stored(name)))
    assert [number for number in numbers if number.replace("−", "-") not in printed] == []


@pytest.mark.parametrize("name", DEMOS)
def test_pictures_of_a_page_exist(name: str) -> None:
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", page(name))
    assert f"images/demo_{name}.png" in dict(map(reversed, pictures))
    assert [path for _, path in pictures if not (DOCS / path).is_file()] == []


@pytest.mark.parametrize("name", DEMOS)
def test_the_stored_output_is_that_of_the_demo(name: str) -> None:
    introduction, _, overview = stored(name).partition("\n\n")
    tasks = " ".join(introduction.split()).partition(" Tasks ")[2].partition(" Rows ")[0]
    assert tasks.split(", ") == list(DEMOS[name].tasks)
    assert len(overview.splitlines()) <= 25
    assert max(map(len, stored(name).splitlines())) <= SCRIPT["COLUMNS"]
    seeds = DEMOS[name].seeds
    assert f": {len(DEMOS[name].tasks)} tasks, {seeds} seeds and {seeds} fresh ones to confirm" in overview
    assert re.findall(r"^ {5}[* ] (\d)  ", overview, re.MULTILINE) == ["1", "2", "3"]
    assert f"runs/demo-{name}/report.html" in overview


@pytest.mark.parametrize(("name", "words"), [("molecules", "Groups matter"), ("nhanes", "")])
def test_groups_matter_for_molecules_only(name: str, words: str) -> None:
    answer = stored(name).partition("\nGroups?")[2].strip()
    assert answer.startswith(words)
    assert answer.startswith("Groups matter") == bool(words)


def test_output_is_written_between_the_comments_only(tmp_path: Path) -> None:
    text = "before\n\n<!-- output -->\n\n```text\nold\n```\n\n<!-- end of output -->\n\nafter\n"
    (tmp_path / "page.md").write_text(text)
    SCRIPT["update_page"](tmp_path / "page.md", "new\\1\n")
    assert (tmp_path / "page.md").read_text() == text.replace("old\n", "new\\1\n")
    (tmp_path / "page.md").write_text("no comments")
    with pytest.raises(SystemExit, match="must contain <!-- output -->"):
        SCRIPT["update_page"](tmp_path / "page.md", "new\n")


def test_make_demo_installs_only_what_the_demo_needs() -> None:
    command = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), "demo"]
    commands = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r'--editable "(.*?)"', commands) == [".[demo]"]
    assert "--constraint constraints.txt" in commands
    assert "OMP_NUM_THREADS=1 .venv-demo/bin/tagalong demo" in commands
    assert ".venv/" not in commands
    assert "installed in" in commands
    assert "ran in" in commands
