"""A study of networks trained elsewhere.

It determines which networks to train next and computes the verdict. Results are stored in `told.json`. Targets,
predictions, per-row losses and affinities are stored in the `told` folder. An interrupted study can be continued, and
multiple processes can add results to the same folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.entries import Entry
from tagalong.errors import InvalidInput, as_names, first_few, is_integer, is_nonnegative, is_number, raise_problems
from tagalong.files import (
    pack_arrays,
    read_document,
    read_regular_file,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Task
from tagalong.score import Score

from .candidates import comparable_records
from .decisions import decide_all, explain_decisions, train_choices
from .external_backend import ExternalBackend, ExternalResult
from .external_targets import (
    ExternalTargets,
    Parts,
    arrays_checksum,
    check_predictions,
    check_targets,
    flatten_parts,
    read_flat_parts,
    read_targets,
)
from .learning import Learning, constant_p_values
from .methods import Method, make_method
from .planning import Affinities, PlannedGroups, PlanRequest, TrainingPlan, check_plan, make_plan
from .records import Label, ProblemInfo, Record, read_group, read_label
from .results import Results
from .run_folder import check_no_run, write_run_report
from .store import NetworkResult, halve_rows
from .study_request import Options, StudyRequest, default_budgets, with_effort
from .uncertainty import row_noise

FORMAT, VERSION, FILE, FOLDER, LOCK = "tagalong-told", 1, "told.json", "told", ".told.lock"
REPLAN_HINT = "plan the study again in another folder"
MAX_LOSS = 1e150
MOST_NAMED = 5  # networks that a message lists
Losses = Mapping[str, float | Sequence[float]]
Network = tuple[tuple[str, ...], int]
T = TypeVar("T")


class ExternalStudy:
    """Compares ways of grouping tasks using networks trained by your own script.

    Every result is stored immediately, so an interrupted study can be continued. Multiple processes may use the
    same folder; each sees the results of the others.

    Args:
        tasks: the names of all tasks, or `Task` objects, which are required if `targets` are given.
        out: the study's folder. If None, results are kept in memory only.
        targets: the labels of all validation and test rows, `{"val": {task: labels}, "test": {task: labels}}`, with NaN
            for missing labels. With targets, `tell` takes predictions instead of losses, and answers of several
            networks can be averaged.
        logits: whether predictions for binary and multiclass tasks are logits instead of probabilities.

    Example:
        >>> study = ExternalStudy(["age", "ill"])
        >>> _ = study.plan(methods=["stl"], seeds=2)
        >>> while (network := study.ask()) is not None:
        ...     tasks, seed = network
        ...     losses = {task: 1.0 + 0.5 * (len(tasks) == 1) for task in tasks}  # your training
        ...     study.tell(tasks, seed, val=losses, test=losses)
        >>> study.results().verdict().worth_it
        False
    """

    def __init__(
        self,
        tasks: Sequence[str | Task],
        out: str | os.PathLike[str] | None = None,
        *,
        targets: Mapping[str, Mapping[str, Any]] | None = None,
        logits: bool = False,
    ) -> None:
        self.tasks, self.out = _names_of(tasks), None if out is None else Path(out)
        ProblemInfo.from_tasks(self.tasks)  # raises an error for invalid names
        self._targets = None if targets is None else check_targets(tasks, targets, logits)
        if logits and targets is None:
            raise InvalidInput("logits", "can only be used together with `targets`")
        if self.out is not None:
            check_no_run(self.out)
        self._run: ExternalRun | None = None
        self._seen: tuple[int, ...] | None = None  # identifies the version of `told.json` that was read last

    def plan(
        self,
        affinity: Affinities = None,
        *,
        methods: Sequence[str] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
        options: Options | None = None,
        effort: Any = None,
    ) -> TrainingPlan:
        """Specifies what to compare, or continues a study with the same plan.

        Returns all networks currently known to be needed.

        Args:
            affinity: one or more affinities measured in your own training loop. `cs` and `auto` use gradient cosines,
                and `tag` uses any other affinity. To choose which method uses which affinity, pass a mapping with the
                keys "tag", "cs" and "auto".
            methods: any methods that need only plain networks: "stl", "tag", "cs", "hoa", "optimal", "oracle", "random"
                or "auto". If the study has targets, also "ensemble" and "best-of". "mtl" is always included. Defaults
                to `stl` and the methods that use the affinities, or to `stl` and `hoa` if there are no affinities.
            budgets: the limits on the number of networks. Defaults to 2, 3 and 4, up to the number of tasks.
            seeds: the number of seeds, or a list of seeds.
            options: options for each method (see `Study.run`).
            effort: the search effort of `auto`: a number of training runs, "quick" (20), "normal" (60, the default) or
                "thorough" (200).
        """
        wanted = ("stl", "hoa") if methods is None and affinity is None else methods
        sizes = default_budgets(len(self.tasks)) if budgets is None else budgets
        options = with_effort(options, effort)
        averages = self._targets is not None
        request = check_plan(affinity, sizes, wanted, seeds, tasks=self.tasks, options=options, averages=averages)
        run = ExternalRun(replace(request, targets=self._targets))
        if self.out is not None:
            with _locked(self.out):
                if has_plan(self.out):
                    run = self._read_run_with_same_plan(run)
                else:
                    _write_run(self.out, run)
                self._seen = _signature(self.out)
        self._run = run
        return run.plan

    def ask(self) -> Network | None:
        """Returns the tasks and seed of the network to train next, or None if all networks are trained.

        Copies of a network whose answers are averaged have the same tasks, but different seeds (below 2**48).
        """
        return next(iter(self.pending()), None)

    def pending(self) -> list[Network]:
        """Returns all networks that can be trained now, e.g. in parallel."""
        return self._open.pending

    def tell(
        self,
        tasks: Sequence[str],
        seed: int,
        *,
        val: Losses | Mapping[str, Any] | None,
        test: Losses | Mapping[str, Any] | None,
        rows: Mapping[str, Any] | None = None,
        val_rows: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        parameters: int | None = None,
    ) -> None:
        """Adds a network's result. Results can be added in any order.

        If the study has targets, `val` and `test` are predictions for every row, in the order of the targets: values
        for regression, the probability of label 1 for binary tasks, and the probability of every class [rows, classes]
        for multiclass tasks (or logits, see `logits`). Losses, errors and per-row losses are computed from them: the
        squared error for regression, and the cross-entropy for classes.

        Args:
            tasks: the tasks of the network.
            seed: the seed of the network.
            val: each task's validation loss, or a (loss, error) pair. None if the network diverged; it then ranks below
                all others. If the network for all tasks diverged, its seed is excluded from the comparison. If the
                study has targets, each task's predictions for the validation rows.
            test: each task's test loss, or a (loss, error) pair. None if the network diverged. If the study has
                targets, each task's predictions for the test rows.
            rows: each task's loss on every test row, with NaN for rows without a label. Without these losses, the
                verdict's confidence interval does not account for noise due to the test rows.
            val_rows: each task's loss on every validation row. `auto` splits these rows into two halves to estimate how
                much of a gain is noise.
            steps: the number of optimizer steps.
            seconds: the training time in seconds.
            parameters: the number of parameters.
        """
        job, targets = self._planned_job(tasks, seed), self._open.request.targets
        if targets is None:
            result = check_result(job, val, test, rows, steps, seconds, parameters, val_rows=val_rows)
        else:
            if rows is not None or val_rows is not None:
                expected = "must be omitted if the study has targets, since they are computed from predictions"
                raise InvalidInput("`rows` and `val_rows`", expected)
            result = check_told_predictions(job, targets, val, test, steps, seconds, parameters)
        if self.out is None:
            self._open.add(result)
            return
        with _locked(self.out):
            self._check_unknown(result.job)  # another process may have added it in the meantime
            self._open.add(result)
            _write_run(self.out, self._open)
            self._seen = _signature(self.out)

    def results(self) -> Results:
        """Returns the results once all networks are trained.

        If the study has a folder, the results and a report are written to it.

        Raises:
            ValueError: If the results of some networks are missing.
        """
        if self._run is None and not (self.out is not None and has_plan(self.out)):
            raise InvalidInput("", "there are no results yet", hint="call ask() and tell() first")
        results = self._open.results(ProblemInfo.from_tasks(self.tasks), self.out)
        if self.out is not None:
            results.save(self.out / "results.json")
            write_run_report(self.out)
        return results

    @property
    def _open(self) -> ExternalRun:
        """The plan and all results so far, including those that other processes have added to the folder."""
        signature = None if self.out is None else _signature(self.out)
        if self._run is None and signature is None:
            self.plan()
        elif signature is not None and signature != self._seen:
            if self._run is None:
                self._run = self._read()
            else:
                self._run.known |= _read_results(self._folder, self._run.request, self._run.known)
            self._seen = signature
        assert self._run is not None
        return self._run

    @property
    def _folder(self) -> Path:
        assert self.out is not None
        return self.out

    def _read(self) -> ExternalRun:
        run = _read(self._folder)
        found = run.request.tasks
        if found != self.tasks:
            expected = f"must contain a plan for {', '.join(self.tasks)}"
            raise InvalidInput("out", expected, f"one for {', '.join(found)}", "use a new folder")
        saved = run.request.targets
        if self._targets is not None and (saved is None or saved.document != self._targets.document):
            raise InvalidInput(
                "targets", "must be those of the study in this folder", f"others in {self.out}", "use a new folder"
            )
        return run

    def _read_run_with_same_plan(self, run: ExternalRun) -> ExternalRun:
        """Reads the run in this folder and checks that it has the same plan."""
        saved = self._read()
        if json.dumps(saved.document) != json.dumps(run.document):
            raise InvalidInput(
                "out", "must contain the results of this plan", f"a different plan in {self.out}", "use a new folder"
            )
        return saved

    def _planned_job(self, tasks: Sequence[str], seed: int) -> Job:
        given = as_names([tasks] if isinstance(tasks, str) else tasks)
        job = Job(tuple(task for task in self.tasks if task in given), seed)
        is_known = is_integer(seed) and all(task in self.tasks for task in given)
        if not (is_known and self._open.needs((job.tasks, int(seed)))):
            following = self.ask()
            hint = "nothing is left to train" if following is None else f"ask() returns {following!r} next"
            raise InvalidInput(
                "`tasks` and `seed`", "must identify a network in the plan", f"{list(given)}, {seed!r}", hint
            )
        job = Job(job.tasks, int(seed))
        self._check_unknown(job)
        return job

    def _check_unknown(self, job: Job) -> None:
        if job in self._open.known:
            known = f"{sorted(job.tasks)} with seed {job.seed} already has a result"
            raise InvalidInput("`tasks` and `seed`:", known, hint="use a new `out`")


def _names_of(tasks: Any) -> tuple[str, ...]:
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        return as_names(tasks)
    return as_names([task.name if isinstance(task, Task) else task for task in tasks])


class ExternalRun:
    """A request to compare methods, with the results of its networks so far.

    Args:
        request: the comparison request.
        known: the results so far.

    Attributes:
        request: the comparison request.
        known: the results so far.
        plan: the networks that are known to be needed, given the results so far.
        planned: all networks that were needed at any time.
        document: the initial plan, before any results, as a JSON document.
    """

    def __init__(self, request: PlanRequest, known: Mapping[Job, NetworkResult] | None = None) -> None:
        self.request, self.known = request, dict(known or {})
        first = make_plan(request.study, self._make_backend({}))
        self.document = _plan_document(first, request)
        self.plan, self.planned = first, set(first.networks)
        if self.known:
            self._update_plan()

    def _update_plan(self) -> None:
        self.plan = make_plan(self._study, self._backend)
        self.planned |= {*self.plan.networks, *((job.tasks, job.seed) for job in self.known)}

    @property
    def _study(self) -> StudyRequest:
        """The request without the seeds with which the network for all tasks diverged, unless it always did."""
        study, together = self.request.study, self.request.tasks
        lost = {job.seed for job, result in self.known.items() if result.diverged and set(job.tasks) == set(together)}
        return replace(study, seeds=tuple(seed for seed in study.seeds if seed not in lost) or study.seeds)

    @property
    def _backend(self) -> ExternalBackend:
        return self._make_backend(self.known)

    def _make_backend(self, known: Mapping[Job, NetworkResult]) -> ExternalBackend:
        return ExternalBackend(self.request.tasks, known, self.request.affinities, self.request.targets)

    @property
    def pending(self) -> list[Network]:
        """The tasks and seeds of all networks that have no result yet, in training order."""
        waiting = self._missing_networks()
        if not waiting and (self.plan.deciding or self.plan.seeds != self._study.seeds):
            self._update_plan()
            waiting = self._missing_networks()
        return waiting

    def needs(self, network: Network) -> bool:
        """Whether a network is part of the plan, or was before its seed was left out."""
        if network not in self.planned and not self.pending:
            return False
        return network in self.planned

    def _missing_networks(self) -> list[Network]:
        seeds, copies = self._study.seeds, self.plan.copies
        needed = ((tasks, seed) for tasks, seed in self.plan.networks if copies.get(seed, (seed, 0))[0] in seeds)
        return [(tasks, seed) for tasks, seed in needed if Job(tasks, seed) not in self.known]

    def add(self, result: NetworkResult) -> None:
        """Adds a network's result."""
        scores = [score for one in (result, *self.known.values()) for score in one.test.values()]
        lengths = {len(score.rows) for score in scores if score.rows is not None}
        if len(lengths) > 1:
            found = " and ".join(map(str, sorted(lengths)))
            raise InvalidInput("rows", "must have the same number of test rows for every network", found)
        self.known[result.job] = result

    def results(self, problem: ProblemInfo, out: Path | None = None) -> Results:
        """Returns the results, or raises an error that lists the missing networks."""
        if waiting := self.pending:
            names = [f"{'+'.join(tasks)} (seed {seed})" for tasks, seed in waiting]
            expected = f"results are missing for {len(names)} networks: {first_few(names, MOST_NAMED)}"
            raise InvalidInput("", expected, hint="train these networks and add their results")
        backend, wanted = self._backend, self.request.study.seeds
        try:
            study = replace(self.request.study, seeds=backend.converged_seeds(wanted))
        except Diverged:
            expected = "the network for all tasks diverged with every seed, and everything is compared with it"
            raise InvalidInput("", expected, hint="try a lower learning rate") from None
        decisions = decide_all(backend, study)
        records = train_choices(backend, decisions, study.seeds)
        settings: dict[str, Any] = {"methods": list(self.plan.methods), "budgets": list(self.plan.budgets)}
        settings |= {"seeds": list(wanted), **explain_decisions(decisions)}
        if lost := [seed for seed in wanted if seed not in study.seeds]:
            settings["diverged_seeds"] = lost
        learning, targets = Learning(), self.request.targets
        if targets is not None:
            problem = replace(problem, **targets.describe())
            learning = Learning(_constant_p_values(records, backend, targets))
        noise = _known_row_noise(records, backend, learning.unlearnt)
        return Results(records, problem=problem, noise=noise, settings=settings, out=out, learning=learning)


def _constant_p_values(
    records: Sequence[Record], backend: ExternalBackend, targets: ExternalTargets
) -> dict[str, float]:
    """Compares the networks that may be recommended with constants, on the validation rows, as `Study` does."""
    groupings = [[backend.row_losses(record, "val") or {} for record in some] for some in comparable_records(records)]
    return constant_p_values(groupings, targets.constant_rows("val"))


def _known_row_noise(
    records: Sequence[Record], backend: ExternalBackend, unlearnt: Sequence[str]
) -> dict[Label, float]:
    """Returns the noise due to the test rows for each method and budget whose per-row losses are all known."""
    rows = {id(record): backend.row_losses(record) for record in records}
    unknown = {record.label for record in records if rows[id(record)] is None}
    known = [record for record in records if record.label not in unknown]
    return row_noise(known, lambda record: rows[id(record)] or {}, unlearnt=unlearnt)


def check_result(
    job: Job,
    val: Losses | None,
    test: Losses | None,
    rows: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
    *,
    val_rows: Mapping[str, Any] | None = None,
) -> NetworkResult:
    """Returns the validated result of a network, or raises a single error that lists every problem.

    A network without losses diverged.
    """
    problems = _cost_problems(steps, seconds, parameters)
    if val is None and test is None:
        raise_problems(problems)
        return _diverged(job, *_costs(steps, seconds, parameters))
    row_losses = {
        "val": _row_losses(problems, "val_rows", val_rows, job.tasks),
        "test": _row_losses(problems, "rows", rows, job.tasks),
    }
    scores: dict[str, dict[str, Score]] = {}
    for part, given in (("val", val), ("test", test)):
        losses = _by_task(problems, part, given, job.tasks)
        known = row_losses[part] if part == "test" else {}
        scores[part] = {task: _score(problems, part, task, losses[task], known.get(task)) for task in losses}
    raise_problems(problems)
    costs = _costs(steps, seconds, parameters)
    return NetworkResult(job, scores["val"], scores["test"], *costs, halves=halve_rows(row_losses["val"]))


def check_told_predictions(
    job: Job,
    targets: ExternalTargets,
    val: Any,
    test: Any,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
) -> NetworkResult:
    """Returns the result of a network computed from its predictions, or raises an error that lists every problem.

    A network without predictions diverged.
    """
    problems = _cost_problems(steps, seconds, parameters)
    if val is None and test is None:
        raise_problems(problems)
        return replace(_diverged(job, *_costs(steps, seconds, parameters)), key=_job_hash(job))
    given = {"val": val, "test": test}
    predictions = {part: check_predictions(problems, targets, part, one, job.tasks) for part, one in given.items()}
    raise_problems(problems)
    return _score_predictions(job, targets, predictions, *_costs(steps, seconds, parameters))


def _score_predictions(
    job: Job, targets: ExternalTargets, predictions: Parts, steps: int, seconds: float, parameters: int
) -> NetworkResult:
    scores = {part: targets.average_scores([targets.outputs(one)], part) for part, one in predictions.items()}
    halves = halve_rows({task: score.rows for task, score in scores["val"].items()})
    costs = steps, seconds, parameters
    return ExternalResult(
        job, scores["val"], scores["test"], *costs, halves=halves, key=_job_hash(job), predictions=predictions
    )


def _job_hash(job: Job) -> str:
    return hashlib.sha256(repr((job.tasks, job.seed)).encode()).hexdigest()[:16]


def _cost_problems(steps: Any, seconds: Any, parameters: Any) -> list[InvalidInput]:
    return [
        InvalidInput(name, "must be a non-negative number", short(number))
        for name, number in (("steps", steps), ("seconds", seconds), ("parameters", parameters))
        if number is not None and not (is_number(number) and is_nonnegative(number))
    ]


def _costs(steps: int | None, seconds: float | None, parameters: int | None) -> tuple[int, float, int]:
    return int(steps or 0), float(seconds or 0.0), int(parameters or 0)


def _diverged(job: Job, steps: int, seconds: float, parameters: int) -> NetworkResult:
    unknown = {task: Score(math.nan, math.nan) for task in job.tasks}
    return NetworkResult(job, unknown, unknown, steps, seconds, parameters, best_epoch=-1)


def _row_losses(
    problems: list[InvalidInput], argument: str, given: Mapping[str, Any] | None, tasks: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    if given is None:
        return {}
    expected = "must contain one loss per row for every task (NaN for rows without a label)"
    rows = {}
    for task, values in _by_task(problems, argument, given, tasks).items():
        try:
            rows[task] = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):  # noqa: PERF203 - the message names the task
            problems.append(InvalidInput(f"`{argument}`: {task!r}", "must be a list of numbers", short(values)))
            return {}
    lengths = {values.shape for values in rows.values()}
    if len(lengths) > 1 or any(len(shape) != 1 or not shape[0] for shape in lengths):
        problems.append(InvalidInput(argument, expected, " and ".join(sorted(map(_shape_text, lengths)))))
        return {}
    return rows


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} losses" if len(shape) == 1 else f"an array of shape {shape}"


def _by_task(problems: list[InvalidInput], argument: str, given: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the network's tasks, and reports missing and unknown ones."""
    if not isinstance(given, Mapping):
        hint = "if the network diverged, pass None for both `val` and `test`" if given is None else ""
        expected = f"must be a mapping with a value for each of {', '.join(tasks)}"
        problems.append(InvalidInput(argument, expected, short(given), hint))
        return {}
    missing = [task for task in tasks if task not in given]
    extra = [task for task in given if task not in tasks]
    if missing or extra:
        found = [f"none for {name!r}" for name in missing] + [f"one for the unknown task {name!r}" for name in extra]
        expected = f"must have a value for each of {', '.join(tasks)}"
        problems.append(InvalidInput(argument, expected, ", ".join(found)))
    return {task: given[task] for task in tasks if task in given}


def _score(
    problems: list[InvalidInput],
    part: str,
    task: str,
    given: float | Sequence[float],
    rows: NDArray[np.float32] | None,
) -> Score:
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        loss, *error = (float(value) for value in pair)
        if len(error) > 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        problems.append(InvalidInput(f"`{part}`: {task!r}", "must be a loss or a pair (loss, error)", short(given)))
        return Score(math.nan, math.nan)
    if not math.isfinite(loss):
        hint = "if the network diverged, pass None for both `val` and `test`"
        problems.append(InvalidInput(f"`{part}`: the loss of {task!r}", "must be a finite number", str(loss), hint))
    elif abs(loss) > MAX_LOSS:
        expected = f"must be at most {MAX_LOSS:g} in magnitude, so that sums of losses and their squares are finite"
        problems.append(InvalidInput(f"`{part}`: the loss of {task!r}", expected, str(loss)))
    return Score(loss, error[0] if error else math.nan, rows)


def has_plan(out: Path) -> bool:
    """Whether this folder contains a plan."""
    return (out / FILE).exists()


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lets only one process at a time change the folder."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / LOCK):
        yield


def _signature(out: Path) -> tuple[int, ...] | None:
    """Identifies a version of the file with the results, which is replaced when results are added."""
    try:
        found = (out / FILE).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write_run(out: Path, run: ExternalRun) -> None:
    """Writes the per-row losses and affinities, and then the JSON document that refers to them."""
    affinities = {}
    for method, affinity in run.request.affinities.items():
        affinities[method] = f"{FOLDER}/affinity-{method}.json"
        if not (out / affinities[method]).exists():
            (out / FOLDER).mkdir(parents=True, exist_ok=True)
            affinity.save(out / affinities[method])
    if (targets := run.request.targets) is not None:
        _write_arrays(out, "targets", targets.document["checksum"], targets.labels)
    entries = [_result_document(out, result) for result in run.known.values()]
    plan = run.document | {"affinities": affinities}
    write_document(out / FILE, FORMAT, VERSION, {"plan": plan, "told": entries})


def _read(out: Path) -> ExternalRun:
    request = _read_document(out, lambda entry: _read_request(entry["plan"], out))
    return ExternalRun(request, _read_results(out, request, {}))


def _read_results(out: Path, request: PlanRequest, known: Mapping[Job, NetworkResult]) -> dict[Job, NetworkResult]:
    """Reads the results; those that are already known are not read again."""
    return _read_document(
        out, lambda entry: dict(_read_result(out, one, request, known) for one in entry["told"].entries())
    )


def _read_document(out: Path, parse: Callable[[Entry], T]) -> T:
    return read_document(out / FILE, FORMAT, (VERSION,), lambda document: parse(Entry(document)), hint=REPLAN_HINT)


def _read_request(plan: Entry, out: Path) -> PlanRequest:
    tasks = plan["tasks"].names()
    if not tasks:
        raise plan["tasks"].error("must not be empty")
    affinities = {}
    for method, file in _optional_mapping(plan, "affinities").items():
        affinities[method] = Affinity.load(_told_file(out, file))
        if not set(affinities[method].tasks) >= set(tasks):
            raise file.error("must be an affinity between the tasks of the plan")
    options = {name: _plain(given) for name, given in _optional_mapping(plan, "options").items()}
    planned: dict[str, dict[int | None, tuple[Group, ...]]] = {}
    for one in plan["groupings"].entries():
        method, budget = read_label(one)
        groups = tuple(read_group(group, tasks) for group in one["groups"].entries())
        planned.setdefault(method, {})[budget] = groups
    methods: list[Method] = [
        # Earlier versions stored the groups selected from an affinity, but not the affinity itself.
        PlannedGroups(name, planned[name])
        if name in ("tag", "cs") and name not in affinities
        else make_method(name, options)
        for name in plan["methods"].names()
    ]
    budgets = tuple(budget.integer(1) for budget in plan["budgets"].entries())
    seeds = tuple(seed.integer(0) for seed in plan["seeds"].some())
    if len(set(seeds)) < len(seeds):
        raise plan["seeds"].error("must be distinct")
    targets = plan.get("targets").optional(lambda entry: _read_saved_targets(out, entry, tasks))
    return PlanRequest(tasks, StudyRequest(tuple(methods), budgets, seeds), affinities, options, targets)


def _read_saved_targets(out: Path, entry: Entry, tasks: Sequence[str]) -> ExternalTargets:
    path = out / _archive_name("targets", entry["checksum"].text())
    with report_damage(path, hint=REPLAN_HINT):
        targets = read_targets(entry, unpack_arrays(read_regular_file(path)))
    if [task.name for task in targets.tasks] != list(tasks):
        raise entry["tasks"].error(f"must be the tasks {', '.join(tasks)}")
    return targets


def _plain(entry: Entry) -> dict[str, Any]:
    return {name: one.value for name, one in entry.mapping().items()}


def _optional_mapping(entry: Entry, name: str) -> dict[str, Entry]:
    return entry.get(name).optional(Entry.mapping) or {}


def _plan_document(plan: TrainingPlan, request: PlanRequest) -> dict[str, Any]:
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
        "halves": {task: [_none_if_not_finite(loss) for loss in pair] for task, pair in result.halves.items()},
        "steps": result.steps,
        "seconds": result.seconds,
        "parameters": result.parameters,
        **({"diverged": True} if result.diverged else {}),
    }


def _scores_document(scores: Mapping[str, Score]) -> dict[str, list[float | None]]:
    return {task: [_none_if_not_finite(score.loss), _none_if_not_finite(score.error)] for task, score in scores.items()}


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
        return job, _diverged(job, *costs)
    rows = entry["rows"].optional(lambda file: _read_rows(out, file, names)) or {}
    val, test = _read_scores(entry["val"], job.tasks), _read_scores(entry["test"], job.tasks)
    halves = {task: _read_pair(pair) for task, pair in _optional_mapping(entry, "halves").items()}
    scored = {task: replace(score, rows=rows.get(task)) for task, score in test.items()}
    return job, NetworkResult(job, val, scored, *costs, halves=halves)


def _read_predictions(out: Path, entry: Entry, job: Job) -> Parts:
    checksum = entry.text()
    path = out / _archive_name(_job_hash(job), checksum)
    with report_damage(path, hint=REPLAN_HINT):
        arrays = unpack_arrays(read_regular_file(path))
        if arrays_checksum(arrays) != checksum:
            raise ValueError("the checksum does not match")
        return read_flat_parts(arrays, job.tasks)


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
        archive = unpack_arrays(read_regular_file(path))
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
    name = f"{FOLDER}/{_job_hash(result.job)}.npz"
    if not (out / name).exists():  # the result of a network never changes
        named_rows = {f"rows_{number}": rows[task] for number, task in enumerate(result.job.tasks)}
        write_atomic(out / name, pack_arrays(named_rows, compress=True))
    return name


def _none_if_not_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
