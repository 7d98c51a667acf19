"""Names with control characters never reach a terminal; files keep them."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal

from tagalong.cli import StudyProgress
from tagalong.cli.app import WarningPrinter

RED, BELL, RETURN, REVERSE, CONTROL = "\x1b[31mred", "be\x07ll", "a\rb", "rt\u202el", "c\x9b31m"
TASKS = (RED, BELL, REVERSE, CONTROL)
FILE, RUN = "ta\x1b[2Jble.csv", "ru\x1b]0;title\x07n"
SHORT = ("--methods", "mtl,stl", "--seeds", "1", "--recipe", "epochs=1", "--device", "cpu")


def write(path: str, rows: Sequence[Sequence[str]]) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_table() -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 5))
    rows = [[*(f"{value:.4f}" for value in row), "\x1b[1mup" if row[0] > 0 else "down"] for row in numbers]
    write(FILE, [["x", RETURN, RED, BELL, REVERSE, CONTROL], *rows])


def assert_harmless(text: str) -> None:
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []


def show(tagalong: Terminal, *arguments: str, status: int = 0) -> str:
    """Runs a command and checks all that it shows; returns its standard output."""
    found, out, err = tagalong(*arguments)
    assert found == status, err
    assert_harmless(out)
    assert_harmless(err)
    return out


def test_a_run_its_predictions_and_its_report_show_no_control_characters(tagalong: Terminal) -> None:
    write_table()
    out = show(tagalong, "run", FILE, "--targets", ",".join(TASKS), "--out", RUN, *SHORT)
    assert "?[31mred" in out
    printed = show(tagalong, "predict", RUN, FILE)
    header, *rows = csv.reader(io.StringIO(printed))
    assert header == ["?[31mred", "be?ll", "rt?l", "c?31m", "outside"]
    show(tagalong, "predict", RUN, FILE, "--out", "an\x07swers.csv")
    with Path("an\x07swers.csv").open(newline="", encoding="utf-8") as file:
        kept, *saved = csv.reader(file)
    assert (tuple(kept), saved) == ((*TASKS, "outside"), rows)
    assert tuple(json.loads(show(tagalong, "predict", RUN, FILE, "--json"))) == (*TASKS, "outside")
    show(tagalong, "report", RUN)


def test_errors_show_no_control_characters(tagalong: Terminal) -> None:
    write_table()
    show(tagalong, "run", FILE, "--targets", f"{RED}?", status=2)
    show(tagalong, "group", "no\x07ne.csv", "--budget", "2", status=2)


def test_groups_and_plans_show_no_control_characters(tagalong: Terminal) -> None:
    names = (RED, BELL, REVERSE)
    write(FILE, [["source", *names], *([name, "0.1", "0.2", "0.3"] for name in names)])
    show(tagalong, "group", FILE, "--budget", "2", "--explain", RED, "--out", "gro\x07up.json")
    show(tagalong, "plan", FILE, "--out", "pl\x07an")


def test_progress_and_warnings_show_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with StudyProgress() as progress:
        progress.start(3, RED)
        progress.advance(2)
        progress.done()
    WarningPrinter().emit(logging.LogRecord("x", logging.WARNING, "", 0, "%s\n%s", (RED, BELL), None))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("?[31mred: 2 of 3 networks")
    assert (second, third) == ("tagalong: warning: ?[31mred", "  - be?ll")
