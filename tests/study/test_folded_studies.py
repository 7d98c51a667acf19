"""Folds: every row is tested once, by the whole procedure on other rows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from watched_executor import WatchedExecutor

from tagalong.errors import InvalidInput
from tagalong.learn import Problem, Recipe, Task, mean_skill
from tagalong.study import Results, Study

METHODS = ["mtl", "stl", "ensemble"]


def small(rows: int = 90, **more: object) -> Problem:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(rows, 4))
    targets = inputs @ draw.normal(size=(4, 2)) + draw.normal(size=(rows, 2))
    targets[::7, 1] = np.nan
    tasks = [Task("a", kind="regression"), Task("b", kind="regression", weight=3.0)]
    # In the order of columns, as data frames give them.
    return Problem.from_arrays(np.asfortranarray(inputs), targets, tasks, recipe=Recipe(epochs=2), **more)


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, Results]:
    problem = small(groups=np.arange(90) // 3)
    return problem, Study(problem, tmp_path_factory.mktemp("run"), device="cpu").run(METHODS, [2], repeats=3)


def test_the_skill_is_that_of_all_rows_tested_by_the_folds(folded: tuple[Problem, Results], tmp_path: Path) -> None:
    problem, results = folded
    verdict = results.verdict()
    skills: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for number, fold in enumerate(problem.folds(3)):
        alone = Study(fold, tmp_path / str(number), device="cpu").run(METHODS, [2], seeds=[number])
        assert [one.test for one in results.records if one.seed == number] == [one.test for one in alone.records]
        (record,) = alone.records_of(("ensemble", 2))
        best = Study(fold, tmp_path / str(number), device="cpu").best("ensemble", 2)
        predictions = best.predict(torch.as_tensor(problem.source.data[fold.row_numbers.test]))
        for task in fold.names:
            mean, deviation = fold.scales[task][:2]
            labels = fold.test.targets[task].double().numpy()
            squares = ((predictions[task] - mean) / deviation - labels) ** 2
            assert np.nanmean(squares) == pytest.approx(record.test[task].loss, rel=1e-5)
            constant = (labels - np.nanmean(fold.train.targets[task].double().numpy())) ** 2
            skills[task].append((constant - squares) / alone.scale.units[task])
    per_task = {task: float(np.nanmean(np.concatenate(rows))) for task, rows in skills.items()}
    way = verdict.way(("ensemble", 2))
    assert way.skill == pytest.approx(mean_skill(per_task, {"a": 1.0, "b": 3.0}), rel=1e-5)
    assert verdict.folds == 3
    assert sum(answer.labels for answer in verdict.per_task) == 90 + 77


def test_you_get_the_first_folds_networks_and_nothing_is_trained_again(folded: tuple[Problem, Results]) -> None:
    problem, results = folded
    assert results.best().seed == 0
    before = (results.out / "run.log").read_text().count("training")
    again = Study(problem, results.out, device="cpu").run(METHODS, [2], repeats=3)
    assert (results.out / "run.log").read_text().count("training") == before
    assert repr(again.verdict()) == repr(results.verdict()) == repr(Results.load(results.out).verdict())
    frame = again.to_frame()
    stl = frame[(frame.method == "stl") & (frame.seed == 1)].set_index("task").test_skill
    assert stl.to_dict() == pytest.approx(again.scale.folds[1].skills(again.records_of(("stl", None))[1]))


def test_fresh_seeds_judge_the_recipe_in_each_fold(tmp_path: Path) -> None:
    results = Study(small(), tmp_path, device="cpu").run(["mtl", "ridge"], repeats=3, confirm=2)
    assert results.verdict().recommended == ("ridge", None)
    fresh = [record for record in results.records if record.seed > 2]
    assert sorted({record.seed for record in fresh}) == [3, 4, 5, 6, 7, 8]
    assert results.verdict().seeds == 2
    skills = {name: [results.scale.mean(one) for one in fresh if one.method == name] for name in ("mtl", "ridge")}
    gain = np.mean(skills["ridge"]) - np.mean(skills["mtl"])
    assert results.verdict().recipe.estimate == pytest.approx(gain, abs=0.02), "folds have slightly different units"


def test_small_tables_have_folds_unless_seeds_or_splits_are_given(tmp_path: Path) -> None:
    def repeats(problem: Problem, **more: object) -> int:
        return Study(problem, tmp_path / str(id(problem))).check(["mtl"], **more).repeats

    assert repeats(small()) == 5
    assert repeats(small(), repeats=4) == 4
    assert repeats(small(), seeds=2) == 1
    assert repeats(small(2100)) == 1
    assert repeats(small(split=(range(60), range(60, 75), range(75, 90)))) == 1
    for wrong in ({"repeats": 2}, {"repeats": 3, "seeds": 2}, {"repeats": "5"}):
        with pytest.raises(InvalidInput, match=r"repeats|folds"):
            repeats(small(), **wrong)


def test_a_study_in_folds_that_is_continued_trains_only_what_is_new(tmp_path: Path) -> None:
    trained = []
    for methods in (["mtl"], ["mtl", "stl"], METHODS):
        executor = WatchedExecutor()
        Study(small(), tmp_path, device="cpu", executor=executor).run(methods, [2], repeats=3)
        trained += executor.jobs
    assert len(trained) == len(set(trained)) == 3 * (1 + 2 + 1)
