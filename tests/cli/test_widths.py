"""Output fits the terminal, does not move the cursor, and is plain text when it is not on a terminal."""

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.cli import main, printable
from tagalong.cli.messages import print_error
from tagalong_paper import EXPERIMENTS

sys.path.append(str(Path(__file__).parents[1] / "report"))
from fake_run import make_run

TASKS = ("age", "ill", "a_task_with_a_name_that_is_longer_than_anybody_would_like_to_type_it", "tall", "thin \x1b[2J")
HELP = ["", "demo", "problems", "run", "report", "predict", "group", "plan", "verdict", "paper"]
COMMANDS = [
    "problems",
    "report one",
    "report one two",
    "report one a_long_name_of_a_run",
    "verdict one",
    "verdict one --quiet",
    "plan one/affinity.json --budgets 2",
    "group one/affinity.json --budget 2 --explain all --together",
    "group one/affinity.json --budgets all",
    "paper",
    "paper selection",
    "paper errata",
    "paper theory",
]
STYLE = re.compile(r"\x1b\[[\d;]*m")
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")


class FakeTerminal(io.StringIO):
    """A stream that claims to be a terminal and keeps its output."""

    def isatty(self) -> bool:
        return True


RunOnTerminal = Callable[[str], str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, gain in (("one", 0.05), ("two", -0.1), ("a_long_name_of_a_run", 0.05)):
        make_run(folder / name, TASKS, gain=gain)
    return folder


@pytest.fixture
def run_on_terminal(runs: Path, monkeypatch: pytest.MonkeyPatch) -> RunOnTerminal:
    """Returns a function that runs a command on a terminal, in a folder with runs, and returns its output."""
    monkeypatch.chdir(runs)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(command: str) -> str:
        screen = FakeTerminal()
        with redirect_stdout(screen):
            assert main(command.split()) == 0
        return screen.getvalue()

    return run


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_output_of_commands_fits_the_terminal(
    run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = STYLE.sub("", run_on_terminal(command)).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line or "\r" in line or "\b" in line for line in lines)
    assert not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [*HELP, *(f"paper {experiment.name}" for experiment in EXPERIMENTS)])
def test_every_help_fits_and_has_an_example(
    run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = STYLE.sub("", run_on_terminal(f"{command} --help"))
    assert max(map(len, text.splitlines())) <= width
    assert f"tagalong {command}".strip() in text.partition("Example")[2]


@pytest.mark.parametrize("command", [*COMMANDS, "--help", "run --help"])
def test_output_that_is_not_on_a_terminal_has_no_control_characters(
    tagalong: Terminal, runs: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(runs)
    result = tagalong(*command.split())
    assert result.status == 0
    assert all(sign.isprintable() or sign == "\n" for sign in result.out + result.err)


def test_no_color_means_no_colors(run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLOR.search(run_on_terminal("--help"))
    monkeypatch.setenv("NO_COLOR", "1")
    for command in ("report one two", "paper selection", "group one/affinity.json --budget 2", "--help"):
        assert not COLOR.search(run_on_terminal(command))


def test_more_columns_are_shown_if_there_is_room(
    run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for width in (50, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        text = STYLE.sub("", run_on_terminal("verdict one"))
        found[width] = next(line for line in text.splitlines() if line.startswith("method"))
        assert max(map(len, text.splitlines())) <= width
        assert ("No room for: latency" in text.replace("\n", " ")) == ("latency" not in found[width])
    assert len(found[50].split()) < len(found[80].split()) < len(found[120].split())
    assert "latency" in found[120]


def test_long_names_are_shortened_before_numbers(
    run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"a_rather_long_name_of_a_task_that_ends_in_the_number_{i}" for i in range(4)]
    Affinity.from_matrix(np.arange(16.0).reshape(4, 4), names).to_csv("a.csv")
    lines = STYLE.sub("", run_on_terminal("group a.csv --budget 2")).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("task "))
    rows = [line.split() for line in lines[start + 1 : start + 5]]
    assert all(row[0].endswith("…") and row[0].startswith("a_rather_long") for row in rows)
    assert all(len(row) == 4 and "…" not in "".join(row[1:]) for row in rows)


@pytest.mark.usefixtures("one_thread")
def test_output_of_commands_that_train_fits_the_terminal(
    run_on_terminal: RunOnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    drawn = np.random.default_rng(0).normal(size=(120, 5))
    np.savetxt("table.csv", drawn, "%.3f", ",", header="p,q,a_target_with_quite_a_long_name,age,weight", comments="")
    targets = "--targets a_target_with_quite_a_long_name,age,weight"
    quick = "--recipe epochs=2 --device cpu --seeds 2 --price-per-hour 3"
    for command in (
        f"run table.csv {targets} --methods mtl,stl,random,tag,hoa,tag+pcgrad --budgets 2,3 {quick} --out table",
        "predict table table.csv --out new.csv",
        "paper main --seeds 1 --tasks Black_Hair,Goatee --recipe epochs=1 --with rows=200 --out main",
    ):
        lines = STYLE.sub("", run_on_terminal(command)).splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("\x1b" in line or "\r" in line for line in lines)


def test_errors_are_wrapped_on_a_terminal_and_whole_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    message = "several problems:\n  - " + " ".join(["a_name"] * 20) + "\n  - another"
    print_error(message)
    assert capsys.readouterr().err == f"tagalong: {message}\n"
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", screen)
    print_error(message)
    first, *lines = STYLE.sub("", screen.getvalue()).splitlines()
    assert first == "tagalong: several problems:"
    assert max(map(len, lines)) <= 60
    assert [line[:4] for line in lines] == ["  - ", "    ", "    ", "  - "]


def test_names_keep_joining_characters_and_lose_control_characters() -> None:
    assert printable("می\N{ZERO WIDTH NON-JOINER}خواهم") == "می\N{ZERO WIDTH NON-JOINER}خواهم"
    assert printable("a\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}b\n") == "a?[2J?b?"
