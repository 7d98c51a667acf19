"""A study of networks that are trained elsewhere, e.g. by your own script or on a cluster.

It uses the decisions, the store and the verdict of `Study`. Whenever a decision needs networks that are not in the
store yet, these are the networks to train next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from pydantic import BaseModel, model_validator

from tagalong.errors import InvalidInput, as_names, first_few, is_integer, is_nonnegative, is_number, raise_problems
from tagalong.files import checksum, report_damage
from tagalong.learn import Job, Task, Trained, halve_rows, score_outputs
from tagalong.score import Score

from .documents import Count, SettingsFile
from .external_files import read_results, write_plan
from .external_rounds import ExternalRunner, compare_trained, is_too_long, next_round, settling_networks
from .external_targets import DIVERGED_HINT, PARTS, by_name, labels_of, make_problem, read_array, read_outputs
from .keys import Keys
from .methods import Method
from .planning import ESTIMATORS, Affinities, Network, PlanRequest, TrainingPlan, check_plan
from .records import Cost
from .results import Results
from .run_folder import write_run_report
from .store import Store
from .study_request import Options, check_request, with_effort

MAX_LOSS = 1e150  # so that sums of losses and their squares are finite
Losses = Mapping[str, float | Sequence[float]]


class Plan(BaseModel):
    """The plan of an external study; labels and affinities are in the store."""

    tasks: list[Task]
    with_targets: bool
    logits: bool
    methods: list[str]
    budgets: list[int]
    seeds: list[Count]
    options: dict[str, dict[str, Any]]
    runs: int | None
    screening: bool
    affinities: dict[str, str]

    @model_validator(mode="after")
    def _check_affinities(self) -> Plan:
        for method in ESTIMATORS:
            if method in self.methods and method not in self.affinities:
                raise ValueError(f"affinities must have one for the method {method!r}")
        return self


class PlanFile(SettingsFile):
    """`settings.json` of an external study."""

    hint = "plan the study again in another folder"
    trained_elsewhere: Plan | None = None


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
        if isinstance(tasks, str) or not isinstance(tasks, Iterable):
            as_names(tasks)  # raises the error
        self._problem = make_problem(tasks, targets)
        self.tasks, self.out = self._problem.names, None if out is None else Path(out)
        self._with_targets, self._logits = targets is not None, logits
        if logits and targets is None:
            raise InvalidInput("logits", "can only be used together with `targets`")
        self._memory = Store() if out is None else None
        self._keys: Keys | None = None  # which remember what they hashed
        self._request: PlanRequest | None = None
        if self.out is not None and (self.out / "settings.json").exists():
            self._continue(self.out)

    @staticmethod
    def load(out: str | os.PathLike[str]) -> ExternalStudy:
        """Returns the study in a folder."""
        study = ExternalStudy([task.name for task in _read_plan(Path(out)).tasks], out)
        if study._request is None:
            hint = "plan the study again, and add the results again"
            raise InvalidInput(Path(out) / "run.sqlite", "must contain the results of the plan", "none", hint)
        return study

    def plan(
        self,
        affinity: Affinities = None,
        *,
        methods: Sequence[str | Method] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
        runs: int | None = None,
        options: Options | None = None,
        effort: Any = None,
    ) -> TrainingPlan:
        """Specifies what to compare, or continues a study. A new plan uses the results of earlier ones.

        Args:
            affinity: one or more affinities measured in your own training loop. `cs` and `auto` use gradient cosines,
                and `tag` uses any other affinity. To choose which method uses which affinity, pass a mapping with the
                keys "tag", "cs" and "auto".
            methods: any methods that need only plain networks: "stl", "tag", "cs", "hoa", "optimal", "oracle", "random"
                or "auto". If the study has targets, also "ensemble" and "best-of". "mtl" is always included. Defaults
                to `stl` and the methods that use the affinities, or to `stl` and `hoa` if there are no affinities.
            budgets: the limits on the number of networks. Defaults to 2, 3 and 4, up to the number of tasks.
            seeds: the number of seeds, or a list of seeds.
            runs: the most networks to train in all. If these are too few for all methods, budgets and seeds, half of
                them look for the best way, with one seed, and the others judge it with fresh seeds.
            options: options for each method (see `Study.run`).
            effort: the search effort of `auto` and `best-of`: a number of training runs, "quick" (20), "normal" (60,
                the default) or "thorough" (200). With `runs`, half of the runs.

        Returns:
            The networks that can be trained now, and how many rounds are expected.
        """
        options = with_effort(options, effort)
        request = check_plan(self.tasks, affinity, budgets, methods, seeds, options, runs, self._with_targets)
        with Store() as empty:  # a plan does not depend on the results so far
            runner = ExternalRunner(self._problem, empty, request.affinities)
            request = replace(request, screening=is_too_long(runner, request))
        with self._open(request) as runner:
            if self.out is not None:
                self._save_plan(self.out, runner, request)
            self._request = request
            return next_round(runner, request)

    def ask(self) -> Network | None:
        """Returns the tasks and seed of the network to train next, or None if all networks are trained.

        Copies of a network whose answers are averaged have the same tasks, but different seeds (below 2**48).
        """
        return next(iter(self.pending()), None)

    def pending(self) -> list[Network]:
        """Returns all networks that can be trained now, e.g. in parallel. Those that settle most come first."""
        return list(self.next_round().networks)

    def next_round(self) -> TrainingPlan:
        """Returns the networks that can be trained now, and how many rounds are expected."""
        if self._request is None:
            return self.plan()
        with self._open(self._request) as runner:
            return next_round(runner, self._request)

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
        """Adds a network's result, or replaces it. Results can be added in any order.

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
        names = as_names([tasks] if isinstance(tasks, str) else tasks)
        if not names or not set(names) <= set(self.tasks) or not is_integer(seed, minimum=0):
            found, following = f"{list(names)}, {short(seed)}", self.ask()
            hint = "" if following is None else f"ask() returns {following!r} next"
            raise InvalidInput("`tasks` and `seed`", "must be tasks of the study and a seed", found, hint)
        job = Job(tuple(task for task in self.tasks if task in names), int(seed))
        problems = [
            InvalidInput(name, "must be a non-negative number", short(number))
            for name, number in (("steps", steps), ("seconds", seconds), ("parameters", parameters))
            if number is not None and not (is_number(number) and is_nonnegative(number))
        ]
        scores: dict[str, dict[str, Score]] = {}
        outputs = {}
        if val is None and test is None:
            pass  # the network diverged
        elif self._with_targets:
            if rows is not None or val_rows is not None:
                expected = "must be omitted if the study has targets, since they are computed from predictions"
                problems.append(InvalidInput("`rows` and `val_rows`", expected))
            for part, given in (("val", val), ("test", test)):
                outputs[part] = read_outputs(problems, self._problem, part, given, job.tasks, self._logits)
                labels = labels_of(self._problem, part)
                scores[part] = {
                    task: score_outputs(self._problem.task(task), one, labels[task])
                    for task, one in outputs[part].items()
                }
        else:
            scores["val"] = _read_scores(problems, job, "val", val, "val_rows", val_rows)
            scores["test"] = _read_scores(problems, job, "test", test, "rows", rows)
        raise_problems(problems)
        unknown = {task: Score(math.nan, math.nan) for task in job.tasks}
        trained = Trained(
            job,
            scores.get("val", unknown),
            scores.get("test", unknown),
            steps=int(steps or 0),
            seconds=float(seconds or 0.0),
            parameters=int(parameters or 0),
            best_epoch=0 if scores else -1,
            halves=halve_rows({task: score.rows for task, score in scores.get("val", {}).items()}),
        )
        with self._open(self._request) as runner:
            others = [key for key in runner.store.known_keys() if key != runner.keys.of(job)][:1]
            rows_of_others = [losses for key in others for losses in (runner.store.losses(key) or {}).values()]
            own_rows = [score.rows for score in trained.test.values() if score.rows is not None]
            lengths = {len(losses) for losses in (*rows_of_others, *own_rows)}
            if len(lengths) > 1:
                found = " and ".join(map(str, sorted(lengths)))
                raise InvalidInput("rows", "must have the same number of test rows for every network", found)
            runner.tell(trained, outputs)

    def tell_file(self, path: str | os.PathLike[str]) -> None:
        """Adds the results of all networks in a file.

        Args:
            path: a table that was filled in, or a JSON file with a list of the arguments of `tell`.
        """
        tell_networks(self, read_results(Path(path), predictions=self._with_targets))

    def write_table(self) -> Path | None:
        """Writes a table of the networks to train now, for you to fill in, unless it is in the study's folder already.

        Returns:
            The file: `plan.csv` for the first round, `plan-2.csv` for the second. None if all networks are trained.
        """
        following = self.next_round()
        if not following.networks:
            return None
        path = (self.out or Path()) / ("plan.csv" if following.round == 1 else f"plan-{following.round}.csv")
        if not path.exists():
            write_plan(path, following.networks, predictions=self._with_targets)
        return path

    def results(self) -> Results:
        """Returns the results once all networks of the plan are trained.

        If the study has a folder, the results, the groups and a report are written to it.

        Raises:
            ValueError: If the results of some networks are missing.
        """
        waiting = self.pending()
        results = None if waiting else self.results_so_far()
        if results is None:
            names = [f"{'+'.join(tasks)} (seed {seed})" for tasks, seed in waiting]
            expected = f"results are missing for {len(names)} networks: {first_few(names)}"
            raise InvalidInput("", expected, hint="train these networks and add their results")
        return results

    def results_so_far(self) -> Results | None:
        """Returns the results of what is complete, or None if nothing can be compared yet.

        If the study has a folder, the results, the groups and a report are written to it.
        """
        if self._request is None:
            self.plan()
        assert self._request is not None
        with self._open(self._request) as runner:
            results = compare_trained(runner, self._request, self.out)
        if results is None:
            return None
        if self.out is not None:
            results.save(self.out / "results.json")
            write_run_report(self.out)
        return results

    def settling(self) -> list[Network]:
        """Returns the networks with fresh seeds that would judge what is recommended once more."""
        if self._request is None:
            return []
        with self._open(self._request) as runner:
            return settling_networks(runner, self._request)

    # The plan in the folder

    def _save_plan(self, out: Path, runner: ExternalRunner, request: PlanRequest) -> None:
        study = request.study
        keys = {name: f"affinity {checksum(one.mean.tobytes())}" for name, one in request.affinities.items()}
        # Without targets, only the names matter, and a task may have a loss that JSON cannot represent.
        tasks = self._problem.tasks if self._with_targets else [Task(name, "regression") for name in self.tasks]
        plan = Plan(
            tasks=list(tasks),
            with_targets=self._with_targets,
            logits=self._logits,
            methods=[method.name for method in study.methods],
            budgets=list(study.budgets),
            seeds=list(study.seeds),
            options={name: dict(given) for name, given in request.options.items()},
            runs=request.runs,
            screening=request.screening,
            affinities=keys,
        )
        for name, key in keys.items():
            runner.store.add_affinity(key, request.affinities[name], Cost(), Cost())
        if self._with_targets:
            labels = {part: labels_of(self._problem, part) for part in PARTS}
            runner.store.add_computed(
                "targets", {part: {name: labels[part][name].tolist() for name in self.tasks} for part in PARTS}
            )
        problem = {"name": self._problem.name, "fingerprint": self._problem.fingerprint, "tasks": self.tasks}
        PlanFile.write(out / "settings.json", {"problem": problem, "trained_elsewhere": plan.model_dump()})

    def _continue(self, out: Path) -> None:
        """Reads the plan in the folder."""
        plan = _read_plan(out)
        names = tuple(task.name for task in plan.tasks)
        if names != self.tasks:
            expected = f"must contain a plan for {', '.join(self.tasks)}"
            raise InvalidInput("out", expected, f"one for {', '.join(names)}", "use a new folder")
        if self._with_targets and PlanFile.read(out / "settings.json").problem.fingerprint != self._problem.fingerprint:
            expected = "must be those of the study in this folder"
            raise InvalidInput("targets", expected, f"others in {out}", "use a new folder")
        with self._open(None) as runner:
            stored = {method: runner.store.affinity(key) for method, key in plan.affinities.items()}
            targets = runner.store.computed("targets")
        if None in stored.values() or (plan.with_targets and targets is None):
            return  # the store was removed, so the study has to be planned again
        with report_damage(out / "settings.json", PlanFile.error, PlanFile.hint):
            study = check_request(names, plan.methods, plan.budgets, plan.seeds, plan.options)
            if plan.with_targets and not self._with_targets:
                self._problem = make_problem(plan.tasks, targets)
                self._with_targets, self._logits, self._keys = True, plan.logits, None
        affinities = {method: entry[0] for method, entry in stored.items() if entry is not None}
        self._request = PlanRequest(study, affinities, plan.options, plan.runs, plan.screening)

    @contextmanager
    def _open(self, request: PlanRequest | None) -> Iterator[ExternalRunner]:
        opened: AbstractContextManager[Store]
        if self._memory is not None:
            opened = nullcontext(self._memory)
        else:
            assert self.out is not None
            opened = Store(self.out / "run.sqlite")
        with opened as store:
            runner = ExternalRunner(self._problem, store, {} if request is None else request.affinities)
            runner.keys = self._keys = self._keys or runner.keys
            yield runner


def tell_networks(study: ExternalStudy, networks: Iterable[Mapping[str, Any]]) -> None:
    """Adds the results of several networks, given by the arguments of `tell`. An error names the network."""
    for network in networks:
        try:
            study.tell(**network)
        except InvalidInput as error:  # noqa: PERF203 - each network has its own errors
            name = f"{'+'.join(network['tasks'])} (seed {network['seed']}):"
            raise_problems([InvalidInput(name, str(problem)) for problem in error.problems])


def has_plan(out: Path) -> bool:
    """Whether a folder contains the plan of an external study."""
    path = out / "settings.json"
    return path.exists() and PlanFile.read(path).trained_elsewhere is not None


def _read_plan(out: Path) -> Plan:
    plan = PlanFile.read(out / "settings.json").trained_elsewhere
    if plan is None:
        hint = "use a new folder, since its results would be overwritten"
        raise InvalidInput("out", "must not be the folder of networks that were trained here", str(out), hint)
    return plan


def _read_scores(
    problems: list[InvalidInput], job: Job, part: str, losses: Any, argument: str, rows: Mapping[str, Any] | None
) -> dict[str, Score]:
    """Returns the score of each task, and reports invalid losses.

    Args:
        problems: the list to which problems are added.
        job: the network.
        part: "val" or "test".
        losses: the loss, or the loss and the error, of each task.
        argument: the name of the argument with the losses of all rows.
        rows: the losses of all rows, or None.
    """
    row_losses: dict[str, Any] = {}
    if rows is not None:
        for task, values in by_name(problems, f"`{argument}`", rows, job.tasks).items():
            array = read_array(problems, f"`{argument}`: {task!r}", values)
            if array is not None:
                row_losses[task] = array
        shapes = {array.shape for array in row_losses.values()}
        if len(shapes) > 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
            expected = "must contain one loss per row for every task (NaN for rows without a label)"
            problems.append(InvalidInput(argument, expected, f"arrays of shape {' and '.join(map(str, shapes))}"))
    scores = {}
    for task, given in by_name(problems, f"`{part}`", losses, job.tasks).items():
        place = f"`{part}`: {task!r}"
        pair = given if isinstance(given, (tuple, list)) else (given,)
        try:
            loss, error = map(float, (*pair, math.nan) if len(pair) == 1 else pair)
        except (TypeError, ValueError, OverflowError):
            problems.append(InvalidInput(place, "must be a loss or a pair (loss, error)", short(given)))
            continue
        if not abs(loss) <= MAX_LOSS:
            expected = f"must be a finite loss of at most {MAX_LOSS:g} in magnitude"
            problems.append(InvalidInput(place, expected, str(loss), DIVERGED_HINT))
        scores[task] = Score(loss, error, row_losses.get(task))
    return scores
