"""Invalid input of `tagalong run`: one clear message before any training, exit status 2."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal import Terminal

ROWS = 60
Columns = dict[str, Any]


def columns() -> Columns:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, ROWS)).round(3)
    return {"x": x, "y": y, "age": (x + y).round(3), "ill": (x > 0).astype(int)}


def write(path: str, table: Columns) -> None:
    rows = zip(*table.values(), strict=True)
    Path(path).write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")


def parts(table: Columns) -> Columns:
    """Adds a third class that only test rows have."""
    kinds = ["u", "v"] * (ROWS // 2 - 1) + ["w", "w"]
    return {**table, "kind": kinds, "part": ["train"] * 40 + ["val"] * 10 + ["test"] * 10}


def first(number: int) -> Callable[[Columns], Columns]:
    return lambda table: {name: column[:number] for name, column in table.items()}


def with_column(name: str, values: Any) -> Callable[[Columns], Columns]:
    return lambda table: {**table, name: values}


TABLES: dict[str, tuple[Callable[[Columns], Columns], list[str], str]] = {
    "no targets": (dict, ["--targets", ","], "--targets"),
    "constant": (with_column("ill", [1] * ROWS), [], "'ill'"),
    "all missing": (with_column("ill", [""] * ROWS), [], "'ill'"),
    "new class": (parts, ["--targets", "age,kind", "--split-column", "part"], "'w'"),
    "infinite": (with_column("x", ["inf", *range(1, ROWS)]), [], "column 'x'"),
    "one row": (first(1), [], "distinct labels"),
    "no row": (first(0), [], "table.csv"),
    "no features": (dict, ["--ignore", "x,y"], "--features"),
    "two groups": (with_column("who", [0, 1] * (ROWS // 2)), ["--group-column", "who"], "3 groups"),
    "wrong kind": (dict, ["--kinds", "age=binary"], "'age'"),
    "wrong error": (dict, ["--errors", "age=auroc"], "'auroc'"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_learnt_from_is_rejected(tagalong: Terminal, case: str) -> None:
    change, more, words = TABLES[case]
    write("table.csv", change(columns()))
    targets = [] if "--targets" in more else ["--targets", "age,ill"]
    assert words in tagalong.error_of("run", "table.csv", *targets, *more)
    assert not Path("runs").exists()


@pytest.mark.parametrize("words", ["run ''", "run table.csv --out ''", "predict runs ' '", "group a.csv --budget ''"])
def test_empty_arguments_are_rejected(tagalong: Terminal, words: str) -> None:
    assert "is empty" in tagalong.error_of(*shlex.split(words))


def test_a_typing_error_is_shown_with_its_line(tagalong: Terminal) -> None:
    table = columns()
    table["x"] = ["oops" if row == 7 else x for row, x in enumerate(table["x"])]
    table["age"] = ["12 kg" if row == 9 else age for row, age in enumerate(table["age"])]
    write("table.csv", table)
    target, feature = tagalong.error_of("run", "table.csv", "--targets", "age,ill").split("\n")[1:]
    assert [words for words in ("--targets", "'age'", "'12 kg'", "line 11", "--kinds") if words not in target] == []
    assert [words for words in ("'x'", "'oops'", "line 9", "--categorical") if words not in feature] == []


def test_warnings_about_the_data_are_shown_once_before_training(tagalong: Terminal) -> None:
    table = columns()
    write("table.csv", {**table, "copy": table["age"], "id": range(ROWS)})
    short = ("--methods", "mtl", "--seeds", "1", "--recipe", "epochs=1", "--device", "cpu", "--out", "out")
    status, out, err = tagalong("run", "table.csv", "--targets", "age,ill", *short)
    assert status == 0, err
    assert err.count("'copy'") == 1
    assert "'copy'" not in out
    assert any("left out" in line and "id" in line for line in out.splitlines())


def test_networks_learn_from_rows_without_labels(tagalong: Terminal) -> None:
    write("table.csv", columns())
    write("more.csv", {name: columns()[name] for name in ("x", "y")})
    more = (
        "--unlabelled",
        "more.csv",
        "--methods",
        "auto",
        "--set",
        "auto.passes=1",
        "--effort",
        "3",
        "--budgets",
        "2",
    )
    quick = ("--seeds", "1", "--recipe", "epochs=2", "--recipe", "batch_size=8", "--device", "cpu", "--json")
    result = tagalong("run", "table.csv", "--targets", "age,ill", *more, *quick)
    assert result.status == 0, result.err
    settings = loads(result.out)["settings"]
    assert settings["options"]["auto"] == {"effort": "3", "passes": 1}
    *_, student = settings["decisions"]["auto"]["trained"]
    assert student["kind"] == "student"
    assert student["effort"] > 1.5, "its epochs have more steps, since they include the rows without labels"


def test_the_error_for_a_diverging_training_names_the_option_to_change(tagalong: Terminal) -> None:
    write("table.csv", columns())
    wild = ("--recipe", "lr=1e30", "--recipe", "optimizer=sgd", "--recipe", "epochs=2", "--seeds", "1")
    result = tagalong("run", "table.csv", "--targets", "age,ill", "--methods", "mtl", "--quiet", *wild)
    assert result.status == 2
    assert "--recipe lr" in result.err
