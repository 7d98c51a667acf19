"""Fake folders of finished runs, written without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tagalong import Affinity, select_groups
from tagalong.group import Group, Taught
from tagalong.study import Cost, ProblemInfo, Record, Results, Score

SETTINGS = {
    "recipe": {"optimizer": "adamw", "lr": 0.01, "epochs": 40, "amp": None},
    "seeds": [0, 1, 2],
    "device": "cpu",
    "command": ["/usr/bin/tagalong", "run", "table.csv", "--targets", "a b,c"],
    "versions": {"tagalong": "0.1.0", "torch": "2.13.0"},
    "machine": "Linux",
}


def make_run(
    folder: Path, tasks: Sequence[str], *, budgets: Sequence[int] = (2, 3), steps: int = 60, gain: float = 0.05
) -> Results:
    """Three seeds of mtl, stl, tag and oracle; two clusters of tasks that help each other."""
    folder.mkdir(parents=True, exist_ok=True)
    affinity = fake_affinity(tasks, steps)
    affinity.save(folder / "affinity.json")
    cosine = Affinity.from_history(affinity.history * 50, tasks, settings={"estimator": "cosine"})
    cosine.save(folder / "affinity-cs.json")
    n = len(tasks)
    quick = {"solver": "search", "resamples": 0, "time_limit": 0.1} if n > 12 else {}
    groupings = {k: select_groups(affinity, k, **quick) for k in budgets}
    found = [{"method": "tag", "budget": k, "grouping": grouping.to_document()} for k, grouping in groupings.items()]
    document = {"format": "tagalong-groupings", "version": 1, "groupings": found}
    (folder / "groupings.json").write_text(json.dumps(document))
    records = [*_records("mtl", None, (Group(tasks, tasks),), 0.0, tasks)]
    records += _records("stl", None, tuple(Group([t], [t]) for t in tasks), 0.02, tasks)
    for k in budgets:
        records += _records("tag", k, groupings[k].groups, -gain * k / 2, tasks)
        records += _records("random", k, (), 0.01, tasks)
        records += _records("oracle", k, groupings[k].groups, -1.5 * gain, tasks, honest=False)
    labels = {part: dict.fromkeys(tasks, rows - 7) for part, rows in (("train", 700), ("val", 100), ("test", 200))}
    info = ProblemInfo(
        "made up",
        tuple(tasks),
        kinds=dict.fromkeys(tasks, "regression"),
        errors=dict.fromkeys(tasks, "mae"),
        rows={"train": 700, "val": 100, "test": 200},
        labels=labels,
        notes=("drawn at random",),
    )
    results = Results(records, problem=info, settings={**SETTINGS, "budgets": [*budgets]}, out=folder)
    results.save(folder)
    return results


def make_taught_run(folder: Path, tasks: Sequence[str]) -> Results:
    """Copies, and committees of taught and other networks by `auto`, for up to three networks."""
    made = make_run(folder, tasks)
    imitating, learning = Taught(("k1", "k2", "k3")), Taught(("k1", "k2", "k3"), mix=0.5, mixtures=1)
    student = Group(tasks, tasks, copy=4, taught=imitating)
    committees = {
        1: (student,),
        2: (student, Group(tasks, tasks, copy=5, taught=imitating)),
        3: (Group(tasks, tasks, copy=6, taught=learning), student, Group(tasks[:2], tasks[:1])),
    }
    records = [record for record in made.records if record.method == "mtl"]
    for k, groups in committees.items():
        copies = tuple(Group(tasks, tasks, copy=number) for number in range(k))
        records += _records("ensemble", k, copies, -0.03 * (k - 1), tasks) if k > 1 else []
        records += _records("auto", k, groups, -0.04 - 0.03 * k, tasks)
    records += _records("mtl-big2", None, copies[:1], -0.01, tasks, parameters=2000)
    results = Results(records, problem=made.problem, settings={**made.settings, "budgets": [1, 2, 3]}, out=folder)
    results.save(folder)
    return results


def fake_affinity(tasks: Sequence[str], steps: int) -> Affinity:
    n, rng = len(tasks), np.random.default_rng(0)
    friends = np.equal.outer(np.arange(n) % 2, np.arange(n) % 2)
    history = np.where(friends, 2e-3, -1e-3) + rng.normal(size=(steps, n, n)) * 3e-3 + 2e-2 * np.eye(n)
    settings = {"estimator": "lookahead", "update": "sgd"}
    return Affinity.from_history(history, tasks, 10 * np.arange(steps), settings=settings)


def _records(
    method: str,
    budget: int | None,
    groups: tuple[Group, ...],
    change: float,
    tasks: Sequence[str],
    honest: bool = True,
    parameters: int | None = None,
) -> list[Record]:
    count = len(groups) or budget or 1
    made = []
    for seed in (0, 1, 2):
        rng = np.random.default_rng(seed)

        def outcomes(rng: np.random.Generator = rng) -> dict[str, Score]:
            drawn = 1 + change + 0.004 * rng.normal(size=len(tasks)) * (method != "mtl")
            return {task: Score(float(x), float(10 * x)) for task, x in zip(tasks, drawn, strict=True)}

        deciding = Cost(1, 150, 30.0) if method == "tag" else Cost()
        training = Cost(count, 100 * count, 20.0 * count)
        made.append(
            Record(
                method,
                budget,
                seed,
                groups,
                outcomes(),
                outcomes(),
                deciding,
                training,
                parameters or 1000 * count,
                4e-5,
                (),
                honest,
            )
        )
    return made
