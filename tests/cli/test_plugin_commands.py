"""Commands of other packages: imported when used; broken ones give a one-line error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import SRC, CommandResult, environment

from packages import install

GAMES = '''
    from typing import Annotated

    import typer

    from tagalong.cli import print_line

    cards = typer.Typer()


    def roll(sides: Annotated[int, typer.Argument(help="Of the die.")] = 6) -> None:
        """Rolls a die.

        It is fair.

        Examples:
        - `tagalong roll`: six sides
        - `tagalong roll 20`: many of them
        """
        if sides < 1:
            raise ValueError(f"`sides` must be positive, found {sides}")
        print_line(f"{sides} at most")


    @cards.callback()
    def _about() -> None:
        """Plays cards."""


    @cards.command()
    def draw() -> None:
        """Draws a card."""
        raise KeyboardInterrupt
    '''
POINTS = """
    [tagalong.commands]
    absent = no_such_module:command
    broken = broken_module:command
    cards = games_module:cards
    number = games_module:typer
    roll = games_module:roll
    run = games_module:roll
    """


@pytest.fixture
def games(tmp_path: Path) -> Path:
    return install(tmp_path / "packages", "games", POINTS, games_module=GAMES, broken_module="1 / 0\n")


def run(folder: Path, *arguments: str, code: str = "", **more: str) -> CommandResult:
    """Runs `tagalong …` with the packages of this folder in a separate process."""
    code = code or "from tagalong.cli import main; import sys; sys.exit(main())"
    env = {**environment(), "PYTHONPATH": f"{SRC}{os.pathsep}{folder}", "COLUMNS": "100", **more}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_help_lists_plugins_without_importing_torch(games: Path) -> None:
    code = "from tagalong.cli import main; import sys; main(['--help']); sys.exit('torch' in sys.modules)"
    status, out, err = run(games, code=code)
    assert status == 0
    for line in ("Rolls a die.", "Plays cards.", "Reproduces the paper's numbers"):
        assert line in out
    assert [line.split("'")[1] for line in err.splitlines()] == ["absent", "broken", "number"]


def test_a_function_becomes_a_command_and_an_app_a_group(games: Path) -> None:
    code = "from tagalong.cli import main; import sys; print(*[main(line.split()) for line in sys.argv[1:]])"
    _, out, err = run(games, "roll 20", "roll 0", "roll -h", "cards --help", "run --help", code=code)
    assert out.startswith("20 at most\n")
    assert out.endswith("0 2 0 0 0\n")
    assert err == "tagalong: sides must be positive, found 0\n"
    words = ("It is fair.", "Of the die.", "tagalong roll 20: many of them", "Draws a card.")
    places = [out.index(word) for word in words]
    assert places == sorted(places)
    assert "Trains the tasks together" in out, "a built-in command cannot be replaced"


def test_ctrl_c_ends_a_plugin_with_a_message(games: Path) -> None:
    status, out, err = run(games, "cards", "draw")
    assert (status, out) == (128 + signal.SIGINT, "")
    assert err.startswith("tagalong: stopped")


def test_using_a_broken_plugin_is_a_one_line_error(games: Path) -> None:
    status, out, err = run(games, "broken", "--help")
    assert (status, out) == (2, "")
    assert err.startswith("tagalong: the command 'broken' from ")
    assert err.count("\n") == 1
