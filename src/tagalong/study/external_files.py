"""The files of a study of networks trained elsewhere.

The plan and all results are stored in `told.json`. Targets, predictions, per-row losses and affinities are stored in
the `told` folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.entries import Entry
from tagalong.files import (
    pack_arrays,
    read_document,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.learn import Job
from tagalong.score import Score

from .external_backend import ExternalResult
from .external_results import check_told_predictions, diverged_result, job_hash
from .external_targets import ExternalTargets, Parts, flatten_parts, read_flat_parts, read_targets
from .methods import make_method
from .network_result import NetworkResult
from .planning import PlanRequest, TrainingPlan
from .study_request import StudyRequest

FORMAT, VERSION, FILE, FOLDER, LOCK = "tagalong-told", 1, "told.json", "told", ".told.lock"
REPLAN_HINT = "plan the study again in another folder"
T = TypeVar("T")


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


def write_run(out: Path, request: PlanRequest, plan: Mapping[str, Any], results: Iterable[NetworkResult]) -> None:
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
    write_document(out / FILE, FORMAT, VERSION, document)


def read_plan(out: Path) -> PlanRequest:
    """Reads the comparison request."""
    return _read_document(out, lambda entry: _read_request(entry["plan"], out))


def read_results(out: Path, request: PlanRequest, known: Mapping[Job, NetworkResult]) -> dict[Job, NetworkResult]:
    """Reads the results; those that are already known are not read again."""
    return _read_document(
        out, lambda entry: dict(_read_result(out, one, request, known) for one in entry["told"].entries())
    )


def _read_document(out: Path, parse: Callable[[Entry], T]) -> T:
    return read_document(out / FILE, FORMAT, VERSION, lambda document: parse(Entry(document)), hint=REPLAN_HINT)


def _read_request(plan: Entry, out: Path) -> PlanRequest:
    tasks = plan["tasks"].names()
    if not tasks:
        raise plan["tasks"].error("must not be empty")
    affinities = {}
    for method, file in plan["affinities"].mapping().items():
        affinities[method] = Affinity.load(_told_file(out, file))
        if not set(affinities[method].tasks) >= set(tasks):
            raise file.error("must be an affinity between the tasks of the plan")
    options = {name: dict(given.value) for name, given in plan["options"].mapping().items()}
    methods = tuple(make_method(name, options) for name in plan["methods"].names())
    budgets = tuple(budget.integer(1) for budget in plan["budgets"].entries())
    seeds = tuple(seed.integer(0) for seed in plan["seeds"].some())
    if len(set(seeds)) < len(seeds):
        raise plan["seeds"].error("must be distinct")
    targets = plan.get("targets").optional(lambda entry: _read_saved_targets(out, entry, tasks))
    return PlanRequest(tasks, StudyRequest(methods, budgets, seeds), affinities, options, targets)


def _read_saved_targets(out: Path, entry: Entry, tasks: Sequence[str]) -> ExternalTargets:
    path = out / _archive_name("targets", entry["checksum"].text())
    with report_damage(path, hint=REPLAN_HINT):
        targets = read_targets(entry, unpack_arrays(path.read_bytes()))
    if [task.name for task in targets.tasks] != list(tasks):
        raise entry["tasks"].error(f"must be the tasks {', '.join(tasks)}")
    return targets


def plan_document(plan: TrainingPlan, request: PlanRequest) -> dict[str, Any]:
    """Converts an initial plan to a JSON document."""
    document: dict[str, Any] = {name: list(getattr(plan, name)) for name in ("tasks", "methods", "budgets", "seeds")}
    document["groupings"] = [
        {"method": method, "budget": budget, "groups": [group.to_document(cost=False) for group in groups]}
        for (method, budget), groups in plan.groupings.items()
    ]
    document["options"] = {name: dict(given) for name, given in request.options.items()}
    return document if request.targets is None else document | {"targets": request.targets.document}


def _result_document(out: Path, result: NetworkResult) -> dict[str, Any]:
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
    out: Path, entry: Entry, request: PlanRequest, known: Mapping[Job, NetworkResult]
) -> tuple[Job, NetworkResult]:
    names = entry["tasks"].names(request.tasks)
    job = Job(tuple(task for task in request.tasks if task in names), entry["seed"].integer(0))
    if job in known:
        return job, known[job]
    costs = entry["steps"].integer(0), entry["seconds"].number(0), entry["parameters"].integer(0)
    diverged = entry.get("diverged").value is True
    if request.targets is not None:
        told = {} if diverged else _read_predictions(out, entry["predictions"], job)
        return job, check_told_predictions(job, request.targets, told.get("val"), told.get("test"), *costs)
    if diverged:
        return job, diverged_result(job, *costs)
    rows = entry["rows"].optional(lambda file: _read_rows(out, file, names)) or {}
    val, test = _read_scores(entry["val"], job.tasks), _read_scores(entry["test"], job.tasks)
    halves = {task: _read_pair(pair) for task, pair in entry["halves"].mapping().items()}
    scored = {task: replace(score, rows=rows.get(task)) for task, score in test.items()}
    return job, NetworkResult(job, val, scored, *costs, halves=halves)


def _read_predictions(out: Path, entry: Entry, job: Job) -> Parts:
    path = out / _archive_name(job_hash(job), entry.text())
    with report_damage(path, hint=REPLAN_HINT):
        return read_flat_parts(unpack_arrays(path.read_bytes()), job.tasks)


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


def _told_file(out: Path, file: Entry) -> Path:
    if Path(file.text()).parts[:-1] != (FOLDER,):
        raise file.error(f"must be a file in the folder {FOLDER!r}")
    return out / file.text()


def _read_rows(out: Path, file: Entry, tasks: Sequence[str]) -> dict[str, NDArray[Any]]:
    path = _told_file(out, file)
    with report_damage(path, hint=REPLAN_HINT):
        archive = unpack_arrays(path.read_bytes())
        return {task: archive[f"rows_{number}"] for number, task in enumerate(tasks)}


def _read_scores(entry: Entry, tasks: Sequence[str]) -> dict[str, Score]:
    scores = {}
    for task in tasks:
        _read_pair(entry[task])
        loss, error = entry[task].entries()
        scores[task] = Score(loss.number(), error.number_or_nan())
    return scores


def _read_pair(entry: Entry) -> tuple[float, float]:
    if len(pair := entry.entries()) != 2:
        raise entry.error("must have two numbers")
    return pair[0].number_or_nan(), pair[1].number_or_nan()


def _write_rows(out: Path, result: NetworkResult) -> str | None:
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
