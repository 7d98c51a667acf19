"""A study of networks trained elsewhere.

It determines which networks to train next and computes the verdict. Results are stored in `told.json`. Per-row losses
and affinities are stored in the `told` folder. An interrupted study can be continued.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, as_names, first_few, raise_problems
from tagalong.files import pack_arrays, read_document, unpack_arrays, write_atomic, write_document
from tagalong.group import Group
from tagalong.learn import Job
from tagalong.score import Score

from .decisions import decide_all, explain_decisions, train_choices
from .external_backend import ExternalBackend
from .methods import Method, make_method
from .planning import Affinities, PlannedGroups, PlanRequest, TrainingPlan, check_plan, make_plan
from .records import Label, ProblemInfo, Record
from .results import Results
from .run_folder import write_run_report
from .store import NetworkResult, halve_rows
from .study_request import Options, StudyRequest, default_budgets, with_effort
from .uncertainty import row_noise

FORMAT, VERSION, FILE, FOLDER = "tagalong-told", 1, "told.json", "told"
MOST_NAMED = 5  # networks that a message lists
Losses = Mapping[str, float | Sequence[float]]
Network = tuple[tuple[str, ...], int]


class ExternalStudy:
    """Compares ways of grouping tasks using networks trained by your own script.

    Every result is stored immediately, so an interrupted study can be continued.

    Args:
        tasks: the names of all tasks.
        out: the study's folder. If None, results are kept in memory only.

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

    def __init__(self, tasks: Sequence[str], out: str | os.PathLike[str] | None = None) -> None:
        self.tasks, self.out = as_names(tasks), None if out is None else Path(out)
        ProblemInfo.from_tasks(self.tasks)  # raises an error for invalid names
        if self.out is not None and (self.out / "run.sqlite").exists():
            hint = "use a new folder, since its results would be overwritten"
            raise InvalidInput("out", "must not be the folder of a run", str(self.out), hint)
        self._run: ExternalRun | None = None

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
                or "auto". "mtl" is always included. Defaults to `stl` and the methods that use the affinities, or to
                `stl` and `hoa` if there are no affinities.
            budgets: the limits on the number of networks. Defaults to 2, 3 and 4, up to the number of tasks.
            seeds: the number of seeds, or a list of seeds.
            options: options for each method (see `Study.run`).
            effort: the search effort of `auto`: a number of training runs, "quick" (20), "normal" (60, the default) or
                "thorough" (200).
        """
        wanted = ("stl", "hoa") if methods is None and affinity is None else methods
        sizes = default_budgets(len(self.tasks)) if budgets is None else budgets
        options = with_effort(options, effort)
        request = check_plan(affinity, sizes, wanted, seeds, tasks=self.tasks, options=options)
        run = ExternalRun(request)
        if self.out is not None:
            if has_plan(self.out):
                run = self._read_run_with_same_plan(run)
            else:
                _write_run(self.out, run)
        self._run = run
        return run.plan

    def ask(self) -> Network | None:
        """Returns the tasks and seed of the network to train next, or None if all networks are trained."""
        return next(iter(self.pending()), None)

    def pending(self) -> list[Network]:
        """Returns all networks that can be trained now, e.g. in parallel."""
        return self._open.pending

    def tell(
        self,
        tasks: Sequence[str],
        seed: int,
        *,
        val: Losses,
        test: Losses,
        rows: Mapping[str, Any] | None = None,
        val_rows: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        parameters: int | None = None,
    ) -> None:
        """Adds a network's result. Results can be added in any order.

        Args:
            tasks: the tasks of the network.
            seed: the seed of the network.
            val: each task's validation loss, or a (loss, error) pair.
            test: each task's test loss, or a (loss, error) pair.
            rows: each task's loss on every test row, with NaN for rows without a label. Without these losses, the
                verdict's confidence interval does not account for noise due to the test rows.
            val_rows: each task's loss on every validation row. `auto` splits these rows into two halves to estimate how
                much of a gain is noise.
            steps: the number of optimizer steps.
            seconds: the training time in seconds.
            parameters: the number of parameters.
        """
        job = self._planned_job(tasks, seed)
        result = check_result(job, val, test, rows, steps, seconds, parameters, val_rows=val_rows)
        self._open.add(result)
        if self.out is not None:
            _write_run(self.out, self._open)

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
        if self._run is None:
            if self.out is not None and has_plan(self.out):
                self._run = self._read()
            else:
                self.plan()
        assert self._run is not None
        return self._run

    def _read(self) -> ExternalRun:
        assert self.out is not None
        run = _read(self.out)
        found = run.request.tasks
        if found != self.tasks:
            expected = f"must contain a plan for {', '.join(self.tasks)}"
            raise InvalidInput("out", expected, f"one for {', '.join(found)}", "use a new folder")
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
        given = frozenset([tasks] if isinstance(tasks, str) else tasks)
        job = Job(tuple(task for task in self.tasks if task in given), seed)
        if given - set(self.tasks) or (job.tasks, seed) not in self._open.plan.networks:
            following = self.ask()
            hint = "nothing is left to train" if following is None else f"ask() returns {following!r} next"
            found = f"{sorted(given)}, {seed!r}"
            raise InvalidInput("`tasks` and `seed`", "must identify a network in the plan", found, hint)
        if job in self._open.known:
            known = f"{sorted(given)} with seed {seed} already has a result"
            raise InvalidInput("`tasks` and `seed`:", known, hint="use a new `out`")
        return Job(job.tasks, int(seed))


class ExternalRun:
    """A request to compare methods, with the results of its networks so far.

    Args:
        request: the comparison request.
        known: the results so far.

    Attributes:
        request: the comparison request.
        known: the results so far.
        plan: the networks that are known to be needed, given the results so far.
        document: the initial plan, before any results, as a JSON document.
    """

    def __init__(self, request: PlanRequest, known: Mapping[Job, NetworkResult] | None = None) -> None:
        self.request, self.known = request, dict(known or {})
        first = make_plan(request.study, ExternalBackend(request.tasks, {}, request.affinities))
        self.document = _plan_document(first, request.options)
        self.plan = first
        if self.known:
            self._update_plan()

    def _update_plan(self) -> None:
        self.plan = make_plan(self.request.study, self._backend)

    @property
    def _backend(self) -> ExternalBackend:
        return ExternalBackend(self.request.tasks, self.known, self.request.affinities)

    @property
    def pending(self) -> list[Network]:
        """The tasks and seeds of all networks that have no result yet, in training order."""
        waiting = self._missing_networks()
        if not waiting and self.plan.deciding:
            self._update_plan()
            waiting = self._missing_networks()
        return waiting

    def _missing_networks(self) -> list[Network]:
        return [(tasks, seed) for tasks, seed in self.plan.networks if Job(tasks, seed) not in self.known]

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
            expected = f"results of {len(names)} networks are missing: {first_few(names, MOST_NAMED)}"
            raise InvalidInput("", expected, hint="train them and add their results")
        backend, study = self._backend, self.request.study
        decisions = decide_all(backend, study)
        records = train_choices(backend, decisions, study.seeds)
        settings: dict[str, Any] = {name: list(getattr(self.plan, name)) for name in ("methods", "budgets", "seeds")}
        settings |= explain_decisions(decisions)
        return Results(records, problem=problem, noise=_known_row_noise(records, backend), settings=settings, out=out)


def _known_row_noise(records: Sequence[Record], backend: ExternalBackend) -> dict[Label, float]:
    """Returns the noise due to the test rows for each method and budget whose per-row losses are all known."""
    rows = {id(record): backend.row_losses(record) for record in records}
    unknown = {record.label for record in records if rows[id(record)] is None}
    return row_noise(
        [record for record in records if record.label not in unknown], lambda record: rows[id(record)] or {}
    )


def check_result(
    job: Job,
    val: Losses,
    test: Losses,
    rows: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
    *,
    val_rows: Mapping[str, Any] | None = None,
) -> NetworkResult:
    """Returns the validated result of a network, or raises a single error that lists every problem."""
    problems: list[InvalidInput] = []
    row_losses = {
        "val": _row_losses(problems, "val_rows", val_rows, job.tasks),
        "test": _row_losses(problems, "rows", rows, job.tasks),
    }
    scores: dict[str, dict[str, Score]] = {}
    for part, given in (("val", val), ("test", test)):
        _check_tasks(problems, part, given, job.tasks)
        known = row_losses[part] if part == "test" else {}
        scores[part] = {
            task: _score(problems, part, task, given[task], known.get(task)) for task in job.tasks if task in given
        }
    for name, number in (("steps", steps), ("seconds", seconds), ("parameters", parameters)):
        if number is not None and not (math.isfinite(number) and number >= 0):
            problems.append(InvalidInput(name, "must be a non-negative number", repr(number)))
    raise_problems(problems)
    costs = int(steps or 0), float(seconds or 0.0), int(parameters or 0)
    return NetworkResult(job, scores["val"], scores["test"], *costs, halves=halve_rows(row_losses["val"]))


def _row_losses(
    problems: list[InvalidInput], argument: str, given: Mapping[str, Any] | None, tasks: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    if given is None:
        return {}
    _check_tasks(problems, argument, given, tasks)
    rows = {task: np.asarray(values, dtype=np.float32) for task, values in given.items()}
    if len({values.shape for values in rows.values()}) > 1 or any(values.ndim != 1 for values in rows.values()):
        expected = "must contain one loss per row for every task (NaN for rows without a label)"
        problems.append(InvalidInput(argument, expected))
    return rows


def _check_tasks(problems: list[InvalidInput], argument: str, given: Mapping[str, Any], tasks: Sequence[str]) -> None:
    missing = [task for task in tasks if task not in given]
    extra = [task for task in given if task not in tasks]
    if missing or extra:
        found = [f"none for {name!r}" for name in missing] + [f"one for unknown task {name!r}" for name in extra]
        expected = f"must have a value for each of {', '.join(tasks)}"
        problems.append(InvalidInput(argument, expected, ", ".join(found)))


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
    except (TypeError, ValueError):
        problems.append(InvalidInput(f"`{part}`: {task!r}", "must be a loss or a pair (loss, error)", repr(given)))
        return Score(math.nan, math.nan)
    if not math.isfinite(loss):
        hint = "did it diverge?"
        problems.append(InvalidInput(f"`{part}`: the loss of {task!r}", "must be a finite number", str(loss), hint))
    return Score(loss, error[0] if error else math.nan, rows)


def has_plan(out: Path) -> bool:
    """Whether this folder contains a plan."""
    return (out / FILE).exists()


def _write_run(out: Path, run: ExternalRun) -> None:
    """Writes the per-row losses and affinities, and then the JSON document that refers to them."""
    affinities = {}
    for method, affinity in run.request.affinities.items():
        affinities[method] = f"{FOLDER}/affinity-{method}.json"
        if not (out / affinities[method]).exists():
            (out / FOLDER).mkdir(parents=True, exist_ok=True)
            affinity.save(out / affinities[method])
    entries = [_result_document(out, result) for result in run.known.values()]
    plan = run.document | {"affinities": affinities}
    write_document(out / FILE, FORMAT, VERSION, {"plan": plan, "told": entries})


def _read(out: Path) -> ExternalRun:
    hint = "plan the study again in another folder"
    return read_document(out / FILE, FORMAT, (VERSION,), lambda document: _run_from_document(document, out), hint=hint)


def _run_from_document(document: Mapping[str, Any], out: Path) -> ExternalRun:
    entry = document["plan"]
    affinities = {method: Affinity.load(out / file) for method, file in entry.get("affinities", {}).items()}
    options = entry.get("options", {})
    planned: dict[str, dict[int | None, tuple[Group, ...]]] = {}
    for one in entry["groupings"]:
        groups = tuple(Group(group["trains"], group["serves"]) for group in one["groups"])
        planned.setdefault(one["method"], {})[one["budget"]] = groups
    methods: list[Method] = [
        # Earlier versions stored the groups selected from an affinity, but not the affinity itself.
        PlannedGroups(name, planned[name])
        if name in ("tag", "cs") and name not in affinities
        else make_method(name, options)
        for name in entry["methods"]
    ]
    study = StudyRequest(tuple(methods), tuple(entry["budgets"]), tuple(entry["seeds"]))
    request = PlanRequest(tuple(entry["tasks"]), study, affinities, options)
    results = [_read_result(out, one) for one in document["told"]]
    return ExternalRun(request, {result.job: result for result in results})


def _plan_document(plan: TrainingPlan, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Converts an initial plan to a JSON document."""
    document: dict[str, Any] = {name: list(getattr(plan, name)) for name in ("tasks", "methods", "budgets", "seeds")}
    document["groupings"] = [
        {"method": method, "budget": budget, "groups": [_group_document(group) for group in groups]}
        for (method, budget), groups in plan.groupings.items()
    ]
    document["options"] = {name: dict(given) for name, given in options.items()}
    return document


def _group_document(group: Group) -> dict[str, list[str]]:
    return {"trains": sorted(group.trains), "serves": sorted(group.serves)}


def _result_document(out: Path, result: NetworkResult) -> dict[str, Any]:
    return {
        "tasks": list(result.job.tasks),
        "seed": result.job.seed,
        "rows": _write_rows(out, result),
        "val": _scores_document(result.val),
        "test": _scores_document(result.test),
        "halves": {task: [_none_if_not_finite(loss) for loss in pair] for task, pair in result.halves.items()},
        "steps": result.steps,
        "seconds": result.seconds,
        "parameters": result.parameters,
    }


def _scores_document(scores: Mapping[str, Score]) -> dict[str, list[float | None]]:
    return {task: [score.loss, _none_if_not_finite(score.error)] for task, score in scores.items()}


def _read_result(out: Path, entry: Mapping[str, Any]) -> NetworkResult:
    rows: dict[str, NDArray[Any]] = {}
    if entry["rows"] is not None:
        archive = unpack_arrays((out / entry["rows"]).read_bytes())
        rows = {task: archive[f"rows_{number}"] for number, task in enumerate(entry["tasks"])}
    val = {task: Score(loss, _nan_if_none(error)) for task, (loss, error) in entry["val"].items()}
    test = {task: Score(loss, _nan_if_none(error), rows.get(task)) for task, (loss, error) in entry["test"].items()}
    halves = {task: (_nan_if_none(one), _nan_if_none(two)) for task, (one, two) in entry.get("halves", {}).items()}
    job = Job(tuple(entry["tasks"]), entry["seed"])
    costs = entry["steps"], entry["seconds"], entry["parameters"]
    return NetworkResult(job, val, test, *costs, halves=halves)


def _write_rows(out: Path, result: NetworkResult) -> str | None:
    """Writes the per-row test losses and returns the file name.

    Returns None if there are no losses.
    """
    rows = {task: score.rows for task, score in result.test.items() if score.rows is not None}
    if len(rows) < len(result.job.tasks):
        return None
    name = f"{FOLDER}/{hashlib.sha256(repr((result.job.tasks, result.job.seed)).encode()).hexdigest()[:16]}.npz"
    if not (out / name).exists():  # the result of a network never changes
        named_rows = {f"rows_{number}": rows[task] for number, task in enumerate(result.job.tasks)}
        write_atomic(out / name, pack_arrays(named_rows, compress=True))
    return name


def _none_if_not_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value
