"""Problems from tables: roles of columns, preparation, and what is refused, each with the argument or column named."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tagalong.errors import InvalidInput
from tagalong.learn import Problem, Task, read_columns, read_preparation

ROWS = 120
SETTINGS: dict[str, Any] = {"targets": ["pressure", "ill"], "ignore": ["id", "person"], "categorical": ["city"]}
SPLIT = (np.arange(60), np.arange(60, 80), np.arange(80, ROWS))


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


def assert_refused(source: Any, *words: str, **settings: Any) -> None:
    """Asserts that the error names exactly these problems, in this order."""
    with pytest.raises(InvalidInput) as caught:
        Problem.from_table(source, **settings)
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == len(words), problems
    assert [word in problem for word, problem in zip(words, problems, strict=True)] == [True] * len(words), problems


# What is read --------------------------------------------------------------------------------------------------------


def test_cells_are_read_as_meant(tmp_path) -> None:
    path = tmp_path / "cells.csv"
    path.write_bytes('a,b,c,d,é\n1,"x, y",True,12_3,\n.," ""q"" ",false,4,N/A\n'.encode("latin-1"))
    columns = read_columns(path)
    np.testing.assert_array_equal(columns["a"], [1, np.nan])
    assert columns["b"].tolist() == ["x, y", '"q"']
    np.testing.assert_array_equal(columns["c"], [1, 0])
    assert columns["d"].tolist() == ["12_3", "4"]
    np.testing.assert_array_equal(columns["é"], [np.nan, np.nan])


def test_rows_of_a_group_stay_in_one_part(frame) -> None:
    problem = Problem.from_table(frame, ["ill"], group_column="person", features=["height"])
    assert problem.table.names == ("height",)
    groups = [set(split.groups.tolist()) for split in problem.splits.values()]
    assert sum(map(len, groups)) == ROWS // 3 == len(set.union(*groups))


def obviously_smooth(column: pd.Series, train: pd.Series) -> pd.Series:
    """Returns the inputs of networks for a column of numbers, given its training rows."""
    spread = (train.quantile(0.75) - train.quantile(0.25)) / 1.349
    scaled = [(values.fillna(train.median()) - train.median()) / spread for values in (column, train)]
    squashed, fitted = (values / np.sqrt(1 + (values / 3) ** 2) for values in scaled)
    return (squashed - fitted.mean()) / fitted.std(ddof=0)


def test_inputs_follow_the_train_rows_only(frame) -> None:
    frame.loc[100, "height"] = 1e6
    problem = Problem.from_table(frame, **SETTINGS, split=SPLIT)
    names = ("age", "age missing", "height", "city = Bonn", "city = Oslo", "city = Rome", "city = other or missing")
    assert problem.table.names == names
    raw = problem.table.read(frame)
    codes = frame["city"].map({"Bonn": 0, "Oslo": 1, "Rome": 2})
    np.testing.assert_array_equal(raw, np.stack([frame["age"], frame["height"], codes], 1))
    rest = [frame["age"].isna(), *(frame["city"] == city for city in ("Bonn", "Oslo", "Rome")), np.zeros(ROWS)]
    age, height = (obviously_smooth(frame[name], frame[name][:60]) for name in ("age", "height"))
    expected = np.stack([age, rest[0], height, *rest[1:]], 1)
    np.testing.assert_allclose(problem.test.inputs, expected[80:], rtol=1e-5, atol=1e-6)
    outside = problem.table.outside(frame)
    assert [np.flatnonzero(outside[name]).tolist() for name in ("age", "height")] == [[], [100]]


def test_new_rows_are_prepared_from_json_alone(frame, tmp_path) -> None:
    problem = Problem.from_table(frame, **SETTINGS, split=SPLIT)
    table = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    new = frame[80:].drop(columns=["ill", "pressure", "id"])
    new[["city", "age", "height"]].to_csv(tmp_path / "new.csv", index=False)
    for rows in (new, tmp_path / "new.csv", new.to_dict("records")):
        assert torch.equal(table.inputs(rows), problem.test.inputs)
    assert table.inputs([{"age": None, "height": 170, "city": "Lima"}])[0, -4:].tolist() == [0, 0, 0, 1]
    (tmp_path / "blank.csv").write_text("age,height,city\n1,2,Rome\n,,\n3,4,\n\n")
    assert len(table.inputs(tmp_path / "blank.csv")) == 3, "every row has a prediction"
    (tmp_path / "wrong.csv").write_text("age,height,city\n" + "1,2,Rome\n" * 20 + "old,3,Rome\n")
    for rows, words in (
        (frame[["height"]], "'age', 'city'"),
        ([{"age": "old", "height": 1, "city": "Rome"}], "'age'"),
        (tmp_path / "wrong.csv", "'old' in line 22"),
        ([{"age": 1, "height": "inf", "city": "Rome"}], "'height'"),
        (np.zeros((2, 3)), "`rows`"),
    ):
        with pytest.raises(InvalidInput, match=words):
            table.inputs(rows)


def test_a_category_is_the_same_whatever_the_rest_of_the_column_holds() -> None:
    towns = ["007", "012", "A1", "true"] * 15
    problem = Problem.from_table({"town": towns, "y": np.arange(60.0)}, ["y"], categorical=["town"])
    mixed = problem.table.inputs({"town": ["007", "012", "A1", "true"]})
    assert torch.equal(mixed, torch.eye(5)[mixed.argmax(1)])
    assert mixed.argmax(1).unique().numel() == 4
    again = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    for rows, expected in ((["007", "012"], mixed[:2]), (["true"], mixed[3:])):
        assert torch.equal(again.inputs({"town": rows}), expected)


def test_split_column_names_the_parts(frame) -> None:
    frame["part"] = ["Train", "train", "validation", "TEST"] * (ROWS // 4)
    problem = Problem.from_table(frame, **SETTINGS, split_column="part")
    assert [len(split) for split in problem.splits.values()] == [60, 30, 30]
    frame.loc[0, "part"] = "later"
    assert_refused(frame, "'later'", **SETTINGS, split_column="part")
    frame["part"] = "train"
    assert_refused(frame, "val and test", **SETTINGS, split_column="part")


def test_inputs_may_come_from_a_file_next_to_the_table(frame, tmp_path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, inputs=np.random.default_rng(0).normal(size=(ROWS, 5)))
    problem = Problem.from_table(frame, ["ill", "pressure"], features_file=path)
    assert problem.train.inputs.shape == (66, 5)
    assert problem.table.inputs(path).shape == (ROWS, 5)
    np.save(tmp_path / "short.npy", np.zeros((10, 5)))
    np.save(tmp_path / "images.npy", np.zeros((ROWS, 3, 4, 4)))
    both = {"features_file": tmp_path / "short.npy", "features": ["age"]}
    assert_refused(frame, "`features`", "`features_file`", targets=["ill"], **both)
    assert_refused(frame, "`encoder`", targets=["ill"], features_file=tmp_path / "images.npy")


def test_kinds_and_errors_can_be_set(frame) -> None:
    frame["grade"] = np.arange(ROWS) % 4
    settings = {"ignore": ["id"], "categorical": ["city"]}
    tasks = ["ill", "grade", Task("pressure", "regression", weight=2.0)]
    problem = Problem.from_table(frame, tasks, kinds={"grade": "regression"}, errors={"ill": "auroc"}, **settings)
    assert [task.kind for task in problem.tasks] == ["binary", "regression", "regression"]
    assert [task.error_name for task in problem.tasks] == ["auroc", "mae", "mae"]
    assert problem.task("pressure").weight == 2
    wrong = {"kinds": {"grade": "binary", "il": "binary"}, "errors": {"ill": "mae"}}
    assert_refused(frame, "did you mean 'ill'", "task 'ill'", "'grade'", targets=["ill", "grade"], **wrong, **settings)


def test_texts_that_occur_often_are_classes_not_typing_errors() -> None:
    draw = np.random.default_rng(0)
    labels = np.array(["1", "2", "3", "other"])[draw.choice(4, size=200, p=[0.32, 0.32, 0.32, 0.04])]
    problem = Problem.from_table({"x": draw.normal(size=200), "kind": labels}, ["kind"])
    assert problem.tasks[0].classes == 4


def columns_of(problem: Problem) -> tuple[str, ...]:
    return tuple(column.name for column in problem.table.columns)


def notes_about(problem: Problem, column: str) -> list[str]:
    return [note for note in problem.notes if re.search(rf"\b{column}\b", note)]


@pytest.mark.parametrize(
    ("shared", "settings", "named"),
    [
        (5, {}, {"visit", "patient_id"}),
        (5, {"ignore": ["visit", "patient_id"]}, {"patient_id"}),
        (1, {}, {"visit"}),
        (5, {"group_column": "patient_id"}, set()),
        (5, {"split": [range(60), range(60, 80), range(80, 100)]}, set()),
    ],
)
def test_notes_name_columns_that_speak_against_a_random_split(shared, settings, named) -> None:
    rows = np.arange(100)
    days = np.datetime64("2020-01-01") + rows
    table = {"height": rows % 7, "visit": days.astype(str), "patient_id": rows // shared, "wage": np.sin(rows)}
    notes = [note for note in Problem.from_table(table, ["wage"], **settings).notes if "split at random" in note]
    assert {name for name in table for note in notes if name in note} == named


def test_columns_find_their_role_and_notes_name_them(frame, tmp_path) -> None:
    draw = np.random.default_rng(1)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, ROWS), "D")
    frame["same"], frame["visit"], frame["seen"] = 1, days.strftime("%d.%m.%Y"), days
    frame["row"] = np.arange(ROWS) + 7
    frame["remark"] = [f"{row} is fine" for row in range(ROWS)]
    path = tmp_path / "indexed.csv"
    frame.to_csv(path)
    problem = Problem.from_table(path, ["pressure", "ill"], ignore=["person"], split=SPLIT)
    assert problem.name == "indexed"
    assert columns_of(problem) == ("age", "height", "visit", "seen", "city")
    expected = (days - pd.Timestamp(0)).days[80:]
    for column in (2, 3):
        np.testing.assert_array_equal(problem.table.read(path)[80:, column], expected)
    for column, said in {"row": "IDs", "id": "IDs", "remark": "IDs", "same": "vary", "visit": "dates", "city": "categ",
                         "age": "median"}.items():  # fmt: skip
        assert any(said in note for note in notes_about(problem, column)), column
    assert any("unnamed" in note for note in problem.notes)

    listed = Problem.from_table(frame, ["ill"], features=["row", "remark", "age"], split=SPLIT)
    assert columns_of(listed) == ("row", "age", "remark")
    assert any(note.startswith("warning: ") for note in notes_about(listed, "row"))
    coded = Problem.from_table(frame, ["ill"], features=["age"], categorical=["person"], split=SPLIT)
    assert "person = 0" in coded.table.names


def test_repeated_rows_hide_no_ids(frame) -> None:
    twice = pd.concat([frame, frame], ignore_index=True).assign(row=np.arange(2 * ROWS) % ROWS)
    problem = Problem.from_table(twice, ["pressure", "ill"], ignore=["person"])
    assert columns_of(problem) == ("age", "height", "city")
    assert any("also occur in train" in note for note in problem.notes)


def test_dates_of_another_format_are_refused(frame) -> None:
    frame["visit"] = pd.date_range("2020-01-01", periods=ROWS).strftime("%Y-%m-%d")
    problem = Problem.from_table(frame[["visit", "height", "ill"]], ["ill"])
    again = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    assert again.read([{"visit": "1970-01-03", "height": 1}, {"visit": "", "height": 1}])[0].tolist() == [2, 1]
    with pytest.raises(InvalidInput, match="'visit'"):
        again.read([{"visit": "tomorrow", "height": 1}])


def test_validation_has_as_many_rows_as_a_choice_needs() -> None:
    sizes = {40: 10, 300: 75, 442: 100, 2000: 400, 8000: 1000, 20_000: 2000}
    for rows, expected in sizes.items():
        numbers = np.random.default_rng(0).normal(size=(2, rows))
        problem = Problem.from_table({"x": numbers[0], "y": numbers[1]}, ["y"])
        assert (len(problem.val), len(problem.test)) == (expected, rows // 5)


# What is refused -----------------------------------------------------------------------------------------------------


def test_all_columns_that_are_wrong_are_listed_at_once(frame) -> None:
    frame["constant"], frame["empty"] = 3, np.nan
    assert_refused(frame, "'constant'", "'empty'", targets=["pressure", "constant", "empty"])
    roles = {"ignore": ["id", "nothing"], "features": ["ill", "age"], "group_column": "who"}
    assert_refused(
        frame,
        *("'ill' more than once", "did you mean 'pressure'", "`features`", "'nothing'", "'who'"),
        targets=["presure", "ill", "ill"],
        **roles,
    )
    frame["group"] = [None, *range(ROWS - 1)]
    frame.loc[:2, "height"] = np.inf
    assert_refused(frame[SETTINGS["targets"] + ["height", "group"]], *("`group_column`", "column 'height'"),
                   targets=SETTINGS["targets"], group_column="group")  # fmt: skip


def test_cells_that_are_not_numbers_are_shown_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [[f"{row}.25", f"{row * row % 17}.5", f"{row % 7}.75"] for row in range(100)]
    rows[3][0], rows[50][1], rows[60][1] = "oops", "1 kg", "x" * 50
    path.write_text("\n\na;b;y\n" + "".join(";".join(row) + "\n" for row in rows))
    words = ("'oops' in line 7", f"'1 kg' in line 54, '{'x' * 40}…' in line 64")
    assert_refused(path, *words, targets=["y"])
    path.write_text(path.read_text().replace(".", ","))  # decimal commas
    assert_refused(path, *words, targets=["y"])
    table = {"x": np.arange(200.0) ** 2, "grade": ["1", "2", "3", "4"] * 50}
    table["grade"][18] = "oops"
    assert_refused(table, "in row 18", targets=["grade"])


NUMBERS = np.random.default_rng(0).normal(size=60)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": "y"}, "`targets`"),
        ({"targets": []}, "`targets`"),
        ({"features": 3}, "`features`"),
        ({"ignore": None}, "`ignore`"),
        ({"ignore": ["a", "b"]}, "`features`"),
        ({"recipe": "x"}, "`recipe`"),
        ({"encoder": "cnn"}, "`encoder`"),
        ({"split": 0.7}, "`split`"),
        ({"data": {"y": 3}}, "`data`"),
        ({"data": b"abc"}, "`data`"),
        ({"data": pd.DataFrame(np.ones((40, 3)), columns=[1, "1", "y"])}, "'1' more than once"),
        ({"data": {"a": NUMBERS * 1e300, "y": NUMBERS}}, "column 'a'"),
        ({"data": {"a": NUMBERS * 0, "b": NUMBERS * 0, "y": NUMBERS}}, "'a', 'b'"),
        ({"data": {"a": [10**400, *range(1, 60)], "y": NUMBERS}}, "column 'a'"),
    ],
)
def test_the_argument_or_column_that_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    table = {"a": NUMBERS, "b": NUMBERS[::-1], "y": NUMBERS**2}
    with pytest.raises(InvalidInput, match=words):
        Problem.from_table(**{"data": table, "targets": ["y"], **change})
