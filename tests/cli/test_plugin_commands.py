"""Commands of other packages: listed without an import, loaded when used; broken ones give a one-line error."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from terminal import SRC, CommandResult, Terminal, environment

from packages import install
from tagalong.plugins import register

GAMES = '''
    """Games."""

    from typing import Annotated

    import typer

    from tagalong.cli import JsonOption, print_line, screen

    cards = typer.Typer()


    def roll(sides: Annotated[int, typer.Argument(help="Of the die.")] = 6, json: JsonOption = False) -> None:
        """Rolls a die
        of your choice.

        It is fair.

        Examples:
            `tagalong roll`: six sides
            `tagalong roll 20`: many of them
        """
        if sides < 1:
            raise ValueError(f"`sides` must be positive, found {sides}")
        print_line(screen(), f"{sides} at most")


    @cards.callback()
    def _about() -> None:
        """Plays cards."""


    @cards.command()
    def draw() -> None:
        """Draws a card."""
        raise KeyboardInterrupt


    help_alone = typer.Typer(help="Plays chess.")


    def undescribed() -> None:
        print("here")


    def twice(what: Annotated[int, typer.Option(), typer.Option()]) -> None:
        """Says twice what an option is."""


    number = 3
    '''
POINTS = """
    [tagalong.commands]
    roll = games_module:roll
    cards = games_module:cards
    chess = games_module:help_alone
    quiet = games_module:undescribed
    """
BROKEN = """
    [tagalong.commands]
    absent = no_such_module:command
    broken = broken_module:command
    number = games_module:number
    twice = games_module:twice
    """


@pytest.fixture
def games(tmp_path: Path) -> Path:
    folder = install(tmp_path / "packages", "games", POINTS, games_module=GAMES)
    return install(folder, "broken", BROKEN, broken_module='def command() -> None:\n    """Breaks."""\n1 / 0\n')


def run(folder: Path, *arguments: str, code: str = "", **more: str) -> CommandResult:
    """Runs `tagalong …` with the packages of this folder in a separate process."""
    code = code or "from tagalong.cli import main; import sys; sys.exit(main())"
    env = {**environment(), "PYTHONPATH": f"{SRC}{os.pathsep}{folder}", "COLUMNS": "100", **more}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_help_lists_plugins_and_imports_none(games: Path) -> None:
    ours = ("tagalong_paper", "tagalong_paper.truth", "tagalong.problems", "games_module", "broken_module", "torch")
    code = f"from tagalong.cli import main; import sys; main(['--help']); sys.exit(str({{*{ours}}} & {{*sys.modules}}))"
    status, out, err = run(games, code=code)
    assert (status, err) == (1, "set()\n")
    listed = [line.split("  ")[0].strip("│ ") for line in out.partition("Commands")[2].splitlines() if "│ " in line]
    names = [name for name in listed if name]
    assert names[-10:] == [
        *("leaderboard", "paper"),
        *("absent", "broken", "number", "twice"),
        *("roll", "cards", "chess", "quiet"),
    ]
    rows = re.sub(" {2,}", "  ", out)  # how wide a column is depends on the version of rich
    for message in ("roll  Rolls a die of your choice.", "cards  Plays cards.", "chess  Plays chess."):
        assert message in rows
    assert "quiet  From games 1.0." in rows
    assert "absent  From broken 1.0." in rows
    assert "• tagalong paper: list all experiments\n" in out.replace("  ", "").replace(" \n", "\n")
    assert "• tagalong roll: six sides" in out
    assert "many of them" not in out


def test_a_function_becomes_a_command_and_an_app_a_group(games: Path) -> None:
    assert run(games, "roll", "20") == (0, "20 at most\n", "")
    assert run(games, "roll", "0") == (2, "", "tagalong: sides must be positive, found 0\n")
    shown = run(games, "roll", "-h").out
    assert shown.index("It is fair.") < shown.index("--json") < shown.index("tagalong roll 20: many of them")
    assert "Examples:" not in shown
    assert "Draws a card." in run(games, "cards", "--help").out


def test_ctrl_c_ends_a_plugin_with_a_message(games: Path) -> None:
    message = "tagalong: stopped; nothing was changed, run the same command to start again\n"
    assert run(games, "cards", "draw") == (128 + signal.SIGINT, "", message)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("absent", "from no_such_module:command cannot be loaded: No module named 'no_such_module'"),
        ("broken", "from broken_module:command cannot be loaded: division by zero"),
        ("number", "from games_module:number cannot be loaded: expected a function or a typer app, found int"),
        (
            "twice",
            "from games_module:twice cannot be loaded: Cannot specify multiple 'Annotated' Typer arguments for 'what'",
        ),
    ],
)
def test_using_a_broken_plugin_is_a_one_line_error(games: Path, command: str, why: str) -> None:
    for arguments in ([command], [command, "--help"]):
        status, out, err = run(games, *arguments)
        assert (status, out) == (2, "")
        assert err == f"tagalong: the command '{command}' {why}\n"


def test_broken_plugins_affect_no_other_command(games: Path) -> None:
    assert run(games, "quiet") == (0, "here\n", "")
    assert run(games, "paper").err == ""
    assert run(games, "--version").err == ""


def test_colliding_names_give_a_warning(games: Path) -> None:
    points = "[tagalong.commands]\nrun = other_module:run\nroll = other_module:roll\n"
    install(games, "other", points, other_module="def run():\n    1 / 0\n\nroll = run\n")
    message = (
        "the command 'roll' from other_module:roll is not used: games_module:roll has the same name\n"
        "the command 'run' from other_module:run is not used: another command already has this name\n"
    )
    for arguments in (["roll"], ["run", "--help"], ["--help"]):
        status, out, err = run(games, *arguments)
        assert (status, "".join(sorted(err.splitlines(keepends=True)))) == (0, message)
    assert "Trains the tasks together, alone and in groups" in out
    assert "Rolls a die" in out


def test_tab_completes_plugin_commands(games: Path) -> None:
    install(games, "other", "[tagalong.commands]\nrun = other_module:run\n")

    def completed(line: str) -> CommandResult:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        result = run(games, _TAGALONG_COMPLETE="complete_bash", **words)
        return result._replace(out=result.out.strip())

    assert completed("tagalong ro") == (0, "roll", "")
    assert completed("tagalong cards d") == (0, "draw", "")
    assert completed("tagalong broken d") == (0, "", "")


def test_suggestions_for_a_typo_include_plugins(games: Path) -> None:
    assert "Did you mean 'paper'" in run(games, "papr").err


def test_commands_can_be_registered_in_code(
    tagalong: Terminal, own_plugins: None, caplog: pytest.LogCaptureFixture
) -> None:
    def greet(name: str) -> None:
        """Greets somebody.

        Example:
            `tagalong greet you`: politely
        """
        print(f"hello {name}")

    register(commands={"greet": greet, "group": greet, "number": 3, "later": "no_such_module:command"})
    assert tagalong("greet", "you") == (0, "hello you\n", "")
    out = tagalong("--help").out
    assert "Greets somebody." in out
    assert "tagalong greet you: politely" in out
    assert "From no_such_module:command." in out
    assert sorted(message.partition(" from ")[0] for message in caplog.messages) == [
        "the command 'group'",
        "the command 'number'",
    ]
    register(commands={"apps": typer.Typer(help="Several.")})
    assert "Several." in tagalong("--help").out


def test_the_paper_works_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    bare = "import importlib.metadata, runpy; importlib.metadata.entry_points = lambda group: []; "
    start = bare + "runpy.run_module({!r}, alter_sys=True, run_name='__main__')"
    assert "No such command 'paper'" in run(tmp_path, "paper", code=start.format("tagalong")).err
    code = start.format("tagalong_paper")
    assert run(tmp_path, "paper", code=code).out.startswith("tagalong paper selection")
    assert "celeba" in run(tmp_path, "problems", "--quiet", code=code).out.split()
