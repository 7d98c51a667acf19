"""The README has three ways in, which run."""

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from readme_loops import many_datasets, training_loop
from tagalong.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?:python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE, LOOP, DATASETS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("code", "names", "together"),
    [
        (LOOP, training_loop, ["celsius, fahrenheit", "humidity"]),
        (DATASETS, many_datasets, ["a0, a1, a2", "b0, b1, b2", "c0, c1, c2", "d0, d1, d2"]),
    ],
)
def test_loops_run_and_find_what_belongs_together(
    code: str, names: Callable[[], dict[str, Any]], together: list[str]
) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names())
    assert [group for group in together if not re.search(rf"^ +\d +{group} ", printed.getvalue(), re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_table_is_compared_and_new_rows_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": draw.uniform(20, 80, 300), "bmi": draw.normal(27, 4, 300), "smoker": draw.integers(0, 2, 300)}
    )
    frame.to_csv("new.csv", index=False)
    frame["systolic"] = 90 + frame.age / 2 + frame.bmi + draw.normal(0, 8, 300)
    frame["diastolic"] = 50 + frame.systolic / 5
    frame["ill"] = (frame.age / 40 + frame.smoker > 2).astype(int)
    frame.to_csv("table.csv", index=False)
    for command in TABLE.splitlines():
        main(shlex.split(command)[1:])
    assert "Use " in capsys.readouterr().out
    predicted = pd.read_csv("predicted.csv")
    assert len(predicted) == 300
    assert {"systolic", "diastolic", "ill"} <= {*predicted.columns}
