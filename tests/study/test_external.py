"""Ask and tell: what to train next, errors, and several processes in one folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_losses import TASKS, tell, tell_all

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.study import Cost, ExternalStudy

PAIRED = Affinity.from_matrix([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], TASKS)
COSINES = replace(Affinity.from_matrix(np.ones((4, 4)), TASKS), settings={"estimator": "cosine"})


def planned_study(
    out: Path | None = None, methods: tuple[str, ...] = ("stl", "hoa", "optimal"), seeds: int = 3
) -> ExternalStudy:
    study = ExternalStudy(TASKS, out)
    study.plan(methods=methods, budgets=[2, 3], seeds=seeds)
    return study


def test_the_network_for_all_tasks_comes_first_and_every_network_once() -> None:
    study = planned_study()
    pending = study.pending()
    assert pending[0] == (TASKS, 0)
    assert len(pending) == len(set(pending)) == 15 * 3
    assert tell_all(study) == 45
    verdict = study.results().verdict()
    assert verdict.worth_it
    assert verdict.groups == (Group({"a", "b"}, {"a", "b"}), Group({"c", "d"}, {"c", "d"}))


def test_groups_that_validation_decides_are_requested_once_it_can_decide() -> None:
    study = planned_study(methods=("hoa",))
    assert sorted({len(tasks) for tasks, _ in study.pending()}) == [1, 2, 4]
    tell_all(study)
    results = study.results()
    assert {record.label for record in results.records} == {("mtl", None), ("hoa", 2), ("hoa", 3)}
    hoa = results.records_of(("hoa", 2))[0]
    assert (hoa.deciding, hoa.training, hoa.parameters) == (Cost(10, 100, 10.0), Cost(2, 20, 2.0), 200)


def test_a_study_without_a_plan_compares_the_default_methods() -> None:
    study = ExternalStudy(TASKS)
    tell_all(study)
    assert {record.method for record in study.results().records} == {"mtl", "stl", "hoa"}


def test_a_folder_belongs_to_one_plan(tmp_path: Path) -> None:
    planned_study(tmp_path)
    with pytest.raises(InvalidInput, match="found a different plan in"):
        planned_study(tmp_path, methods=("stl",))
    with pytest.raises(InvalidInput, match="`out` must contain a plan for x, y, found one for a, b, c, d"):
        ExternalStudy(["x", "y"], tmp_path).ask()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": ["tag+pcgrad"]}, "`methods` .* found 'tag\\+pcgrad'; use Study"),
        ({"methods": ["mtl-wide2"]}, "`methods` .* found 'mtl-wide2'"),
        ({"methods": ["mtl", "boosting"]}, "'boosting' requires the data"),
        ({"methods": ["mtl", "ensemble"]}, "must not average the answers .*; pass `targets`"),
        ({"methods": ["auto"], "effort": "10min"}, "`effort`"),
        ({"methods": ["auto"], "options": {"auto": {"screen": 0.25}}}, "`screen`"),
        ({"methods": ["stl"], "options": [1]}, "`options` must be a mapping"),
        ({"methods": ["stl"], "options": {"stl": 3}}, "`options` must be a mapping"),
    ],
)
def test_plans_that_cannot_be_trained_elsewhere_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ExternalStudy(TASKS).plan([PAIRED, COSINES], **({"budgets": [2]} | given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": ["a", "b"]}, "must identify a network in the plan"),
        ({"tasks": ["nobody"]}, "must identify a network in the plan"),
        ({"seed": 3}, "must identify a network in the plan"),
        ({"seed": None}, "must identify a network in the plan"),
        ({"seed": True}, "must identify a network in the plan"),
        ({"val": 3}, "`val` must be a mapping"),
        ({"test": None}, "`test` must be a mapping .*; if the network diverged, pass None for both"),
        ({"test": {"b": 1.0}}, "`test` must have a value for each of a, found none for 'a', one for .* 'b'"),
        ({"val": {"a": "low"}}, "must be a loss or a pair"),
        ({"val": {"a": float("nan")}}, "`val`: .*'a' must be a finite number"),
        ({"val": {"a": 10**400}}, "`val`: 'a'"),
        ({"val": {"a": 1e308}}, "`val`: .*'a' must be at most"),
        ({"rows": ["x"]}, "`rows` must be a mapping"),
        ({"rows": {"a": "x"}}, "`rows`: 'a'"),
        ({"rows": {"a": []}}, "`rows` must contain one loss per row"),
        ({"rows": {"a": [[1.0]]}}, "`rows` must contain one loss per row"),
        ({"rows": {"a": [1.0] * 11}}, "`rows` must have the same number of test rows .* found 10 and 11"),
        ({"val_rows": 7}, "`val_rows` must be a mapping"),
        ({"steps": "many"}, "`steps`"),
        ({"seconds": 10**400}, "`seconds`"),
        ({"seconds": -1}, "`seconds`"),
        ({"parameters": True}, "`parameters`"),
    ],
)
def test_invalid_results_are_explained_and_valid_ones_come_in_any_order(given: dict[str, Any], message: str) -> None:
    study = planned_study(methods=("stl",))
    study.tell(["b"], 2, val={"b": 1.0}, test={"b": (1.0, 0.5)}, rows={"b": [1.0] * 10})
    with pytest.raises(InvalidInput, match=message):
        study.tell(**({"tasks": ["a"], "seed": 0, "val": {"a": 1.0}, "test": {"a": 1.0}} | given))
    with pytest.raises(InvalidInput, match=r"\['b'\] with seed 2 already has a result"):
        study.tell(["b"], 2, val={"b": 1.0}, test={"b": 1.0})
    assert len(study.pending()) == 14


def test_two_studies_of_one_folder_keep_each_others_results(tmp_path: Path) -> None:
    first, second = planned_study(tmp_path, ("stl",)), planned_study(tmp_path, ("stl",))
    one, two, *_ = first.pending()
    tell(first, one)
    tell(second, two)
    assert not {one, two} & set(first.pending())
    assert first.pending() == second.pending() == ExternalStudy(TASKS, tmp_path).pending()
    with pytest.raises(InvalidInput, match="already has a result"):
        tell(first, two)
    tell_all(second)
    assert str(first.results()) == str(second.results())


def test_a_network_that_diverged_ranks_last_and_is_kept(tmp_path: Path) -> None:
    study = planned_study(tmp_path, ("stl", "optimal"), seeds=2)
    study.tell(["a", "b"], 1, val=None, test=None, seconds=2.0)
    tell_all(study)
    for results in (study.results(), ExternalStudy(TASKS, tmp_path).results()):
        groups = {group for record in results.records if record.method == "optimal" for group in record.groups}
        assert Group("ab", "ab") not in groups
        assert not any(record.diverged for record in results.records)


@pytest.mark.parametrize("seeds", [1, 3])
def test_seeds_with_which_the_network_for_all_tasks_diverged_are_left_out(seeds: int) -> None:
    study = planned_study(methods=("stl",), seeds=seeds)
    study.tell(TASKS, 0, val=None, test=None)
    tell_all(study)
    if seeds == 1:
        with pytest.raises(InvalidInput, match="diverged with every seed"):
            study.results()
    else:
        assert {record.seed for record in study.results().records} == {1, 2}
        assert study.results().settings["diverged_seeds"] == [0]
