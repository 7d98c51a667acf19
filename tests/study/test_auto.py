"""`auto` in a study: what it finds, what it costs, and that it resumes after a stop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from study_small import conflicting_pairs, narrow_encoder, small_problem
from watched_executor import WatchedExecutor

from tagalong.affinity import Affinity
from tagalong.learn import Batch, Job, Problem, Split, StreamedRows, Task, train
from tagalong.study import Best, Results, Store, Study
from tagalong.study.keys import Keys

GROUPS = {"auto": {"average": False}}  # searches for groups in which one network answers each task
PAIRS = {frozenset("ab"), frozenset("cd")}


@pytest.fixture
def problem() -> Problem:
    return conflicting_pairs()


def stored_steps(out: Path, problem: Problem, jobs: Sequence[Job]) -> list[int]:
    with Store(out / "run.sqlite") as store:
        return [result.steps for result in store.results(map(Keys(problem, "cpu").of, jobs)).values()]


def test_auto_finds_the_pairs_and_counts_every_training(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path, device="cpu").run(["auto"], budgets=[2], seeds=2, effort=14, options=GROUPS)
    auto = results.records_of(("auto", 2))
    assert [{group.serves for group in record.groups} for record in auto] == [PAIRS, PAIRS]
    log = results.settings["decisions"]["auto"]
    assert log["one_network_per_task"] == "`average` is False"
    assert log["chosen"]["2"]["expected"] < 0
    trained = log["trained"]
    assert log["spent"] == len(trained) == log["effort"] == 14
    assert auto[0].deciding.networks == 7, "for two seeds"
    steps = sum(stored_steps(tmp_path, problem, [Job(tuple(one["tasks"]), one["seed"]) for one in trained]))
    assert auto[0].deciding.steps == pytest.approx(steps / 2, abs=1)


def test_a_larger_network_counts_as_many_times_as_it_is_larger(tmp_path: Path) -> None:
    """A plain network of one unit always learns the heavier pair."""
    problem = conflicting_pairs(narrow_encoder, light=0.1)
    options = {"auto": {"teach": False, "passes": 1}}
    study = Study(problem, tmp_path, device="cpu")
    results = study.run(["auto"], [2], seeds=2, effort=30, options=options)
    assert Results.load(tmp_path).records == results.records
    trained = results.settings["decisions"]["auto"]["trained"]
    (wide,) = [one for one in trained if one["kind"] == "wide"]
    copies = [Job(problem.names, one["seed"]) for one in trained if one["kind"] == "copy"]
    with Store(tmp_path / "run.sqlite") as store:
        (result,) = [one for one in store.results(store.known_keys()).values() if one.job.width > 1]
    assert wide["size"] == 2
    assert wide["effort"] == pytest.approx(2 * result.steps / np.mean(stored_steps(tmp_path, problem, copies)))
    assert Best.load(tmp_path, problem=problem).groups == results.verdict().groups


def test_recommended_networks_can_be_trained_with_a_rule(tmp_path: Path) -> None:
    results = Study(small_problem(), tmp_path, device="cpu").run(["auto", "auto+pcgrad"], [2], seeds=1, effort=4)
    _, plain, ruled = results.records
    assert ruled.groups == plain.groups
    assert not ruled.diverged
    assert not set(ruled.networks) & set(plain.networks)


def test_an_effort_given_as_a_time_is_converted_to_trainings(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path).run(["auto"], budgets=[2], seeds=1, effort="0.001s")
    assert all(len(record.groups) == 1 for record in results.records)
    assert results.verdict().recommended in {record.label for record in results.records}


def test_validation_rows_that_cannot_be_halved_confirm_nothing(problem: Problem, tmp_path: Path) -> None:
    together = replace(problem.val, groups=torch.zeros(len(problem.val), dtype=torch.int64))
    study = Study(replace(problem, val=together), tmp_path)
    results = study.run(["auto"], budgets=[2], seeds=1, effort=8, options=GROUPS)
    assert {len(record.groups) for record in results.records} == {1}
    assert results.settings["decisions"]["auto"]["chosen"]["2"]["agreement"] == 0


def test_a_task_without_labels_in_one_half_is_compared_on_the_other(problem: Problem, tmp_path: Path) -> None:
    rows = problem.val
    few = torch.where(torch.arange(len(rows)) % 2 == 0, rows.targets["d"], torch.nan)
    halved = replace(rows, targets={**rows.targets, "d": few})
    study = Study(replace(problem, val=halved), tmp_path)
    results = study.run(["auto"], budgets=[2], seeds=2, effort=14, options=GROUPS)
    assert {group.serves for group in results.records_of(("auto", 2))[0].groups} == PAIRS


@pytest.mark.parametrize("methods", [["auto"], ["stl"]])
def test_every_run_measures_who_helps_whom_in_its_first_training(
    problem: Problem, tmp_path: Path, methods: list[str]
) -> None:
    executor = WatchedExecutor()
    study = Study(problem, tmp_path, executor=executor, device="cpu")
    results = study.run(methods, budgets=[2], seeds=3, options=GROUPS if methods == ["auto"] else None)
    first = [job for chunk in executor.requests[0] for job in chunk.jobs]
    assert first == [Job(problem.names, seed) for seed in range(3)]
    assert [chunk.meter is not None for chunk in executor.requests[0]] == [True] + [False] * 2
    assert results.settings["spent"]["networks"] == len(executor.jobs) == len(set(executor.jobs))
    plain, mtl = train(problem, Job(problem.names, 0)), results.records_of(("mtl", None))[0]
    assert {task: score.loss for task, score in mtl.val.items()} == {t: s.loss for t, s in plain.val.items()}
    affinity = Affinity.load(tmp_path / "affinity.json")
    assert affinity.tasks == problem.names
    assert affinity.settings["overhead"] > 0


class RowReader(Split):
    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        return self.inputs[row], {task: self.targets[task][row] for task in tasks}


def streamed_problem() -> Problem:
    problem = small_problem()
    readers = {part: RowReader(rows.inputs, rows.targets) for part, rows in problem.splits.items()}
    return replace(problem, **{part: StreamedRows(rows, rows.tasks, threads=1) for part, rows in readers.items()})


def own_loss_problem() -> Problem:
    problem = small_problem()
    own = Task("a", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())
    return replace(problem, tasks=(own, *problem.tasks[1:]))


@pytest.mark.parametrize(
    ("make_problem", "limit", "reason"),
    [
        (streamed_problem, 10**9, "the rows are read from files"),
        (own_loss_problem, 10**9, "how to average the answers for a"),
        (small_problem, 8 * 24 * 3 * 6 - 1, "the answers on the validation rows"),
        (small_problem, 8 * 24 * 3 * 6, None),
    ],
)
def test_one_network_answers_each_task_if_answers_cannot_be_averaged_and_the_reason_is_shown(
    make_problem: Callable[[], Problem],
    limit: int,
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tagalong.study.methods.auto.MAX_ANSWER_BYTES", limit)
    results = Study(make_problem(), tmp_path, device="cpu").run(["auto"], budgets=[2], seeds=1, effort=6)
    shown = results.settings["decisions"]["auto"].get("one_network_per_task")
    assert (shown is None) if reason is None else (reason in shown)
    if reason is not None:
        (record,) = results.records_of(("auto", 2))
        assert sorted(task for group in record.groups for task in group.serves) == ["a", "b", "c"]
