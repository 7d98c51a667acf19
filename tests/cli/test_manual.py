"""The command itself: help, version, imports and output streams."""

import re
from pathlib import Path
from typing import get_args

import typer
from terminal import Terminal, process

from tagalong import __version__
from tagalong.cli import group_options
from tagalong.cli.group import group
from tagalong.cli.messages import spell_options
from tagalong.cli.run import run
from tagalong.group.select import SolverName

TABLE = ",a,b\na,0,1\nb,1,0\n"


def test_help_lists_commands_with_examples(tagalong: Terminal) -> None:
    result = tagalong("--help")
    assert result.status == 0
    for words in ("Which tasks should train together?", "Examples", "Exit status", "group", "paper", "--version"):
        assert words in result.out
    parts = [
        "Usage",
        "Which tasks",
        "Commands",
        "Examples",
        "Files in the folder of a run",
        "Exit status",
        "Environment",
        "NO_COLOR",
    ]
    places = [result.out.index(part) for part in parts]
    assert places == sorted(places)
    listed = re.findall(r"^│ ([a-z]+) ", result.out.partition("Commands")[2], re.MULTILINE)
    assert listed == [
        "demo",
        "problems",
        "run",
        "report",
        "predict",
        "group",
        "plan",
        "verdict",
        "leaderboard",
        "paper",
    ]
    for part in ("group", "paper"):
        assert tagalong(part, "-h").status == 0


def test_the_help_of_group_names_every_option(tagalong: Terminal) -> None:
    out = tagalong("group", "--help").out
    options = "budget budgets cost max-cost max-total-cost axis objective tasks average complete weights allow-single"
    options += " no-single max-size must-link cannot-link solver time-limit seed resamples explain compare out json"
    options += " quiet"
    for option in options.split():
        assert f"--{option} " in out, option


def test_the_version_is_that_of_the_package(tagalong: Terminal) -> None:
    assert tagalong("--version") == (0, f"tagalong {__version__}\n", "")


def test_without_a_command_it_shows_the_help(tagalong: Terminal) -> None:
    assert tagalong() == tagalong("--help")


def test_unknown_commands_are_rejected(tagalong: Terminal) -> None:
    assert "did you mean 'group'" in tagalong.error_of("grup")
    assert tagalong.error_of("group").lower().startswith("missing argument 'file' (see `tagalong group --help`)")


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    reader = process("group", str(path), "--budget", "1", "--json")
    assert reader.stdout is not None
    reader.stdout.close()
    _, err = reader.communicate()
    assert err == ""


def test_common_options_have_the_same_names_in_every_command(tagalong: Terminal) -> None:
    for command in ("demo", "problems", "run", "report", "predict", "group", "plan", "verdict", "paper main"):
        shown = tagalong(*command.split(), "--help").out
        assert "--json" in shown, command
        assert re.search(r"--quiet +-q ", shown), command
        assert command == "problems" or re.search(r"--out +-o ", shown), command
    for command in ("demo", "run", "plan", "paper main"):
        assert "--seeds " in tagalong(*command.split(), "--help").out, command
    for command in ("demo", "run", "plan", "verdict", "group"):
        assert "--budgets " in tagalong(command, "--help").out, command


def test_choices_are_those_of_the_library() -> None:
    assert [choice.value for choice in group_options.SolverChoice] == list(get_args(SolverName))
    assert [choice.value for choice in group_options.AverageChoice] == ["mean", "trimmed", "median"]


def test_messages_name_every_argument_as_its_option() -> None:
    app = typer.Typer()
    for command in (group, run):
        app.command()(command)
    for command in typer.main.get_group(app).commands.values():
        spell = spell_options(command.params)
        for parameter in command.params:
            name = parameter.name.rstrip("_")
            expected = f"--{name.replace('_', '-')}" if parameter.param_type_name == "option" else name
            assert spell(name) == expected
    assert spell_options(typer.main.get_group(app).commands["group"].params)("allow_single=False") == "--no-single"
