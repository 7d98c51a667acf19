"""The files of a study of networks trained elsewhere.

The plan and all results are stored in `told.json`. Targets, predictions, per-row losses and affinities are stored in
the `told` folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from tagalong.affinity import Affinity
from tagalong.documents import Document
from tagalong.files import (
    pack_arrays,
    report_damage,
    unpack_arrays,
    write_atomic,
)
from tagalong.learn import Job, Task, Trained
from tagalong.score import Score

from .documents import Count, NumberOrNull
from .external_backend import ExternalResult
from .external_results import check_told_predictions, diverged_result, job_hash
from .external_targets import Parts, check_targets, flatten_parts, read_flat_parts
from .methods import make_method
from .planning import PlanRequest, TrainingPlan
from .study_request import StudyRequest

FILE, FOLDER, LOCK = "told.json", "told", ".told.lock"
REPLAN_HINT = "plan the study again in another folder"


class ToldDocument(Document):
    """`told.json`: the plan of a study of networks trained elsewhere, and all results."""

    class TaskEntry(BaseModel):
        name: str
        kind: Literal["binary", "multiclass", "regression"]
        classes: int | None
        error: str | None
        class_weights: list[float] | None

    class Targets(BaseModel):
        tasks: list[ToldDocument.TaskEntry]
        logits: bool
        checksum: str

    class Plan(BaseModel):
        tasks: tuple[str, ...] = Field(min_length=1)
        methods: list[str]
        budgets: tuple[int, ...]
        seeds: tuple[Count, ...]
        options: dict[str, dict[str, Any]]
        affinities: dict[str, str]
        targets: ToldDocument.Targets | None = None

    class Result(BaseModel):
        tasks: list[str]
        seed: Count
        rows: str | None = None
        predictions: str | None = None
        val: dict[str, tuple[NumberOrNull, NumberOrNull]]
        test: dict[str, tuple[NumberOrNull, NumberOrNull]]
        halves: dict[str, tuple[NumberOrNull, NumberOrNull]]
        steps: Count
        seconds: float
        parameters: Count
        diverged: bool = False

    kind = "tagalong-told"
    hint = REPLAN_HINT
    plan: Plan
    told: list[Result]


def has_plan(out: Path) -> bool:
    """Whether this folder contains a plan."""
    return (out / FILE).exists()


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lets only one process at a time change the folder."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / LOCK):
        yield


def file_signature(out: Path) -> tuple[int, ...] | None:
    """Identifies a version of the file with the results, which is replaced when results are added."""
    try:
        found = (out / FILE).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_run(out: Path, request: PlanRequest, plan: Mapping[str, Any], results: Iterable[Trained]) -> None:
    """Writes the per-row losses and affinities, and then the JSON document that refers to them.

    Args:
        out: the folder.
        request: the comparison request.
        plan: the initial plan as a JSON document (see `plan_document`).
        results: the results so far.
    """
    affinities = {}
    for method, affinity in request.affinities.items():
        affinities[method] = f"{FOLDER}/affinity-{method}.json"
        if not (out / affinities[method]).exists():
            (out / FOLDER).mkdir(parents=True, exist_ok=True)
            affinity.save(out / affinities[method])
    if (targets := request.targets) is not None:
        _write_arrays(out, "targets", targets.document["checksum"], targets.labels)
    entries = [_result_document(out, result) for result in results]
    document = {"plan": {**plan, "affinities": affinities}, "told": entries}
    ToldDocument.write(out / FILE, document)


def read_plan(out: Path) -> PlanRequest:
    """Reads the comparison request."""
    plan = ToldDocument.read(out / FILE).plan
    affinities = {method: Affinity.load(out / file) for method, file in plan.affinities.items()}
    methods = tuple(make_method(name, plan.options) for name in plan.methods)
    targets = None
    if plan.targets is not None:
        path = out / _archive_name("targets", plan.targets.checksum)
        with report_damage(path, hint=REPLAN_HINT):
            labels = read_flat_parts(unpack_arrays(path.read_bytes()), plan.tasks)
            tasks = [Task(**task.model_dump()) for task in plan.targets.tasks]
            targets = check_targets(tasks, labels, plan.targets.logits)
    return PlanRequest(plan.tasks, StudyRequest(methods, plan.budgets, plan.seeds), affinities, plan.options, targets)


def read_results(out: Path, request: PlanRequest, known: Mapping[Job, Trained]) -> dict[Job, Trained]:
    """Reads the results; those that are already known are not read again."""
    return dict(_read_result(out, entry, request, known) for entry in ToldDocument.read(out / FILE).told)


def plan_document(plan: TrainingPlan, request: PlanRequest) -> dict[str, Any]:
    """Converts an initial plan to a JSON document."""
    document: dict[str, Any] = {name: list(getattr(plan, name)) for name in ("tasks", "methods", "budgets", "seeds")}
    document["groupings"] = [
        {"method": method, "budget": budget, "groups": [group.to_document(cost=False) for group in groups]}
        for (method, budget), groups in plan.groupings.items()
    ]
    document["options"] = {name: dict(given) for name, given in request.options.items()}
    return document if request.targets is None else document | {"targets": request.targets.document}


def _result_document(out: Path, result: Trained) -> dict[str, Any]:
    predictions = None
    if isinstance(result, ExternalResult) and result.predictions:
        predictions = _write_arrays(out, result.key, result.checksum, result.predictions)
    return {
        "tasks": list(result.job.tasks),
        "seed": result.job.seed,
        **({"rows": _write_rows(out, result)} if predictions is None else {"predictions": predictions}),
        "val": _scores_document(result.val),
        "test": _scores_document(result.test),
        "halves": dict(result.halves),
        "steps": result.steps,
        "seconds": result.seconds,
        "parameters": result.parameters,
        **({"diverged": True} if result.diverged else {}),
    }


def _scores_document(scores: Mapping[str, Score]) -> dict[str, list[float | None]]:
    return {task: [score.loss, score.error] for task, score in scores.items()}


def _read_result(
    out: Path, entry: ToldDocument.Result, request: PlanRequest, known: Mapping[Job, Trained]
) -> tuple[Job, Trained]:
    job = Job(tuple(task for task in request.tasks if task in entry.tasks), entry.seed)
    if job in known:
        return job, known[job]
    costs = entry.steps, entry.seconds, entry.parameters
    if request.targets is not None:
        told: Parts = {}
        if not entry.diverged and entry.predictions is not None:
            path = out / _archive_name(job_hash(job), entry.predictions)
            with report_damage(path, hint=REPLAN_HINT):
                told = read_flat_parts(unpack_arrays(path.read_bytes()), job.tasks)
        return job, check_told_predictions(job, request.targets, told.get("val"), told.get("test"), *costs)
    if entry.diverged:
        return job, diverged_result(job, *costs)
    rows: dict[str, NDArray[Any]] = {}
    if entry.rows is not None:
        with report_damage(out / entry.rows, hint=REPLAN_HINT):
            archive = unpack_arrays((out / entry.rows).read_bytes())
            rows = {task: archive[f"rows_{number}"] for number, task in enumerate(entry.tasks)}
    val = {task: Score(*entry.val[task]) for task in job.tasks}
    test = {task: Score(*entry.test[task], rows=rows.get(task)) for task in job.tasks}
    return job, Trained(job, val, test, *costs, halves=entry.halves)


def _write_arrays(out: Path, name: str, checksum: str, arrays: Parts) -> str:
    """Writes arrays to a file whose name contains their checksum, and returns the checksum.

    A file that was left by a killed process is therefore never taken for another one.
    """
    path = out / _archive_name(name, checksum)
    if not path.exists():
        write_atomic(path, pack_arrays(flatten_parts(arrays), compress=True))
    return checksum


def _archive_name(name: str, checksum: str) -> str:
    return f"{FOLDER}/{name}-{checksum[:16]}.npz"


def _write_rows(out: Path, result: Trained) -> str | None:
    """Writes the per-row test losses and returns the file name.

    Returns None if there are no losses.
    """
    rows = {task: score.rows for task, score in result.test.items() if score.rows is not None}
    if len(rows) < len(result.job.tasks):
        return None
    name = f"{FOLDER}/{job_hash(result.job)}.npz"
    if not (out / name).exists():  # the result of a network never changes
        named_rows = {f"rows_{number}": rows[task] for number, task in enumerate(result.job.tasks)}
        write_atomic(out / name, pack_arrays(named_rows, compress=True))
    return name
