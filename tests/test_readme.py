"""The README and the front page of the documentation: three ways in, which run."""

import contextlib
import csv
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from readme_loops import many_datasets, training_loop
from tagalong.cli import main

ROOT = Path(__file__).parent.parent
README, FRONT = ROOT / "README.md", ROOT / "docs" / "index.md"
WAYS = ("I have a table", "I have a training loop", "I have many datasets")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code(page: Path, way: str) -> str:
    """Returns the code of the section about a way in."""
    section = re.split(rf"^##+ {way}$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1].split("\n## ")[0]
    ((_, found),) = BLOCK.findall(section.split("\n### ")[0])
    return found


def run(way: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code(README, way), str(README), "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("way", WAYS)
def test_ways_in_are_the_same_on_the_front_page(way: str) -> None:
    assert code(FRONT, way) == code(README, way)


@pytest.mark.parametrize("page", [README, FRONT], ids=lambda page: page.name)
def test_no_other_code_is_on_these_pages(page: Path) -> None:
    assert [found for _, found in BLOCK.findall(page.read_text(encoding="utf-8"))] == [code(page, way) for way in WAYS]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("way", "names", "together"),
    [
        ("I have a training loop", training_loop, ["celsius, fahrenheit", "humidity"]),
        ("I have many datasets", many_datasets, ["a0, a1, a2", "b0, b1, b2", "c0, c1, c2", "d0, d1, d2"]),
    ],
)
def test_loops_run_and_find_what_belongs_together(
    way: str, names: Callable[[], dict[str, Any]], together: list[str]
) -> None:
    printed = run(way, names())
    assert [group for group in together if not re.search(rf"^ +\d +{group} ", printed, re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_table_is_compared_and_new_rows_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age, bmi, smoker = draw.uniform(20, 80, 300), draw.normal(27, 4, 300), draw.integers(0, 2, 300)
    systolic = 90 + age / 2 + bmi + draw.normal(0, 8, 300)
    columns = {"age": age, "bmi": bmi, "smoker": smoker}
    labels = {"systolic": systolic, "diastolic": 50 + systolic / 5, "ill": (age / 40 + smoker > 2).astype(int)}
    for name, found in (("table.csv", columns | labels), ("new.csv", columns)):
        with open(name, "w", newline="") as file:
            csv.writer(file).writerows([[*found], *zip(*found.values(), strict=True)])
    first, second = code(README, "I have a table").splitlines()
    main(shlex.split(first)[1:])
    assert "erdict" in capsys.readouterr().out
    main(shlex.split(second)[1:])
    with open("predicted.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert {"systolic", "diastolic", "ill"} <= rows[0].keys()
