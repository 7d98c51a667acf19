"""Methods make the same decisions whether networks are trained by the study or elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_small import small_problem

from tagalong.affinity import Affinity
from tagalong.learn import MLP, Problem, Recipe, Task
from tagalong.study import (
    Cost,
    ExternalStudy,
    NetworkResult,
    ProblemInfo,
    Record,
    Results,
    Store,
    Study,
    TrainingBackend,
    make_executor,
)
from tagalong.study.learning import Learning

METHODS = ["mtl", "stl", "tag", "cs", "hoa", "optimal", "oracle", "random"]
TASKS = ("a", "b", "c", "d")


class Trainer:
    """Stands in for the user's script: reports the results of networks that a study has trained."""

    def __init__(self, backend: TrainingBackend) -> None:
        self.backend, self.trained = backend, 0

    def answer(self, study: ExternalStudy) -> Results:
        while (network := study.ask()) is not None:
            tasks, seed = network
            job = self.backend.job(tasks, seed)
            result = self.backend.networks([job])[job]
            study.tell(tasks, seed, **self._report(result))
            self.trained += 1
        return study.results()

    def _report(self, result: NetworkResult) -> dict[str, Any]:
        self.backend.restore([result.key])
        parts = {part: {t: (s.loss, s.error) for t, s in getattr(result, part).items()} for part in ("val", "test")}
        rows, val_rows = (self.backend.store.losses(result.key, part) for part in ("test", "val"))
        costs = {name: getattr(result, name) for name in ("steps", "seconds", "parameters")}
        return {**parts, "rows": rows, "val_rows": val_rows, **costs}


def compare(
    problem: Problem, out: Path, affinities: list[str] | dict[str, str], **request: Any
) -> tuple[Results, Results, int]:
    """Returns the results of a study, those of the same study trained elsewhere, and how many networks that took."""
    mine = Study(problem, out / "study").run(**request)
    if isinstance(affinities, dict):
        given: Any = {method: Affinity.load(out / "study" / name) for method, name in affinities.items()}
    else:
        given = [Affinity.load(out / "study" / name) for name in affinities]
    study = ExternalStudy(problem.names, out / "external")
    study.plan(given or None, **request)
    with (
        Store(out / "study" / "run.sqlite") as store,
        TrainingBackend(problem, store, executor=make_executor("serial")) as backend,
    ):
        trainer = Trainer(backend)
        theirs = trainer.answer(study)
        again = ExternalStudy(problem.names, out / "external")
        assert again.ask() is None
        assert again.results().records == theirs.records
    return mine, theirs, trainer.trained


def comparable(results: Results) -> Results:
    """Drops what an external study cannot know: times of measuring and of a forward pass, and stored networks."""
    records = [
        replace(record, latency=None, networks=(), deciding=_without_times(record)) for record in results.records
    ]
    return Results(records, problem=ProblemInfo.from_tasks(results.problem.tasks), noise=results.noise)


def _without_times(record: Record) -> Cost:
    return replace(record.deciding, seconds=0.0) if record.method in ("tag", "cs", "auto") else record.deciding


@pytest.mark.slow
def test_every_method_decides_the_same_if_networks_are_trained_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Learning, "unlearnt", ())  # elsewhere, all tasks count
    mine, theirs, trained = compare(
        small_problem(TASKS), tmp_path, ["affinity.json", "affinity-cs.json"], methods=METHODS, budgets=[2, 3], seeds=2
    )
    assert comparable(mine).records == comparable(theirs).records
    assert mine.noise == theirs.noise
    assert comparable(mine).verdict() == comparable(theirs).verdict()
    assert {record.method for record in theirs.records} == set(METHODS)
    assert trained == 2 * (2 ** len(TASKS) - 1)


@pytest.mark.parametrize("effort", [9, 14])
def test_auto_decides_the_same_if_networks_are_trained_elsewhere(tmp_path: Path, effort: int) -> None:
    mine, theirs, trained = compare(
        _pairs(),
        tmp_path,
        ["affinity.json"],
        methods=["auto"],
        budgets=[2],
        seeds=2,
        effort=effort,
        options={"auto": {"average": False}},
    )
    assert comparable(mine).records == comparable(theirs).records
    assert mine.settings["decisions"] == theirs.settings["decisions"]
    assert trained <= effort + 2


@pytest.mark.slow
def test_auto_and_cs_each_use_their_own_affinity_elsewhere(tmp_path: Path) -> None:
    files = {"auto": "affinity-auto.json", "cs": "affinity-cs.json", "tag": "affinity.json"}
    request: dict[str, Any] = {"methods": ["tag", "cs", "auto"], "budgets": [2], "seeds": 2, "effort": 14}
    request["options"] = {"auto": {"average": False}}
    mine, theirs, _ = compare(_pairs(), tmp_path, files, **request)
    assert comparable(mine).records == comparable(theirs).records
    assert mine.settings["decisions"] == theirs.settings["decisions"]


def test_auto_needs_no_affinity_elsewhere(tmp_path: Path) -> None:
    options = {"auto": {"affinity": False, "average": False}}
    request: dict[str, Any] = {"methods": ["auto"], "budgets": [2], "seeds": 2, "effort": 9}
    mine, theirs, _ = compare(_pairs(), tmp_path, [], options=options, **request)
    assert mine.settings["decisions"] == theirs.settings["decisions"]


def _pairs() -> Problem:
    """Returns two pairs of tasks that need different directions of an encoder of one unit.

    Weights of the last epoch are kept, since it is not known of networks trained elsewhere how much choosing an epoch
    flatters them.
    """
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(600, 4))
    targets = inputs[:, [0, 0, 1, 1]] + 0.3 * draw.normal(size=(600, 4))
    tasks = [Task(name, kind="regression") for name in TASKS]
    recipe = Recipe(optimizer="adam", lr=0.05, batch_size=64, epochs=8, patience=None, keep="last")
    return Problem.from_arrays(inputs, targets, tasks, encoder=MLP(4, hidden=(1,)), recipe=recipe)
