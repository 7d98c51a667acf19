"""Ask and tell: what to train next, errors, and several processes in one folder."""

import random
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_losses import TASKS, losses_of, tell, tell_all

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group, select_groups
from tagalong.learn import Job, Task
from tagalong.study import Cost, ExternalStudy, make_method
from tagalong.study.external_rounds import order_networks

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


def test_a_new_plan_uses_the_results_of_earlier_ones(tmp_path: Path) -> None:
    tell_all(planned_study(tmp_path, methods=("stl",)))
    study = planned_study(tmp_path, methods=("stl", "hoa"))
    assert {len(tasks) for tasks, _ in study.pending()} == {2}
    tell_all(study)
    fresh = planned_study(methods=("stl", "hoa"))
    tell_all(fresh)
    assert study.results().records == fresh.results().records


def test_losses_become_skill_if_those_of_constants_are_given(tmp_path: Path) -> None:
    constants = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0}
    study = ExternalStudy([Task(name, "regression", constant_loss=loss) for name, loss in constants.items()], tmp_path)
    study.plan(methods=["stl"], seeds=2)
    tell_all(study)
    for same in (study, ExternalStudy.load(tmp_path)):
        verdict = same.results().verdict()
        assert not verdict.relative
        for answer in verdict.per_task:
            losses = [losses_of(TASKS, seed, "test")[answer.task] for seed in range(2)]
            expected = 1 - np.mean(losses) / constants[answer.task]
            assert answer.before.estimate == pytest.approx(expected, rel=1e-6)


def test_a_plan_whose_store_was_removed_is_planned_again(tmp_path: Path) -> None:
    expected = ExternalStudy(TASKS, tmp_path).plan(PAIRED, budgets=[2])
    (tmp_path / "run.sqlite").unlink()
    with pytest.raises(InvalidInput, match=r"run\.sqlite"):
        ExternalStudy.load(tmp_path)
    assert ExternalStudy(TASKS, tmp_path).plan(PAIRED, budgets=[2]) == expected


def test_a_task_whose_error_is_a_function_can_be_planned_in_a_folder(tmp_path: Path) -> None:
    tasks = [Task(name, "regression", error=lambda outputs, targets: 0.0) for name in TASKS]
    waiting = ExternalStudy(tasks, tmp_path).plan(methods=["stl"], seeds=1).networks
    assert ExternalStudy.load(tmp_path).pending() == list(waiting)


def test_a_folder_belongs_to_one_set_of_tasks(tmp_path: Path) -> None:
    planned_study(tmp_path)
    with pytest.raises(InvalidInput, match="`out`"):
        ExternalStudy(["x", "y"], tmp_path)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"methods": ["tag+pcgrad"]}, "methods"),
        ({"methods": ["mtl-wide2"]}, "methods"),
        ({"methods": ["mtl", "boosting"]}, "methods"),
        ({"methods": ["mtl", "ensemble"]}, "'ensemble'"),
        ({"methods": [make_method("stl")]}, "methods"),  # which a folder cannot keep
        ({"methods": "tag"}, "methods"),
        ({"methods": []}, "methods"),
        ({"methods": ["auto"], "effort": "10min"}, "effort"),
        ({"methods": ["stl"], "options": [1]}, "options"),
        ({"budgets": 3}, "budgets"),
        ({"budgets": [5]}, "budgets"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"runs": 0}, "runs"),
        ({"runs": "12"}, "runs"),
        ({"affinity": 7}, "affinity"),
        ({"affinity": [PAIRED, PAIRED]}, "affinity"),
        ({"affinity": {"hoa": PAIRED}}, "affinity"),
        ({"affinity": PAIRED, "methods": ["cs"]}, "affinity"),
        ({"affinity": {"auto": PAIRED}, "methods": ["cs", "auto"]}, "affinity"),
        ({"affinity": PAIRED.only(TASKS[:3]), "methods": ["tag"]}, "affinity"),
    ],
    ids=str,
)
def test_invalid_plans_are_rejected(tmp_path: Path, given: dict[str, Any], argument: str) -> None:
    study = ExternalStudy(TASKS, tmp_path / "study")
    with pytest.raises(InvalidInput) as caught:
        study.plan(**({"affinity": [PAIRED, COSINES], "budgets": [2]} | given))
    assert any(argument in str(problem.argument) for problem in caught.value.problems)
    assert not (tmp_path / "study" / "settings.json").exists()


def test_each_method_groups_by_the_affinity_of_its_estimator() -> None:
    lookahead = replace(PAIRED, settings={"estimator": "lookahead"})
    crossed = Affinity.from_matrix([[0, 0, 0, 5], [0, 0, 5, 0], [0, 5, 0, 0], [5, 0, 0, 0]], TASKS)
    for estimator in ("cosine", "cosine_kernels", "centered_cosine"):
        cosines = replace(crossed, settings={"estimator": estimator})
        planned = ExternalStudy(TASKS).plan([cosines, lookahead], budgets=[2])
        assert planned.methods == ("mtl", "stl", "tag", "cs")
        pairs = {frozenset(tasks) for tasks, _ in planned.networks if len(tasks) == 2}
        assert pairs == {group.trains for one in (lookahead, cosines) for group in select_groups(one, 2).groups}
    assert ExternalStudy(TASKS).plan(PAIRED, budgets=[2]).methods == ("mtl", "stl", "tag")


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"tasks": ["nobody"]}, "tasks"),
        ({"tasks": []}, "tasks"),
        ({"seed": None}, "seed"),
        ({"seed": -1}, "seed"),
        ({"val": 3}, "val"),
        ({"test": None}, "test"),
        ({"test": {"b": 1.0}}, "test"),
        ({"val": {"a": "low"}}, "'a'"),
        ({"val": {"a": (1.0, 2.0, 3.0)}}, "'a'"),
        ({"val": {"a": float("nan")}}, "'a'"),
        ({"val": {"a": 10**400}}, "'a'"),
        ({"val": {"a": 1e308}}, "'a'"),
        ({"rows": ["x"]}, "rows"),
        ({"rows": {"a": "x"}}, "rows"),
        ({"rows": {"a": []}}, "rows"),
        ({"rows": {"a": [[1.0]]}}, "rows"),
        ({"rows": {"a": [1.0] * 11}}, "rows"),
        ({"val_rows": 7}, "val_rows"),
    ],
    ids=str,
)
def test_invalid_results_are_rejected_and_valid_ones_come_in_any_order(given: dict[str, Any], argument: str) -> None:
    study = planned_study(methods=("stl",))
    study.tell(["b"], 2, val={"b": 1.0}, test={"b": (1.0, 0.5)}, rows={"b": [1.0] * 10})
    with pytest.raises(InvalidInput) as caught:
        study.tell(**({"tasks": ["a"], "seed": 0, "val": {"a": 1.0}, "test": {"a": 1.0}} | given))
    assert argument in str(caught.value.argument)
    assert len(study.pending()) == 14


def test_a_result_that_is_told_again_is_replaced(tmp_path: Path) -> None:
    study, expected = planned_study(tmp_path, ("stl",)), planned_study(methods=("stl",))
    study.tell(TASKS, 1, val=None, test=None)
    study.tell(["a"], 0, val={"a": 7.0}, test={"a": 7.0}, rows={"a": [7.0] * 50})
    tell(study, (TASKS, 1))
    tell(study, (("a",), 0))
    for one in (study, expected):
        tell_all(one)
    assert study.results().records == expected.results().records
    ours, theirs = study.results().verdict(), expected.results().verdict()
    assert ours.recommended == theirs.recommended
    assert ours.gain.high == pytest.approx(theirs.gain.high)


def tell_each(out: Path, networks: list[tuple[tuple[str, ...], int]]) -> None:
    for network in networks:
        tell(ExternalStudy(TASKS, out), network)


def test_two_processes_that_tell_at_once_lose_nothing(processes: ForkServerContext, tmp_path: Path) -> None:
    pending = planned_study(tmp_path, ("stl",)).pending()
    tellers = [processes.Process(target=tell_each, args=(tmp_path, some)) for some in (pending, pending[::-1])]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join(timeout=300)
    assert [teller.exitcode for teller in tellers] == [0, 0]
    expected = planned_study(methods=("stl",))
    tell_all(expected)
    assert ExternalStudy.load(tmp_path).results().records == expected.results().records


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
        with pytest.raises(InvalidInput, match="diverged"):
            study.results()
    else:
        assert {record.seed for record in study.results().records} == {1, 2}
        assert study.results().settings["diverged_seeds"] == [0]


def test_twelve_runs_find_planted_groups_in_any_order_and_from_any_process(tmp_path: Path) -> None:
    for order in range(4):
        out, draw, trained = tmp_path / str(order), random.Random(order), []
        ExternalStudy(TASKS, out).plan(PAIRED, budgets=[2, 3], runs=12)
        for _ in range(4):
            waiting = ExternalStudy(TASKS, out).next_round()
            assert len(trained) + len(waiting.networks) <= 12
            assert waiting.round <= waiting.rounds == 2
            for network in draw.sample(waiting.networks, min(3, len(waiting.networks))):
                tell(ExternalStudy(TASKS, out), network)
                trained.append(network)
                # The others of this round stay pending.
                left = [other for other in waiting.networks if other not in trained]
                assert not left or ExternalStudy(TASKS, out).pending() == left
        study = ExternalStudy.load(out)
        assert study.pending() == []
        assert len(set(trained)) == 12
        verdict = study.results().verdict()
        assert verdict.worth_it
        assert verdict.groups == (Group("ab", "ab"), Group("cd", "cd"))
        assert study.settling() == []


def test_few_runs_give_a_best_bet_and_say_which_would_settle_it(tmp_path: Path) -> None:
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(PAIRED, budgets=[2, 3], runs=7)
    assert study.results_so_far() is None
    assert tell_all(study) == 6  # another network would settle nothing
    verdict = study.results().verdict()
    assert verdict.groups == (Group("ab", "ab"), Group("cd", "cd"))
    assert verdict.seeds < 3
    assert any("stl" in note for note in study.results().settings["notes"])  # which did not fit
    settling = study.settling()
    assert {tasks for tasks, _ in settling} == {TASKS, ("a", "b"), ("c", "d")}
    study.plan(PAIRED, budgets=[2, 3], runs=7 + len(settling))
    assert set(study.pending()) == set(settling)
    tell_all(study)
    assert study.results().verdict().seeds >= 3


@pytest.mark.parametrize("runs", [1, 8, 15])
@pytest.mark.parametrize("methods", [None, ["stl"], ["hoa"], ["optimal", "stl"], ["auto"], ["random", "tag"]], ids=str)
def test_never_more_networks_than_allowed_are_trained(runs: int, methods: list[str] | None) -> None:
    study = ExternalStudy(TASKS)
    study.plan(PAIRED, methods=methods, budgets=[2, 3], seeds=2, runs=runs)
    assert tell_all(study) <= runs
    assert study.results().records_of(("mtl", None))


def test_networks_of_the_smallest_comparison_come_first() -> None:
    together, alone, pair = Job(TASKS, 0), [Job((task,), 0) for task in TASKS], [Job(("a", "b"), 0), Job(("c", "d"), 0)]
    again = [Job(TASKS, 1)]
    comparisons = [(1, again), (0, alone), (0, pair), (0, [together])]
    assert order_networks(comparisons, trained=[]) == [together, *pair, *alone, *again]
    assert order_networks(comparisons, trained=[alone[0]]) == [together, *pair, *alone[1:], *again]
    assert order_networks(comparisons, trained=[], runs=6) == [together, *pair, *again]
    assert order_networks(comparisons, trained=[], runs=2) == [together, *again]
