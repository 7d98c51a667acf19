"""Methods make the same decisions whether networks are trained by the study or elsewhere."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_small import conflicting_pairs, small_problem

from tagalong.affinity import Affinity
from tagalong.learn import Problem, Trained
from tagalong.study import (
    Cost,
    ExternalStudy,
    ProblemInfo,
    Record,
    Results,
    Runner,
    Store,
    Study,
)

METHODS = ["mtl", "stl", "tag", "cs", "hoa", "optimal", "oracle", "random"]
TASKS = ("a", "b", "c", "d")


def report(runner: Runner, result: Trained) -> dict[str, Any]:
    """Returns what the script of a user tells of a network, here one that a study has trained."""
    runner.restore([result.key])
    parts = {part: {t: (s.loss, s.error) for t, s in getattr(result, part).items()} for part in ("val", "test")}
    rows, val_rows = (runner.store.losses(result.key, part) for part in ("test", "val"))
    costs = {name: getattr(result, name) for name in ("steps", "seconds", "parameters")}
    return {**parts, "rows": rows, "val_rows": val_rows, **costs}


def compare(problem: Problem, out: Path, affinities: list[str], **request: Any) -> tuple[Results, Results, int]:
    """Returns the results of a study, those of the same study trained elsewhere, and how many networks that took."""
    mine = Study(problem, out / "study").run(**request)
    study = ExternalStudy(problem.names, out / "external")
    study.plan([Affinity.load(out / "study" / name) for name in affinities], **request)  # those that methods use
    with (
        Store(out / "study" / "run.sqlite") as store,
        Runner(problem, store) as runner,
    ):
        trained = 0
        while (network := study.ask()) is not None:
            job = runner.job(*network)
            study.tell(*network, **report(runner, runner.networks([job])[job]))
            trained += 1
        theirs = study.results()
        again = ExternalStudy(problem.names, out / "external")
        assert again.ask() is None
        assert again.results().records == theirs.records
    for name in ("groupings.json", *affinities):
        documents = [json.loads((out / folder / name).read_text()) for folder in ("study", "external")]
        assert documents[0] == documents[1]
    return mine, theirs, trained


def comparable(results: Results) -> Results:
    """Drops what an external study cannot know: times of measuring and of a forward pass, and stored networks."""
    records = [
        replace(record, latency=None, networks=(), deciding=_without_times(record)) for record in results.records
    ]
    return Results(records, problem=ProblemInfo.from_tasks(results.problem.tasks))


def _without_times(record: Record) -> Cost:
    return replace(record.deciding, seconds=0.0) if record.method in ("tag", "cs", "auto") else record.deciding


@pytest.mark.slow
def test_every_method_decides_the_same_if_networks_are_trained_elsewhere(tmp_path: Path) -> None:
    mine, theirs, trained = compare(
        small_problem(TASKS), tmp_path, ["affinity.json", "affinity-cs.json"], methods=METHODS, budgets=[2, 3], seeds=2
    )
    assert comparable(mine).records == comparable(theirs).records
    assert comparable(mine).verdict() == comparable(theirs).verdict()
    assert {record.method for record in theirs.records} == set(METHODS)
    assert trained == 2 * (2 ** len(TASKS) - 1)


def test_auto_decides_the_same_if_networks_are_trained_elsewhere(tmp_path: Path) -> None:
    """Weights of the last epoch are kept: elsewhere, it is not known how much choosing an epoch flatters networks."""
    problem = conflicting_pairs()
    mine, theirs, trained = compare(
        replace(problem, recipe=replace(problem.recipe, epochs=8, patience=None, keep="last")),
        tmp_path,
        [],
        methods=["auto"],
        budgets=[2],
        seeds=2,
        effort=14,
        options={"auto": {"average": False}},
    )
    assert comparable(mine).records == comparable(theirs).records
    assert mine.settings["decisions"] == theirs.settings["decisions"]
    assert trained <= 16
