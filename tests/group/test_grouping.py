"""The `Grouping` record: its text, its methods, saving and loading."""

import copy
import json
import pickle

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Candidate, Certificate, Group, Grouping, GroupingFileError, select_groups

MATRIX = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]


def grouping() -> Grouping:
    return select_groups(Affinity.from_matrix(MATRIX, ["age", "ill", "sex"]), 2)


def test_the_text_is_a_table() -> None:
    assert str(grouping()) == (
        "2 networks for 3 tasks, total 11 (proven optimal)\n"
        "network  serves    helped by  score\n"
        "      1  age, ill                10\n"
        "      2  sex       age            1"
    )


def test_the_text_says_if_optimality_is_not_proven() -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 9))
    found = select_groups(matrix, 2, solver="search")
    assert found.gap == pytest.approx((found.bound - found.value) / found.value)
    assert f"feasible, bound {found.bound:.6g}, gap {found.gap:.1%}" in str(found)


def test_each_task_is_served_by_one_group() -> None:
    found = grouping()
    assert found.served_by("sex") == Group({"age", "sex"}, {"sex"})
    assert found.served_by("sex").helpers == {"age"}
    assert found.per_task == {"age": 5.0, "ill": 5.0, "sex": 1.0}
    with pytest.raises(ValueError, match="`task` must be one of 'age', 'ill', 'sex', found 'height'"):
        found.served_by("height")


def test_copies_are_different_groups_and_survive_files() -> None:
    first, second = Group("ab", "ab"), Group("ab", "ab", copy=1)
    assert first != second
    assert sorted([second, first]) == [first, second]
    assert copy.deepcopy(second) == pickle.loads(pickle.dumps(second)) == second
    found = Grouping((Group("ab", "a"), Group("ab", "b", copy=2)), 2.0, 2.0, "optimal", {"a": 1.0, "b": 1.0}, 2)
    assert [group.get("copy") for group in found.to_document()["groups"]] == [None, 2]
    for again in (Grouping.from_json(found.to_json()), Grouping.from_yaml(found.to_yaml())):
        assert again == found
    assert "copy" not in grouping().to_json()


def test_the_size_of_a_network_survives_files() -> None:
    plain, wide = Group("ab", "ab"), Group("ab", "ab", size=3)
    assert plain != wide
    assert sorted([wide, plain]) == [plain, wide]
    assert str(wide) == "serves {a, b}, 3 times the size"
    found = Grouping((wide,), 2.0, 2.0, "optimal", {"a": 1.0, "b": 1.0}, 3)
    assert Grouping.from_json(found.to_json()) == Grouping.from_yaml(found.to_yaml()) == found
    assert "size" not in plain.to_document()


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_the_size_of_a_network_is_a_positive_integer(size: object) -> None:
    with pytest.raises(InvalidInput, match="`size` must be a positive integer"):
        Group("a", "a", size=size)  # type: ignore[arg-type]


def test_the_kind_of_a_network_survives_files() -> None:
    plain, other = Group("ab", "ab"), Group("ab", "ab", network="tabm")
    assert plain != other
    assert sorted([other, plain]) == [plain, other]
    assert (str(other), plain.network_text) == ("serves {a, b}, TabM network", "")
    found = Grouping((other,), 2.0, 2.0, "optimal", {"a": 1.0, "b": 1.0}, 1)
    assert Grouping.from_json(found.to_json()) == Grouping.from_yaml(found.to_yaml()) == found
    assert pickle.loads(pickle.dumps(other)) == other
    assert "network" not in plain.to_document()


@pytest.mark.parametrize("network", ["", 1, True, ["tabm"]])
def test_the_kind_of_a_network_is_a_name(network: object) -> None:
    with pytest.raises(InvalidInput, match="`network` must be the name of a network or None"):
        Group("a", "a", network=network)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 0.5, "1"])
def test_the_number_of_a_copy_is_an_integer(number: object) -> None:
    with pytest.raises(InvalidInput, match="`copy` must be a non-negative integer"):
        Group("a", "a", copy=number)  # type: ignore[arg-type]


def test_the_mask_names_the_losses_to_train() -> None:
    found = grouping()
    assert found.loss_mask(1) == {"age": True, "ill": False, "sex": True}
    assert found.loss_mask(found.groups[1]) == found.loss_mask(1)


def test_explanations_name_the_next_best() -> None:
    found = grouping()
    assert found.explain("sex") == (
        "sex is served by {age, sex} with 1, the best of the 2 networks for it; next best: {age, ill, sex} with 0.5."
    )
    alone = select_groups([[1, 2], [3, 4]], 1)
    assert alone.explain("0") == "0 is served by {0, 1} with 3, the only chosen network that can."


def test_an_explanation_says_if_a_task_is_served_worse_than_possible() -> None:
    # Two good pairs, but one task of each has to be served together.
    found = select_groups(np.kron(np.eye(2), np.full((2, 2), 10.0)), 2, must_link=[{"0", "2"}])
    sacrificed = [task for task in found.tasks if "would be better for it alone" in found.explain(task)]
    assert len(sacrificed) == 1
    assert sacrificed[0] in {"0", "2"}


@pytest.mark.parametrize("solver", ["exact", "lp", "milp", "search"])
def test_a_grouping_survives_json(solver: str) -> None:
    matrix = np.random.default_rng(1).standard_normal((6, 6))
    found = select_groups(matrix, 3, solver=solver)  # type: ignore[arg-type]
    assert Grouping.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["format"] == "tagalong-grouping"


def test_a_grouping_can_be_copied_and_pickled() -> None:
    assert pickle.loads(pickle.dumps(grouping())) == grouping()
    assert copy.deepcopy(grouping()) == grouping()
    for part in (Candidate({"a", "b"}, {"a": 1.0}, cost=0.5), Certificate({"a": 1.0}, 2.0)):
        assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "valid JSON"),
        ("[1]", "format 'tagalong-grouping', found 'list'"),
        ('{"format": "tagalong-grouping", "version": 99}', "version 1, found 99"),
        ('{"format": "tagalong-grouping", "version": 1}', "damaged"),
    ],
)
def test_damaged_texts_are_rejected(text: str, message: str) -> None:
    with pytest.raises(GroupingFileError, match=message):
        Grouping.from_json(text)


def test_a_group_serves_only_what_it_trains() -> None:
    with pytest.raises(ValueError, match="`serves` must contain only tasks in `trains`, found 'b'"):
        Group({"a"}, {"b"})


def test_the_record_is_immutable() -> None:
    with pytest.raises(TypeError):
        grouping().per_task["age"] = 1.0  # type: ignore[index]
