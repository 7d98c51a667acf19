"""Networks that others teach, in a study's store: keys, resuming, keeping and restoring."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from study_small import Students, small_problem

from tagalong.errors import InvalidInput
from tagalong.group import Group, Grouping, Taught
from tagalong.learn import Job, Problem, Recipe, Task, Trained, prepare_students, teacher_answers, train
from tagalong.study import Elsewhere, Runner, Score, Study, open_runner
from tagalong.study.decisions import _taught_by
from tagalong.study.keys import Keys
from tagalong.study.members import member_seed

TASKS = ("age", "kind")


@pytest.fixture(scope="module")
def problem() -> Problem:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(90, 3))
    targets = {"age": inputs.sum(1) + draw.normal(size=90), "kind": draw.integers(0, 3, 90).astype(float)}
    targets["age"][:7] = np.nan
    tasks = [Task("age", "regression"), Task("kind", "multiclass", classes=3)]
    more = draw.normal(size=(11, 3))
    return Problem.from_arrays(
        inputs, targets, tasks, recipe=Recipe(epochs=2, batch_size=20), split=(0.5, 0.2, 0.3), unlabelled=more
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def students(problem: Problem) -> tuple[list[Job], list[Job]]:
    """Three teachers, and five networks that they teach in different ways."""
    keys = Keys(problem, "cpu")
    teachers = [Job(TASKS, 1), Job(TASKS, 2), Job(("age",), 3)]
    names = tuple(map(keys.of, teachers))
    plain = Taught(names)
    ways = [plain, Taught(names[:2], (1, 2), 0.5), replace(plain, mixtures=1.5, unlabelled=True)]
    taught = [Job(TASKS, seed, taught=way) for way in ways for seed in (0, 5)]
    first = keys.of(taught[0])
    return teachers, [*taught, Job(("age",), 0, taught=Taught((first, names[2])))]


def test_the_keys_of_plain_networks_do_not_depend_on_teaching(problem: Problem) -> None:
    definition = Keys(problem, "cpu").definition(Job(TASKS))
    assert "taught" not in definition
    assert Keys(replace(problem, unlabelled=None), "cpu").of(Job(TASKS)) == Keys(problem, "cpu").of(Job(TASKS))


def test_the_key_of_a_student_depends_on_everything_that_it_learns_from(problem: Problem) -> None:
    base = Taught(("a", "b"))
    others = [
        Taught(("a", "c")),
        replace(base, weights=(1, 2)),
        replace(base, mix=0.5),
        replace(base, fill=False),
        replace(base, mixtures=1.0),
        replace(base, unlabelled=True),
    ]
    keys = Keys(problem, "cpu")
    found = {keys.of(Job(TASKS, taught=taught)) for taught in (None, base, *others)}
    assert len(found) == 8
    assert problem.unlabelled is not None
    fewer = Keys(replace(problem, unlabelled=problem.unlabelled[:5]), "cpu")
    assert fewer.of(Job(TASKS, taught=base)) in found
    assert fewer.of(Job(TASKS, taught=others[-1])) not in found
    soft = replace(problem, tasks=(replace(problem.tasks[0], average="sigmoid"), problem.tasks[1]))
    assert Keys(soft, "cpu").of(Job(TASKS)) in found
    assert Keys(soft, "cpu").of(Job(TASKS, taught=base)) not in found


def test_students_are_trained_after_their_teachers_and_equal_those_of_a_lesson(problem: Problem, folder: Path) -> None:
    teachers, taught = students(problem)
    with open_runner(problem, folder, device="cpu") as runner:
        results = runner.networks([*taught, *teachers])
        weights = {job: runner.weights(result.key) for job, result in results.items()}
    trained = [train(problem, job) for job in teachers]
    keys = list(map(Keys(problem, "cpu").of, teachers))
    for job in (taught[0], taught[4]):
        assert job.taught is not None
        answers = teacher_answers(problem, job.taught, dict(zip(keys, trained, strict=True)))
        extended, targets = prepare_students(problem, [job], {job.taught.lesson: answers})
        alone = train(extended, job, targets=targets[job])
        assert alone.state is not None
        for name, tensor in alone.state.items():
            torch.testing.assert_close(weights[job][name], tensor, rtol=1e-4, atol=1e-5)
        assert results[job].steps == alone.steps


def test_students_and_their_teachers_are_kept_and_others_are_restored_bit_for_bit(
    problem: Problem, folder: Path
) -> None:
    teachers, taught = students(problem)
    with open_runner(problem, folder, device="cpu", keep="recommended") as runner:
        results = runner.networks([*teachers, *taught])
        before = {job: runner.weights(result.key) for job, result in results.items()}
        runner.store.keep([results[taught[-1]].key])  # taught by a student of the three, and by one of them
    with open_runner(problem, folder, device="cpu") as runner:
        kept = {job for job, result in results.items() if runner.store.weights(result.key) is not None}
        assert kept == {taught[-1], taught[0], *teachers}
        for job in reversed(results):
            again = runner.weights(results[job].key)
            assert all(torch.equal(again[name], tensor) for name, tensor in before[job].items())


def test_groups_say_who_teaches_them_and_are_read_again(problem: Problem, folder: Path) -> None:
    teachers, taught = students(problem)
    group = Group(TASKS, TASKS, taught=taught[2].taught)
    grouping = Grouping((group,), 1.0, 1.0, "optimal", {"age": 0.5, "kind": 0.5}, 1)
    assert Grouping.from_json(grouping.to_json()) == grouping
    assert "taught" not in Group(TASKS, TASKS).to_document()
    with open_runner(problem, folder, device="cpu") as runner:
        assert runner.group_job(group, 5) == taught[3]
        results = runner.networks([*teachers, taught[2]])
        scores = runner.average_scores((Group(TASKS, TASKS), group), [one.key for one in results.values()][::3], "val")
    assert set(scores) == set(TASKS)


def test_unknown_teachers_and_networks_trained_elsewhere_are_refused(problem: Problem, folder: Path) -> None:
    job = Job(TASKS, taught=Taught(("nobody",)))
    with open_runner(problem, folder, device="cpu") as runner, pytest.raises(InvalidInput, match="in the store"):
        runner.networks([job])
    with pytest.raises(InvalidInput, match="trained elsewhere"):
        Runner(problem, executor=Elsewhere()).networks([job])


def test_fresh_seeds_have_teachers_of_their_own(tmp_path: Path) -> None:
    """Each teacher is replaced by the same copy of the fresh seed, with the same weight."""
    recipe = Recipe(lr=0.03, batch_size=32, epochs=10)
    problem, methods = small_problem(("a", "b"), rows=200, recipe=recipe), ["mtl", Students()]
    results = Study(problem, tmp_path, device="cpu").run(methods, seeds=2, confirm=2)
    keys = Keys(problem, "cpu")
    for record, seed in zip(results.records_of(("students", None)), (0, 0, 2, 3), strict=True):
        expected = {keys.of(Job(("a", "b"), member_seed(seed, copy))): 3.0 - copy for copy in Students.copies}
        for group in record.groups:
            assert group.taught is not None
            assert dict(zip(group.taught.teachers, group.taught.weights, strict=True)) == expected
            assert group.taught.mix == 0.5
    assert results.verdict().recipe is not None


def test_a_diverged_teacher_is_left_out() -> None:
    group = Group("ab", "ab", copy=3, taught=Taught(("x", "y"), (1, 2)))
    scores = {"a": Score(1.0, 0.0), "b": Score(1.0, 0.0)}
    new = {key: Trained(Job(("a", "b")), scores, scores, 1, 0.0, 1, key=f"new {key}") for key in "xy"}
    assert _taught_by(group, new).taught == Taught(("new x", "new y"), (1, 2))
    lost = {**new, "y": replace(new["y"], best_epoch=-1)}
    assert _taught_by(group, lost).taught == Taught(("new x",))
    assert _taught_by(group, {"x": new["x"]}) == group, "an unknown teacher cannot be replaced"
