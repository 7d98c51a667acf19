"""Every python and console block of CONTRIBUTING and docs runs, in order, and prints what is shown.

Python blocks of a page share one namespace, all blocks of a page one folder. In a console block `$ ` starts a command,
`> ` continues it, and the rest is what it prints. A block with a title is a file of that folder; a page with a
`pyproject.toml` describes a package, which is installed. The loops of the README need a model and data, so
tests/test_readme.py runs them.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from packages import install
from tagalong.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```\n', re.MULTILINE | re.DOTALL)
POINTS = re.compile(r'^\[project\.entry-points\.("[^"]+")\]\n((?:\w.*\n)+)', re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
OPTIONAL = re.compile(r"^(?:from|import) (accelerate|lightning|transformers)\b", re.MULTILINE)
CLOCK = "time per measurement"


class Block(NamedTuple):
    """A code block, the line it starts at, and the text block below it, which shows what it prints."""

    kind: str
    code: str
    line: int
    shown: str


def blocks(text: str) -> list[Block]:
    return [
        Block(block[1], block[2], text.count("\n", 0, block.start(2)), block[3] or "") for block in BLOCK.finditer(text)
    ]


def write_files(text: str, folder: Path) -> None:
    """Writes the files that a page shows, and installs the entry points of a package."""
    files = dict(FILE.findall(text))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    points = "".join(f"[{group}]\n{lines}" for group, lines in POINTS.findall(files.get("pyproject.toml", "")))
    if points:
        install(folder, "page", points.replace('"', ""))


def words(text: str) -> list[str]:
    return NUMBER.sub("#", text.replace("~", "")).split()


def assert_printed(printed: str, shown: str, exact: bool) -> None:
    """Asserts the same text, or the same words and numbers that are equal up to differences between processors."""
    if exact:
        assert printed.rstrip() == shown.rstrip()
        return
    assert words(printed) == words(shown)
    for line, shown_line in zip(printed.splitlines(), shown.splitlines(), strict=True):
        for number, expected in zip(NUMBER.findall(line), NUMBER.findall(shown_line), strict=True):
            decimals = len(expected.partition(".")[2])
            rounding = 1.5 * 10.0**-decimals if decimals else 0.0
            assert CLOCK in line or float(number) == pytest.approx(float(expected), rel=0.05, abs=rounding), line


def run_python(block: Block, page: Path, names: dict[str, object]) -> str:
    printed = io.StringIO()
    code = compile("\n" * block.line + block.code, str(page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_command(command: str) -> str:
    """Returns what a terminal would show; tagalong's own commands run in this process."""
    if not command.startswith("tagalong "):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        main(shlex.split(command)[1:])
    return printed.getvalue()


@pytest.mark.usefixtures("one_thread", "own_plugins")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning 2.6 with torch 2.13
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # Lightning's advice about the machine
@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_and_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = page.read_text(encoding="utf-8")
    write_files(text, tmp_path)
    exact = "import torch" not in text  # every processor prints the same if nothing is trained
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text):
        if any(importlib.util.find_spec(package) is None for package in OPTIONAL.findall(block.code)):
            continue
        if block.kind == "python":
            printed = run_python(block, page, names)
            if block.shown:
                assert_printed(printed, block.shown, exact)
            continue
        commands = COMMAND.findall(block.code)
        assert commands, f"no command in the block at line {block.line}"
        for command, shown in commands:
            assert_printed(run_command(command.replace("\n> ", "\n").strip()), shown, exact)
