"""Warnings about tables: every planted case is caught, and ordinary tables of many kinds give none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tagalong.learn import Problem

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


def shuffled_codes(values: Any, seed: int = 5) -> Any:
    """Replaces every distinct value with another one, so that the order says nothing."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.random.default_rng(seed).permutation(len(distinct))[inverse]


def assert_warned(found: list[str], *words: str) -> None:
    """Asserts that there is one warning with each of these words, in this order."""
    assert len(found) == len(words), found
    assert [word in warning for word, warning in zip(words, found, strict=True)] == [True] * len(words), found


LEAKS: dict[str, tuple[str, Any]] = {
    "equal": ("size", lambda values: values),
    "other unit": ("size", lambda values: -2.54 * values + 3),
    "monotone": ("size", lambda values: np.exp(values)),
    "rounded to a tenth": ("size", lambda values: np.round(values, 1)),
    "a little noise": ("size", lambda values: values + 0.01 * np.random.default_rng(9).normal(size=len(values))),
    "missing values": ("size", lambda values: np.where(np.arange(len(values)) % 3, values, np.nan)),
    "opposite classes": ("ill", lambda values: 1 - values),
    "class and a half": ("ill", lambda values: values + 0.5 * np.random.default_rng(9).random(len(values))),
    "few wrong": ("ill", lambda values: np.where(np.arange(len(values)) % 400, values, 1 - values)),
    "codes": ("kind", shuffled_codes),
    "finer codes": ("kind", lambda values: shuffled_codes(values + 3 * (np.arange(len(values)) % 7))),
}


@pytest.mark.parametrize(
    ("what", "rows"),
    # Few rows do not tell a feature that separates the classes from a good one.
    [
        (what, rows)
        for what in LEAKS
        for rows in (60, 3000)
        if (what, rows) not in (("class and a half", 60), ("few wrong", 60))
    ],
)
def test_a_feature_that_determines_a_target_is_reported(what: str, rows: int) -> None:
    table = plain_table(rows)
    target, planted = LEAKS[what]
    warnings = warnings_about(table | {"leak": planted(table[target])})
    assert [warning for warning in warnings if "'leak'" in warning and repr(target) in warning]


def test_other_features_that_determine_targets_are_reported() -> None:
    table = plain_table()
    table["text"] = np.array(["low", "middle", "high"])[table["kind"]]
    table["many"] = [f"{kind}-{row % 9}" for row, kind in enumerate(table["kind"])]
    assert_warned(warnings_about(table), "'text'", "'many'")
    table = plain_table(3000)
    table["size"] = np.sin(3 * table["x"])  # not monotone
    assert_warned(warnings_about(table), "'x'")
    table = plain_table()
    table |= {"double": 2 * table["size"], "leak": -table["size"]}
    assert_warned(warnings_about(table, [*TARGETS, "double"]), "targets 'size', 'double'")
    inputs = np.stack([table["x"], np.exp(table["size"])], axis=1)
    notes = Problem.from_arrays(inputs, {"size": table["size"]}, ["size"]).notes
    assert_warned([*notes], "feature '1'")
    table = plain_table()
    table["days since treatment"] = np.where(table["ill"] == 1, table["x"], np.nan)
    assert_warned(warnings_about(table), "'days since treatment' is missing")


def test_repeated_measurements_of_a_group_are_no_leak() -> None:
    draw = np.random.default_rng(0)
    person = np.repeat(np.arange(100), 8)
    table = {"person": person, "height": draw.normal(size=100)[person], "pulse": draw.normal(size=800)}
    table["ill"] = draw.integers(0, 2, 100)[person]
    assert warnings_about(table, ["ill"], group_column="person") == []
    del table["person"]
    assert_warned(warnings_about(table, ["ill"]), "'height'")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("no", np.random.default_rng(1).permutation(400) + 1000),
        ("no", np.sort(np.random.default_rng(1).permutation(450)[:400])),
        ("no", [f"{number:x}" for number in range(10_000, 10_400)]),
        ("patient_id", np.random.default_rng(1).permutation(100_000)[:400]),
        ("PatientID", np.random.default_rng(1).permutation(100_000)[:400]),
    ],
)
def test_a_column_of_ids_is_reported(name: str, values: Any) -> None:
    table = plain_table() | {name: values}
    features = {"categorical": [name]} if isinstance(values, list) else {"features": ["x", "y", "z", name]}
    assert_warned(warnings_about(table, **features), f"'{name}'")
    assert Problem.from_table(table, TARGETS).table.names == ("x", "y", "z")


def test_targets_with_few_labels_of_a_kind_are_reported() -> None:
    part = np.array(["train"] * 700 + ["val"] * 100 + ["test"] * 200)
    table = plain_table(1000)
    table["ill"] = np.isin(np.arange(1000), [0, 1, 2, 3, 710, 890]).astype(int)
    table["kind"] = np.where((table["kind"] == 2) & (part == "test"), 1, table["kind"])
    found = warnings_about(table | {"part": part}, split_column="part")
    assert_warned(found, "'ill' has few labels of class 1 (4 in train, 1 in val, 1 in test)", "0 in test")
    table["size"] = np.where(np.arange(1000) % 25 == 0, table["size"], np.nan)
    few = warnings_about({name: table[name] for name in ("x", "y", "size")}, ["size"])
    assert_warned(few, "size (6)")


def test_duplicate_rows_across_parts_are_counted() -> None:
    table = {name: np.concatenate([values, values[:100]]) for name, values in plain_table().items()}
    part = np.array(["train"] * 300 + ["val"] * 50 + ["test"] * 150)
    assert_warned(warnings_about(table | {"part": part}, split_column="part"), "100 of the 200 rows")
    assert_warned(warnings_about(table | {"id": np.arange(500)}), "also occur in train")
    assert warnings_about(table | {"pair": np.arange(500) % 400}, group_column="pair") == []


def ordinary_table(rows: int, seed: int) -> tuple[Table, Table]:
    """Features and targets that look suspicious at first sight."""
    draw = np.random.default_rng([seed, rows])
    x = draw.normal(size=rows)
    level = draw.integers(0, 4, rows)
    days = np.datetime64("2020-01-01") + draw.integers(0, 2000, rows)
    features = {
        "x": x,
        "distinct floats": draw.random(rows) * rows,
        "correlated": 0.98 * x + np.sqrt(1 - 0.98**2) * draw.normal(size=rows),
        "constant": np.full(rows, 3),
        "count": draw.poisson(3, rows),
        "large count": draw.poisson(1000, rows),
        "income": draw.integers(10_000, 900_000, rows),
        "bmi_index": draw.permutation(1_000_000)[:rows],
        "date": [int(str(day).replace("-", "")) for day in days],
        "seconds": 1_600_000_000 + 86_400 * np.arange(rows),
        "year": draw.integers(1950, 2020, rows),
        "mostly zero": np.where(draw.random(rows) < 0.05, 1, 0),
        "mostly missing": np.where(draw.random(rows) < 0.1, x, np.nan),
        "answer": draw.integers(1, 6, rows),
        **{f"is {number}": (level == number).astype(int) for number in range(4)},
    }
    targets = {
        "close": 0.98 * x + np.sqrt(1 - 0.98**2) * draw.normal(size=rows),
        "good": (x + 0.2 * draw.normal(size=rows) > 0).astype(int),
        "rare": (draw.permutation(rows) < max(6, rows // 20)).astype(int),
        "class": draw.integers(0, 3, rows),
        "number": draw.poisson(5, rows).astype(float),
        "noise": draw.normal(size=rows),
    }
    return features, targets


@pytest.mark.parametrize("rows", [50, 100, 1000, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_ordinary_tables_give_no_warnings(rows: int, seed: int) -> None:
    features, targets = ordinary_table(rows, seed)
    kinds = {"number": "regression", "class": "multiclass"}
    assert warnings_about(features | targets, list(targets), kinds=kinds) == []
    answers: Table = {name: features[name] for name in ("answer", "count", "is 1", "is 2")} | {"yes": targets["good"]}
    assert warnings_about(answers, ["yes"], categorical=["answer"]) == []


def test_warnings_are_logged_as_one_message(caplog: pytest.LogCaptureFixture) -> None:
    table = plain_table()
    Problem.from_table(table | {"leak": table["size"], "size (cm)": table["size"]}, TARGETS, name="odd")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tagalong.learn.table_warnings", logging.WARNING)
    assert len(record.getMessage().split("\n")) == 3
