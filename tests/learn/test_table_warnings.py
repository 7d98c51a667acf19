"""Warnings about tables: every planted case is caught, and ordinary tables of many kinds give none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from tagalong.errors import is_installed
from tagalong.learn import Problem
from tagalong.problems import load_problem

Table = dict[str, Any]


def plain_table(rows: int = 400, seed: int = 0) -> Table:
    """Three features and targets of three kinds, which depend on them."""
    draw = np.random.default_rng(seed)
    x, y, z = draw.normal(size=(3, rows))
    noise = draw.normal(size=(3, rows))
    return {
        "x": x,
        "y": y,
        "z": z,
        "size": x + y + 0.5 * noise[0],
        "ill": (y + z + noise[1] > 0).astype(int),
        "kind": np.digitize(x + noise[2], [-0.7, 0.7]),
    }


TARGETS = ["size", "ill", "kind"]


def warnings_about(table: Mapping[str, Any], targets: list[str] = TARGETS, **options: Any) -> list[str]:
    notes = Problem.from_table(table, targets, **options).notes
    return [note.removeprefix("warning: ") for note in notes if note.startswith("warning: ")]


def leak(feature: str, *targets: str) -> str:
    what = f"target{'s' * (len(targets) > 1)} {', '.join(map(repr, targets))}"
    hint = "remove it, unless it will be known for new rows"
    return f"feature {feature!r} determines the {what} almost exactly; {hint}"


def shuffled_codes(values: Any, seed: int = 5) -> Any:
    """Replaces every distinct value with another one, so that the order says nothing."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.random.default_rng(seed).permutation(len(distinct))[inverse]


LEAKS: dict[str, tuple[str, Any]] = {
    "equal": ("size", lambda values: values),
    "other unit": ("size", lambda values: -2.54 * values + 3),
    "monotone": ("size", lambda values: np.exp(values)),
    "rounded": ("size", lambda values: np.round(values, 2)),
    "rounded to a tenth": ("size", lambda values: np.round(values, 1)),
    "a little noise": ("size", lambda values: values + 0.01 * np.random.default_rng(9).normal(size=len(values))),
    "missing values": ("size", lambda values: np.where(np.arange(len(values)) % 3, values, np.nan)),
    "equal classes": ("ill", lambda values: values),
    "opposite classes": ("ill", lambda values: 1 - values),
    "class and a half": ("ill", lambda values: values + 0.5 * np.random.default_rng(9).random(len(values))),
    "few wrong": ("ill", lambda values: np.where(np.arange(len(values)) % 400, values, 1 - values)),
    "codes": ("kind", shuffled_codes),
    "finer codes": ("kind", lambda values: shuffled_codes(values + 3 * (np.arange(len(values)) % 7))),
}


@pytest.mark.parametrize(
    ("what", "rows"),
    # Few rows do not tell a feature that separates the classes from a good one.
    [pair for pair in product(LEAKS, (60, 400, 3000)) if pair not in (("class and a half", 60), ("few wrong", 60))],
)
def test_a_feature_that_determines_a_target_is_reported(what: str, rows: int) -> None:
    table = plain_table(rows)
    target, planted = LEAKS[what]
    found = warnings_about(table | {"leak": planted(table[target])})
    assert leak("leak", target) in found


def test_a_category_that_determines_a_target_is_reported() -> None:
    table = plain_table()
    table["text"] = np.array(["low", "middle", "high"])[table["kind"]]
    table["many"] = [f"{kind}-{row % 9}" for row, kind in enumerate(table["kind"])]
    assert warnings_about(table, categorical=["text", "many"]) == [leak("text", "kind"), leak("many", "kind")]


def test_a_function_that_is_not_monotone_is_reported() -> None:
    table = plain_table(3000)
    table["size"] = np.sin(3 * table["x"])
    assert warnings_about(table) == [leak("x", "size")]


def test_a_feature_that_determines_several_targets_is_one_warning() -> None:
    table = plain_table()
    table["double"] = 2 * table["size"]
    table["leak"] = -table["size"]
    assert warnings_about(table, [*TARGETS, "double"]) == [leak("leak", "size", "double")]


def test_a_leak_in_arrays_is_reported() -> None:
    table = plain_table()
    inputs = np.stack([table["x"], np.exp(table["size"])], axis=1)
    problem = Problem.from_arrays(inputs, {"size": table["size"]}, ["size"])
    assert problem.notes == (f"warning: {leak('1', 'size')}",)


def test_repeated_measurements_of_a_group_are_no_leak() -> None:
    draw = np.random.default_rng(0)
    person = np.repeat(np.arange(100), 8)
    table = {"person": person, "height": draw.normal(size=100)[person], "pulse": draw.normal(size=800)}
    table["ill"] = draw.integers(0, 2, 100)[person]
    assert warnings_about(table, ["ill"], group_column="person") == []
    del table["person"]
    assert warnings_about(table, ["ill"]) == [leak("height", "ill")]


IDS: dict[str, Any] = {
    "from zero": np.arange(400),
    "shuffled": np.random.default_rng(1).permutation(400) + 1000,
    "with gaps": np.sort(np.random.default_rng(1).permutation(450)[:400]),
    "texts": [f"{number:x}" for number in range(10_000, 10_400)],
    "patient_id": np.random.default_rng(1).permutation(100_000)[:400],
    "PatientID": np.random.default_rng(1).permutation(100_000)[:400],
    "row_index": np.random.default_rng(1).permutation(100_000)[:400],
}


@pytest.mark.parametrize("what", IDS)
def test_a_column_of_ids_is_reported(what: str) -> None:
    name = what if "I" in what or "_" in what else "no"
    roles = {"categorical": [name]} if what == "texts" else {}
    reason = "has a different value in almost every row" if roles else "numbers the rows"
    assert warnings_about(plain_table() | {name: IDS[what]}, **roles) == [
        f"feature '{name}' {reason}, like an ID; remove it, since it says nothing about new rows"
    ]


def test_a_feature_that_is_missing_for_one_class_is_reported() -> None:
    table = plain_table()
    table["days since treatment"] = np.where(table["ill"] == 1, table["x"], np.nan)
    assert warnings_about(table) == [
        "whether feature 'days since treatment' is missing determines the target 'ill' almost exactly; "
        "remove it, unless it will be known for new rows"
    ]


def test_a_binary_target_with_few_positives_is_reported() -> None:
    table, part = plain_table(), np.array(["train"] * 300 + ["val"] * 50 + ["test"] * 50)
    table["ill"] = np.isin(np.arange(400), [0, 1, 2, 3, 310, 390]).astype(int)
    assert warnings_about(table | {"part": part}, split_column="part") == [
        "'ill' has only 6 labels of class 1 (4 in train, 1 in val, 1 in test); results for it are unreliable"
    ]


def test_a_target_with_few_labels_in_a_part_is_reported() -> None:
    table = plain_table(1000)
    table["size"] = np.where(np.arange(1000) % 25 == 0, table["size"], np.nan)
    found = warnings_about(table)
    assert found
    assert all("'size' has only" in warning and "results for it are unreliable" in warning for warning in found)
    assert "rows of val" in found[0]


def test_a_class_that_is_absent_from_a_part_is_reported() -> None:
    table = plain_table(1000)
    part = np.array(["train"] * 700 + ["val"] * 100 + ["test"] * 200)
    table["kind"] = np.where((table["kind"] == 2) & (part == "test"), 1, table["kind"])
    assert warnings_about(table | {"part": part}, split_column="part") == [
        "'kind' has no labels of class 2 in test; results say nothing about it"
    ]


@pytest.mark.parametrize("copies", [3, 100])
def test_duplicate_rows_across_parts_are_counted(copies: int) -> None:
    table = {name: np.concatenate([values, values[:copies]]) for name, values in plain_table().items()}
    part = np.array(["train"] * 300 + ["val"] * 50 + ["test"] * 50 + ["test"] * copies)
    found = warnings_about(table | {"part": part}, split_column="part")
    assert found == [
        f"{copies} of the {100 + copies} rows of val and test also occur in train, with the same features and "
        "targets, so results may look too good; remove copies, or keep them in one split with a group column"
    ]


def test_duplicate_rows_with_their_own_ids_are_counted() -> None:
    table = {name: np.concatenate([values, values]) for name, values in plain_table().items()}
    found = warnings_about(table | {"id": np.arange(800)})
    assert ["ID" in warning for warning in found] == [True, False]
    assert "also occur in train" in found[1]


def test_duplicate_rows_in_one_group_are_fine() -> None:
    table = {name: np.concatenate([values, values]) for name, values in plain_table().items()}
    assert warnings_about(table | {"pair": np.arange(800) % 400}, group_column="pair") == []


def one_hot(levels: int, rows: int, seed: int) -> Table:
    level = np.random.default_rng(seed).integers(0, levels, rows)
    return {f"is {number}": (level == number).astype(int) for number in range(levels)}


def ordinary_columns(rows: int, seed: int) -> Table:
    """Features that look suspicious at first sight."""
    draw = np.random.default_rng(seed)
    days = np.datetime64("2020-01-01") + draw.integers(0, 2000, rows)
    dates = [int(str(day).replace("-", "")) for day in days]
    x = draw.normal(size=rows)
    return {
        "x": x,
        "distinct floats": draw.random(rows) * rows,
        "correlated": 0.98 * x + np.sqrt(1 - 0.98**2) * draw.normal(size=rows),
        "constant": np.full(rows, 3),
        "count": draw.poisson(3, rows),
        "large count": draw.poisson(1000, rows),
        "income": draw.integers(10_000, 900_000, rows),
        "bmi_index": draw.permutation(1_000_000)[:rows],
        "date": dates,
        "seconds": 1_600_000_000 + 86_400 * np.arange(rows),
        "year": draw.integers(1950, 2020, rows),
        "mostly zero": np.where(draw.random(rows) < 0.05, 1, 0),
        "mostly missing": np.where(draw.random(rows) < 0.1, x, np.nan),
        **one_hot(4, rows, seed),
    }


@pytest.mark.parametrize("rows", [30, 50, 100, 1000, 5000])
@pytest.mark.parametrize("seed", range(5))
def test_ordinary_tables_give_no_warnings(rows: int, seed: int) -> None:
    draw = np.random.default_rng([seed, rows])
    features = ordinary_columns(rows, seed)
    x, noise = features["x"], draw.normal(size=(2, rows))
    targets = {
        "close": 0.98 * x + np.sqrt(1 - 0.98**2) * noise[0],
        "good": (x + 0.2 * noise[1] > 0).astype(int),
        "rare": (draw.permutation(rows) < max(6, rows // 20)).astype(int),
        "class": draw.integers(0, 3, rows),
        "number": draw.poisson(5, rows).astype(float),
        "noise": draw.normal(size=rows),
    }
    kinds = {"number": "regression", "class": "multiclass"}
    assert warnings_about(features | targets, list(targets), kinds=kinds) == []


@pytest.mark.parametrize("rows", [30, 100, 2000])
@pytest.mark.parametrize("seed", range(5))
def test_tables_of_few_distinct_values_give_no_warnings(rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    table: Table = {f"answer {number}": draw.integers(1, 6, rows) for number in range(6)}
    table |= {"first twice": table["answer 0"] * 2, **one_hot(3, rows, seed)}
    table |= {"yes": draw.integers(0, 2, rows), "grade": draw.integers(0, 4, rows)}
    categories = ["answer 1", "answer 2"]
    assert warnings_about(table, ["yes", "grade"], categorical=categories, kinds={"grade": "multiclass"}) == []


@pytest.mark.parametrize("name", ["nhanes", "faces", "qm9"])
def test_the_problems_of_the_package_give_no_warnings(name: str) -> None:
    package = {"nhanes": "nhanes", "qm9": "qm9pack"}.get(name)
    if package is not None and not is_installed(package):
        pytest.skip(f"needs {package}")
    assert [note for note in load_problem(name).notes if "warning" in note] == []


def test_warnings_are_logged_as_one_message(caplog: pytest.LogCaptureFixture) -> None:
    table = plain_table()
    Problem.from_table(table, TARGETS, name="fine")
    assert caplog.records == []
    Problem.from_table(table | {"leak": table["size"], "id": np.arange(400)}, TARGETS, name="odd")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tagalong.learn.table_warnings", logging.WARNING)
    first, *lines = record.getMessage().split("\n")
    assert first == "warnings about the data of 'odd':"
    assert lines[0] == f"  - {leak('leak', 'size')}"
    assert len(lines) == 2
