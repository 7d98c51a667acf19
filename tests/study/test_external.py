"""Ask and tell: what to train next, errors, resuming after a stop, and the same verdict as a study's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_losses import TASKS, losses_of, rows_of
from study_small import small_problem

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.study import Cost, ExternalStudy, ProblemInfo, Record, Results, Score, Study
from tagalong.study.uncertainty import comparison_noise

COSINE_AND_TAG = [
    Affinity.from_matrix(np.eye(4), TASKS),
    replace(Affinity.from_matrix(np.eye(4), TASKS), settings={"estimator": "cosine"}),
]


def train_pending(study: ExternalStudy, limit: int = 10_000, rows: bool = True) -> int:
    """Reports results of pending networks, at most `limit`, and returns their number."""
    for trained in range(limit):
        network = study.ask()
        if network is None:
            return trained
        tasks, seed = network
        more = {"rows": rows_of(tasks, seed, "test")} if rows else {}
        val, test = losses_of(tasks, seed, "val"), losses_of(tasks, seed, "test")
        study.tell(tasks, seed, val=val, test=test, steps=10, seconds=1.0, parameters=100, **more)
    return limit


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
    assert train_pending(study) == 45
    assert study.ask() is None
    verdict = study.results().verdict()
    assert verdict.worth_it
    assert verdict.groups == (Group({"a", "b"}, {"a", "b"}), Group({"c", "d"}, {"c", "d"}))


def test_groups_that_validation_decides_are_requested_once_it_can_decide() -> None:
    study = planned_study(methods=("hoa",))
    first = study.pending()
    assert sorted({len(tasks) for tasks, _ in first}) == [1, 2, 4]
    assert train_pending(study) >= len(first)
    labels = {(record.method, record.budget) for record in study.results().records}
    assert labels == {("mtl", None), ("hoa", 2), ("hoa", 3)}
    hoa = next(record for record in study.results().records if record.method == "hoa")
    assert hoa.deciding == Cost(10, 100, 10.0)
    assert hoa.training == Cost(2, 20, 2.0)
    assert hoa.parameters == 200


def test_a_study_resumed_after_a_stop_gives_the_same_results(tmp_path: Path) -> None:
    whole = planned_study()
    train_pending(whole)
    trained = 0
    for limit in (1, 7, 20, 100):
        trained += train_pending(planned_study(tmp_path), limit)
    assert trained == 45
    again = ExternalStudy(TASKS, tmp_path)
    assert again.ask() is None
    assert again.results().records == whole.results().records
    assert again.results().noise == whole.results().noise
    assert str(again.results()) == str(whole.results())


def test_the_verdict_is_the_one_a_study_gives_on_the_same_numbers() -> None:
    study = planned_study(methods=("stl",))
    train_pending(study)
    alone = tuple(Group({task}, {task}) for task in TASKS)
    records = []
    for method, groups in (("mtl", (Group(TASKS, TASKS),)), ("stl", alone)):
        for seed in range(3):
            outcomes = {}
            for part in ("val", "test"):
                losses = {}
                for group in groups:
                    losses |= losses_of(tuple(sorted(group.trains)), seed, part)
                outcomes[part] = {task: Score(loss, float("nan")) for task, loss in losses.items()}
            size = len(groups)
            training = Cost(size, 10 * size, 1.0 * size)
            records.append(
                Record(method, None, seed, groups, **outcomes, training=training, parameters=100 * size)  # type: ignore[arg-type]
            )

    def rows(record: Record) -> dict[str, np.ndarray]:
        parts = [rows_of(tuple(sorted(group.trains)), record.seed, "test") for group in record.groups]
        return {task: values for part in parts for task, values in part.items()}

    results = Results(records, problem=ProblemInfo.from_tasks(TASKS), noise=comparison_noise(records, rows))
    assert study.results().verdict() == results.verdict()
    assert results.verdict().row_stderr is not None


def test_without_rows_the_verdict_is_provisional() -> None:
    study = planned_study(methods=("stl",))
    train_pending(study, rows=False)
    assert "the noise of the test rows is unknown" in study.results().verdict().provisional


def test_results_before_the_end_name_what_is_missing() -> None:
    study = planned_study(methods=("stl",), seeds=1)
    train_pending(study, 2)
    with pytest.raises(
        ValueError, match=r"results are missing for 3 networks: b \(seed 0\), c \(seed 0\), d \(seed 0\)"
    ):
        study.results()


def test_results_come_in_any_order_and_invalid_ones_are_rejected() -> None:
    study = planned_study(methods=("stl",))
    study.tell(["b"], 2, val={"b": 1.0}, test={"b": (1.0, 0.5)})
    with pytest.raises(ValueError, match=r"\['b'\] with seed 2 already has a result"):
        study.tell(["b"], 2, val={"b": 1.0}, test={"b": 1.0})
    with pytest.raises(
        ValueError, match=r"must identify a network in the plan, found \['a', 'b'\], 0; ask\(\) returns"
    ):
        study.tell(["a", "b"], 0, val={}, test={})
    with pytest.raises(ValueError, match="must identify a network in the plan"):
        study.tell(["a"], 3, val={"a": 1.0}, test={"a": 1.0})
    with pytest.raises(ValueError, match="must identify a network in the plan"):
        study.tell(["nobody"], 0, val={}, test={})
    with pytest.raises(ValueError, match="several problems") as caught:
        study.tell(["a"], 0, val={"a": float("nan")}, test={"b": 1.0}, rows={"a": [[1.0]]}, seconds=-1)
    message = str(caught.value)
    assert "`val`: the loss of 'a' must be a finite number, found nan" in message
    assert "`test` must have a value for each of a, found none for 'a', one for the unknown task 'b'" in message
    assert "`rows` must contain one loss per row" in message
    assert "`seconds` must be a non-negative number, found -1" in message
    with pytest.raises(ValueError, match="must be a loss or a pair \\(loss, error\\), found 'low'"):
        study.tell(["a"], 0, val={"a": "low"}, test={"a": 1.0})  # type: ignore[dict-item]
    assert len(study.pending()) == 14


def test_another_plan_in_the_same_folder_is_rejected(tmp_path: Path) -> None:
    planned_study(tmp_path)
    with pytest.raises(ValueError, match="found a different plan in"):
        planned_study(tmp_path, methods=("stl",))


def test_a_study_given_only_task_names_resumes_from_its_folder(tmp_path: Path) -> None:
    affinity = Affinity.from_matrix([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], TASKS)
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(affinity, budgets=[2])
    assert train_pending(study, 5) == 5
    later = ExternalStudy(TASKS, tmp_path)  # the plan is in the folder
    assert train_pending(later) == 7 * 3 - 5
    results = later.results()
    assert results.verdict().recommended == ("tag", 2)
    assert Results.load(tmp_path).verdict() == results.verdict()


def test_a_study_without_a_plan_compares_the_default_methods(tmp_path: Path) -> None:
    study = ExternalStudy(TASKS, tmp_path)
    train_pending(study)
    assert {record.method for record in study.results().records} == {"mtl", "stl", "hoa"}


def test_numpy_numbers_are_accepted(tmp_path: Path) -> None:
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(methods=["hoa"], budgets=[np.int64(2)], seeds=[np.int64(0), np.int64(1)])
    tasks, seed = study.ask()
    losses = losses_of(tasks, seed, "val")
    numbers = {"steps": np.int64(3), "parameters": np.int32(5), "seconds": np.float32(1)}
    study.tell(tasks, np.int64(seed), val=losses, test=losses, **numbers)
    again = ExternalStudy(TASKS, tmp_path)
    assert again.pending() == study.pending()
    assert again.plan(methods=["hoa"], budgets=[2], seeds=2).seeds == (0, 1)


def test_other_test_rows_than_before_are_rejected() -> None:
    study = planned_study(seeds=1)
    for number, (tasks, seed) in enumerate(study.pending()[:2]):
        losses = losses_of(tasks, seed, "val")
        rows = {task: np.ones(10 + number) for task in tasks}
        if number == 0:
            study.tell(tasks, seed, val=losses, test=losses, rows=rows)
    expected = "`rows` must have the same number of test rows for every network, found 10 and 11"
    with pytest.raises(ValueError, match=expected):
        study.tell(tasks, seed, val=losses, test=losses, rows=rows)


def test_a_folder_with_a_plan_for_other_tasks_is_rejected(tmp_path: Path) -> None:
    ExternalStudy(TASKS, tmp_path).plan(methods=["stl"])
    expected = "`out` must contain a plan for x, y, found one for a, b, c, d; use a new folder"
    with pytest.raises(ValueError, match=expected):
        ExternalStudy(["x", "y"], tmp_path).ask()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "tagalong-told", "version": 1}'])
def test_a_damaged_file_of_results_is_an_error(tmp_path: Path, content: str) -> None:
    ExternalStudy(TASKS, tmp_path).plan(methods=["stl"])
    (tmp_path / "told.json").write_text(content)
    with pytest.raises(ValueError, match=r"told\.json (is not valid JSON|must have the format|is damaged)"):
        ExternalStudy(TASKS, tmp_path).ask()


def test_auto_requests_networks_in_rounds_and_continues_after_a_stop(tmp_path: Path) -> None:
    cosines = replace(Affinity.from_matrix(np.ones((4, 4)), TASKS), settings={"estimator": "cosine"})
    request: dict[str, Any] = {"methods": ["auto"], "budgets": [2], "seeds": 2, "effort": 9}
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(cosines, **request)
    assert {tasks for tasks, _ in study.pending()} == {TASKS}
    assert train_pending(study, 4) == 4
    later = ExternalStudy(TASKS, tmp_path)  # the plan and the hints are in the folder
    assert 4 + train_pending(later) <= 9 + 2 * 2  # the effort, and the chosen networks with every seed
    whole = ExternalStudy(TASKS)
    whole.plan(cosines, **request)
    train_pending(whole)
    assert later.results().records == whole.results().records
    assert "auto" in later.results().settings["decisions"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"methods": ["tag+pcgrad"]},
            "`methods` must not require balancing rules or wider networks .* found 'tag\\+pcgrad'; use Study",
        ),
        (
            {"methods": ["mtl-wide2"]},
            "`methods` must not require balancing rules or wider networks .* found 'mtl-wide2'",
        ),
        ({"methods": ["auto"], "effort": "10min"}, "`effort` must be a number of training runs .* found '10min'"),
        ({"methods": ["auto"], "options": {"auto": {"screen": 0.25}}}, "`screen` must be None .* found 0.25"),
    ],
)
def test_methods_that_cannot_be_trained_elsewhere_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExternalStudy(TASKS).plan(COSINE_AND_TAG, **given)


def test_negative_losses_are_grouped_as_they_are_judged() -> None:
    """For a log-likelihood around minus one, say, changes count as much as for losses around one."""
    found = []
    for shift in (0.0, -2.0):
        study = planned_study(methods=("hoa", "optimal"), seeds=1)
        while (network := study.ask()) is not None:
            tasks, seed = network
            losses = {task: _near_one(tasks, task) + shift * (task == "a") for task in tasks}
            study.tell(tasks, seed, val=losses, test=losses)
        found.append({(record.method, record.budget): record.groups for record in study.results().records})
    assert found[0] == found[1]


def _near_one(tasks: tuple[str, ...], task: str) -> float:
    """Exactly one alone and with all others, so that changes are the same on either side of zero."""
    if len(tasks) in (1, len(TASKS)):
        return 1.0
    return 1.0 - 0.1 * "".join(tasks).count("b") - 0.05 * (task != "a") * ("b" not in tasks) - 0.01 * len(tasks)


def tell(study: ExternalStudy, network: tuple[tuple[str, ...], int]) -> None:
    study.tell(*network, val=losses_of(*network, "val"), test=losses_of(*network, "test"))


def test_two_studies_of_one_folder_keep_each_others_results(tmp_path: Path) -> None:
    first, second = planned_study(tmp_path, ("stl",)), planned_study(tmp_path, ("stl",))
    one, two, *_ = first.pending()
    tell(first, one)
    tell(second, two)
    assert not {one, two} & set(first.pending())
    assert first.pending() == second.pending() == ExternalStudy(TASKS, tmp_path).pending()
    with pytest.raises(InvalidInput, match="already has a result"):
        tell(first, two)
    while (network := second.ask()) is not None:
        tell(second, network)
    assert str(first.results()) == str(second.results())


def test_a_later_round_is_shared_between_processes(tmp_path: Path) -> None:
    first, second = ExternalStudy(TASKS, tmp_path), ExternalStudy(TASKS, tmp_path)
    for study in (first, second):
        study.plan(methods=["hoa"], budgets=[2], seeds=1)
    for tasks, seed in first.pending():  # d is best alone, and the others are best together
        loss = {1: 1.0, 2: 2.0 if "d" in tasks else 0.5, 4: 2.0}[len(tasks)] * (0.1 if tasks == ("d",) else 1)
        second.tell(tasks, seed, val=dict.fromkeys(tasks, loss), test=dict.fromkeys(tasks, loss))
    assert second.pending() == [(("a", "b", "c"), 0)]
    tell(first, (("a", "b", "c"), 0))
    assert second.ask() is None


def test_a_network_that_diverged_ranks_last_and_is_kept(tmp_path: Path) -> None:
    study = planned_study(tmp_path, ("stl", "optimal"), seeds=2)
    while (network := study.ask()) is not None:
        if network == (("a", "b"), 1):
            study.tell(*network, val=None, test=None, seconds=2.0)
        else:
            tell(study, network)
    for results in (study.results(), ExternalStudy(TASKS, tmp_path).results()):
        groups = {record.groups for record in results.records if record.method == "optimal"}
        assert Group("ab", "ab") not in {group for some in groups for group in some}
        assert not any(record.diverged for record in results.records)


def test_a_seed_with_which_the_network_for_all_tasks_diverged_is_left_out() -> None:
    study = planned_study(methods=("stl",))
    while (network := study.ask()) is not None:
        if network == (TASKS, 1):
            study.tell(*network, val=None, test=None)
        else:
            tell(study, network)
    results = study.results()
    assert {record.seed for record in results.records} == {0, 2}
    assert results.settings["diverged_seeds"] == [1]
    assert "diverged with seed 1" in str(results.verdict())


def test_a_study_cannot_be_judged_if_the_network_for_all_tasks_always_diverged() -> None:
    study = planned_study(methods=("stl",), seeds=1)
    while (network := study.ask()) is not None:
        if network[0] == TASKS:
            study.tell(*network, val=None, test=None)
        else:
            tell(study, network)
    with pytest.raises(InvalidInput, match="diverged with every seed"):
        study.results()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"val": 3}, "`val` must be a mapping"),
        ({"test": None}, "`test` must be a mapping .*; if the network diverged, pass None for both"),
        ({"val": {"a": float("nan")}}, "`val`: the loss of 'a' must be a finite number.*pass None for both"),
        ({"val": {"a": 10**400}}, "`val`: 'a' must be a loss"),
        ({"val": {"a": 1e308}}, r"`val`: the loss of 'a' must be at most 1e\+150 in magnitude"),
        ({"rows": ["x"]}, "`rows` must be a mapping"),
        ({"rows": {"a": "x"}}, "`rows`: 'a' must be a list of numbers"),
        ({"rows": {"a": []}}, "`rows` must contain one loss per row.* found an array of shape"),
        ({"rows": {"a": [[1.0]]}}, "`rows` must contain one loss per row"),
        ({"val_rows": 7}, "`val_rows` must be a mapping"),
        ({"steps": "many"}, "`steps` must be a non-negative number"),
        ({"seconds": 10**400}, "`seconds` must be a non-negative number"),
        ({"parameters": True}, "`parameters` must be a non-negative number"),
    ],
)
def test_invalid_results_are_explained(given: dict[str, Any], named: str) -> None:
    study = planned_study(methods=("stl",))
    with pytest.raises(InvalidInput, match=named):
        study.tell(["a"], 0, **{"val": {"a": 1.0}, "test": {"a": 1.0}, **given})
    assert (("a",), 0) in study.pending()


@pytest.mark.parametrize("seed", [None, "0", 0.5, True])
def test_the_seed_of_a_result_must_be_planned(seed: Any) -> None:
    with pytest.raises(InvalidInput, match="must identify a network in the plan"):
        planned_study(methods=("stl",)).tell(["a"], seed, val={"a": 1.0}, test={"a": 1.0})


@pytest.mark.parametrize("options", [[1], {"stl": 3}, "x"])
def test_options_must_be_by_method(options: Any) -> None:
    with pytest.raises(InvalidInput, match="`options` must be a mapping from methods to their options"):
        ExternalStudy(TASKS).plan(methods=["stl"], options=options)


def test_a_run_does_not_replace_an_external_study_or_the_other_way_around(tmp_path: Path) -> None:
    planned_study(tmp_path / "external", ("stl",))
    problem = small_problem()
    with pytest.raises(InvalidInput, match="`out` must not be the folder of a study of networks trained elsewhere"):
        Study(problem, tmp_path / "external").run(["mtl"], seeds=1)
    Study(problem, tmp_path / "run", device="cpu").run(["mtl"], seeds=1)
    with pytest.raises(InvalidInput, match="`out` must not be the folder of a run"):
        ExternalStudy(problem.names, tmp_path / "run")


def test_a_damaged_archive_of_row_losses_is_named(tmp_path: Path) -> None:
    study = ExternalStudy(["a"], tmp_path)
    study.plan(None, methods=["mtl"], budgets=[1], seeds=1)
    tasks, seed = study.ask()
    study.tell(tasks, seed, val={"a": 1.0}, test={"a": 1.0}, rows={"a": [0.5, 1.5]})
    (archive,) = (tmp_path / "told").iterdir()
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"{archive.name} is damaged: .*; plan the study again"):
        ExternalStudy(["a"], tmp_path).results()
