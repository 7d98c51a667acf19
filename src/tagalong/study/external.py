"""A study of networks trained elsewhere.

It determines which networks to train next and computes the verdict. An interrupted study can be continued, and multiple
processes can add results to the same folder (see `external_files`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tagalong.errors import InvalidInput, as_names, first_few, is_integer
from tagalong.learn import Diverged, Job, Task, Trained

from .candidates import comparable_records
from .decisions import decide_all, explain_decisions, train_choices
from .external_backend import ExternalBackend
from .external_files import file_signature, has_plan, locked, plan_document, read_plan, read_results, write_run
from .external_results import Losses, check_result, check_told_predictions
from .external_targets import ExternalTargets, check_targets
from .learning import Learning, constant_p_values
from .planning import Affinities, PlanRequest, TrainingPlan, check_plan, make_plan
from .records import ProblemInfo, Record
from .results import Results
from .run_folder import check_no_run, write_run_report
from .study_request import Options, StudyRequest, default_budgets, with_effort
from .uncertainty import comparison_noise

MOST_NAMED = 5  # networks that a message lists
Network = tuple[tuple[str, ...], int]


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
            with locked(self.out):
                if has_plan(self.out):
                    saved = self._read(self.out)
                    if json.dumps(saved.document) != json.dumps(run.document):
                        found = f"a different plan in {self.out}"
                        raise InvalidInput("out", "must contain the results of this plan", found, "use a new folder")
                    run = saved
                else:
                    write_run(self.out, run.request, run.document, run.known.values())
                self._seen = file_signature(self.out)
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
        with locked(self.out):
            self._check_unknown(result.job)  # another process may have added it in the meantime
            run = self._open
            run.add(result)
            write_run(self.out, run.request, run.document, run.known.values())
            self._seen = file_signature(self.out)

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
        if self.out is not None and (signature := file_signature(self.out)) not in (None, self._seen):
            if self._run is None:
                self._run = self._read(self.out)
            else:
                self._run.known |= read_results(self.out, self._run.request, self._run.known)
            self._seen = signature
        if self._run is None:
            self.plan()
        assert self._run is not None
        return self._run

    def _read(self, out: Path) -> ExternalRun:
        request = read_plan(out)
        run = ExternalRun(request, read_results(out, request, {}))
        found = request.tasks
        if found != self.tasks:
            expected = f"must contain a plan for {', '.join(self.tasks)}"
            raise InvalidInput("out", expected, f"one for {', '.join(found)}", "use a new folder")
        saved = request.targets
        if self._targets is not None and (saved is None or saved.document != self._targets.document):
            raise InvalidInput(
                "targets", "must be those of the study in this folder", f"others in {out}", "use a new folder"
            )
        return run

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

    def __init__(self, request: PlanRequest, known: Mapping[Job, Trained] | None = None) -> None:
        self.request, self.known = request, dict(known or {})
        first = make_plan(request.study, self._make_backend({}))
        self.document = plan_document(first, request)
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

    def _make_backend(self, known: Mapping[Job, Trained]) -> ExternalBackend:
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

    def add(self, result: Trained) -> None:
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
        noise = comparison_noise(records, backend.row_losses, unlearnt=learning.unlearnt)
        return Results(records, problem=problem, noise=noise, settings=settings, out=out, learning=learning)


def _constant_p_values(
    records: Sequence[Record], backend: ExternalBackend, targets: ExternalTargets
) -> dict[str, float]:
    groupings = [[backend.row_losses(record, "val") or {} for record in some] for some in comparable_records(records)]
    return constant_p_values(groupings, targets.constant_rows("val"))
