"""The command itself: help, version and output streams."""

import re
from pathlib import Path

import pytest
from terminal import Terminal, process

from tagalong import __version__

COMMANDS = {
    "run": "targets budgets methods seeds reference weights recipe out json quiet",
    "predict": "networks keep spread out json quiet",
    "report": "open all out json",
    "group": "budget axis objective tasks weights cost no-single must-link solver seed explain out json quiet",
    "plan": "budgets methods seeds runs out json quiet",
    "verdict": "budgets targets-file out json quiet",
    "demo": "fast budgets methods seeds out json quiet",
    "problems": "json",
    "leaderboard": "budgets seeds json",
    "paper": "size seeds recipe out json quiet",
}


def test_help_lists_commands_in_panels(tagalong: Terminal) -> None:
    result = tagalong("--help")
    assert result == tagalong()
    parts = [
        "Which tasks should train together?",
        "Your data",
        "Research",
        "Files in the folder",
        "Exit status",
        "NO_COLOR",
    ]
    places = [result.out.index(part) for part in parts]
    assert places == sorted(places)
    assert re.findall(r"^│ ([a-z]+) ", result.out.partition("Your data")[2], re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_names_its_options_and_ends_with_examples(tagalong: Terminal, command: str) -> None:
    status, out, _ = tagalong(command, "-h")
    assert status == 0
    assert [option for option in COMMANDS[command].split() if f"--{option} " not in out] == []
    assert f"tagalong {command}" in out.rpartition(" Examples ")[2]
    assert max(map(len, out.splitlines())) <= 80


def test_the_version_is_that_of_the_package(tagalong: Terminal) -> None:
    assert tagalong("--version") == (0, f"tagalong {__version__}\n", "")


def test_unknown_commands_are_rejected(tagalong: Terminal) -> None:
    assert "'group'" in tagalong.error_of("grup")
    assert "'FILE'" in tagalong.error_of("group")


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",a,b\na,0,1\nb,1,0\n")
    reader = process("group", str(path), "--budget", "1", "--json")
    assert reader.stdout is not None
    reader.stdout.close()
    _, err = reader.communicate()
    assert err == ""
