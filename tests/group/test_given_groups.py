"""Groupings given by the user are scored by the rules of the selection."""

from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.group import Candidate, Group, score_grouping, select_groups

MATRIX = np.array([[0, 5, 1, 2], [4, 0, 0, 3], [2, 1, 0, 6], [0, 2, 7, 0]], dtype=float)
NAMES = ["age", "ill", "sex", "no"]
SCORES = Affinity.from_matrix(MATRIX, NAMES)


@pytest.mark.parametrize("objective", ["max", "min"])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_selected_grouping_has_the_score_of_the_selection(budget: int, objective: Any) -> None:
    weights = {"age": 2.0, "ill": 0.5}
    best = select_groups(SCORES, budget, objective=objective, weights=weights)
    for groups in (best.groups, [group.trains for group in best.groups]):
        again = score_grouping(SCORES, groups, objective=objective, weights=weights)
        assert again.value == pytest.approx(best.value)
        assert again.per_task == pytest.approx(dict(best.per_task))


def test_every_task_is_served_by_the_best_network_that_trains_it() -> None:
    groups = [{"age", "ill"}, {"age", "ill", "sex"}, {"sex", "no"}]
    found = score_grouping(SCORES, groups)
    for task in NAMES:
        j = NAMES.index(task)
        means = [np.mean([MATRIX[NAMES.index(s), j] for s in group - {task}]) for group in groups if task in group]
        assert found.per_task[task] == max(means)
    assert found.budget == 3
    assert found.solver == "given"


def test_the_bound_of_a_given_grouping_holds_for_every_selection() -> None:
    objective: Any
    for objective, sign in (("max", 1), ("min", -1)):
        given = score_grouping(SCORES, [NAMES], objective=objective)
        assert all(sign * given.bound >= sign * select_groups(SCORES, k, objective=objective).value for k in (1, 2, 4))


def test_groups_as_written_keep_what_they_serve() -> None:
    groups = [Group({"age", "ill"}, {"ill"}), Group({"age", "sex", "no"}, {"age", "sex", "no"})]
    assert score_grouping(SCORES, groups).served_by("age").serves == {"age", "sex", "no"}


def test_candidates_are_found_by_their_tasks() -> None:
    table = [
        Candidate({"a"}, {"a": 1.0}, cost=0.5),
        Candidate({"a"}, {"a": 2.0}, cost=1),
        Candidate({"a", "b"}, {"a": 0.0, "b": 3.0}),
    ]
    assert score_grouping(table, [{"a"}, {"a", "b"}]).value == 5
    assert score_grouping(table, [Group({"a"}, {"a"}, 0.5), Group({"a", "b"}, {"b"}, 1)]).value == 4
    assert score_grouping(table, [{"a"}, {"a", "b"}]).budget == 2


def test_networks_must_be_listed() -> None:
    table: Any = {("a", "b"): {"a": 1.0, "b": 1.0}, ("b", "c"): {"b": 1.0, "c": 1.0}}
    with pytest.raises(ValueError, match="a, b, c"):
        score_grouping(table, [["a", "b", "c"]])
    two = [Group({"age", "ill"}, {"age", "ill"}), Group(NAMES, NAMES)]
    assert score_grouping(SCORES, two).per_task["ill"] == 5.0
