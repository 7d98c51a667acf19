"""Every python and console block of CONTRIBUTING and docs runs, in order, and prints what is shown.

Python blocks of a page share one namespace, all blocks of a page one folder. In a console block `$ ` starts a command,
`> ` continues it, and the rest is what it prints. A block with a title is a file of that folder; a page with a
`pyproject.toml` describes a package, which is installed. The loops of README and docs/index.md need a model and data,
so tests/test_readme.py runs them.
"""

import contextlib
import importlib.util
import io
import pkgutil
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from packages import install
from tagalong.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FRONT_PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md"]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```\n', re.MULTILINE | re.DOTALL)
POINTS = re.compile(r'^\[project\.entry-points\.("[^"]+")\]\n((?:\w.*\n)+)', re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
OPTIONAL = re.compile(r"^(?:from|import) (accelerate|lightning|transformers)\b", re.MULTILINE)
CLOCK = "time per measurement"


@dataclass
class Block:
    """A code block, the line it starts at, and the text block below it, which shows what it prints."""

    kind: str
    code: str
    line: int
    shown: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)), found[3] or "") for found in BLOCK.finditer(text)
    ]


def write_files(page: Path, folder: Path) -> bool:
    """Writes the files that a page shows; returns whether they are a package, and installs its entry points."""
    files = dict(FILE.findall(page.read_text(encoding="utf-8")))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    points = "".join(f"[{group}]\n{lines}" for group, lines in POINTS.findall(files.get("pyproject.toml", "")))
    if points:
        install(folder, "page", points.replace('"', ""))
    return bool(points)


def _words(text: str) -> list[str]:
    return NUMBER.sub("#", text.replace("~", "")).split()


def assert_printed(printed: str, shown: str) -> None:
    """Asserts the same words, and numbers equal up to differences between processors; seconds may differ."""
    assert _words(printed) == _words(shown)
    for ours, theirs in zip(printed.splitlines(), shown.splitlines(), strict=True):
        if CLOCK not in ours:
            for number, expected in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
                assert float(number) == pytest.approx(float(expected), rel=0.05, abs=_rounding(expected)), ours


def assert_same(printed: str, shown: str) -> None:
    """Asserts the same text, as every processor prints if nothing is trained."""
    assert printed.rstrip() == shown.rstrip()


def _rounding(number: str) -> float:
    """Returns what rounding may change in a number with decimals; integers are counts."""
    decimals = len(number.partition(".")[2])
    return 1.5 * 10.0**-decimals if decimals else 0.0


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
@pytest.mark.parametrize("page", [page for page in PAGES if page not in FRONT_PAGES], ids=lambda page: page.name)
def test_blocks_run_and_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    if write_files(page, tmp_path):
        monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    compare = assert_printed if "import torch" in page.read_text(encoding="utf-8") else assert_same
    for block in blocks(page):
        if any(importlib.util.find_spec(package) is None for package in OPTIONAL.findall(block.code)):
            continue
        if block.kind == "python":
            printed = run_python(block, page, names)
            if block.shown:
                compare(printed, block.shown)
            continue
        commands = COMMAND.findall(block.code)
        assert commands, f"no command in the block at line {block.line}"
        for command, shown in commands:
            compare(run_command(command.replace("\n> ", "\n").strip()), shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_the_library_in_pages_exist(page: Path) -> None:
    """Entry point groups are not names of the library, though they look like it."""
    groups = [f"tagalong.{group}" for group in ("commands", "estimators", "methods")]
    names = set(re.findall(r"`(tagalong(?:_paper)?(?:\.\w+)+)(?:\([^`]*)?`", page.read_text(encoding="utf-8")))
    assert [name for name in sorted(names.difference(groups)) if not _exists(name)] == []


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_between_pages_are_not_broken(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose(page)):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), anchor
