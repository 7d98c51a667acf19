import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, strategies as st

from tagalong.errors import InvalidInput
from tagalong.learn import MLP, Problem, Task, build_network, label_summary, read_preparation
from tagalong.learn.splitting import PARTS, read_split, split_rows


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = random.normal(3, 5, size=(200, 4))
    labels = np.stack([inputs[:, 0] * 10 + 100, inputs[:, 1] > 3, random.integers(0, 4, 200)], axis=1)
    return inputs, labels


def test_kinds_are_guessed(data) -> None:
    problem = Problem.from_arrays(*data, ["a", "b", "c"])
    assert [task.kind for task in problem.tasks] == ["regression", "binary", "multiclass"]
    assert problem.task("c").classes == 4
    assert [len(split) for split in problem.splits.values()] == [140, 20, 40]
    assert isinstance(problem.encoder, MLP)
    outputs = build_network(problem, ("a", "c"), 0)(problem.val.inputs)
    assert {name: tuple(out.shape) for name, out in outputs.items()} == {"a": (20, 1), "c": (20, 4)}
    few_rows = Problem.from_arrays(np.eye(30), np.arange(30) % 8, ["count"])
    assert few_rows.task("count").kind == "regression"


def test_inputs_and_regression_targets_are_standardized_with_train_rows_only(data) -> None:
    inputs, labels = data
    labels[5, 0] = np.nan
    inputs[:, 3] = 0.1
    train, val, test = np.arange(100), np.arange(100, 150), np.arange(150, 200)
    problem = Problem.from_arrays(inputs, labels, ["a", "b", "c"], split=(np.arange(200) < 100, val, test))
    mean, deviation = inputs[:100].mean(0), np.where(np.arange(4) == 3, 1, inputs[:100].std(0))  # the last is constant
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
    for wrong in (inputs[:, :3], np.where(np.arange(4) == 1, np.nan, inputs), np.full((1, 4), 1e100)):
        with pytest.raises(InvalidInput, match=r"^`rows`"):
            again.inputs(wrong)


@pytest.mark.parametrize(
    "values", [("no", "yes"), (1, 2), (-1.0, 1.0), (False, True), ("blue", "green", "red"), (5, 10, 20)]
)
def test_values_of_any_kind_are_classes_in_sorted_order(values: Any) -> None:
    labels = [values[row % len(values)] for row in range(60)]
    labels[4] = None
    problem = Problem.from_arrays(np.eye(60), {"ill": labels}, ["ill"], split=(range(40), range(40, 50), range(50, 60)))
    assert problem.task("ill").kind == ("binary" if len(values) == 2 else "multiclass")
    expected = [float("nan") if row == 4 else float(row % len(values)) for row in range(40)]
    np.testing.assert_array_equal(problem.train.targets["ill"], expected)
    assert problem.table.classes == ({} if values == (False, True) else {"ill": values})
    assert ("'ill': 'yes' is encoded as 1, 'no' as 0" in problem.notes) == ("yes" in values)


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


def test_a_rare_class_is_in_every_part_if_a_few_draws_allow_it() -> None:
    labels = np.zeros(100)
    labels[:6] = 1
    for seed in range(5):
        problem = Problem.from_arrays(np.eye(100), labels, ["rare"], seed=seed)
        assert all(split.targets["rare"].sum() > 0 for split in problem.splits.values())
    labels[2:] = 0
    problem = Problem.from_arrays(np.eye(100), labels, ["rare"])
    assert any("'rare'" in note and "class 1" in note for note in problem.notes)


shares = st.tuples(*[st.floats(0.005, 1)] * 3).map(lambda drawn: tuple(share / sum(drawn) for share in drawn))


@given(st.lists(st.integers(0, 12), min_size=10, max_size=120), st.booleans(), shares, st.integers(0, 99))
def test_groups_stay_in_one_part_and_sizes_are_the_shares(groups, is_grouped, shares, seed) -> None:
    labels = np.array(groups) if is_grouped else np.arange(len(groups))
    assume(len(np.unique(labels)) >= 3)
    parts = split_rows(len(labels), shares, labels if is_grouped else None, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    found = [set(labels[part].tolist()) for part in parts]
    assert all(found)
    assert len(set.union(*found)) == sum(map(len, found))
    largest = max(np.bincount(labels))
    assert all(abs(len(part) - share * len(labels)) <= 2 * largest for part, share in zip(parts, shares, strict=True))


def test_every_type_of_array_gives_the_same_problem(data) -> None:
    inputs, labels = data[0].astype(np.float32), data[1]
    names = ["a", "b", "c"]
    sources = [
        (inputs, labels),
        (torch.tensor(inputs), torch.tensor(labels)),
        (inputs.tolist(), labels.tolist()),
        (inputs.astype(">f4"), dict(zip(names, labels.T, strict=True))),
        (pd.DataFrame(inputs), pd.DataFrame(labels, columns=names)[["c", "b", "a"]]),
    ]
    assert len({Problem.from_arrays(*source, names).fingerprint for source in sources}) == 1


def test_label_summary_equals_a_plain_loop_and_warns_of_pairs_with_few_shared_rows(data) -> None:
    inputs, labels = data
    labels[:160, 0], labels[150:, 1] = np.nan, np.nan
    split = (np.r_[0:100, 160:190], np.r_[100:120, 190:195, 149], np.r_[120:149, 195:200])
    summary = label_summary(Problem.from_arrays(inputs, labels, ["a", "b", "c"], split=split))
    for task, column in zip("abc", labels.T, strict=True):
        for part, rows in zip(("train", "val", "test"), split, strict=True):
            assert summary.labels[task][part] == np.isfinite(column[rows]).sum()
    assert summary.positives == {
        "b": {part: (labels[rows, 1] == 1).sum() for part, rows in zip(PARTS, split, strict=True)}
    }
    assert summary.overlap.tolist() == [[30, 0, 30], [0, 100, 100], [30, 100, 130]]
    assert [("'a' and 'b'" in text, "'a' and 'c'" in text) for text in summary.warnings] == [
        (True, False),
        (False, True),
    ]


def test_large_numbers_that_differ_little_keep_their_differences(data) -> None:
    # Times in seconds since 1970: float32 would round them all to the same number.
    inputs, labels = data
    plain, moments = (Problem.from_arrays(x, labels, ["a", "b", "c"]) for x in (inputs, inputs + 1.7e9))
    assert torch.allclose(plain.train.inputs, moments.train.inputs, atol=1e-4)
    assert torch.allclose(moments.table.inputs(inputs[:3] + 1.7e9), plain.table.inputs(inputs[:3]), atol=1e-4)


# What is refused -----------------------------------------------------------------------------------------------------


def assert_refused(source: dict[str, Any], *words: str) -> None:
    """Asserts that the error names exactly these problems, in this order."""
    with pytest.raises(InvalidInput) as caught:
        Problem.from_arrays(**{"tasks": ["a", "b", "c"], **source})
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == len(words), problems
    assert [word in problem for word, problem in zip(words, problems, strict=True)] == [True] * len(words), problems


def test_all_problems_are_reported_at_once(data) -> None:
    inputs, labels = data
    assert_refused(
        {"inputs": inputs, "targets": labels[:150], "groups": [1, 2]},
        *("`targets`: 'a'", "`targets`: 'b'", "`targets`: 'c'", "`groups`"),
    )
    inputs[3, 2], inputs[4, 2], inputs[0, 0] = np.nan, np.inf, np.nan
    labels[:, 0], labels[:, 1] = np.nan, 7
    assert_refused(
        {"inputs": inputs, "targets": labels},
        *("column 0, 2", "'a' must have labels", "'b' must have at least two distinct labels"),
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tasks": []}, "`tasks`"),
        ({"tasks": ["a", "b", "a"]}, "'a'"),
        ({"tasks": ["a", "b"]}, "`targets`"),
        ({"targets": {"a": np.arange(200)}}, "'b', 'c'"),
        ({"split": (0.5, 0.5)}, "`split`"),
        ({"split": (0.5, 0.2, 0.2)}, "`split`"),
        ({"split": ([0], [1])}, "`split`"),
        ({"groups": [0, 1] * 100}, "3 groups"),
        ({"groups": [None, *range(199)]}, "`groups`"),
        ({"inputs": np.zeros((200, 3, 4, 4))}, "`encoder`"),
        ({"inputs": np.full((200, 3, 4, 4), np.nan), "encoder": torch.nn.Flatten()}, "`inputs`"),
        ({"inputs": np.zeros(200)}, "`inputs`"),
        ({"inputs": pd.DataFrame({"x": np.arange(200.0), "city": ["Rome"] * 200})}, "'Rome'"),
        ({"tasks": ["a", "b", Task("c", "binary")]}, "'c'"),
        ({"tasks": ["a", "b", Task("c", "multiclass", classes=3)]}, "'c'"),
        ({"targets": {"a": ["x", "y"] * 100}, "tasks": [Task("a", "regression")]}, "'a'"),
        ({"targets": {"a": [np.inf, *range(199)]}, "tasks": ["a"]}, "'a'"),
        ({"targets": {"a": np.arange(200) * 1e300}, "tasks": ["a"]}, "'a'"),
        ({"inputs": np.arange(200.0)[:, None] * 1e300}, "`inputs`"),
        ({"inputs": np.eye(9), "targets": np.eye(9)[:, :3]}, "10 rows"),
        ({"inputs": "x"}, "`inputs`"),
        ({"inputs": [[1], [1, 2]]}, "`inputs`"),
        ({"inputs": np.zeros((200, 2), complex)}, "`inputs`"),
        ({"targets": None}, "`targets`"),
        ({"recipe": {}}, "`recipe`"),
        ({"encoder": 3}, "`encoder`"),
    ],
)
def test_the_argument_that_is_wrong_is_named(data, change: dict[str, Any], word: str) -> None:
    assert_refused({"inputs": data[0], "targets": data[1], **change}, word)


@pytest.mark.parametrize(
    ("split", "word"),
    [
        (([0, 1], [2, 3], [4, 40]), "40"),
        (([0, 1], [1, 3], [4, 5]), "rows 1 more"),
        (([0, 1], [], [4, 5]), "`split`"),
        (([0, 1], [2], [3]), "'ann'"),  # the rows 0 and 3 are hers
    ],
)
def test_parts_that_overlap_or_lack_rows_are_refused(split: Any, word: str) -> None:
    people = np.array(["ann", "bob", "cy", "ann", *"defghi"])
    with pytest.raises(InvalidInput, match=word):
        read_split(split, 10, people)


@pytest.mark.parametrize(
    "arrays", [(), (np.ones((3, 3)),) * 2, (np.array([{}], dtype=object),), (np.ones(3, "M8[s]"),)]
)
@pytest.mark.parametrize("end", [None, -30])
def test_files_without_one_array_of_numbers_are_refused(tmp_path: Path, arrays: Any, end: int | None) -> None:
    scaling = Problem.from_arrays(np.random.default_rng(0).normal(size=(60, 3)), np.arange(60.0), ["y"]).table
    np.savez(tmp_path / "rows.npz", *arrays)
    path = tmp_path / "rows.npy"
    path.write_bytes((tmp_path / "rows.npz").read_bytes()[:end])
    with pytest.raises(InvalidInput, match=r"^`rows`"):
        scaling.inputs(path)


def test_rows_have_the_weights_that_are_given(data) -> None:
    inputs, labels = data
    problem = Problem.from_arrays(inputs, labels, ["a", "b", "c"], sample_weight=np.arange(200))
    rows = split_rows(200, (0.7, 0.1, 0.2), seed=0)
    for split, numbers in zip(problem.splits.values(), rows, strict=True):
        np.testing.assert_array_equal(split.weights, numbers)
    with pytest.raises(InvalidInput, match="`sample_weight`"):
        Problem.from_arrays(inputs, labels, ["a", "b", "c"], sample_weight=-np.ones(200))
