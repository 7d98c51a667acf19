"""Lets methods choose networks, trains the chosen networks, measures their latency, and compares the results."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tagalong.affinity import CAUTION
from tagalong.documents import build
from tagalong.errors import InvalidInput, pluralize
from tagalong.group import Group
from tagalong.learn import Diverged, Problem, Trained
from tagalong.progress import TimeIsUp, TimeLimit
from tagalong.score import Score

from .documents import GroupingsFile
from .evidence import CrossFitted, gather_evidence, join_folds
from .methods import Choice, Combined, Decision, Method, format_effort, no_average
from .records import TOGETHER, Cost, Label, ProblemInfo, Record, averaged_tasks, check_served
from .results import Results
from .rule import Evidence, decide
from .runner import Runner
from .study_request import Options, StudyRequest, check_request, usable_budgets
from .words import MIN_SEEDS, lost_seeds_note

logger = logging.getLogger(__name__)
MAX_OVERHEAD = 0.1  # of measuring, as a fraction of the first training
Decisions = Mapping[str, tuple[Method, Decision]]  # by method name


@dataclass(frozen=True)
class Trial:
    """What was decided and trained on one split of the rows.

    Attributes:
        runner: the runner of the split.
        request: what was compared, with the seeds that can be used.
        decisions: the decisions of the methods.
        records: their records.
        lost: the seeds that cannot be used, because the network for all tasks diverged.
    """

    runner: Runner
    request: StudyRequest
    decisions: Decisions
    records: list[Record]
    lost: tuple[int, ...] = ()

    @cached_property
    def evidence(self) -> Evidence:
        """What the records say about the ways of using models."""
        cross_fitted = cross_fitted_rows(self.decisions)
        evidence = gather_evidence(self.runner, self.records, self.request.reference, cross_fitted)
        few = len(self.request.seeds) < MIN_SEEDS and self.request.repeats == 1 and not self.request.confirming
        return replace(evidence, has_few_seeds=few)


def compare(
    runner: Runner,
    request: StudyRequest,
    settings: Mapping[str, Any] | None = None,
    out: Path | None = None,
    limit: TimeLimit | None = None,
) -> Results:
    """Lets all methods decide, trains their networks, and compares them; with folds, in each fold anew.

    Args:
        runner: the runner that trains the networks or looks them up.
        request: what to compare.
        settings: the settings of the results.
        out: the folder of the run, to which the decisions are written, or None.
        limit: leaves out methods that are not finished in time, or None.

    Raises:
        Diverged: If the network for all tasks diverges for every seed.
        Pending: If networks that are trained elsewhere have no results yet.
    """
    # Who helps whom is measured while the first network for all tasks is trained, unless a method measures it or the
    # network is there already. That counts toward no effort.
    fold, seeds = runner.folds(request.repeats)[0], request.in_fold(0).seeds
    together = [fold.job(fold.tasks, seed) for seed in seeds]
    meter = {"estimator": "cosine", "every": measuring_interval(len(runner.tasks))}
    measured_here = len(runner.tasks) > 1 and not any(method.measures for method in request.methods)
    if measured_here and fold.missing(together[:1]):
        fold.prepare(together[1:], seeds[:1], meter)
    if limit is not None:
        request = train_in_time(runner, request, limit)
    trials = try_methods(runner, request)
    stored = fold.store.affinity(fold.keys.of_affinity(together[0], meter)) if measured_here else None
    if out is not None and stored is not None:
        stored[0].save(out / "affinity.json")
    return conclude(runner.problem, trials, settings, out)


def try_methods(runner: Runner, request: StudyRequest) -> list[Trial]:
    """Lets all methods decide, and trains their networks, on each split of the rows."""
    trials = []
    for number, fold in enumerate(runner.folds(request.repeats)):
        own = request.in_fold(number)
        begin_all(fold, own)
        # The networks for all tasks come first, since every cost is relative to theirs.
        seeds = fold.converged_seeds(own.seeds)
        lost = tuple(seed for seed in own.seeds if seed not in seeds)
        own = replace(own, seeds=seeds)
        decisions = decide_all(fold, own)
        trials.append(Trial(fold, own, decisions, train_choices(fold, decisions, seeds), lost))
    return trials


def train_in_time(runner: Runner, request: StudyRequest, limit: TimeLimit) -> StudyRequest:
    """Trains the networks of one method after another until the time is up.

    The network for all tasks and the reference are trained in any case.

    Returns:
        The request without the methods that are not finished. All their networks are in the store.
    """
    for number, fold in enumerate(runner.folds(request.repeats)):
        begin_all(fold, request.in_fold(number))
    needed = ("mtl", request.reference[0])
    late = []
    for method in sorted(request.methods, key=lambda method: (method.name not in needed, method.order, method.name)):
        limit.interrupts = method.name not in needed
        try:
            try_methods(runner, replace(request, methods=(method,)))
        except TimeIsUp:
            logger.warning("%s is left out, since the time is up", method.name)
            late.append(method.name)
    limit.interrupts = False
    finished = tuple(method for method in request.methods if method.name not in late)
    notes = [f"Left out, since the time was up: {', '.join(late)}."] if late else []
    return replace(request, methods=finished, notes=(*request.notes, *notes))


def measuring_interval(n_tasks: int) -> int:
    """Returns the measuring interval, in steps, at which measuring increases the training cost by a tenth.

    Costs are computed rather than timed: a plain training step takes three passes, and measuring the cosines of n tasks
    takes n gradients of two passes each.

    Example:
        >>> measuring_interval(9)
        60
    """
    return math.ceil(2 * n_tasks / 3 / MAX_OVERHEAD)


def conclude(
    whole: Problem, trials: Sequence[Trial], settings: Mapping[str, Any] | None = None, out: Path | None = None
) -> Results:
    """Compares the ways of using models, and trains the recommended one again if that was requested.

    Args:
        whole: the problem that was studied.
        trials: what was decided and trained on each split of the rows. You get the networks of the first.
        settings: see `compare`.
        out: see `compare`.
    """
    first, folds = trials[0], len(trials)
    store = first.runner.store
    if out is not None:
        write_decisions(out, first.decisions)
    evidence = join_folds([trial.evidence for trial in trials])
    verdict = decide(evidence)

    # Fresh seeds judge the recipe. In fold i of n, these are i + n, i + 2n, …; the folds have as many.
    again = [confirm_recommended(trial, verdict.recommended, trial.request.confirming) for trial in trials]
    lost_fresh = sorted({record.seed for records in again for record in records if record.diverged})
    lost_rounds = {seed // folds for seed in lost_fresh}
    fresh = [[record for record in records if record.seed // folds not in lost_rounds] for records in again]
    if any(fresh):
        confirmed = [
            gather_evidence(trial.runner, records, trial.request.reference)
            for trial, records in zip(trials, fresh, strict=True)
        ]
        verdict = decide(evidence, join_folds(confirmed))
    if lost_fresh:
        verdict = replace(verdict, notes=(*verdict.notes, lost_seeds_note(lost_fresh)))
    if out is not None and first.runner.trains:
        verdict = replace(verdict, use=f"Results.load({str(out)!r}).best().predict(rows)")

    records = [record for trial in trials for record in trial.records]
    records += [record for some in fresh for record in some]
    store.keep(key for record in records for key in record.networks)
    about = {
        **(settings or {}),
        **explain_decisions(first.decisions),
        "notes": [*first.request.notes, *effort_notes(first.decisions)],
        "spent": asdict(store.spent()),
    }
    lost = [*(seed for trial in trials for seed in trial.lost), *lost_fresh]
    if lost:
        about["diverged_seeds"] = lost
    results = Results(
        records, problem=ProblemInfo.of(whole), settings=about, out=out, scale=evidence.scale, verdict=verdict
    )
    results.trained_on = first.runner.problem
    return results


def cross_fitted_rows(decisions: Decisions) -> CrossFitted:
    """Returns the cross-fitted losses of each method, budget and seed that has some."""
    return {
        (name, *at): choice.val_rows
        for name, (_, decision) in decisions.items()
        for at, choice in decision.choices.items()
        if choice.val_rows is not None
    }


def compare_methods(
    runner: Runner,
    methods: Sequence[str | Method],
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
) -> list[Record]:
    """Compares methods as `Study.run` does, without writing results.

    Args:
        runner: the runner that trains the networks or looks them up (see `open_runner`).
        methods: see `Study.run`.
        budgets: see `Study.run`.
        seeds: see `Study.run`.
        options: see `Study.run`.

    Raises:
        ValueError: If the input is invalid. The message lists every problem, and nothing is trained.
        Diverged: If the network for all tasks diverges for at least one seed.
    """
    request = check_request(
        runner.tasks, methods, budgets, seeds, options, problem=runner.problem if runner.trains else None
    )
    begin_all(runner, request)
    # The networks for all tasks come first, since every cost is relative to theirs.
    runner.networks([runner.job(runner.tasks, seed) for seed in request.seeds], "all tasks together")
    return train_choices(runner, decide_all(runner, request), request.seeds)


def begin_all(runner: Runner, request: StudyRequest) -> None:
    """Lets methods measure while the networks for all tasks are trained, so that none of these is trained twice."""
    for method in sorted(request.methods, key=lambda method: (method.order, method.name)):
        method.begin(runner, request.seeds)


def decide_all(runner: Runner, request: StudyRequest) -> Decisions:
    """Lets each method decide which networks to train.

    Methods decide in a fixed order so that networks are always trained in the same batches. If a network needed by a
    method diverged, the method makes no choice.
    """
    made = {}
    for method in sorted(request.methods, key=lambda method: (method.order, method.name)):
        logger.info("%s decides", method.name)
        try:
            decision = method.decide(runner, usable_budgets(method, request.budgets, len(runner.tasks)), request.seeds)
        except Diverged as error:
            logger.warning("%s could not select groups: %s", method.name, error)
            budgets = usable_budgets(method, request.budgets, len(runner.tasks)) if method.budgeted else (None,)
            decision = Decision({(k, s): Choice(()) for k in budgets for s in request.seeds})
        made[method.name] = method, decision
    return {method.name: made[method.name] for method in request.methods}


def train_choices(runner: Runner, decisions: Decisions, seeds: Sequence[int]) -> list[Record]:
    """Trains the chosen networks of all methods at once, since methods can share networks.

    Returns their records.
    """
    chosen = []
    for method, decision in decisions.values():
        width = method.width(runner.problem) if runner.trains else 1.0
        for (budget, seed), choice in decision.choices.items():
            if seed in seeds:
                check_averages(runner, method.name, choice)
                jobs = [runner.group_job(group, seed, method.rule, width) for group in choice.groups]
                deciding = decision.deciding.get(seed, Cost())
                chosen.append((Record(method.name, budget, seed, (), {}, {}, deciding), choice, jobs, method.honest))
    together = [job for *_, jobs, _ in chosen for job in jobs]
    together.sort(key=lambda job: (job.seed, job.rule, job.width, len(job.tasks), job.tasks, job.network or ""))
    waiting = dict.fromkeys(record.method for record, _, jobs, _ in chosen if runner.missing(jobs))
    results = runner.networks(together, ", ".join(waiting) or "networks", diverged=True)
    return [
        replace(_fill_record(runner, record, choice, [results[job] for job in jobs]), honest=honest)
        for record, choice, jobs, honest in chosen
    ]


def _fill_record(runner: Runner, record: Record, choice: Choice, networks: Sequence[Trained]) -> Record:
    """Returns the record with the scores and costs of a choice.

    If the groups are drawn at random, these are expected scores and costs.
    """
    weighted = list(zip(choice.shares or (1.0,) * len(networks), networks, strict=True))
    parameters = 0  # unknown
    if all(trained.parameters for trained in networks):
        parameters = round(sum(share * trained.parameters for share, trained in weighted))
    training = Cost(
        round(sum(share for share, _ in weighted)),
        round(sum(share * runner.step_cost(one.job.network) * one.steps for share, one in weighted)),
        sum(share * one.seconds for share, one in weighted),
    )
    record = replace(
        record,
        val=_expected_scores(runner, choice, weighted, "val"),
        test=_expected_scores(runner, choice, weighted, "test"),
        training=training,
        parameters=parameters,
    )
    if choice.shares is not None:
        return record
    keys = tuple(trained.key for trained in networks if trained.key)
    return replace(record, groups=choice.groups, latency=_total_latency(runner, choice.groups, networks), networks=keys)


def _expected_scores(
    runner: Runner, choice: Choice, networks: Sequence[tuple[float, Trained]], part: str
) -> dict[str, Score]:
    """Returns each task's score in the networks that serve it, or NaN if no groups were chosen.

    The answers of several networks are averaged. If the groups are drawn at random, expected scores are returned.

    Args:
        runner: the runner that trained the networks.
        choice: the choice.
        networks: the share and result of each network.
        part: "val" or "test".
    """
    if choice.scores is not None:
        return {task: choice.scores[part][task] for task in runner.tasks}
    scores = {}
    if choice.shares is None and averaged_tasks(choice.groups):
        scores = runner.average_scores(choice.groups, [trained.key for _, trained in networks], part)
    for task in runner.tasks:
        if task in scores:
            continue
        served = []
        for group, (share, trained) in zip(choice.groups, networks, strict=True):
            if task in group.serves:
                served.append((share, getattr(trained, part)[task]))
        if not served:
            scores[task] = Score(math.nan, math.nan)
        elif len(served) == 1 and served[0][0] == 1:
            scores[task] = served[0][1]
        else:
            loss, error = (sum(share * getattr(score, name) for share, score in served) for name in ("loss", "error"))
            scores[task] = Score(loss, error)
    return {task: replace(scores[task], rows=None) for task in runner.tasks}


def _total_latency(runner: Runner, groups: Sequence[Group], networks: Sequence[Trained]) -> float | None:
    """Returns the inference time per row, in seconds, of all networks together, or None if unknown."""
    total = 0.0
    for group, trained in zip(groups, networks, strict=True):
        if group.serves:
            seconds = runner.latency(group.serves, trained.job.width, trained.job.network)
            if seconds is None:
                return None
            total += seconds
    return total or None


def check_averages(runner: Runner, method: str, choice: Choice) -> None:
    """Checks that the answers for all tasks that several networks serve can be averaged."""
    averaged = averaged_tasks(choice.groups) if choice.shares is None else ()
    if not averaged:
        return
    place = f"the groups of {method!r}"
    tasks = {name: runner.task(name) for name in sorted(averaged)}
    if any(task is None for task in tasks.values()):
        expected = "must serve each task by one network if only the losses of networks are known"
        raise InvalidInput(place, expected, hint="pass `targets` to ExternalStudy and predictions to tell()")
    if unknown := [name for name, task in tasks.items() if task is not None and task.averaging is None]:
        raise no_average(place, unknown)
    try:
        check_served(choice.groups, runner.tasks)
    except ValueError as error:
        raise InvalidInput(place, str(error), hint="number the copies: `Group.copy`") from None


def confirm_recommended(trial: Trial, recommended: Label, seeds: Sequence[int]) -> list[Record]:
    """Trains the recommended way and the reference with fresh seeds, whose networks nothing has picked.

    No network is shared between seeds, not even teachers.

    Returns:
        Their records for the fresh seeds.
    """
    if not seeds:
        return []
    compared = dict.fromkeys((TOGETHER, trial.request.reference, recommended))
    again = {
        name: (method, _with_fresh_teachers(trial.runner, trial.decisions[name][1], decision))
        for name, (method, decision) in _decide_again(trial.decisions, list(compared), seeds).items()
    }
    return train_choices(trial.runner, again, seeds)


def _decide_again(decisions: Decisions, labels: Sequence[Label], seeds: Sequence[int]) -> Decisions:
    """Returns the same decisions for fresh seeds.

    Networks that were picked from many, such as those of `best-of`, are not picked again: the plan is the same, and the
    luck of picking is gone.
    """
    copied: dict[str, tuple[Method, Decision]] = {}
    for name, budget in labels:
        method, decision = decisions[name]
        (_, first), choice = next((at, choice) for at, choice in decision.choices.items() if at[0] == budget)
        deciding = {seed: decision.deciding[first] for seed in seeds if first in decision.deciding}
        choices = {**(copied[name][1].choices if name in copied else {}), **{(budget, seed): choice for seed in seeds}}
        copied[name] = method, Decision(choices, deciding)
    return copied


def _with_fresh_teachers(runner: Runner, original: Decision, decision: Decision) -> Decision:
    """Trains the teachers of a decision for fresh seeds anew, and lets them teach.

    Args:
        runner: the runner that trains the networks.
        original: the decision for the original seeds, whose explanation names the teachers.
        decision: the same decision for the fresh seeds.
    """
    seeds = dict.fromkeys(seed for _, seed in decision.choices)
    _, first = next(iter(original.choices))
    teachers = build(tuple[Group, ...], original.about.get("teachers", ()))
    if not any(group.taught for choice in decision.choices.values() for group in choice.groups):
        return decision
    jobs = {seed: [runner.group_job(group, seed) for group in teachers] for seed in (first, *seeds)}
    results = runner.networks([job for some in jobs.values() for job in some], "teachers", diverged=True)
    choices = {}
    for (budget, seed), choice in decision.choices.items():
        fresh = {results[old].key: results[new] for old, new in zip(jobs[first], jobs[seed], strict=True)}
        choices[budget, seed] = replace(choice, groups=tuple(_taught_by(group, fresh) for group in choice.groups))
    return replace(decision, choices=choices)


def _taught_by(group: Group, fresh: Mapping[str, Trained]) -> Group:
    """Replaces the teachers of a group, given the key of each. Those that diverged are left out."""
    if group.taught is None or not fresh.keys() >= set(group.taught.teachers):
        return group
    weights = group.taught.weights or (1.0,) * len(group.taught.teachers)
    known = {
        fresh[key].key: weight
        for key, weight in zip(group.taught.teachers, weights, strict=True)
        if not fresh[key].diverged
    }
    if not known:
        return group
    return replace(group, taught=replace(group.taught, teachers=tuple(known), weights=tuple(known.values())))


def explain_decisions(decisions: Decisions) -> dict[str, Any]:
    """Returns the methods' explanations of their decisions, or an empty mapping if there are none."""
    about = {name: dict(decision.about) for name, (_, decision) in decisions.items() if decision.about}
    return {"decisions": about} if about else {}


def effort_notes(decisions: Decisions) -> list[str]:
    """Returns a sentence about the training runs that `best-of` and `auto` spend on their decisions."""
    about = {name: decision.about for name, (_, decision) in decisions.items()}
    spent = {}
    if about.get("best-of"):
        spent["best-of"] = pluralize(about["best-of"]["trainings"], "training")
    if about.get("best-of") and "effort" in about.get("auto", {}):
        spent["auto"] = f"{format_effort(about['auto']['effort'])} trainings"
    return [f"Spent on deciding: {', '.join(f'{name} {effort}' for name, effort in spent.items())}."] if spent else []


def write_decisions(out: Path, decisions: Decisions) -> None:
    """Writes `groupings.json`, `affinity.json` (for `tag`) and `affinity-<method>.json` (for other methods)."""
    measured = {
        name: decision.affinity
        for name, (method, decision) in decisions.items()
        if decision.affinity is not None and not isinstance(method, Combined)
    }
    main = "tag" if "tag" in measured else next(iter(measured), None)
    for name, affinity in measured.items():
        affinity.save(out / ("affinity.json" if name == main else f"affinity-{name}.json"))
    found = [
        {"method": name, "budget": budget} | _choice_document(choice)
        for name, (_, decision) in decisions.items()
        for budget, choice in {budget: choice for (budget, _), choice in decision.choices.items()}.items()
        if choice.shares is None and choice.groups
    ]
    GroupingsFile.write(out / "groupings.json", {"caution": CAUTION, "groupings": found})


def _choice_document(choice: Choice) -> dict[str, Any]:
    return {
        "groups": [group.to_document(cost=False) for group in choice.groups],
        "grouping": None if choice.grouping is None else choice.grouping.to_document(),
    }
