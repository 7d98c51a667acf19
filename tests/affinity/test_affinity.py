import copy
import pickle
from typing import Any

import numpy as np
import pytest
from affinity_oracle import names

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput


def small(**settings: object) -> Affinity:
    rng = np.random.default_rng(0)
    return Affinity.from_history(
        rng.standard_normal((6, 3, 3)),
        ["a", "b", "c"],
        steps=[0, 5, 10, 15, 20, 25],
        skipped={"missing": np.eye(3, dtype=int)},
        settings={"estimator": "lookahead", **settings},
    )


def test_arrays_are_read_only_copies() -> None:
    history = np.zeros((2, 2, 2))
    affinity = Affinity.from_history(history, ["a", "b"])
    history[:] = 7
    assert not affinity.history.any()
    for array in (
        affinity.mean,
        affinity.stderr,
        affinity.count,
        affinity.steps,
        affinity.history,
        affinity.null,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_mappings_are_read_only() -> None:
    with pytest.raises(TypeError):
        small().settings["estimator"] = "cosine"  # type: ignore[index]
    with pytest.raises(TypeError):
        small().skipped["missing"] = np.zeros((3, 3))  # type: ignore[index]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies_and_pickles_are_equal_and_read_only(copied: object) -> None:
    affinity = small()
    other = copied(affinity)  # type: ignore[operator]
    assert isinstance(other, Affinity)
    assert other.tasks == affinity.tasks
    assert other.settings == affinity.settings
    for name in ("mean", "stderr", "count", "steps", "history", "null"):
        np.testing.assert_array_equal(getattr(other, name), getattr(affinity, name))
        assert not getattr(other, name).flags.writeable
    np.testing.assert_array_equal(other.skipped["missing"], np.eye(3))


def test_count_is_the_number_of_values_of_each_pair() -> None:
    history = np.zeros((3, 2, 2))
    history[1, 0, 1] = np.nan
    affinity = Affinity.from_history(history, ["a", "b"])
    assert affinity.count.tolist() == [[3, 2], [3, 3]]
    assert affinity.steps.tolist() == [0, 1, 2]


def test_an_affinity_without_measurements_is_all_nan() -> None:
    affinity = Affinity.from_history([], ["a", "b"])
    assert affinity.history.shape == (0, 2, 2)
    assert affinity.null.shape == (0, 2)
    assert np.isnan(affinity.mean).all()
    assert np.isnan(affinity.stderr).all()
    assert not affinity.count.any()


def test_from_matrix_names_tasks_by_number_and_has_no_errors() -> None:
    affinity = Affinity.from_matrix([[np.nan, 2], [3, 4]])
    assert affinity.tasks == ("0", "1")
    assert affinity.count.tolist() == [[0, 1], [1, 1]]
    assert np.isnan(affinity.stderr).all()
    assert affinity.history.shape == (0, 2, 2)


def test_from_matrix_with_targets_in_rows_transposes_everything() -> None:
    affinity = Affinity.from_matrix(
        [[1, 2], [3, 4]], axis="target", stderr=[[0.1, 0.2], [0.3, 0.4]], count=[[1, 2], [3, 4]]
    )
    assert affinity.mean[0, 1] == 3
    assert affinity.stderr[0, 1] == 0.3
    assert affinity.count[0, 1] == 3


def test_settings_are_converted_as_json_would() -> None:
    assert small(shape=(1, 2)).settings["shape"] == [1, 2]


def test_average_is_recorded_and_taken_from_settings() -> None:
    assert small().settings["average"] == "mean"
    trimmed = small(average="trimmed", trim=0.2)
    assert trimmed.settings["trim"] == 0.2
    np.testing.assert_array_equal(trimmed.mean, small().averaged("trimmed", 0.2).mean)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": ["a", "a"]}, "`tasks` must be distinct, found 'a' more than once"),
        ({"tasks": ["a", ""]}, "`tasks` must be non-empty strings, found ''"),
        ({"tasks": ["a", 3]}, "`tasks` must be non-empty strings, found 3"),
        ({"tasks": "ab"}, "`tasks` must be a list of names, found the string 'ab'"),
        ({"tasks": ["a", "b", "c"]}, r"must have shape \(2, 3, 3\) for 3 tasks, found \(2, 2, 2\)"),
        ({"tasks": []}, "`tasks` must name at least one task"),
        ({"history": np.full((2, 2, 2), np.inf)}, "`history` must be finite, or NaN .* found 8 infinite"),
        ({"history": 5}, "`history` must be an array, found int"),
        ({"steps": 5}, "`steps`"),
        ({"history": [[["x"]]]}, "`history` must be an array of numbers"),
        ({"null": np.zeros(2)}, r"`null` must have shape \(2, 2\) for 2 tasks, found \(2,\)"),
        ({"null": np.full((2, 2), -np.inf)}, "`null` must be finite"),
        ({"steps": [4, 4]}, "`steps` must be strictly increasing"),
        ({"steps": [1]}, "`steps` must contain 2 call numbers, one per step of `history`, found 1"),
        ({"steps": [0.5, 1]}, "`steps` must be an array of numbers.*not integers"),
        (
            {"skipped": {"nan": [[1, 2], [3, -4]]}},
            r"`skipped\['nan'\]` must contain only non-negative integers, found -4",
        ),
        ({"settings": {"x": np.zeros(3)}}, "`settings` must contain only JSON-compatible values"),
        ({"settings": {"x": float("nan")}}, "`settings` must contain only JSON-compatible values"),
        ({"settings": {"trim": "x"}}, r"`trim` must be a fraction in \[0, 0.5\), found 'x'"),
        ({"settings": 3}, "`settings` must be a mapping from names to values, found 3"),
        (
            {"settings": {"average": "mode"}},
            "`average` must be one of 'mean', 'trimmed', 'median', found 'mode'",
        ),
    ],
)
def test_the_error_of_from_history_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"history": np.zeros((2, 2, 2)), "tasks": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        Affinity.from_history(**(usual | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": [[1, 2, 3]]}, r"must have shape \(1, 1\) for 1 tasks, found \(1, 3\)"),
        ({"matrix": [[1, 2], [3, np.inf]]}, "`matrix` must be finite"),
        ({"matrix": 5}, "`matrix` must be an array, found int"),
        ({"tasks": ["a"]}, "`tasks` must contain 2 names, one per row of `matrix`, found 1"),
        ({"axis": "rows"}, '`axis` must be "source" or "target"'),
        ({"stderr": [[1, 2], [3, -1]]}, "`stderr` must be at least 0"),
        ({"stderr": [1, 2]}, "`stderr` must have shape"),
        ({"count": [[1, 2], [3, 0.5]]}, "`count` must be an array of numbers"),
    ],
)
def test_the_error_of_from_matrix_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"matrix": [[1, 2], [3, 4]]}
    with pytest.raises(ValueError, match=message):
        Affinity.from_matrix(**(usual | arguments))  # type: ignore[arg-type]


def test_one_error_lists_all_problems() -> None:
    with pytest.raises(ValueError, match="several problems") as caught:
        Affinity.from_history(np.full((2, 2, 2), np.inf), ["a", "a"], [3, 1], null=np.zeros((1, 2)))
    for argument in ("`tasks`", "`history`", "`steps`", "`null`"):
        assert argument in str(caught.value)


def test_between_includes_the_first_step_and_excludes_the_last() -> None:
    part = small().between(5, 20)
    assert part.steps.tolist() == [5, 10, 15]
    np.testing.assert_allclose(part.mean, small().history[1:4].mean(axis=0))
    assert not part.skipped


def test_the_error_of_between_without_a_step_names_the_available_steps() -> None:
    with pytest.raises(ValueError, match=r"found none in \[6, 9\); measured steps run from 0 to 25"):
        small().between(6, 9)


def test_every_selects_each_nth_measured_step() -> None:
    assert small().every(2).steps.tolist() == [0, 10, 20]
    np.testing.assert_array_equal(small().every(1).mean, small().mean)
    with pytest.raises(ValueError, match="`n` must be a positive integer, found 0"):
        small().every(0)


def test_only_selects_and_reorders_everything() -> None:
    part = small().only(["c", "a"])
    assert part.tasks == ("c", "a")
    np.testing.assert_allclose(part.mean, small().mean[np.ix_([2, 0], [2, 0])])
    np.testing.assert_array_equal(part.history, small().history[:, [2, 0]][:, :, [2, 0]])
    assert part.skipped["missing"].tolist() == [[1, 0], [0, 1]]
    assert part.settings == small().settings


def test_only_without_a_history_keeps_errors_and_counts() -> None:
    affinity = Affinity.from_matrix(np.arange(9).reshape(3, 3), stderr=np.ones((3, 3)), count=np.full((3, 3), 5))
    part = affinity.only(["2", "1"])
    assert part.mean.tolist() == [[8, 7], [5, 4]]
    assert (part.stderr == 1).all()
    assert (part.count == 5).all()


def test_the_error_of_only_names_unknown_tasks() -> None:
    with pytest.raises(ValueError, match=r"`tasks` must contain only known tasks \('a', 'b', 'c'\), found 'x', 'y'"):
        small().only(["a", "x", "y"])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("averaged", ["mean"]), ("bootstrap", []), ("between", [0, 1]), ("every", [2]), ("settled", [2])],
)
def test_methods_that_need_a_history_are_an_error_without_one(method: str, arguments: list[object]) -> None:
    with pytest.raises(ValueError, match=rf"{method}\(\) requires a history of measured steps"):
        getattr(Affinity.from_matrix(np.eye(3)), method)(*arguments)


def test_tasks_in_another_order_give_the_same_numbers() -> None:
    rng = np.random.default_rng(1)
    history = rng.standard_normal((20, 4, 4))
    history[rng.random(history.shape) < 0.3] = np.nan
    null = np.zeros((20, 4))
    order = [2, 0, 3, 1]
    there = Affinity.from_history(history, names(4), null=null)
    here = Affinity.from_history(history[:, order][:, :, order], [names(4)[i] for i in order], null=null[:, order])
    np.testing.assert_allclose(here.mean, there.mean[np.ix_(order, order)])
    np.testing.assert_allclose(here.stderr, there.stderr[np.ix_(order, order)])


@pytest.mark.parametrize("field", ["history", "null"])
def test_measured_values_whose_squares_overflow_are_rejected(field: str) -> None:
    values: dict[str, Any] = {"history": np.ones((3, 2, 2)), "null": np.ones((3, 2))}
    values[field] = values[field] * -1e308
    with pytest.raises(InvalidInput, match=rf"`{field}` must be at most 1e\+150 in magnitude, found 1e\+308; divide"):
        Affinity.from_history(values["history"], ["a", "b"], null=values["null"])
    values[field] = values[field] / 1e160
    assert np.isfinite(Affinity.from_history(values["history"], ["a", "b"], null=values["null"]).stderr).all()


@pytest.mark.parametrize("count", [[[1, 1e400]] * 2, [[1, 1e30]] * 2, [[1, 0.5]] * 2])
def test_counts_must_be_integers_of_ordinary_size(count: Any) -> None:
    with pytest.raises(InvalidInput, match="`count` must be an array of numbers"):
        Affinity.from_matrix(np.ones((2, 2)), ["a", "b"], count=count)
