"""`auto` in a study: it resumes after a stop, reports its search, and rejects invalid efforts."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_small import small_problem

from tagalong.group import Group
from tagalong.learn import Batch, Job, Problem, Recipe, Split, StreamedRows, Task, train, train_many
from tagalong.report import write_report
from tagalong.study import Best, Chunk, NetworkResult, Results, Score, SearchLog, Store, Study
from tagalong.study.executors import Advance, Serial
from tagalong.study.keys import Keys
from tagalong.study.members import member_seed
from tagalong.study.methods import AutoMethod
from tagalong.study.search import mean_half_loss

GROUPS = {"auto": {"average": False}}  # searches for groups in which one network answers each task


@pytest.fixture
def problem() -> Problem:
    return conflicting_pairs()


def conflicting_pairs() -> Problem:
    """Two pairs of tasks that need different directions of an encoder of one unit."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(600, 4))
    targets = inputs[:, [0, 0, 1, 1]] + 0.3 * draw.normal(size=(600, 4))
    tasks = [Task(name, kind="regression") for name in "abcd"]
    recipe = Recipe(optimizer="adam", lr=0.05, batch_size=64, epochs=25)
    return Problem.from_arrays(inputs, targets, tasks, encoder=_one_unit, recipe=recipe)


def _one_unit(width: float = 1.0) -> torch.nn.Module:
    return torch.nn.Linear(4, 1)


def test_auto_finds_the_pairs_and_reports_its_search(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path).run(["auto"], budgets=[2], seeds=2, effort=14, options=GROUPS)
    (groups,) = {record.groups for record in results.records if record.method == "auto"}
    assert {group.serves for group in groups} == {frozenset("ab"), frozenset("cd")}
    log = results.settings["decisions"]["auto"]
    assert log["one_network_per_task"] == "`average` is False"
    assert log["effort"] == 14
    assert log["spent"] <= 14
    assert log["chosen"]["2"]["expected"] == log["steps"][-1]["best"]["2"] < 0
    assert all(step["trained"] for step in log["steps"])
    assert log["overhead"] > 0
    text = " ".join(str(results).split())
    assert f"auto spent {log['spent']:.3g} of 14 trainings" in text
    first = next(step for step in log["steps"] if step["best"]["2"] < -0.0005)
    assert f"expected on validation by effort: {100 * first['best']['2']:.1f}% at {first['spent']:.3g}" in text


@pytest.mark.parametrize("passes", [None, 1])
def test_tasks_that_conflict_are_answered_by_different_networks(
    problem: Problem, tmp_path: Path, passes: int | None
) -> None:
    results = Study(problem, tmp_path).run(
        ["auto"], budgets=[1, 2], seeds=1, effort=20, passes=passes, options={"auto": {"mixtures": False}}
    )
    one, two = (record for record in results.records if record.method == "auto")
    assert [group.serves for group in one.groups] == [frozenset("abcd")]
    assert {group.serves for group in two.groups} == {frozenset("ab"), frozenset("cd")}
    log = results.settings["decisions"]["auto"]
    assert {one["kind"] for step in log["steps"] for one in step["trained"]} == {"copy", "set", "student"}
    assert log["chosen"]["2"]["expected"] == log["steps"][-1]["best"]["2"] < -0.6
    assert log["spent"] == log["steps"][-1]["spent"] <= 21
    mtl = next(record for record in results.records if record.method == "mtl")
    assert sum(score.loss for score in two.test.values()) < 0.4 * sum(score.loss for score in mtl.test.values())
    assert f"auto spent {log['spent']:.3g} of 20 trainings" in " ".join(str(results).split())


def _narrow(width: float = 1.0) -> torch.nn.Module:
    return torch.nn.Linear(4, max(1, round(width)))


def narrow_problem() -> Problem:
    """The same pairs, of which a network of one unit always learns the heavier one."""
    pairs = conflicting_pairs()
    tasks = tuple(replace(task, weight=1.0 if task.name in "ab" else 0.1) for task in pairs.tasks)
    return replace(pairs, tasks=tasks, encoder=_narrow)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A run in which one network of twice the size is best, since a plain one is too narrow."""
    out = tmp_path_factory.mktemp("wider")
    options = {"auto": {"sets": False, "teach": False}}
    results = Study(narrow_problem(), out, device="cpu").run(
        ["auto"], [2], seeds=2, effort=8, passes=1, options=options
    )
    return results, out


def test_a_wider_network_is_recommended_and_reported_as_such(wider: tuple[Results, Path]) -> None:
    results, out = wider
    assert Results.load(out).records == results.records
    records = [record for record in results.records if record.method == "auto"]
    assert [record.groups for record in records] == [(Group("abcd", "abcd", size=2),)] * 2
    mtl = next(record for record in results.records if record.method == "mtl")
    assert 1.5 < records[0].parameters / mtl.parameters < 2.5
    assert all(record.latency is not None for record in records)
    verdict = results.verdict()
    assert verdict.groups == records[0].groups
    assert "A larger network is worth it: the network of auto (budget 2) changes" in str(verdict)
    assert "(2 times the size)" in str(verdict)
    text = " ".join(str(results).split())
    assert "6 networks for all tasks and 1 wider network" in text
    shown = " ".join(re.sub(r"<[^>]*>", " ", write_report(out).read_text(encoding="utf-8")).split())
    assert "Use one wider network for all tasks." in shown
    assert "Network with 2 times the parameters, trained on all 4 tasks." in shown


def test_the_cost_of_deciding_counts_the_steps_of_a_wider_network_twice(wider: tuple[Results, Path]) -> None:
    results, out = wider
    auto = next(record for record in results.records if record.method == "auto")
    keys = Keys(narrow_problem(), "cpu")
    copies = [keys.of(Job(tuple("abcd"), member_seed(0, number))) for number in range(6)]
    with Store(out / "run.sqlite") as store:
        plain = [result.steps for result in store.results(copies).values()]
        (wide,) = store.results(auto.networks).values()
    trained = [one for step in results.settings["decisions"]["auto"]["steps"] for one in step["trained"]]
    assert [(one["kind"], one.get("size")) for one in trained] == [("copy", None)] * 6 + [("wide", 2)]
    assert trained[-1]["effort"] == pytest.approx(2 * wide.steps / np.mean(plain))
    assert auto.deciding.steps == round((sum(plain) + 2 * wide.steps) / 2), "for two seeds"


def test_recommended_wider_networks_predict_and_are_loaded_again(wider: tuple[Results, Path]) -> None:
    results, out = wider
    problem = narrow_problem()
    best = Best.load(out, trust=True)
    assert best.groups == (Group("abcd", "abcd", size=2),)
    rows = problem.test.inputs.numpy()
    mean, deviation = problem.scales["c"]
    loss = np.mean(((best.predict(rows)["c"] - mean) / deviation - problem.test.targets["c"].numpy()) ** 2)
    (mtl,) = (record for record in results.records if (record.method, record.seed) == ("mtl", 0))
    assert loss < 0.3 * mtl.test["c"].loss


def test_the_lesson_of_a_training_is_its_change_relative_to_one_network() -> None:
    def one(tasks: str, **val: float) -> dict:
        return {"tasks": list(tasks), "seed": 0, "fraction": 1.0, "effort": 1.0, "val": val}

    steps = [
        {"spent": 1.1, "best": {"2": 0.0}, "trained": [one("ab", a=1.0, b=4.0)]},
        {"spent": 3.1, "best": {"2": -0.1}, "trained": [one("a", a=0.5), one("b", b=8.0)]},
    ]
    log = {"measuring": 0.1, "steps": steps, "chosen": {"2": {}}}
    assert [lesson.change for lesson in SearchLog(log).trainings] == [None, pytest.approx(-0.5), pytest.approx(1.0)]
    assert [lesson.spent for lesson in SearchLog(log).trainings] == pytest.approx([1.1, 2.1, 3.1])
    assert SearchLog(log).curve == {2: [(1.1, 0.0), (3.1, -0.1)]}


def test_the_text_shows_the_curve_where_it_changes() -> None:
    def log(*best: float) -> dict:
        steps = [{"spent": 10.0 * place, "best": {"2": value}, "trained": []} for place, value in enumerate(best, 1)]
        chosen = {"2": {"expected": best[-1], "doubt": 0.002}}
        return {"steps": steps, "chosen": chosen, "effort": 60, "spent": 30}

    assert (
        SearchLog(log(0.0, 0.0)).to_text().splitlines()[-1]
        == "  budget 2: all together; nothing better was expected at any effort"
    )
    found = SearchLog(log(0.0, -0.01, -0.01, -0.02)).to_text().splitlines()[-1]
    assert found == "  budget 2: -2.0% ± 0.2; expected on validation by effort: -1.0% at 20, -2.0% at 40"


def test_auto_trains_nothing_again(problem: Problem, tmp_path: Path) -> None:
    first = Study(problem, tmp_path).run(["auto"], budgets=[2], seeds=2, effort=8)
    progress = _CountingProgress()
    again = Study(problem, tmp_path, progress=progress).run(["auto"], budgets=[2], seeds=2, effort=8)
    assert progress.trained == 0
    assert again.settings["decisions"] == first.settings["decisions"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return _run_small(tmp_path_factory.mktemp("whole"))


def _run_small(out: Path, **study: Any) -> Results:
    return Study(small_problem(), out, device="cpu", **study).run(["auto"], budgets=[1, 4], seeds=2, effort=6)


def _what_was_found(results: Results) -> object:
    decisions = {**results.settings["decisions"]["auto"], "overhead": None}
    return decisions, [(record.label, record.groups, record.val, record.test) for record in results.records]


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_stopped_study_continues_with_the_same_results(uninterrupted: Results, tmp_path: Path, requests: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run_small(tmp_path, executor=_StoppingExecutor(requests))
    assert _what_was_found(_run_small(tmp_path)) == _what_was_found(uninterrupted)


def test_other_seeds_have_the_same_teachers_and_networks_of_their_own(uninterrupted: Results) -> None:
    first, second = (record for record in uninterrupted.records if record.label == ("auto", 4))
    assert first.groups == second.groups
    assert not set(first.networks) & set(second.networks)


def test_recommended_networks_can_be_trained_with_a_rule(tmp_path: Path) -> None:
    results = Study(small_problem(), tmp_path, device="cpu").run(["auto", "auto+pcgrad"], [2], seeds=1, effort=4)
    plain, ruled = (record for record in results.records if record.method != "mtl")
    assert ruled.groups == plain.groups
    assert not ruled.diverged
    assert not set(ruled.networks) & set(plain.networks)


class _StoppingExecutor(Serial):
    """Is interrupted after a number of requests."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        yield from super().map(chunks, advance)


@pytest.mark.parametrize("passes", [0, -1, 1.5, True, "one"])
def test_invalid_passes_are_rejected(problem: Problem, tmp_path: Path, passes: Any) -> None:
    with pytest.raises(ValueError, match=r"`passes` must be a positive integer or None"):
        Study(problem, tmp_path).run(["auto"], budgets=[2], passes=passes)


def test_passes_without_auto_are_rejected(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`passes` applies only to 'auto', which is not among `methods`"):
        Study(problem, tmp_path).check(["best-of"], budgets=[2], effort=8, passes=1)


def test_options_that_are_neither_true_nor_false_are_rejected_together(problem: Problem, tmp_path: Path) -> None:
    names = ("affinity", "average", "sets", "teach", "mixtures", "wide", "tabm")
    wrong: list[Any] = [1, "false", None, 0.0, "yes", [], "no"]
    options = {"auto": dict(zip(names, wrong, strict=True))}
    with pytest.raises(ValueError, match="must be True or False") as error:
        Study(problem, tmp_path).check(["auto"], budgets=[2], options=options)
    for name, value in zip(names, wrong, strict=True):
        assert f"`{name}` must be True or False, found {value!r}" in str(error.value)


class _CountingProgress:
    trained = 0

    def start(self, networks: int, what: str) -> None:
        self.trained += networks

    def advance(self, networks: int) -> None:
        pass

    def done(self) -> None:
        pass


@pytest.mark.parametrize("effort", [0, -3, "soon", "10 years", float("nan"), True, "0min"])
def test_invalid_efforts_are_rejected(problem: Problem, tmp_path: Path, effort: object) -> None:
    with pytest.raises(ValueError, match=r"`effort` must be a number of training runs"):
        Study(problem, tmp_path).run(["auto"], budgets=[2], effort=effort)


def test_an_effort_without_a_method_that_uses_it_is_rejected(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`effort` applies only to 'auto' and 'best-of', neither of which is among"):
        Study(problem, tmp_path).run(["mtl"], effort=8)


def test_an_effort_given_as_a_time_is_converted_to_trainings(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path).run(["auto"], budgets=[2], seeds=1, effort="0.001s")
    assert all(len(record.groups) == 1 for record in results.records)
    assert "auto found no groups that validation confirms" in str(results.verdict())


def test_the_measured_share_of_the_first_training_is_a_tenth_for_nine_tasks() -> None:
    from tagalong.study.methods.auto import measuring_interval

    assert 2 * 9 / 3 / measuring_interval(9) <= 0.1
    assert AutoMethod().order > 0


def test_an_early_look_is_the_start_of_the_whole_training(problem: Problem) -> None:
    whole, early = train(problem, Job(("a", "c"))), train(problem, Job(("a", "c"), epochs=2))
    np.testing.assert_array_equal(early.curve, whole.curve[:2])
    both = list(train_many(problem, [Job(("a",), epochs=2), Job(("b",), epochs=2), Job(("a",))]))
    assert [len(trained.curve) for trained in both][:2] == [2, 2]
    assert len(both[2].curve) > 2


def test_validation_rows_that_cannot_be_halved_confirm_nothing(problem: Problem, tmp_path: Path) -> None:
    rows = problem.val
    together = replace(rows, groups=torch.zeros(len(rows), dtype=torch.int64))
    results = Study(replace(problem, val=together), tmp_path).run(
        ["auto"], budgets=[2], seeds=1, effort=8, options=GROUPS
    )
    assert {len(record.groups) for record in results.records} == {1}
    assert results.settings["decisions"]["auto"]["chosen"]["2"]["agreement"] == 0


def test_a_task_without_labels_in_one_half_is_compared_on_the_other(problem: Problem, tmp_path: Path) -> None:
    rows = problem.val
    few = torch.where(torch.arange(len(rows)) % 2 == 0, rows.targets["d"], torch.nan)
    halved = replace(rows, targets={**rows.targets, "d": few})
    results = Study(replace(problem, val=halved), tmp_path).run(
        ["auto"], budgets=[2], seeds=2, effort=14, options=GROUPS
    )
    (groups,) = {record.groups for record in results.records if record.method == "auto"}
    assert {group.serves for group in groups} == {frozenset("ab"), frozenset("cd")}


def test_a_task_with_zero_loss_can_be_compared() -> None:
    job = Job(("a", "b"), 0)
    outcomes = {"a": Score(0.0, 0.0), "b": Score(2.0, 2.0)}
    row = NetworkResult(job, outcomes, outcomes, 8, 1.0, 1, 0, {"a": (0.0, 0.0), "b": (1.0, 3.0)})

    assert mean_half_loss(row, "a") > 0
    assert mean_half_loss(row, "b") == 2


def test_affinities_are_measured_in_the_first_training_which_is_not_repeated(problem: Problem, tmp_path: Path) -> None:
    executor = _RecordingExecutor()
    results = Study(problem, tmp_path, executor=executor).run(["auto"], budgets=[2], seeds=2, effort=6, options=GROUPS)
    everything = [chunk for chunk in executor.trained if problem.names in [job.tasks for job in chunk.jobs]]
    assert [(chunk.jobs[0].seed, chunk.meter is not None) for chunk in everything] == [(0, True), (1, False)]
    networks = sum(len(chunk.jobs) for chunk in executor.trained)
    assert results.settings["spent"]["networks"] == networks
    plain = train(problem, Job(problem.names, 0))
    (mtl,) = (record for record in results.records if (record.method, record.seed) == ("mtl", 0))
    assert {task: outcome.loss for task, outcome in mtl.val.items()} == {
        task: score.loss for task, score in plain.val.items()
    }


def test_networks_of_all_tasks_are_trained_in_one_request_with_the_metered_one(
    problem: Problem, tmp_path: Path
) -> None:
    recording = _RecordingExecutor()
    study = Study(problem, tmp_path, executor=recording, device="cpu")
    study.run(["auto"], budgets=[2], seeds=3, effort=12, options=GROUPS)
    first, second, *_ = recording.requests
    assert {(job.tasks, job.seed) for job in first} == {(("a", "b", "c", "d"), seed) for seed in range(3)}
    assert len(second) == 3, "12 trainings in four rounds, since networks this small are free on any device"


def test_networks_that_cannot_be_trained_together_are_proposed_in_more_rounds(problem: Problem, tmp_path: Path) -> None:
    recording = _RecordingExecutor()
    one_by_one = replace(problem, recipe=replace(problem.recipe, schedule="windows", epochs=1))
    study = Study(one_by_one, tmp_path, executor=recording, device="cpu")
    study.run(["auto"], budgets=[2], seeds=2, effort=12, options=GROUPS)
    assert [len(request) for request in recording.requests[1:4]] == [2, 2, 2]


def test_the_cost_of_deciding_counts_every_training_and_the_measuring(problem: Problem, tmp_path: Path) -> None:
    results = Study(problem, tmp_path).run(["auto"], budgets=[2], seeds=1, effort=6, options={"auto": {"teach": False}})
    log = results.settings["decisions"]["auto"]
    mtl, auto = results.records
    trained = [one for step in log["steps"] for one in step["trained"]]
    assert auto.deciding.networks == len(trained)
    assert log["spent"] == pytest.approx(len(trained) + log["measuring"])
    with Store(tmp_path / "run.sqlite") as store:
        keys = Keys(problem, "cpu")
        jobs = [Job(tuple(one["tasks"]), one["seed"]) for one in trained]
        steps = sum(row.steps for row in store.results([keys.of(job) for job in jobs]).values())
    assert auto.deciding.steps == steps + round(log["measuring"] * mtl.training.steps)


def test_test_rows_do_not_influence_the_decision(problem: Problem, tmp_path: Path) -> None:
    rows = problem.test
    other = replace(rows, targets={task: 100 - labels for task, labels in rows.targets.items()})
    log = []
    for name, one in (("as they are", problem), ("others", replace(problem, test=other))):
        results = Study(one, tmp_path / name).run(["auto"], budgets=[2], seeds=2, effort=8)
        log.append({**results.settings["decisions"]["auto"], "overhead": None})
    assert log[0] == log[1]


class _RecordingExecutor(Serial):
    def __init__(self) -> None:
        self.trained: list[Chunk] = []
        self.requests: list[list[Job]] = []

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        self.trained += chunks
        self.requests.append([job for chunk in chunks for job in chunk.jobs])
        yield from super().map(chunks, advance)


class RowReader:
    """Reads the rows of a split one by one."""

    def __init__(self, rows: Split) -> None:
        self.rows, self.tasks = rows, rows.tasks

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        return self.rows.inputs[row], {task: self.rows.targets[task][row] for task in tasks}

    def contents(self) -> Iterator[bytes]:
        return self.rows.contents()


def streamed_problem() -> Problem:
    problem = small_problem()
    splits = {part: StreamedRows(RowReader(rows), rows.tasks, threads=1) for part, rows in problem.splits.items()}  # type: ignore[arg-type]
    return replace(problem, **splits)


def own_loss_problem() -> Problem:
    problem = small_problem()
    own = Task("a", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())
    return replace(problem, tasks=(own, *problem.tasks[1:]))


@pytest.mark.parametrize(
    ("make_problem", "limit", "reason"),
    [
        (streamed_problem, None, "the rows are read from files"),
        (own_loss_problem, None, "it is not known how to average the answers for a; set `Task(average=…)`"),
        (small_problem, 8 * 24 * 3 * 6 - 1, "the answers on the validation rows would take more than 0 MB"),
    ],
)
def test_one_network_answers_each_task_if_answers_cannot_be_averaged_and_the_reason_is_shown(
    make_problem: Callable[[], Problem], limit: int | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        monkeypatch.setattr("tagalong.study.methods.auto.MAX_ANSWER_BYTES", limit)
    results = Study(make_problem(), tmp_path, device="cpu").run(["auto"], budgets=[2], seeds=1, effort=6)
    found = results.settings["decisions"]["auto"]
    assert found["one_network_per_task"] == reason
    assert f"Each task is answered by one network: {reason}." in SearchLog(found).to_text(10_000)
    for record in results.records_of(("auto", 2)):
        assert sorted(task for group in record.groups for task in group.serves) == ["a", "b", "c"]


def test_answers_that_just_fit_into_memory_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.study.methods.auto.MAX_ANSWER_BYTES", 8 * 24 * 3 * 6)
    results = Study(small_problem(), tmp_path, device="cpu").run(["auto"], budgets=[2], seeds=1, effort=6)
    assert "one_network_per_task" not in results.settings["decisions"]["auto"]
