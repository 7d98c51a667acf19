"""The `Grouping` record: its text, its methods, saving and loading."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError
from tagalong.group import Group, Grouping, select_groups

MATRIX = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]


def grouping() -> Grouping:
    return select_groups(Affinity.from_matrix(MATRIX, ["age", "ill", "sex"]), 2)


def test_each_task_is_served_by_one_group() -> None:
    found = grouping()
    assert found.served_by("sex") == Group({"age", "sex"}, {"sex"})
    assert found.served_by("sex").helpers == {"age"}
    assert found.per_task == {"age": 5.0, "ill": 5.0, "sex": 1.0}
    with pytest.raises(ValueError, match="`task` must be one of 'age', 'ill', 'sex', found 'height'"):
        found.served_by("height")


@pytest.mark.parametrize("field", [{"copy": 2}, {"size": 3}, {"network": "tabm"}])
def test_copies_and_networks_of_other_kinds_differ_and_survive_files(field: dict[str, Any]) -> None:
    plain, other = Group("ab", "a"), Group("ab", "a", **field)
    assert plain != other
    assert sorted([other, plain]) == [plain, other]
    assert copy.deepcopy(other) == pickle.loads(pickle.dumps(other)) == other
    (name,) = field
    assert name not in plain.to_document()
    found = Grouping((other, Group("ab", "b")), 2.0, 2.0, "optimal", {"a": 1.0, "b": 1.0}, 2)
    assert Grouping.from_json(found.to_json()) == found


def test_groups_serve_only_what_they_train() -> None:
    with pytest.raises(InvalidInput, match=r"`serves`.*'b'"):
        Group({"a"}, {"b"})


def test_the_mask_names_the_losses_to_train() -> None:
    found = grouping()
    assert found.loss_mask(1) == {"age": True, "ill": False, "sex": True}
    assert found.loss_mask(found.groups[1]) == found.loss_mask(1)


def test_an_explanation_says_if_a_task_is_served_worse_than_possible() -> None:
    # Two good pairs, but one task of each has to be served together.
    found = select_groups(np.kron(np.eye(2), np.full((2, 2), 10.0)), 2, must_link=[{"0", "2"}])
    sacrificed = [task for task in found.tasks if "better for it alone" in found.explain(task)]
    assert len(sacrificed) == 1
    assert sacrificed[0] in {"0", "2"}


@pytest.mark.parametrize("solver", ["exact", "milp", "search"])
def test_a_grouping_survives_json(solver: str) -> None:
    matrix = np.random.default_rng(1).standard_normal((6, 6))
    found = select_groups(matrix, 3, solver=solver)  # type: ignore[arg-type]
    assert Grouping.from_json(found.to_json()) == found
    assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == found
    assert json.loads(found.to_json())["format"] == "tagalong-grouping"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "valid JSON"),
        ("[1]", "format"),
        ('{"format": "tagalong-grouping", "version": 99}', "99"),
        ('{"format": "tagalong-grouping", "version": 1}', "damaged"),
    ],
)
def test_damaged_texts_are_rejected(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        Grouping.from_json(text)
