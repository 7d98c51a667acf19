import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tagalong.errors import InvalidInput
from tagalong.learn import MLP, Job, Problem, Task, build_network, label_summary, load_array, read_preparation
from tagalong.learn.splitting import read_split, split_rows


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = random.normal(3, 5, size=(200, 4))
    labels = np.stack([inputs[:, 0] * 10 + 100, inputs[:, 1] > 3, random.integers(0, 4, 200)], axis=1)
    return inputs, labels


def problems_of(*arguments, **options) -> list[str]:
    with pytest.raises(ValueError, match=r"must|has class|is required") as caught:
        Problem.from_arrays(*arguments, **options)
    return str(caught.value).removeprefix("several problems:\n").split("\n")


def test_kinds_are_guessed(data) -> None:
    problem = Problem.from_arrays(*data, ["a", "b", "c"])
    assert [task.kind for task in problem.tasks] == ["regression", "binary", "multiclass"]
    assert problem.task("c").classes == 4
    assert [len(split) for split in problem.splits.values()] == [140, 20, 40]


def test_few_rows_of_integers_are_regression() -> None:
    labels = np.arange(30) % 8
    assert Problem.from_arrays(np.eye(30), labels, ["count"]).task("count").kind == "regression"


def test_inputs_and_regression_targets_are_standardized_with_train_rows_only(data) -> None:
    inputs, labels = data
    labels[5, 0] = np.nan
    train, val, test = np.arange(100), np.arange(100, 150), np.arange(150, 200)
    problem = Problem.from_arrays(inputs, labels, ["a", "b", "c"], split=(train, val, test))
    mean, deviation = inputs[:100].mean(0), inputs[:100].std(0)
    for split, rows in zip(problem.splits.values(), (train, val, test), strict=True):
        np.testing.assert_allclose(split.inputs, (inputs[rows] - mean) / deviation, rtol=1e-4, atol=1e-5)
    assert problem.scales["a"] == pytest.approx((np.nanmean(labels[:100, 0]), np.nanstd(labels[:100, 0])))
    undone = problem.test.targets["a"] * problem.scales["a"][1] + problem.scales["a"][0]
    np.testing.assert_allclose(undone, labels[150:, 0], rtol=1e-5)
    assert problem.train.targets["a"].isnan().nonzero().flatten().tolist() == [5]
    assert set(problem.scales) == {"a"}


def test_a_preparation_read_from_json_prepares_raw_rows_alike(data) -> None:
    inputs, labels = data
    split = (np.arange(100), np.arange(100, 150), np.arange(150, 200))
    problem = Problem.from_arrays(inputs, labels, ["a", "b", "c"], split=split)
    again = read_preparation(json.loads(json.dumps(problem.table.to_document())))
    assert torch.equal(again.inputs(inputs[150:]), problem.test.inputs)
    with pytest.raises(ValueError, match=r"`rows` must have the shape \[rows, 4\], found \[rows, 3\]"):
        again.inputs(inputs[:, :3])
    with pytest.raises(ValueError, match="`rows` must be finite, found NaN or inf in column 1"):
        again.inputs(np.where(np.arange(4) == 1, np.nan, inputs))


def test_a_constant_input_becomes_zero(data) -> None:
    inputs, labels = data
    inputs[:, 2] = 0.1
    assert not Problem.from_arrays(inputs, labels, ["a", "b", "c"]).test.inputs[:, 2].abs().max() > 1e-6


@pytest.mark.parametrize("values", [("no", "yes"), (1, 2), (-1.0, 1.0), (False, True)])
def test_two_values_of_any_kind_are_a_binary_task(values) -> None:
    labels = [values[row % 3 == 0] for row in range(60)]
    labels[4] = None
    problem = Problem.from_arrays(
        np.eye(60), {"ill": labels}, ["ill"], split=([*range(40)], [*range(40, 50)], [*range(50, 60)])
    )
    assert problem.task("ill").kind == "binary"
    expected = [float("nan") if row == 4 else float(row % 3 == 0) for row in range(40)]
    np.testing.assert_array_equal(problem.train.targets["ill"], expected)
    if values[0] == "no":
        assert problem.table.classes == {"ill": ("no", "yes")}
        assert "'ill': 'yes' is encoded as 1, 'no' as 0" in problem.notes


def test_texts_and_arbitrary_integers_become_classes_in_sorted_order() -> None:
    texts = ["red", "green", "blue"] * 30
    numbers = [10, 20, 5] * 30
    problem = Problem.from_arrays(np.eye(90), {"t": texts, "n": numbers}, ["t", Task("n", "multiclass", classes=3)])
    assert problem.table.classes == {"t": ("blue", "green", "red"), "n": (5, 10, 20)}
    assert set(problem.train.targets["t"].tolist()) == {0.0, 1.0, 2.0}


def test_targets_may_be_dense_and_tasks_custom() -> None:
    depth = np.random.default_rng(0).normal(5, 2, size=(50, 4, 4))
    depth[0, 0, 0] = np.nan
    tasks = [
        Task("depth", "regression", outputs=4),
        Task("own", "custom", loss=lambda out, target: (out - target).abs()),
    ]
    problem = Problem.from_arrays(np.eye(50), {"depth": depth, "own": depth[:, 0, 1]}, tasks)
    assert problem.train.targets["depth"].shape == (35, 4, 4)
    assert problem.scales["depth"] == pytest.approx((5, 2), abs=0.3)
    assert "own" not in problem.scales


def test_numpy_torch_and_lists_give_the_same_problem(data) -> None:
    inputs, labels = data[0].astype(np.float32), data[1]
    names = ["a", "b", "c"]
    given_ = [
        (inputs, labels),
        (torch.tensor(inputs), torch.tensor(labels)),
        (inputs.tolist(), labels.tolist()),
        (inputs, {name: labels[:, number] for number, name in enumerate(names)}),
    ]
    assert len({Problem.from_arrays(*pair, names).fingerprint for pair in given_}) == 1


def test_frames_give_the_same_problem_as_arrays(data) -> None:
    inputs, labels = data[0].astype(np.float32), data[1]
    names = ["a", "b", "c"]
    problem = Problem.from_arrays(inputs, labels, names)
    in_other_order = pd.DataFrame(labels, columns=names)[["c", "b", "a"]]
    for pair in ((pd.DataFrame(inputs), pd.DataFrame(labels)), (inputs.tolist(), in_other_order)):
        assert Problem.from_arrays(*pair, names).fingerprint == problem.fingerprint
    assert torch.equal(problem.table.inputs(pd.DataFrame(inputs)), problem.table.inputs(inputs))


def test_float64_tensors_stay_and_images_are_left_alone(data) -> None:
    inputs, labels = data
    assert Problem.from_arrays(torch.tensor(inputs), labels, ["a", "b", "c"]).train.inputs.dtype == torch.float64
    images = torch.randint(0, 255, (200, 3, 8, 8), dtype=torch.uint8)
    problem = Problem.from_arrays(images, labels, ["a", "b", "c"], encoder=torch.nn.Flatten())
    assert problem.train.inputs.dtype == torch.uint8
    assert torch.equal(problem.table.inputs(images[:5]), images[:5])
    tokens = torch.randint(0, 9, (200, 6))
    problem = Problem.from_arrays(tokens, labels, ["a", "b", "c"], encoder=torch.nn.EmbeddingBag(9, 4))
    assert problem.train.inputs.dtype == torch.int64


def test_the_default_encoder_fits(data) -> None:
    problem = Problem.from_arrays(*data, ["a", "b", "c"])
    assert isinstance(problem.encoder, MLP)
    outputs = build_network(problem, Job(("a", "c")).tasks, 0)(problem.val.inputs)
    assert {name: tuple(out.shape) for name, out in outputs.items()} == {"a": (20, 1), "c": (20, 4)}


def test_the_split_depends_on_the_seed(data) -> None:
    first, again, other = (Problem.from_arrays(*data, ["a", "b", "c"], seed=seed).fingerprint for seed in (1, 1, 2))
    assert first == again != other


def test_a_rare_class_is_in_every_part_if_a_few_draws_allow_it() -> None:
    labels = np.zeros(100)
    labels[:6] = 1
    for seed in range(5):
        problem = Problem.from_arrays(np.eye(100), labels, ["rare"], seed=seed)
        assert all(split.targets["rare"].sum() > 0 for split in problem.splits.values())
    labels[2:] = 0
    problem = Problem.from_arrays(np.eye(100), labels, ["rare"])
    assert any("'rare' has only one class in" in note for note in problem.notes)
    assert any("only one class" in warning for warning in label_summary(problem).warnings)


def test_all_problems_are_reported_at_once(data) -> None:
    inputs, labels = data
    inputs[3, 2], inputs[4, 2], inputs[0, 0] = np.nan, np.inf, np.nan
    labels[:, 0], labels[:, 1] = np.nan, 7
    assert problems_of(inputs, labels, ["a", "b", "c"]) == [
        "`inputs` must be finite, found NaN or inf in column 0 (1 rows), 2 (2 rows); impute or remove these values",
        "`targets`: 'a' must have labels, but all 200 are missing; drop this target",
        "`targets`: 'b' must have at least two distinct labels, found only 7; drop this target",
    ]


def test_different_numbers_of_rows_raise_an_error(data) -> None:
    inputs, labels = data
    assert problems_of(inputs, labels[:150], ["a", "b", "c"], groups=[1, 2]) == [
        "`targets`: 'a' must have 200 rows to match `inputs`, found 150",
        "`targets`: 'b' must have 200 rows to match `inputs`, found 150",
        "`targets`: 'c' must have 200 rows to match `inputs`, found 150",
        "`groups` must have the shape [200], one label per row, found [2]",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": []}, "`tasks` must name at least one task, found none"),
        ({"tasks": ["a", "b", "a"]}, "`tasks` must be distinct, found 'a' more than once; rename the duplicates"),
        ({"tasks": ["a", "b"]}, "`targets` must have the shape [rows, 2], one column per task, found [200, 3]"),
        ({"targets": {"a": np.arange(200)}}, "`targets` must include every task, found no labels for 'b', 'c'"),
        ({"split": (0.5, 0.5)}, "`split` must be three positive fractions (train, validation, test), found (0.5, 0.5)"),
        (
            {"split": (0.5, 0.2, 0.2)},
            "`split` must be fractions that sum to 1, found (0.5, 0.2, 0.2), which sum to 0.9",
        ),
        ({"split": ([0], [1])}, "`split` must be three arrays of row indices (train, validation, test), found 2"),
        ({"groups": [0, 1] * 100}, "`groups` must have at least 3 groups, one for each split, found 2"),
        ({"groups": [None, *range(199)]}, "`groups` must have a label for every row, found 1 missing"),
        (
            {"inputs": np.zeros((200, 3, 4, 4))},
            "`encoder` is required for inputs of shape [rows, 3, 4, 4]; "
            "the default encoder only supports flat inputs",
        ),
        (
            {"inputs": np.full((200, 3, 4, 4), np.nan), "encoder": torch.nn.Flatten()},
            "`inputs` must be finite, found NaN or inf in 200 rows (first: 0)",
        ),
        (
            {"inputs": np.zeros(200)},
            "`inputs` must have at least two dimensions, found shape [200]; try reshape(-1, 1)",
        ),
        (
            {"tasks": ["a", "b", Task("c", "binary")]},
            "`targets`: 'c' is binary and must have exactly two distinct labels, found 4: 0, 1, 2, 3",
        ),
        (
            {"tasks": ["a", "b", Task("c", "multiclass", classes=3)]},
            "`targets`: 'c' must have labels from 0 to 2, or exactly 3 distinct labels, found 4 labels: 0, 1, 2, 3",
        ),
        (
            {"targets": {"a": ["x", "y"] * 100}, "tasks": [Task("a", "regression")]},
            "`targets`: 'a' is a regression task and must have numeric labels, found text, e.g. 'x', 'y'",
        ),
        (
            {"targets": {"a": [np.inf, *range(199)], "b": [0, 1] * 100, "c": np.arange(200)}},
            "`targets`: 'a' must be finite or missing (NaN), found 1 infinite labels",
        ),
    ],
)  # fmt: skip
def test_invalid_input_raises_an_error_with_one_sentence(data, change, message) -> None:
    settings = {"inputs": data[0], "targets": data[1], "tasks": ["a", "b", "c"], **change}
    inputs, targets, tasks = (settings.pop(name) for name in ("inputs", "targets", "tasks"))
    assert problems_of(inputs, targets, tasks, **settings) == [message]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["Rome"] * 200, "`inputs` must be numeric, found text in column 'city'; try Problem.from_table"),
        (
            [np.nan] + [0.0] * 199,
            "`inputs` must be finite, found NaN or inf in column 'city' (1 rows); impute or remove these values",
        ),
    ],
)
def test_invalid_columns_of_a_data_frame_are_named(data, column, message) -> None:
    frame = pd.DataFrame({"x": np.arange(200.0), "city": column})
    assert problems_of(frame, data[1], ["a", "b", "c"]) == [message]


@pytest.mark.parametrize("rows", [1, 9])
def test_too_few_rows_are_the_only_problem_reported(data, rows) -> None:
    message = f"`inputs` must have at least 10 rows for three splits, found {rows}"
    assert problems_of(data[0][:rows], data[1][:rows], ["a", "b", "c"]) == [message]


def test_a_part_without_labels_and_a_class_missing_in_train_raise_an_error(data) -> None:
    inputs, labels = data
    labels[:150, 1], labels[150:, 1] = np.arange(150) % 2, np.nan
    labels[:, 2] = np.arange(200) % 3
    labels[180, 2] = 9
    split = (np.arange(100), np.arange(100, 150), np.arange(150, 200))
    assert problems_of(inputs, labels, ["a", "b", "c"], split=split) == [
        "`split`: 'b' must have labels in test, found none",
        "`split`: 'c' has class 9 in test, which does not occur in train; "
        "remove the rows with this class, or merge it with another class",
    ]


def test_given_parts_are_checked() -> None:
    with pytest.raises(
        ValueError, match=re.escape("`split`: test must contain row indices from 0 to 9, found 4 to 40")
    ):
        read_split(([0, 1], [2, 3], [4, 40]), 10)
    with pytest.raises(ValueError, match="must contain each row at most once, found 1 duplicate"):
        read_split(([0, 1], [1, 3], [4, 5]), 10)
    with pytest.raises(ValueError, match="val must have at least one row, found none"):
        read_split(([0, 1], np.array([], dtype=int), [4, 5]), 10)
    with pytest.raises(ValueError, match=r"must each belong to a single split, found 1 in multiple splits, e.g. 'ann'"):
        read_split(([0, 1], [2], [3]), 4, np.array(["ann", "bob", "cy", "ann"]))
    masks = [np.arange(10) % 3 == part for part in range(3)]
    assert [part.tolist() for part in read_split(masks, 10)] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


shares = st.tuples(*[st.floats(0.005, 1)] * 3).map(lambda drawn: tuple(share / sum(drawn) for share in drawn))


@given(rows=st.integers(10, 300), shares=shares, seed=st.integers(0, 99))
def test_every_row_is_in_one_part_and_sizes_are_the_shares(rows, shares, seed) -> None:
    parts = split_rows(rows, shares, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    assert all(len(part) > 0 for part in parts)
    assert all(abs(len(part) - share * rows) <= 2 for part, share in zip(parts, shares, strict=True))


@given(groups=st.lists(st.integers(0, 12), min_size=10, max_size=120), shares=shares, seed=st.integers(0, 99))
def test_groups_stay_in_one_part_and_sizes_are_off_by_at_most_two_groups(groups, shares, seed) -> None:
    labels = np.array(groups)
    assume(len(set(groups)) >= 3)
    parts = split_rows(len(labels), shares, labels, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    found = [set(labels[part].tolist()) for part in parts]
    assert all(found)
    assert len(set.union(*found)) == sum(map(len, found))
    largest = max(np.bincount(labels))
    assert all(abs(len(part) - share * len(labels)) <= 2 * largest for part, share in zip(parts, shares, strict=True))


def test_groups_are_kept_for_error_bars(data) -> None:
    groups = np.array([f"person {row // 4}" for row in range(200)])
    problem = Problem.from_arrays(*data, ["a", "b", "c"], groups=groups)
    found = [set(split.groups.tolist()) for split in problem.splits.values()]
    assert sum(map(len, found)) == 50 == len(set.union(*found))


def test_label_summary_equals_a_plain_loop_and_warns_of_pairs_with_few_shared_rows(data) -> None:
    inputs, labels = data
    labels[:160, 0], labels[150:, 1] = np.nan, np.nan
    split = (np.r_[0:100, 160:190], np.r_[100:120, 190:195, 149], np.r_[120:149, 195:200])
    problem = Problem.from_arrays(inputs, labels, ["a", "b", "c"], split=split)
    summary = label_summary(problem)
    for line, column in zip(summary.tasks, labels.T, strict=True):
        for part, rows in zip(("train", "val", "test"), split, strict=True):
            assert line.labels[part] == sum(not np.isnan(column[row]) for row in rows)
            if line.kind == "binary":
                assert line.positives[part] == sum(column[row] == 1 for row in rows)
    assert summary.overlap.tolist() == [[30, 0, 30], [0, 100, 100], [30, 100, 130]]
    assert [warning.split(";")[0] for warning in summary.warnings] == [
        "'a' and 'b' share only 0 train rows with both labels",
        "'a' and 'c' share only 30 train rows with both labels",
    ]
    assert "(fewest: a and b)" in str(summary)


def test_large_numbers_that_differ_little_keep_their_differences(data) -> None:
    # Times in seconds since 1970: float32 would round them all to the same number.
    inputs, labels = data
    plain, moments = (Problem.from_arrays(x, labels, ["a", "b", "c"]) for x in (inputs, inputs + 1.7e9))
    assert torch.allclose(plain.train.inputs, moments.train.inputs, atol=1e-4)
    assert moments.train.inputs.dtype == torch.float32
    rows = moments.table.inputs(inputs[:3] + 1.7e9)
    assert rows.dtype == torch.float32
    assert torch.allclose(rows, plain.table.inputs(inputs[:3]), atol=1e-4)
    whole = np.arange(200)[:, None] + 2**40
    assert Problem.from_arrays(whole, labels, ["a", "b", "c"]).train.inputs.unique().numel() == 140


def test_numbers_too_large_to_be_squared_raise_an_error(data) -> None:
    inputs, labels = data
    assert problems_of(inputs * 1e300, labels[:, 0], ["a"])[0].startswith(
        "`inputs` must be at most 1e+150 in magnitude"
    )
    (found,) = problems_of(inputs, labels[:, 0] * 1e300, ["a"])
    assert found.startswith("`targets`: 'a' must be at most 1e+150 in magnitude")
    assert problems_of(inputs, labels[:, 0] * 1e-310, ["a"]) == [
        "`split`: 'a' must have at least two distinct labels in train, found one"
    ]
    larger = Problem.from_arrays(inputs * 1e100, labels, ["a", "b", "c"])
    assert torch.allclose(larger.train.inputs, Problem.from_arrays(inputs, labels, ["a", "b", "c"]).train.inputs)
    with pytest.raises(
        ValueError, match="`rows` must have a scale similar to that of the training rows, found values up to 1e"
    ):
        Problem.from_arrays(inputs, labels, ["a", "b", "c"]).table.inputs(np.full((1, 4), 1e100))


def test_dates_are_not_read_as_numbers(data) -> None:
    inputs, _ = data
    dates = np.datetime64("2020-01-01", "ns") + np.arange(200) * np.timedelta64(1, "D")
    dates[3] = np.datetime64("NaT")
    (found,) = problems_of(inputs, {"when": dates}, ["when"])
    assert "'when' must have at most 50 distinct text labels, found 199" in found


MISUSE = {
    "inputs": [3, None, "x", [], [[]], np.zeros((60, 0)), [[1], [1, 2]], np.zeros((60, 2), complex), 10**400],
    "targets": [3, None, {"y": 3}, {"y": None}, {"y": "x"}],
    "tasks": [3, None, "y"],
    "recipe": [3, {}],
    "encoder": [3],
    "seed": ["x", None],
    "split": ["x", 3, None],
    "groups": [3, "x"],
    "name": [3],
    "notes": [3, "abc"],
}


@pytest.mark.parametrize(("argument", "value"), [(name, value) for name, values in MISUSE.items() for value in values])
def test_arguments_of_the_wrong_type_are_refused_by_name(argument: str, value: Any) -> None:
    draw = np.random.default_rng(0)
    usual = {"inputs": draw.normal(size=(60, 2)), "targets": {"y": draw.normal(size=60)}, "tasks": ["y"]}
    with pytest.raises(InvalidInput) as caught:
        Problem.from_arrays(**{**usual, argument: value})
    assert str(caught.value.problems[0]).startswith(f"`{argument}`")


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def saved_together(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def damaged(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


def zipped(**files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


SQUARE = np.ones((3, 3))
FORMAT = "`rows` must be a numeric npy or npz file, found a different format in {}"
ONE = "`rows` must contain exactly one array, found "
ARRAY_FILES: dict[str, tuple[bytes, str]] = {
    "scalar": (saved(3.0), "`rows` must have at least two dimensions, found shape []; try reshape(-1, 1)"),
    "empty": (saved(np.zeros((0, 3))), "`rows` must not be empty, found shape [0, 3]"),
    "objects": (saved(np.array([{}, []], dtype=object), allow_pickle=True), FORMAT),
    "objects, npz": (saved_together(a=np.array([{}], dtype=object)), FORMAT),
    "structured": (
        saved(np.zeros((3, 3), dtype=[("a", "f4")])),
        "`rows` must be an array of numbers, found ndarray with dtype [('a', '<f4')]",
    ),
    "dates": (
        saved(np.zeros((3, 3), dtype="M8[s]")),
        "`rows` must be an array of numbers, found ndarray with dtype datetime64[s]",
    ),
    "no arrays": (saved_together(), f"{ONE}none"),
    "two arrays": (saved_together(a=SQUARE, b=SQUARE), f"{ONE}2: a, b"),
    "no file": (b"PK\x05\x06" + bytes(18), f"{ONE}none"),
    "another file": (zipped(**{"a.txt": "hello"}), f"{ONE}another file"),
    "truncated": (saved(SQUARE)[:-5], FORMAT),
    "truncated, npz": (saved_together(a=SQUARE)[:-30], FORMAT),
    "damaged, npz": (damaged(saved_together(a=np.arange(300)), 80), FORMAT),
    "nothing": (b"", FORMAT),
    "pickle": (b"\x80\x04K\x01.", FORMAT),
    "open bracket in the header": (b"\x93NUMPY\x01\x00\x12\x00{'descr': ('<f8', \n" + bytes(32), FORMAT),
}


@pytest.mark.parametrize("what", ARRAY_FILES)
def test_files_without_an_array_of_numbers_are_refused(tmp_path: Path, what: str) -> None:
    draw = np.random.default_rng(0)
    scaling = Problem.from_arrays(draw.normal(size=(60, 3)), draw.normal(size=60), ["y"]).table
    content, message = ARRAY_FILES[what]
    path = tmp_path / "rows.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        scaling.inputs(path)
    assert str(caught.value) == message.format(path)


def test_an_archive_larger_than_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(saved_together(a=np.zeros((1000, 1000))))
    assert load_array(path).shape == (1000, 1000)
    monkeypatch.setattr("tagalong.learn.preparation.free_memory", lambda: 10**7)
    with pytest.raises(InvalidInput, match=r"^`rows` must fit into memory, of which 10 MB are free, found 8 MB$"):
        load_array(path)


@pytest.mark.parametrize("dtype", [">f8", "<f4", "longdouble", "float16", ">i4", "uint64"])
def test_numbers_of_any_type_are_read(dtype: str) -> None:
    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 9, size=(60, 2)).astype(dtype)
    problem = Problem.from_arrays(inputs, draw.normal(size=60), ["y"])
    expected = Problem.from_arrays(inputs.astype(float), {"y": np.random.default_rng(1).normal(size=60)}, ["y"])
    assert problem.train.inputs.allclose(expected.train.inputs, atol=1e-6)


def test_unsigned_integers_beyond_the_signed_ones_stay_positive() -> None:
    inputs = np.full((60, 1), 2**63, np.uint64) + np.arange(60, dtype=np.uint64)[:, None] * 2**40
    problem = Problem.from_arrays(inputs, np.arange(60.0), ["y"])
    assert problem.table.mean[0] > 2**63
