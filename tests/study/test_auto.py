"""`auto` in a study: what it finds, what it costs, and that it resumes after a stop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from study_small import conflicting_pairs, narrow_encoder, small_problem
from watched_executor import WatchedExecutor

from tagalong.group import Group
from tagalong.learn import Batch, Job, Problem, Split, StreamedRows, Task, train
from tagalong.study import Best, Results, Store, Study
from tagalong.study.keys import Keys
from tagalong.study.members import member_seed
from tagalong.study.methods.auto import measuring_interval

GROUPS = {"auto": {"average": False}}  # searches for groups in which one network answers each task
PAIRS = {frozenset("ab"), frozenset("cd")}


@pytest.fixture
def problem() -> Problem:
    return conflicting_pairs()


def stored_steps(out: Path, problem: Problem, jobs: Sequence[Job]) -> list[int]:
    with Store(out / "run.sqlite") as store:
        return [result.steps for result in store.results(map(Keys(problem, "cpu").of, jobs)).values()]


def test_auto_finds_the_pairs_and_counts_every_training_and_the_measuring(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path, device="cpu").run(["auto"], budgets=[2], seeds=2, effort=14, options=GROUPS)
    auto = results.records_of(("auto", 2))
    assert [{group.serves for group in record.groups} for record in auto] == [PAIRS, PAIRS]
    log = results.settings["decisions"]["auto"]
    assert log["one_network_per_task"] == "`average` is False"
    assert log["chosen"]["2"]["expected"] == log["steps"][-1]["best"]["2"] < 0
    trained = [training for step in log["steps"] for training in step["trained"]]
    assert log["spent"] == pytest.approx(len(trained) + log["measuring"])
    assert log["spent"] <= log["effort"] == 14
    assert auto[0].deciding.networks == pytest.approx(len(trained) / 2, abs=0.5), "for two seeds"
    steps = sum(stored_steps(tmp_path, problem, [Job(tuple(one["tasks"]), one["seed"]) for one in trained]))
    together = np.mean([record.training.steps for record in results.records_of(("mtl", None))])
    assert auto[0].deciding.steps == pytest.approx((steps + log["measuring"] * together) / 2, abs=1)
    assert log["overhead"] > 0


def test_a_wider_network_is_recommended_and_counts_as_many_times_as_it_is_larger(tmp_path: Path) -> None:
    """A plain network of one unit always learns the heavier pair."""
    problem = conflicting_pairs(narrow_encoder, light=0.1)
    options = {"auto": {"sets": False, "teach": False}}
    study = Study(problem, tmp_path, device="cpu")
    results = study.run(["auto"], [2], seeds=2, effort=8, passes=1, options=options)
    assert Results.load(tmp_path).records == results.records
    groups = (Group("abcd", "abcd", size=2),)
    first, second = results.records_of(("auto", 2))
    assert first.groups == second.groups == results.verdict().groups == groups
    mtl = results.records_of(("mtl", None))[0]
    assert 1.5 < first.parameters / mtl.parameters < 2.5
    assert first.latency is not None

    copies = [Job(problem.names, member_seed(0, number)) for number in range(6)]
    plain = stored_steps(tmp_path, problem, copies)
    with Store(tmp_path / "run.sqlite") as store:
        (wide,) = store.results(first.networks).values()
    trained = [one for step in results.settings["decisions"]["auto"]["steps"] for one in step["trained"]]
    assert [(one["kind"], one.get("size")) for one in trained] == [("copy", None)] * 6 + [("wide", 2)]
    assert trained[-1]["effort"] == pytest.approx(2 * wide.steps / np.mean(plain))
    assert first.deciding.steps == round((sum(plain) + 2 * wide.steps) / 2), "for two seeds"

    best, rows = Best.load(tmp_path, problem=problem), problem.test.inputs.numpy()
    assert best.groups == groups
    mean, deviation = problem.scales["c"]
    loss = np.mean(((best.predict(rows)["c"] - mean) / deviation - problem.test.targets["c"].numpy()) ** 2)
    assert loss < 0.3 * mtl.test["c"].loss


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


def test_the_measured_share_of_the_first_training_is_a_tenth_for_nine_tasks() -> None:
    assert 2 * 9 / 3 / measuring_interval(9) <= 0.1


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


def test_affinities_are_measured_in_the_first_training_of_one_request_for_all_seeds(
    problem: Problem, tmp_path: Path
) -> None:
    executor = WatchedExecutor()
    study = Study(problem, tmp_path, executor=executor, device="cpu")
    results = study.run(["auto"], budgets=[2], seeds=3, effort=12, options=GROUPS)
    first, second = ([job for chunk in request for job in chunk.jobs] for request in executor.requests[:2])
    assert first == [Job(problem.names, seed) for seed in range(3)]
    assert [chunk.meter is not None for chunk in executor.requests[0]] == [True] + [False] * 2
    assert len(second) == 3, "12 trainings in four rounds"
    assert results.settings["spent"]["networks"] == len(executor.jobs) == len(set(executor.jobs))
    plain, mtl = train(problem, Job(problem.names, 0)), results.records_of(("mtl", None))[0]
    assert {task: score.loss for task, score in mtl.val.items()} == {t: s.loss for t, s in plain.val.items()}


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
