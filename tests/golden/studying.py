"""What the goldens of studies ask of the package: when names or shapes change, this file follows, and no golden does.

Results are described by JSON documents of numbers and names.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tagalong import MLP, Affinity, ExternalStudy, Group, Problem, Recipe, Results, Study, Task, Verdict
from tagalong.integrations.sklearn import GroupedMultiTaskClassifier, GroupedMultiTaskRegressor
from tagalong.study import Best, make_executor, read_run
from tagalong.study.external_files import read_targets

Document = dict[str, Any]
Columns = Mapping[str, Any]
Predictions = Mapping[str, np.ndarray]
Network = tuple[tuple[str, ...], int]  # the tasks and seed of a network that is trained elsewhere


class WatchedExecutor:
    """Trains networks one batch after another, notes those that the study has stored, and can break off in between.

    Args:
        limit: how many networks are handed over before `break_off` is called, or None. Networks that were trained with
            the one that exceeds the limit are lost.
        break_off: what ends the study, e.g. by raising an error.

    Attributes:
        stored: a description of every network that was handed over.
    """

    def __init__(self, limit: int | None = None, break_off: Callable[[], None] | None = None) -> None:
        self.stored: list[str] = []
        self._serial, self._limit, self._break_off = make_executor("serial"), limit, break_off

    def start(self, problem: Problem, device: str) -> None:
        self._serial.start(problem, device)

    def map(self, chunks: Any, advance: Any) -> Any:
        for chunk, networks in self._serial.map(chunks, advance):
            if self._break_off is not None and len(self.stored) + len(networks) > self._limit:
                self._break_off()
            yield chunk, networks
            meter = "" if chunk.meter is None else f", measuring {chunk.meter['estimator']}"
            self.stored += [f"{_job_kind(job)}{meter}: {'+'.join(job.tasks)}, seed {job.seed}" for job in chunk.jobs]

    def stop(self) -> None:
        self._serial.stop()

    def count(self) -> dict[str, int]:
        """Returns the number of stored networks of each kind."""
        kinds = [network.partition(": ")[0] for network in self.stored]
        return {kind: kinds.count(kind) for kind in kinds}


def _job_kind(job: Any) -> str:
    if job.taught is not None:
        return "taught"
    if job.network is not None:
        return job.network
    return job.rule if job.width == 1 else f"{job.rule}, {job.width:.4f} times as wide"


def arrays_problem(inputs: np.ndarray, targets: Columns, kinds: Mapping[str, str], split: Sequence[Any]) -> Problem:
    """Returns a problem whose small networks are trained in double precision."""
    return Problem.from_arrays(
        torch.tensor(inputs, dtype=torch.float64),
        targets,
        [Task(name, kind=kind) for name, kind in kinds.items()],
        encoder=MLP(inputs.shape[1], hidden=(6,)),
        recipe=Recipe(optimizer="adam", lr=0.03, batch_size=32, epochs=12, patience=3),
        split=split,
    )


def table_problem(
    columns: Columns, kinds: Mapping[str, str], categorical: Sequence[str], inputs: int, split: Sequence[Any]
) -> Problem:
    """Returns a problem whose networks take raw rows. `inputs` is how many numbers a row becomes."""
    return Problem.from_table(
        columns,
        targets=list(kinds),
        kinds=kinds,
        categorical=categorical,
        encoder=MLP(inputs, hidden=(8,)),
        recipe=Recipe(optimizer="adam", lr=0.03, batch_size=32, epochs=10, patience=None, keep="last"),
        split=split,
    )


def run_study(
    problem: Problem,
    out: Path,
    methods: Sequence[str],
    budgets: Sequence[int],
    executor: WatchedExecutor,
    effort: int | None = None,
) -> Results:
    """Runs a study with two seeds on the CPU, or continues the one in this folder."""
    return Study(problem, out, executor=executor, device="cpu").run(methods, budgets, seeds=2, effort=effort)


def networks_of(problem: Problem, out: Path, method: str, budget: int | None = None) -> Best:
    """Returns the networks of a method in the folder of a finished study."""
    return Study(problem, out, device="cpu").best(method, budget)


def load_networks(out: Path) -> Best:
    """Loads the recommended networks from the folder of a finished study."""
    return Best.load(out)


def describe_records(results: Results) -> dict[str, Document]:
    """Returns, for each method, its records by budget and seed."""
    documents: dict[str, Document] = {}
    for record in results.records:
        budget = "" if record.budget is None else f"budget {record.budget}, "
        documents.setdefault(record.method, {})[f"{budget}seed {record.seed}"] = {
            "networks": describe_groups(record.groups),
            "trainings": [record.deciding.networks, record.training.networks],
            "val": {task: score.loss for task, score in record.val.items()},
            "test": {task: score.loss for task, score in record.test.items()},
        }
    return documents


def describe_affinities(out: Path) -> dict[str, Document]:
    """Returns the affinities that a finished study measured, by estimator."""
    return {
        estimator: {"mean": affinity.mean.tolist(), "steps": len(affinity.steps)}
        for estimator, affinity in read_run(out).affinities.items()
    }


def describe_errors(results: Results, method: str) -> dict[str, Document]:
    """Returns the test errors of a method's records, by budget and seed."""
    return {
        f"budget {record.budget}, seed {record.seed}": {task: score.error for task, score in record.test.items()}
        for record in results.records
        if record.method == method
    }


def describe_groups(groups: Sequence[Group]) -> list[str]:
    """Returns a line for each network: the tasks it trains and serves, and what tells it from a plain one."""
    return [_group_text(group) for group in groups]


def _group_text(group: Group) -> str:
    text = f"{'+'.join(sorted(group.trains))} -> {'+'.join(sorted(group.serves))}"
    if group.copy:
        text += f", copy {group.copy}"
    if group.size > 1:
        text += f", size {group.size}"
    if group.taught is not None:
        text += f", {len(group.taught.teachers)} teachers, mix {group.taught.mix}, mixtures {group.taught.mixtures}"
    return text


def describe_verdict(verdict: Verdict) -> Document:
    """Returns what a verdict recommends, and its main numbers."""
    return {
        "recommended": list(verdict.recommended),
        "reference": list(verdict.reference),
        "networks": describe_groups(verdict.groups),
        "worth it": verdict.worth_it,
        "skill": verdict.skill,
        "gain": _interval(verdict.gain),
        "gain of the recipe": _interval(verdict.recipe),
        "gain over copies": _interval(verdict.over_copies),
        "operations": verdict.chosen.cost.operations,
        "tasks": {
            answer.task: [_interval(answer.before), _interval(answer.after), _interval(answer.change)]
            for answer in verdict.per_task
        },
        "by budget": {
            str(models): {
                "method": list(best.label),
                "networks": describe_groups(best.groups),
                "validation": best.validation,
                "skill": best.skill,
                "gain": _interval(best.gain),
            }
            for models, best in verdict.by_budget.items()
        },
    }


def _interval(interval: Any) -> list[float | None] | None:
    return None if interval is None else [interval.estimate, interval.low, interval.high]


def describe_predictions(predictions: Predictions) -> dict[str, Any]:
    return {task: values.tolist() for task, values in predictions.items()}


def open_external(
    tasks: Mapping[str, str],
    out: Path,
    methods: Sequence[str],
    targets: Mapping[str, Columns] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> ExternalStudy:
    """Returns the study in this folder of networks trained elsewhere, with budgets 2 and 3 and two seeds."""
    study = ExternalStudy([Task(name, kind=kind) for name, kind in tasks.items()], out, targets=targets)
    study.plan(methods=methods, budgets=[2, 3], seeds=2, options=options)
    return study


def describe_networks(networks: Sequence[Network]) -> list[str]:
    return [f"{'+'.join(tasks)}, seed {seed}" for tasks, seed in networks]


def write_plan(
    matrix: Any, tasks: Sequence[str], methods: Sequence[str], path: Path, targets_file: Path | None = None
) -> list[Network]:
    """Plans the networks for budgets 2 and 3 and two seeds from affinities, and writes them as a table to fill in."""
    known_tasks, labels = (tasks, None) if targets_file is None else read_targets(targets_file, tasks)
    study = ExternalStudy(known_tasks, path.parent, targets=labels)
    planned = study.plan(Affinity.from_matrix(matrix, tasks), budgets=[2, 3], methods=methods, seeds=2)
    assert study.write_table() == path
    return list(planned.networks)


def fill_in(path: Path, columns: Callable[[tuple[str, ...], int, str], Mapping[str, Any]]) -> None:
    """Fills in a table of networks with what a function returns for each network, seed and task."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line |= columns(tuple(line["network"].split("+")), int(line["seed"]), line["task"])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def read_verdict(path: Path) -> Results:
    """Returns the results of a table of networks that was filled in."""
    study = ExternalStudy.load(path.parent)
    study.tell_file(path)
    return study.results()


ESTIMATOR_SETTINGS: dict[str, Any] = {
    "methods": ["mtl", "stl"],
    "budgets": [2],
    "seeds": 2,
    "choose": "stl",
    "hidden_sizes": (6,),
    "epochs": 10,
    "patience": 3,
    "random_state": 2,
    "device": "cpu",
}


def fitted_regressor(inputs: np.ndarray, targets: np.ndarray) -> GroupedMultiTaskRegressor:
    return GroupedMultiTaskRegressor(**ESTIMATOR_SETTINGS).fit(inputs, targets)


def fitted_classifier(inputs: np.ndarray, targets: np.ndarray) -> GroupedMultiTaskClassifier:
    return GroupedMultiTaskClassifier(**ESTIMATOR_SETTINGS).fit(inputs, targets)
