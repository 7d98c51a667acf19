"""Runs commands as a user would, in this process or another."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tagalong.cli import main

SRC = Path(__file__).parents[2] / "src"


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


class Terminal:
    """Runs `tagalong …` in this process, in a folder of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> CommandResult:
        self.capsys.readouterr()
        status = main(arguments)
        return CommandResult(status, *self.capsys.readouterr())

    def error_of(self, *arguments: str) -> str:
        """Returns the error message of a command that must fail: status 2, nothing on stdout, no traceback."""
        status, out, err = self(*arguments)
        assert (status, out) == (2, ""), err
        assert err.startswith("tagalong: ")
        assert "Traceback" not in err
        assert err.endswith("\n")
        assert "\x1b" not in err
        assert "`" not in err.partition(" (see `")[0], "arguments of the library must not show"
        return err.removeprefix("tagalong: ").rstrip("\n")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "80"}


def process(*arguments: str) -> "subprocess.Popen[str]":
    """Starts `python -m tagalong …`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tagalong", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
