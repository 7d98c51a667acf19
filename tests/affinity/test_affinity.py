"""How affinities are made, copied, sliced and merged."""

from typing import Any

import numpy as np
import pytest
from affinity_oracle import names

from tagalong.affinity import Affinity

FIELDS = ("mean", "stderr", "count", "steps", "history", "null")


def small(**settings: object) -> Affinity:
    return Affinity.from_history(
        np.random.default_rng(0).standard_normal((6, 3, 3)),
        ["a", "b", "c"],
        steps=[0, 5, 10, 15, 20, 25],
        skipped={"missing": np.eye(3, dtype=int)},
        settings={"estimator": "lookahead", **settings},
    )


def test_affinities_cannot_be_changed() -> None:
    history = np.zeros((2, 2, 2))
    affinity = Affinity.from_history(history, ["a", "b"])
    history[:] = 7
    assert not affinity.history.any()
    for name in FIELDS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(affinity, name)[...] = 1


def test_a_history_may_have_gaps_or_be_empty() -> None:
    history = np.zeros((3, 2, 2))
    history[1, 0, 1] = np.nan
    affinity = Affinity.from_history(history, ["a", "b"])
    assert affinity.count.tolist() == [[3, 2], [3, 3]]
    assert affinity.steps.tolist() == [0, 1, 2]
    empty = Affinity.from_history([], ["a", "b"])
    assert (empty.history.shape, empty.null.shape) == ((0, 2, 2), (0, 2))
    assert np.isnan(empty.mean).all()
    assert np.isnan(empty.stderr).all()
    assert not empty.count.any()


def test_matrices_have_no_history_and_may_have_targets_in_rows() -> None:
    affinity = Affinity.from_matrix([[np.nan, 2], [3, 4]])
    assert affinity.tasks == ("0", "1")
    assert affinity.count.tolist() == [[0, 1], [1, 1]]
    assert np.isnan(affinity.stderr).all()
    assert affinity.history.shape == (0, 2, 2)
    turned = Affinity.from_matrix(
        [[1, 2], [3, 4]], axis="target", stderr=[[0.1, 0.2], [0.3, 0.4]], count=[[1, 2], [3, 4]]
    )
    assert (turned.mean[0, 1], turned.stderr[0, 1], turned.count[0, 1]) == (3, 0.3, 3)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("tasks", ["a", "a"]), ("tasks", ["a", ""]), ("tasks", ["a", 3]), ("tasks", "ab"), ("tasks", []),
        ("history", np.zeros((2, 3, 3))), ("history", np.full((2, 2, 2), np.inf)),
        ("null", np.zeros(2)), ("steps", [4, 4]), ("steps", [1]), ("skipped", {"nan": [[1, 2, 3]]}),
        ("trim", {"trim": "x"}), ("average", {"average": "mode"}),
    ],
)  # fmt: skip
def test_the_error_of_from_history_names_the_argument(argument: str, value: Any) -> None:
    usual: dict[str, Any] = {"history": np.zeros((2, 2, 2)), "tasks": ["a", "b"]}
    given = "settings" if argument in ("trim", "average") else argument
    with pytest.raises(ValueError, match=f"`{argument}"):
        Affinity.from_history(**(usual | {given: value}))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("matrix", [[1, 2, 3]]), ("matrix", [[1, 2], [3, np.inf]]),
        ("tasks", ["a", "a"]), ("axis", "rows"), ("stderr", [1, 2]), ("count", [[1, 2]]),
    ],
)  # fmt: skip
def test_the_error_of_from_matrix_names_the_argument(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        Affinity.from_matrix(**({"matrix": [[1, 2], [3, 4]]} | {argument: value}))


def test_between_and_every_select_steps() -> None:
    part = small().between(5, 20)
    assert part.steps.tolist() == [5, 10, 15]
    np.testing.assert_allclose(part.mean, small().history[1:4].mean(axis=0))
    assert not part.skipped
    assert small().every(2).steps.tolist() == [0, 10, 20]
    with pytest.raises(ValueError, match="6, 9"):
        small().between(6, 9)


def test_only_selects_and_reorders_everything() -> None:
    part = small().only(["c", "a"])
    assert part.tasks == ("c", "a")
    np.testing.assert_allclose(part.mean, small().mean[np.ix_([2, 0], [2, 0])])
    np.testing.assert_array_equal(part.history, small().history[:, [2, 0]][:, :, [2, 0]])
    assert part.skipped["missing"].tolist() == [[1, 0], [0, 1]]
    assert part.settings == small().settings
    table = Affinity.from_matrix(np.arange(9).reshape(3, 3), stderr=np.ones((3, 3)), count=np.full((3, 3), 5))
    part = table.only(["2", "1"])
    assert part.mean.tolist() == [[8, 7], [5, 4]]
    assert (part.stderr == 1).all()
    assert (part.count == 5).all()
    with pytest.raises(ValueError, match=r"`tasks`.* 'x', 'y'"):
        small().only(["a", "x", "y"])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("averaged", ["mean"]),
        ("between", [0, 1]),
        ("every", [2]),
        ("merge", [Affinity.from_matrix(np.eye(3))]),
        ("settled", [2]),
    ],
)
def test_methods_that_need_a_history_are_an_error_without_one(method: str, arguments: list[object]) -> None:
    with pytest.raises(ValueError, match=rf"{method}\(\) requires a history"):
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


def measured(tasks: str, steps: list[int], seed: int = 0, **settings: object) -> Affinity:
    n = len(tasks)
    history = np.random.default_rng(seed).standard_normal((len(steps), n, n))
    null = np.arange(len(steps) * n, dtype=float).reshape(len(steps), n)
    return Affinity.from_history(
        history, list(tasks), steps, null=null, skipped={"missing": np.ones((n, n))}, settings=settings
    )


def test_merging_joins_tasks_and_histories() -> None:
    first, second = measured("ab", [0, 10]), measured("cb", [0, 10, 20], seed=1)
    merged = first.merge(second)
    assert merged.tasks == ("a", "b", "c")
    assert merged.steps.tolist() == [0, 10, 11, 21, 31]
    assert merged.count.tolist() == [[2, 2, 0], [2, 5, 3], [0, 3, 3]]
    assert np.isnan(merged.mean[[0, 2], [2, 0]]).all()
    np.testing.assert_array_equal(merged.history[:2, :2, :2], first.history)
    np.testing.assert_array_equal(merged.history[2:, 2, 1], second.history[:, 0, 1])
    np.testing.assert_array_equal(merged.null[2:, 2], second.null[:, 0])
    assert np.isnan(merged.null[:2, 2]).all()
    both = np.concatenate([first.history[:, 1, 1], second.history[:, 1, 1]])
    assert merged.mean[1, 1] == pytest.approx(both.mean())


def test_consecutive_steps_keep_their_numbers() -> None:
    whole = measured("ab", [0, 10, 20, 30])
    again = whole.between(0, 15).merge(whole.between(15, 40))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))


def test_different_quantities_do_not_merge() -> None:
    for setting in ("estimator", "update", "held_out", "per_lr"):
        one, other = measured("ab", [0], **{setting: "x"}), measured("ab", [0], **{setting: "y"})
        with pytest.raises(ValueError, match=rf"`other`.*{setting}"):
            one.merge(other)


def test_merging_keeps_the_average_and_the_settings_that_agree() -> None:
    merged = measured("ab", [0], lr=0.1, seed_=1, net="x").merge(measured("ab", [0], lr=0.2, seed_=1, data="d"))
    assert merged.settings == {"seed_": 1, "net": "x", "data": "d", "average": "mean"}
    one, other = (measured("ab", list(range(30)), seed=seed).averaged("trimmed", 0.2) for seed in (0, 1))
    merged = one.merge(other)
    assert merged.settings == {"average": "trimmed", "trim": 0.2}
    np.testing.assert_array_equal(merged.mean, merged.averaged("trimmed", 0.2).mean)
