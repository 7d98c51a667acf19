"""The methods that a study compares by default, and those that are left out because they do not support the problem."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from study_small import small_problem
from torch import nn

from tagalong.learn import MLP, Problem, Split, TabM, TabMHeads
from tagalong.study import Study, default_methods

NAMES = ("mtl", "mtl-big2", "mtl-big3", "ensemble", "best-of", "stl", "tag", "auto", "boosting", "ridge", "constant")


def without_an_average() -> Problem:
    """A problem with a task whose answers cannot be averaged."""
    problem = small_problem()
    own = replace(problem.tasks[0], kind="custom", loss=nn.MSELoss(reduction="none"), head=lambda n: nn.Linear(n, 1))
    return replace(problem, tasks=(own, *problem.tasks[1:]))


def test_a_table_is_compared_with_everything() -> None:
    assert default_methods(small_problem(), [2, 3]) == default_methods(small_problem())
    assert default_methods(small_problem()).names == NAMES
    assert default_methods(small_problem()).notes == []


def test_a_tabm_network_is_compared_with_other_families() -> None:
    problem = replace(small_problem(), encoder=TabM(4, (5,), members=2), head=TabMHeads(2))
    found = default_methods(problem, [2])
    assert found.names == ("mtl", "blend", "boosting", "ridge", "constant")
    assert set(found.left_out) == {"mtl-big2", "ensemble", "best-of", "stl", "tag", "auto"}


def test_methods_that_cannot_average_the_tasks_are_left_out() -> None:
    found = default_methods(without_an_average(), [2])
    assert found.names == ("mtl", "mtl-big2", "stl", "tag", "auto")
    assert list(found.left_out) == ["ensemble", "best-of", "boosting", "ridge", "constant"]


def test_boosting_is_left_out_for_images() -> None:
    images = Split(torch.zeros(8, 1, 2, 2), {"a": torch.zeros(8), "b": torch.ones(8)})
    problem = replace(small_problem("ab"), train=images, val=images, test=images, encoder=Flat())
    found = default_methods(problem, [2]).left_out
    assert list(found) == ["mtl-big2", "boosting", "ridge"]
    assert found["boosting"].startswith("requires a table")
    assert found["mtl-big2"].startswith("cannot widen this network")


class Flat(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), MLP(4, (5,))())


def test_groups_are_left_out_if_all_budgets_exceed_the_number_of_tasks() -> None:
    found = default_methods(small_problem(), [5])
    assert found.left_out == {"tag": "uses at most 3 networks, one per task"}
    assert "auto" in found.names, "it averages answers"
    assert "mtl-big5" in found.names
    many = default_methods(small_problem(), range(1, 1000)).names
    assert [name for name in many if name.startswith("mtl-big")] == [f"mtl-big{k}" for k in range(2, 11)]


def test_a_study_compares_the_default_methods_within_the_effort(tmp_path: Path) -> None:
    results = Study(small_problem(), tmp_path, device="cpu").run(budgets=[2, 3], seeds=2, effort=5)
    assert tuple(dict.fromkeys(record.method for record in results.records)) == NAMES
    assert results.settings["decisions"]["auto"]["effort"] == results.settings["decisions"]["best-of"]["trainings"] == 5
    assert results.verdict().recommended[0] != "constant"


def test_an_effort_applies_to_the_default_methods_that_can_be_used(tmp_path: Path) -> None:
    Study(without_an_average(), tmp_path).check(effort=5, budgets=[2])
    with pytest.raises(ValueError, match="must only refer to methods in the comparison, found 'best-of'"):
        Study(without_an_average(), tmp_path).check(budgets=[2], options={"best-of": {"copies": 3}})
