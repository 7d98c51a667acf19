import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tagalong.errors import InvalidInput
from tagalong.learn import Problem, Task, read_columns, read_preparation

ROWS = 120
SETTLE = "; add it to `categorical` or to `ignore`"


@pytest.fixture
def frame():
    random = np.random.default_rng(0)
    age = random.integers(20, 80, ROWS).astype(float)
    return pd.DataFrame(
        {
            "id": [f"p{row}" for row in range(ROWS)],
            "person": np.arange(ROWS) // 3,
            "age": np.where(random.random(ROWS) < 0.1, np.nan, age),
            "height": random.normal(170, 10, ROWS).round(1),
            "city": random.choice(["Rome", "Oslo", "Bonn"], ROWS),
            "pressure": np.where(random.random(ROWS) < 0.2, np.nan, age + random.normal(0, 5, ROWS)),
            "ill": np.where(random.random(ROWS) < 0.5, "yes", "no"),
        }
    )


SETTINGS = {"targets": ["pressure", "ill"], "ignore": ["id", "person"], "categorical": ["city"]}


def refused(source, **settings) -> list[str]:
    with pytest.raises(ValueError, match=r"must|is empty|is required|is not|does not exist") as caught:
        Problem.from_table(source, **settings)
    return str(caught.value).removeprefix("several problems:\n").split("\n")


def written(frame, path: Path, **settings) -> Path:
    frame.to_csv(path, index=False, **settings)
    return path


def test_cells_are_read_as_meant(tmp_path) -> None:
    path = tmp_path / "cells.csv"
    path.write_bytes('a,b,c,d,é\n1,"x, y",True,12_3,\n.," ""q"" ",false,4,N/A\n'.encode("latin-1"))
    columns = read_columns(path)
    np.testing.assert_array_equal(columns["a"], [1, np.nan])
    assert columns["b"].tolist() == ["x, y", '"q"']
    np.testing.assert_array_equal(columns["c"], [1, 0])
    assert columns["d"].tolist() == ["12_3", "4"]
    np.testing.assert_array_equal(columns["é"], [np.nan, np.nan])


def test_features_are_all_that_has_no_other_role(frame) -> None:
    problem = Problem.from_table(frame, ["pressure", "ill"], ignore=["id"], group_column="person", categorical=["city"])
    assert {name.split(" ")[0] for name in problem.table.names} == {"age", "height", "city"}
    assert [task.kind for task in problem.tasks] == ["regression", "binary"]
    assert problem.table.classes == {"ill": ("no", "yes")}
    groups = [set(split.groups.tolist()) for split in problem.splits.values()]
    assert sum(map(len, groups)) == ROWS // 3 == len(set.union(*groups))
    only = Problem.from_table(frame, ["ill"], features=["height"])
    assert only.table.names == ("height",)


def test_inputs_follow_the_train_rows_only(frame) -> None:
    split = (np.arange(60), np.arange(60, 80), np.arange(80, ROWS))
    problem = Problem.from_table(frame, **SETTINGS, split=split)
    train = frame[:60]
    median = train["age"].median()
    filled = train["age"].fillna(median)
    ages = (frame["age"].fillna(median) - filled.mean()) / filled.std(ddof=0)
    heights = (frame["height"] - train["height"].mean()) / train["height"].std(ddof=0)
    expected = np.stack(
        [
            ages,
            frame["age"].isna(),
            heights,
            *(frame["city"] == city for city in ("Bonn", "Oslo", "Rome")),
            np.zeros(ROWS),
        ],
        1,
    )
    names = ("age", "age missing", "height", "city = Bonn", "city = Oslo", "city = Rome", "city = other or missing")
    assert problem.table.names == names
    np.testing.assert_allclose(problem.test.inputs, expected[80:], rtol=1e-5, atol=1e-6)
    assert "missing values imputed with the median, and marked, in 1 column: age" in problem.notes


def test_new_rows_are_prepared_from_json_alone(frame, tmp_path) -> None:
    split = (np.arange(60), np.arange(60, 80), np.arange(80, ROWS))
    problem = Problem.from_table(frame, **SETTINGS, split=split)
    table = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    new = frame[80:].drop(columns=["ill", "pressure", "id"])
    assert torch.equal(table.inputs(new), problem.test.inputs)
    assert torch.equal(table.inputs(written(new[["city", "age", "height"]], tmp_path / "new.csv")), problem.test.inputs)
    assert torch.equal(table.inputs(new.to_dict("records")), problem.test.inputs)
    assert table.inputs([{"age": None, "height": 170, "city": "Lima"}])[0, -4:].tolist() == [0, 0, 0, 1]
    assert dict(table.classes) == {"ill": ["no", "yes"]}
    with pytest.raises(
        ValueError, match="`rows` must have the same columns as the training table, found no 'age', 'city'"
    ):
        table.inputs(frame[["height"]])
    with pytest.raises(ValueError, match="`rows`: column 'age' must be numeric, found 'old'"):
        table.inputs([{"age": "old", "height": 1, "city": "Rome"}])


def test_numbers_may_be_categories_and_codes_match_however_written(frame) -> None:
    frame["code"] = np.arange(ROWS) % 3
    problem = Problem.from_table(frame, ["ill"], features=["height"], categorical=["code"])
    inputs = problem.table.inputs([{"height": 1, "code": "2"}, {"height": 1, "code": 2.0}, {"height": 1, "code": ""}])
    assert inputs[:, 1:].tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_split_column_names_the_parts(frame) -> None:
    frame["part"] = ["Train", "train", "validation", "TEST"] * (ROWS // 4)
    problem = Problem.from_table(frame, **SETTINGS, split_column="part")
    assert [len(split) for split in problem.splits.values()] == [60, 30, 30]
    frame.loc[0, "part"] = "later"
    assert refused(frame, **SETTINGS, split_column="part") == [
        "`split_column` must contain train, val or test in every row, found 'later'"
    ]
    frame["part"] = "train"
    assert refused(frame, **SETTINGS, split_column="part") == [
        "`split_column` must have rows for val, found none",
        "`split_column` must have rows for test, found none",
    ]


def test_inputs_may_come_from_a_file_beside_the_table(frame, tmp_path) -> None:
    array = np.random.default_rng(0).normal(size=(ROWS, 5))
    np.savez(tmp_path / "x.npz", inputs=array)
    problem = Problem.from_table(frame, ["ill", "pressure"], features_file=tmp_path / "x.npz")
    assert problem.train.inputs.shape == (84, 5)
    assert problem.table.classes == {"ill": ("no", "yes")}
    assert problem.table.inputs(tmp_path / "x.npz").shape == (ROWS, 5)
    np.save(tmp_path / "short.npy", array[:10])
    assert refused(frame, targets=["ill"], features_file=tmp_path / "short.npy", features=["age"]) == [
        "`features` and `categorical` cannot be used with `features_file`, which contains all inputs",
        f"`features_file` must have {ROWS} rows to match the table, found 10",
    ]
    np.save(tmp_path / "images.npy", np.zeros((ROWS, 3, 4, 4)))
    assert refused(frame, targets=["ill"], features_file=tmp_path / "images.npy") == [
        "`encoder` is required for inputs of shape [rows, 3, 4, 4]; the default encoder only supports flat inputs"
    ]
    missing = tmp_path / "none.npz"
    assert refused(frame, targets=["ill"], features_file=missing) == [
        f"`features_file` must be an npy or npz file, found no file at {missing}"
    ]


def test_kinds_and_errors_can_be_set(frame) -> None:
    frame["grade"] = np.arange(ROWS) % 4
    settings = {"ignore": ["id"], "categorical": ["city"]}
    problem = Problem.from_table(
        frame, ["ill", "grade", Task("pressure", "regression", weight=2.0)],
        kinds={"grade": "regression"}, errors={"ill": "auroc"}, **settings,
    )  # fmt: skip
    assert [(task.kind, task.error_name) for task in problem.tasks] == [
        ("binary", "auroc"),
        ("regression", "mae"),
        ("regression", "mae"),
    ]
    assert problem.task("pressure").weight == 2
    wrong = {"kinds": {"grade": "binary", "il": "binary"}, "errors": {"ill": "mae"}}
    assert refused(frame, targets=["ill", "grade"], **wrong, **settings) == [
        "`kinds` must contain only targets, found 'il'; did you mean 'ill'?",
        "task 'ill': `error` must be one of 'error rate', 'auroc', 'auprc', 'loss', found 'mae'",
        "`targets`: 'grade' is binary and must have exactly two distinct labels, found 4: 0, 1, 2, 3",
    ]


def test_text_columns_are_listed_all_at_once_with_what_settles_them(frame) -> None:
    frame["constant"], frame["empty"] = 3, np.nan
    assert refused(frame, targets=["pressure", "constant", "empty"]) == [
        "`targets`: 'constant' must have at least two distinct labels, found only 3; drop this target",
        f"`targets`: 'empty' must have labels, but all {ROWS} are missing; drop this target",
        f"column 'id' must be numeric, found text with {ROWS} distinct values, e.g. 'p0'{SETTLE}",
        f"column 'city' must be numeric, found text with 3 distinct values, e.g. 'Bonn'{SETTLE}",
        f"column 'ill' must be numeric, found text with 2 distinct values, e.g. 'no'{SETTLE}",
    ]


def test_columns_that_are_not_there_or_have_two_roles_are_named(frame) -> None:
    problems = refused(
        frame, targets=["presure", "ill", "ill"], ignore=["id", "nothing"], features=["ill", "age"], group_column="who"
    )
    everything = "choose from id, person, age, height, city, pressure, ill"
    assert problems == [
        "`targets` must be distinct, found 'ill' more than once; rename the duplicates",
        "`targets` must name columns of the table, found 'presure'; did you mean 'pressure'?",
        f"`ignore` must name columns of the table, found 'nothing'; {everything}",
        f"`group_column` must name columns of the table, found 'who'; {everything}",
        "`features` must not name a target, found 'ill'",
        f"column 'ill' must be numeric, found text with 2 distinct values, e.g. 'no'{SETTLE}",
    ]
    assert refused(frame, targets=[], ignore=["id", "city", "ill"]) == [
        "`targets` must name at least one task, found none"
    ]
    assert refused(frame, targets="ill") == ["`targets` must be a list of names, found the string 'ill'; write ['ill']"]
    assert refused(frame[["pressure", "ill"]], targets=["pressure", "ill"]) == [
        "`features` must name at least one column, found none; `targets` and `ignore` together name every column"
    ]


def test_infinite_features_and_missing_groups_are_refused(frame) -> None:
    frame.loc[:2, "height"] = np.inf
    frame["group"] = [None, *range(ROWS - 1)]
    assert refused(frame, **SETTINGS, group_column="group") == [
        "`group_column` must have a label for every row, found 1 missing",
        "`features`: column 'height' must be finite, found inf in 3 rows",
    ]


def test_one_row_is_too_few(frame) -> None:
    assert refused(frame[:1], **SETTINGS) == ["`data` must have at least 10 rows for three splits, found 1"]


def test_notes_say_what_was_left_out(frame, tmp_path) -> None:
    frame["same"], frame["number"] = 1, np.arange(ROWS)
    path = tmp_path / "indexed.csv"
    frame.to_csv(path)
    problem = Problem.from_table(path, **SETTINGS)
    assert problem.name == "indexed"
    assert "dropped because they do not vary in train: same" in problem.notes
    assert (
        "warning: feature 'number' numbers the rows, like an ID; remove it, since it says nothing about new rows"
        in (problem.notes)
    )
    assert "dropped 1 unnamed column" in problem.notes


def test_numbers_out_of_reach_are_refused() -> None:
    x, y = np.linspace(-1, 1, 60), np.random.default_rng(0).normal(size=60)
    (found,) = refused({"x": x * 1e300, "y": y}, targets=["y"])
    assert found == "`features`: column 'x' must be at most 1e+150 in magnitude, found 1e+300"
    (found,) = refused({"x": x * 1e-310, "y": y}, targets=["y"])
    assert found == "`features` must vary in the training rows, found only constant columns: 'x'"
    with pytest.raises(
        ValueError,
        match="column 'x' must have a scale similar to that of the training rows, found values up to 1e\\+100",
    ):
        Problem.from_table({"x": x, "y": y}, ["y"]).table.inputs({"x": [1.0, 1e100]})


def test_features_that_say_nothing_are_refused() -> None:
    (found,) = refused({"a": [1.0] * 60, "b": [2.0] * 60, "y": np.arange(60.0)}, targets=["y"])
    assert found == "`features` must vary in the training rows, found only constant columns: 'a', 'b'"


def test_a_category_is_the_same_whatever_the_rest_of_the_column_holds() -> None:
    towns = ["007", "012", "A1", "true"] * 15
    problem = Problem.from_table({"town": towns, "y": np.arange(60.0)}, ["y"], categorical=["town"])
    mixed = problem.table.inputs({"town": ["007", "012", "A1", "true"]})
    assert torch.equal(mixed, torch.eye(5)[mixed.argmax(1)])
    assert mixed.argmax(1).unique().numel() == 4
    assert torch.equal(problem.table.inputs({"town": ["007", "012"]}), mixed[:2])
    assert torch.equal(problem.table.inputs({"town": ["true"]}), mixed[3:])
    again = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    assert torch.equal(again.inputs({"town": ["012"]}), mixed[1:2])


def test_every_new_row_has_a_prediction(tmp_path) -> None:
    problem = Problem.from_table({"a": np.arange(60.0), "b": np.arange(60.0) ** 2, "y": np.arange(60.0)}, ["y"])
    (tmp_path / "new.csv").write_text("a,b\n1,2\n,\n3,4\n\n")
    assert len(problem.table.inputs(tmp_path / "new.csv")) == 3


def test_files_of_other_editors(tmp_path) -> None:
    lines = ["a,y", *(f"{row}.5,{row * row}" for row in range(40))]
    for name, text in {"blank": "\n\n" + "\n".join(lines), "cr": "\r".join(lines)}.items():
        (tmp_path / name).write_bytes(text.encode())
        assert read_columns(tmp_path / name).rows == 40, name
    (tmp_path / "open.csv").write_text('a,y\n"' + "\n".join(lines * 2000))
    assert "is there an unclosed quotation mark?" in refused(tmp_path / "open.csv", targets=["y"])[0]


def test_columns_of_a_frame_that_occur_twice_are_refused() -> None:
    values = np.arange(120.0).reshape(40, 3)
    for names in (["a", "a", "y"], [1, "1", "y"]):
        (found,) = refused(pd.DataFrame(values, columns=names), targets=["y"])
        repeated = f"{str(names[0])!r} more than once"
        assert found == f"`data` must have unique column names, found {repeated}; rename the duplicates"


def test_cells_that_are_not_numbers_are_shown_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [[f"{row}.25", f"{row * row % 17}.5", f"{row % 7}.75"] for row in range(100)]
    rows[3][0], rows[50][1], rows[60][1], rows[70][1], rows[80][1] = "oops", "1 kg", "\x1b[31m", "x" * 50, "n.a."
    path.write_text("\n\na;b;y\n" + "".join(";".join(row) + "\n" for row in rows))
    write_na = (
        "; write NA where a value is missing; if the column is not numeric, add it to `categorical` or to `ignore`"
    )
    assert refused(path, targets=["y"]) == [
        f"{path}: column 'a' must be numeric, found 'oops' in line 7{write_na}",
        f"{path}: column 'b' must be numeric, found '1 kg' in line 54, '\\x1b[31m' in line 64, "
        f"'{'x' * 40}…' in line 74 and 1 more{write_na}",
    ]
    path.write_text(path.read_text().replace(".", ","))  # decimal commas
    assert refused(path, targets=["y"])[0] == f"{path}: column 'a' must be numeric, found 'oops' in line 7{write_na}"


def test_labels_that_are_not_numbers_are_shown_with_their_rows() -> None:
    draw = np.random.default_rng(0)
    table = {"x": draw.normal(size=200), "y": [*map(str, draw.normal(size=200))], "grade": ["1", "2", "3", "4"] * 50}
    table["y"][17] = table["grade"][18] = "oops"
    hint = "; write NA where a value is missing"
    found = refused(table, targets=["y", "grade"])
    assert found == [
        f"`targets`: 'y' must be numeric, found 'oops' in row 17 (counted from 0){hint}, or pass `kinds` if the labels "
        "are classes",
        f"`targets`: 'grade' must be numeric, found 'oops' in row 18 (counted from 0){hint}, or pass `kinds` if the "
        "labels are classes",
    ]
    assert refused(table, targets=["y"], kinds={"y": "regression"})[0].endswith(f"(counted from 0){hint}")


def test_texts_that_occur_often_are_classes_not_typing_errors() -> None:
    draw = np.random.default_rng(0)
    labels = np.array(["1", "2", "3", "other"])[draw.choice(4, size=200, p=[0.32, 0.32, 0.32, 0.04])]
    problem = Problem.from_table({"x": draw.normal(size=200), "kind": labels}, ["kind"])
    assert problem.tasks[0].classes == 4


def test_new_rows_that_are_not_numbers_are_shown_with_their_lines(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table = {name: draw.normal(size=60) for name in ("a", "b", "y")}
    prepared = Problem.from_table(table, ["y"]).table
    path = tmp_path / "new.csv"
    path.write_text("a,b\n" + "1,2\n" * 20 + "oops,3\n")
    with pytest.raises(InvalidInput) as caught:
        prepared.inputs(path)
    assert str(caught.value) == (
        f"{path}: column 'a' must be numeric, found 'oops' in line 22; write NA where a value is missing"
    )
    for rows in (np.float64(3), np.zeros((2, 2)), np.zeros(0)):
        with pytest.raises(InvalidInput, match=r"^`rows` must be a table with the columns 'a', 'b', found an array$"):
            prepared.inputs(np.asarray(rows))


MISUSE = {
    "targets": [3, None, b"y", [["y"]]],
    "features": [3, [["a"]]],
    "ignore": [3, None],
    "categorical": [3, None, [[1]]],
    "recipe": [3, "x", {}],
    "encoder": [3, "cnn"],
    "seed": ["x", None, 1.5],
    "split": ["x", 3, None, 0.7, {}],
    "split_column": [3, ["a"]],
    "group_column": [3, {}],
    "kinds": [3, "x", ["y"], {"y": [1]}],
    "errors": [3, "x", {"y": 3}],
    "name": [3, b"x", []],
    "features_file": [3],
    "data": [3, None, {"y": 3}, {"y": "abc"}, np.float64(3), b"abc", [1]],
}


@pytest.mark.parametrize(("argument", "value"), [(name, value) for name, values in MISUSE.items() for value in values])
def test_arguments_of_the_wrong_type_are_refused_by_name(argument: str, value: Any) -> None:
    draw = np.random.default_rng(0)
    table = {name: draw.normal(size=60) for name in ("a", "b", "y")}
    with pytest.raises(InvalidInput) as caught:
        Problem.from_table(**{"data": table, "targets": ["y"], argument: value})
    named = {"kinds": "`targets`: 'y'"} if isinstance(value, dict) and argument == "kinds" else {}
    assert str(caught.value).startswith(named.get(argument, f"`{argument}`"))


def test_integers_without_end_are_infinite() -> None:
    table = {"a": [10**400, *range(1, 60)], "y": [*range(59), -(10**400)]}
    assert refused(table, targets=["y"]) == [
        "`targets`: 'y' must be finite or missing (NaN), found 1 infinite labels",
        "`features`: column 'a' must be finite, found inf in 1 rows",
    ]
