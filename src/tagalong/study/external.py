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

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import (
    InvalidInput,
    as_names,
    first_few,
    is_integer,
    is_positive_integer,
    raise_problems,
    task_name_problems,
)
from tagalong.files import checksum, report_damage
from tagalong.learn import Job, Task, Trained, halve_rows, score_outputs
from tagalong.score import Score

from .documents import SettingsFile
from .external_arrays import (
    DIVERGED_HINT,
    PARTS,
    Labels,
    problem_with_labels,
    read_array,
    read_labels,
    read_mapping,
    read_prediction,
)
from .external_files import read_results, write_plan
from .external_rounds import SCREENING_SHARE, ExternalRunner, Network, Plan, Rounds, TrainingPlan
from .methods import AutoMethod, Method, read_effort
from .records import Cost
from .results import Results
from .run_folder import write_run_report
from .runner import without_rows
from .store import Store
from .study_request import Options, StudyRequest, check_request

COSINES = ("cosine", "cosine_kernels", "centered_cosine")  # estimators of the affinities that `cs` uses
NAME = "own training script"
TARGETS = "targets"  # the key of the labels in the store
MAX_LOSS = 1e150  # so that sums of losses and their squares are finite
Losses = Mapping[str, float | Sequence[float]]


class PlanFile(SettingsFile):
    """`settings.json` of an external study."""

    hint = "plan the study again in another folder"
    trained_elsewhere: Plan | None = None


class ExternalStudy:
    """Compares ways of grouping tasks using networks trained by your own script.

    Every result is stored immediately, so an interrupted study can be continued. Multiple processes may use the
    same folder; each sees the results of the others.

    Args:
        tasks: the names of all tasks, or `Task` objects, which are required if `targets` are given. Losses that you
            tell become skill if all tasks have a `Task.constant_loss`.
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
        listed: tuple[Any, ...] = as_names(tasks)  # type: ignore[arg-type] # or Task objects
        self.tasks = tuple(task.name if isinstance(task, Task) else task for task in listed)
        raise_problems(task_name_problems(self.tasks))
        if logits and targets is None:
            raise InvalidInput("logits", "can only be used together with `targets`")
        self.out = None if out is None else Path(out)
        self._memory = Store() if out is None else None
        self._plan: Plan | None = None
        self._request = StudyRequest()
        self._affinities: Mapping[str, Affinity] = {}
        self._set_labels(listed, None if targets is None else read_labels(listed, targets), logits)
        if self.out is not None and (self.out / "settings.json").exists():
            self._continue(self.out)

    def _set_labels(self, tasks: Sequence[Task], labels: Labels | None, logits: bool) -> None:
        self._labels, self._logits = labels, logits
        if labels is None:
            known = {task.name: task.constant_loss for task in tasks if isinstance(task, Task)}
            problem = without_rows(self.tasks, NAME)
            named = tuple(replace(task, constant_loss=known.get(task.name)) for task in problem.tasks)
            self._problem = replace(problem, tasks=named)
        else:
            self._problem = problem_with_labels(NAME, tasks, labels)

    @staticmethod
    def load(out: str | os.PathLike[str]) -> ExternalStudy:
        """Returns the study in a folder."""
        study = ExternalStudy(_read_plan(Path(out)).tasks, out)
        if study._plan is None:
            hint = "plan the study again, and add the results again"
            raise InvalidInput(Path(out) / "run.sqlite", "must contain the results of the plan", "none", hint)
        return study

    def plan(
        self,
        affinity: Affinity | Sequence[Affinity] | None = None,
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
            affinity: one or more affinities measured in your own training loop. `cs` uses gradient cosines, and `tag`
                uses any other affinity.
            methods: any methods that need only plain networks: "stl", "tag", "cs", "hoa", "optimal", "oracle", "random"
                or "auto". If the study has targets, also "ensemble" and "best-of". "mtl" is always included. Defaults
                to `stl` and the methods that use the affinities, or to `stl` and `hoa` if there are no affinities. A
                study with a folder takes names only (see `register_method`).
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
        affinities = _by_method(affinity)
        if methods is None:
            methods = ["stl", *(sorted(affinities, reverse=True) or ["hoa"])]
        if runs is not None and not is_positive_integer(runs):
            raise InvalidInput("runs", "must be a positive integer", repr(runs))
        if self.out is not None and not all(isinstance(method, str) for method in methods):
            expected = "must be names if the study has a folder, in which a method is stored by its name and options"
            raise InvalidInput("methods", expected, short(methods), "see `register_method`")
        if runs is not None and effort is None and {"auto", "best-of"} & set(methods):
            effort = max(1, math.floor(runs * SCREENING_SHARE))
        request = check_request(self.tasks, methods, budgets, seeds, options, effort=effort)
        for method in request.methods:
            _check_method(method)
            if method.name in ("tag", "cs"):
                _check_affinity(method.name, affinities, self.tasks)

        names = [method.name for method in request.methods]
        self._affinities = {method: one for method, one in affinities.items() if method in names}
        plan = Plan(
            # Without targets, only names and constants matter; a task may have a loss that JSON cannot represent.
            tasks=list(self._problem.tasks),
            with_targets=self._labels is not None,
            logits=self._logits,
            methods=names,
            budgets=list(request.budgets),
            seeds=list(request.seeds),
            options={name: dict(own) for name, own in request.options.items()},
            runs=runs,
            screening=False,
            affinities={name: _affinity_key(one) for name, one in self._affinities.items()},
        )
        with Store() as empty:  # a plan does not depend on the results so far
            rounds = Rounds(ExternalRunner(self._problem, empty, self._affinities), request, plan)
            plan.screening = rounds.needs_too_many()
        self._plan, self._request = plan, request
        if self.out is not None:
            self._save_plan(self.out, plan)
        return self.next_round()

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
        with self._rounds() as rounds:
            return rounds.next()

    def tell(
        self,
        tasks: Sequence[str],
        seed: int,
        *,
        val: Losses | Mapping[str, Any] | None,
        test: Losses | Mapping[str, Any] | None,
        rows: Mapping[str, Any] | None = None,
        val_rows: Mapping[str, Any] | None = None,
        steps: int = 0,
        seconds: float = 0.0,
        parameters: int = 0,
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
        job = self._read_job(tasks, seed)
        diverged = val is None and test is None
        scores: dict[str, dict[str, Score]] = {}
        outputs: dict[str, dict[str, Tensor]] = {}
        for part, values, argument, row_losses in (("val", val, "val_rows", val_rows), ("test", test, "rows", rows)):
            if diverged:
                scores[part] = {task: Score(math.nan, math.nan) for task in job.tasks}
            elif self._labels is None:
                scores[part] = _read_losses(part, values, argument, row_losses, job.tasks)
            elif row_losses is not None:
                expected = "must be omitted if the study has targets, since they are computed from predictions"
                raise InvalidInput(f"`{argument}`", expected)
            else:
                outputs[part], scores[part] = self._read_predictions(part, values, job.tasks)
            for task, score in scores[part].items():
                if not diverged and not abs(score.loss) <= MAX_LOSS:
                    place = f"`{part}`: {'' if self._labels is None else 'the predictions for '}{task!r}"
                    expected = f"must give a finite loss of at most {MAX_LOSS:g} in magnitude"
                    raise InvalidInput(place, expected, str(score.loss), DIVERGED_HINT)

        trained = Trained(
            job,
            scores["val"],
            scores["test"],
            steps=int(steps),
            seconds=float(seconds),
            parameters=int(parameters),
            best_epoch=-1 if diverged else 0,
            halves=halve_rows({task: score.rows for task, score in scores["val"].items()}),
        )
        with self._runner() as runner:
            _check_row_counts(runner, trained)
            runner.tell(trained, outputs)

    def _read_job(self, tasks: Sequence[str], seed: int) -> Job:
        names = as_names([tasks] if isinstance(tasks, str) else tasks)
        if not names or not set(names) <= set(self.tasks) or not is_integer(seed, minimum=0):
            found, following = f"{list(names)}, {short(seed)}", self.ask()
            hint = "" if following is None else f"ask() returns {following!r} next"
            raise InvalidInput("`tasks` and `seed`", "must be tasks of the study and a seed", found, hint)
        return Job(tuple(task for task in self.tasks if task in names), int(seed))

    def _read_predictions(
        self, part: str, predictions: Any, tasks: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Score]]:
        """Returns the outputs of each task, and their scores."""
        assert self._labels is not None
        outputs, scores = {}, {}
        for name, values in read_mapping(f"`{part}`", predictions, tasks).items():
            task, labels = self._problem.task(name), self._labels[part][name]
            place = f"`{part}`: the predictions for {name!r}"
            outputs[name] = read_prediction(place, task, values, labels.numpy(), self._logits)
            scores[name] = score_outputs(task, outputs[name], labels)
        return outputs, scores

    def tell_file(self, path: str | os.PathLike[str]) -> None:
        """Adds the results of all networks in a file.

        Args:
            path: a table that was filled in, or a JSON file with a list of the arguments of `tell`.
        """
        tell_networks(self, read_results(Path(path), predictions=self._labels is not None))

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
            write_plan(path, following.networks, predictions=self._labels is not None)
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
        with self._rounds() as rounds:
            results = rounds.results(self.out)
        if results is not None and self.out is not None:
            results.save(self.out / "results.json")
            write_run_report(self.out)
        return results

    def settling(self) -> list[Network]:
        """Returns the networks with fresh seeds that would judge what is recommended once more."""
        with self._rounds() as rounds:
            return rounds.settling()

    # The folder -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _rounds(self) -> Iterator[Rounds]:
        if self._plan is None:
            self.plan()
        assert self._plan is not None
        with self._runner() as runner:
            yield Rounds(runner, self._request, self._plan)

    @contextmanager
    def _runner(self) -> Iterator[ExternalRunner]:
        opened: AbstractContextManager[Store]
        if self._memory is not None:
            opened = nullcontext(self._memory)
        else:
            assert self.out is not None
            opened = Store(self.out / "run.sqlite")
        with opened as store:
            yield ExternalRunner(self._problem, store, self._affinities)

    def _save_plan(self, out: Path, plan: Plan) -> None:
        with self._runner() as runner:
            for method, affinity in self._affinities.items():
                runner.store.add_affinity(plan.affinities[method], affinity, Cost(), Cost())
            if self._labels is not None:
                arrays = {f"{part} {task}": self._labels[part][task] for part in PARTS for task in self.tasks}
                runner.store.add_computed(TARGETS, {}, arrays)
        problem = {"name": NAME, "fingerprint": self._problem.fingerprint, "tasks": self.tasks}
        PlanFile.write(out / "settings.json", {"problem": problem, "trained_elsewhere": plan.model_dump()})

    def _continue(self, out: Path) -> None:
        """Reads the plan in the folder."""
        plan = _read_plan(out)
        names = tuple(task.name for task in plan.tasks)
        if names != self.tasks:
            expected = f"must contain a plan for {', '.join(self.tasks)}"
            raise InvalidInput("out", expected, f"one for {', '.join(names)}", "use a new folder")
        fingerprint = PlanFile.read(out / "settings.json").problem.fingerprint
        if self._labels is not None and fingerprint != self._problem.fingerprint:
            expected = "must be those of the study in this folder"
            raise InvalidInput("targets", expected, f"others in {out}", "use a new folder")
        with self._runner() as runner:
            stored = {method: runner.store.affinity(key) for method, key in plan.affinities.items()}
            arrays = runner.store.arrays(TARGETS)
        if None in stored.values() or (plan.with_targets and arrays is None):
            return  # the store was removed, so the study has to be planned again
        with report_damage(out / "settings.json", PlanFile.error, PlanFile.hint):
            request = check_request(names, plan.methods, plan.budgets, plan.seeds, plan.options)
        if arrays is not None and self._labels is None:
            labels = {part: {task: arrays[f"{part} {task}"] for task in names} for part in PARTS}
            self._set_labels(plan.tasks, labels, plan.logits)
        self._plan, self._request = plan, request
        self._affinities = {method: entry[0] for method, entry in stored.items() if entry is not None}


def tell_networks(study: ExternalStudy, networks: Iterable[Mapping[str, Any]]) -> None:
    """Adds the results of several networks, given by the arguments of `tell`. An error names the network."""
    for network in networks:
        try:
            study.tell(**network)
        except InvalidInput as error:  # noqa: PERF203 - each network has its own errors
            name = f"{'+'.join(network['tasks'])} (seed {network['seed']}):"
            raise InvalidInput(name, str(error)) from error


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


def _by_method(affinity: Affinity | Sequence[Affinity] | None) -> dict[str, Affinity]:
    """Returns the affinity that each method uses: gradient cosines are for `cs`, all others for `tag`."""
    listed = (affinity,) if isinstance(affinity, Affinity) else affinity or ()
    if not isinstance(listed, Sequence) or not all(isinstance(one, Affinity) for one in listed):
        expected = "must be an Affinity, a list of Affinities, or None"
        raise InvalidInput("affinity", expected, short(affinity), "see Affinity.from_matrix")
    affinities: dict[str, Affinity] = {}
    for one in listed:
        estimator = one.settings.get("estimator")
        method = "cs" if estimator in COSINES else "tag"
        if method in affinities:
            expected = f"must contain at most one for {method!r}"
            raise InvalidInput("affinity", expected, f"another one, measured with {estimator!r}", "choose one")
        affinities[method] = one
    return affinities


def _affinity_key(affinity: Affinity) -> str:
    return f"affinity {checksum(affinity.mean.tobytes())}"


def _check_affinity(method: str, affinities: Mapping[str, Affinity], tasks: Sequence[str]) -> None:
    if method not in affinities:
        estimators = "cosines of gradients" if method == "cs" else "lookahead or gradient"
        expected = f"must include one for {method!r} ({estimators})"
        raise InvalidInput("affinity", expected, hint=f"measure it, or remove {method!r}")
    if lacking := [task for task in tasks if task not in affinities[method].tasks]:
        raise InvalidInput("affinity", f"must have values for every task of {method!r}", f"none for {lacking}")


def _check_method(method: Method) -> None:
    if method.rule != "plain" or type(method).width is not Method.width:
        expected = "must not require balancing rules or wider networks if networks are trained elsewhere"
        raise InvalidInput("methods", expected, repr(method.name), "use Study, which trains them")
    if isinstance(method, AutoMethod) and read_effort(method.effort).trainings is None:
        raise InvalidInput("effort", "must be a number of training runs if networks are trained elsewhere")


def _read_losses(part: str, losses: Any, argument: str, row_losses: Any, tasks: Sequence[str]) -> dict[str, Score]:
    """Returns the score of each task.

    Args:
        part: "val" or "test".
        losses: the loss, or the loss and the error, of each task.
        argument: the name of the argument with the losses of all rows.
        row_losses: the losses of all rows by task, or None.
        tasks: the tasks of the network.
    """
    rows: dict[str, Any] = {}
    if row_losses is not None:
        for task, values in read_mapping(f"`{argument}`", row_losses, tasks).items():
            rows[task] = read_array(f"`{argument}`: {task!r}", values)
        shapes = {array.shape for array in rows.values()}
        if len(shapes) > 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
            expected = "must contain one loss per row for every task (NaN for rows without a label)"
            raise InvalidInput(argument, expected, f"arrays of shape {' and '.join(map(str, shapes))}")
    scores = {}
    for task, values in read_mapping(f"`{part}`", losses, tasks).items():
        pair = values if isinstance(values, (tuple, list)) else (values,)
        try:
            loss, error = map(float, (*pair, math.nan) if len(pair) == 1 else pair)
        except (TypeError, ValueError, OverflowError):
            expected = "must be a loss or a pair (loss, error)"
            raise InvalidInput(f"`{part}`: {task!r}", expected, short(values)) from None
        scores[task] = Score(loss, error, rows.get(task))
    return scores


def _check_row_counts(runner: ExternalRunner, trained: Trained) -> None:
    """Checks that the losses are of as many test rows as those of another network."""
    others = [key for key in runner.store.known_keys() if key != runner.keys.of(trained.job)]
    known = runner.store.losses(others[0]) if others else None
    rows = [score.rows for score in trained.test.values() if score.rows is not None]
    if known and rows and len(next(iter(known.values()))) != len(rows[0]):
        raise InvalidInput("rows", "must have as many test rows as those of other networks", str(len(rows[0])))
