"""Plans which networks your own script must train to compare methods."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, as_names, as_tuple, collect, raise_problems, task_name_problems
from tagalong.files import write_atomic
from tagalong.group import Group
from tagalong.learn import Diverged, Job

from .executors import Pending
from .external_backend import (
    COSINE_ESTIMATORS,
    PREDICTIONS_HINT,
    ExternalBackend,
    method_of_estimator,
)
from .external_targets import ExternalTargets
from .methods import AutoMethod, Choice, Decision, Ensemble, Method, make_method, read_effort
from .records import Label, label_key
from .relative_losses import Subset
from .runner import Runner
from .study_request import Options, StudyRequest, check_options, check_request

ESTIMATORS = {"tag": ("lookahead", "gradient"), "cs": COSINE_ESTIMATORS}
# Columns of the CSV file: the network and task, their purpose, and the required and optional values to fill in.
KEY_COLUMNS = ("network", "seed", "task")
PLAN_COLUMNS = ("serves", "decides")
REQUIRED_COLUMNS = ("val_loss", "test_loss")
COPY_COLUMN, PREDICTIONS_COLUMN = "copy", "predictions"
OPTIONAL_COLUMNS = ("val_error", "test_error", "test_rows", "steps", "seconds", "parameters")
Affinities = Affinity | Sequence[Affinity] | Mapping[str, Affinity] | None


@dataclass(frozen=True)
class TrainingPlan:
    """The networks to train, and the methods that need them.

    Attributes:
        tasks: the names of all tasks.
        methods: the names of the methods to compare, which always include `mtl`.
        budgets: the limits on the number of networks.
        seeds: the seeds used to train each network.
        groupings: the groups chosen by each method and budget that has already decided.
        deciding: for each method and budget that has not decided yet, the networks whose results it needs: their tasks
            and the number of their copy.
        networks: the tasks and seed of every network known to be needed. Networks for all tasks come first.
        copies: for each seed that is not one of `seeds`, the seed and the number of the copy that is trained with it.
            Answers of copies are averaged. Copy 0 is trained with the seed itself.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    groupings: Mapping[Label, tuple[Group, ...]] = field(default_factory=dict)
    deciding: Mapping[Label, frozenset[tuple[Subset, int]]] = field(default_factory=dict)
    networks: tuple[tuple[tuple[str, ...], int], ...] = ()
    copies: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def to_csv(self, path: str | Path) -> Path:
        """Writes a CSV file with one row per network, seed and task.

        The loss columns are left empty for you to fill in. The `serves` column lists the methods and budgets for which
        the network serves the task. The `decides` column lists the methods and budgets that need the network's losses
        to decide. If answers of copies are averaged, a column `copy` contains their numbers, and a column `predictions`
        is left empty for the names of files.

        Raises:
            InvalidInput: If a method decides in multiple rounds, which a single table cannot represent, or the name of
                a task contains "+".
        """
        if "auto" in self.methods:
            expected = "must select groups in a single round to be planned in a table"
            raise InvalidInput("methods", expected, "'auto'", "use ExternalStudy in Python, or remove 'auto'")
        joined = [task for task in self.tasks if "+" in task]
        if joined:
            hint = "rename them, since '+' joins the tasks of a network in the table"
            raise InvalidInput("task names", "must not contain '+'", ", ".join(map(repr, joined)), hint)
        columns = [*KEY_COLUMNS, *PLAN_COLUMNS, *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS[:2]]
        columns += [COPY_COLUMN, PREDICTIONS_COLUMN] if self.copies else []
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for network in self.networks for row in self._csv_rows(*network))
        write_atomic(Path(path), text.getvalue())
        return Path(path)

    def _csv_rows(self, tasks: tuple[str, ...], seed: int) -> Iterator[dict[str, Any]]:
        subset, (_, copy) = frozenset(tasks), self.copies.get(seed, (seed, 0))
        decides = [label_key(label) for label, networks in self.deciding.items() if (subset, copy) in networks]
        for task in tasks:
            serves = [
                label_key(label)
                for label, groups in self.groupings.items()
                if any((group.trains, group.copy) == (subset, copy) and task in group.serves for group in groups)
            ]
            keys = {"network": "+".join(tasks), "seed": seed, "task": task, COPY_COLUMN: copy}
            yield {**keys, "serves": " ".join(serves), "decides": " ".join(decides)}


def plan(
    affinity: Affinities,
    budgets: Sequence[int],
    methods: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    tasks: Sequence[str] | None = None,
    options: Options | None = None,
) -> TrainingPlan:
    """Returns the networks that must be trained to compare these methods.

    Args:
        affinity: one or more affinities. `cs` uses an affinity measured with "cosine", "cosine_kernels" or
            "centered_cosine". `tag` uses any other affinity, e.g. one measured with "lookahead" or "gradient", or a
            matrix of unknown origin. Alternatively, pass a mapping from "tag", "cs" and "auto" to affinities. Pass None
            if none of these methods is compared.
        budgets: the limits on the number of networks.
        methods: any methods that need only plain networks ("stl", "tag", "cs", "hoa", "optimal", "random", "ensemble",
            "best-of", …). "mtl" is always included. Defaults to `stl`, plus `tag` and `cs` if an affinity is provided
            for them. Methods that average answers also need the predictions of the networks.
        seeds: the number of seeds, or a list of seeds.
        tasks: the names of the tasks. Defaults to the tasks of the affinity.
        options: options for each method (see `Study.run`).

    Raises:
        InvalidInput: If the input is invalid, e.g. a method has no affinity or more than one. The message lists every
            problem.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 5, 1], [5, 0, 0], [0, 0, 0]], ["age", "ill", "fit"])
        >>> for tasks, seed in plan(affinity, [2], methods=["tag"], seeds=1).networks:
        ...     print(*tasks)
        age ill fit
        age ill
        age fit
    """
    request = check_plan(affinity, budgets, methods, seeds, tasks=tasks, options=options)
    return make_plan(request.study, ExternalBackend(request.tasks, {}, request.affinities))


@dataclass(frozen=True)
class PlanRequest:
    """A request to compare methods using networks trained elsewhere.

    Attributes:
        tasks: the names of all tasks.
        study: the methods, budgets and seeds.
        affinities: the measured affinities, keyed by the method that uses them ("tag", "cs" or "auto").
        options: the options of each method.
        targets: the targets if networks are judged by their predictions, or None if their losses are given.
    """

    tasks: tuple[str, ...]
    study: StudyRequest
    affinities: Mapping[str, Affinity] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: ExternalTargets | None = None


def check_plan(
    affinity: Affinities,
    budgets: Sequence[int],
    methods: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    tasks: Sequence[str] | None = None,
    options: Options | None = None,
    averages: bool = True,
) -> PlanRequest:
    """Returns the validated arguments of `plan`, or raises a single error that lists every problem.

    If `averages` is False, methods that average answers are rejected, since only losses will be known.
    """
    check_options(options)
    problems: list[InvalidInput] = []
    given = collect(problems, _read_affinities, affinity)
    by_name = affinity if isinstance(affinity, Mapping) else {}
    names = collect(problems, _task_names, given or (), tasks)
    wanted = ("stl", *(_methods_using(given or ()) or ("tag",))) if methods is None else methods
    chosen = collect(problems, as_tuple, wanted, "methods", "names", "['stl', 'tag']") or ()
    if given is not None and names is not None:
        problems += task_name_problems(names)
        options = _disable_measuring(options, chosen, given)
        affinities = _affinities_by_method(chosen, by_name or given, names, problems)
        for method in chosen:
            problems += _training_problems(str(method), options, averages)
        if not chosen and not problems:
            problems.append(InvalidInput("methods", "must name at least one method", "none"))
        study = collect(problems, check_request, names, chosen or ("mtl",), budgets, seeds, options)
    raise_problems(problems)
    return PlanRequest(names, study, affinities, options or {})


def make_plan(request: StudyRequest, backend: ExternalBackend) -> TrainingPlan:
    """Lets each method decide, as far as the known results allow.

    Returns the networks that the methods need.
    """
    found: dict[str, tuple[Method, Decision]] = {}
    deciding: dict[str, list[Job]] = {}
    for method in sorted(request.methods, key=lambda method: (method.order, method.name)):
        backend.requests.clear()
        try:
            method.begin(backend, request.seeds)
            found[method.name] = method, method.decide(backend, request.budgets, request.seeds)
        except Pending:
            deciding[method.name] = list(backend.requests)
        except Diverged:
            continue  # nothing more to train: it cannot decide, as `decide_all` reports
    decisions = {method.name: found[method.name] for method in request.methods if method.name in found}
    groupings: dict[Label, tuple[Group, ...]] = {}
    for name, (_, decision) in decisions.items():
        if _differs_between_seeds(decision):
            deciding[name] = _jobs_of_decision(backend, decision)
        else:
            groupings |= {(name, budget): choice.groups for (budget, _), choice in decision.choices.items()}
    together = [backend.job(backend.tasks, seed) for seed in request.seeds]
    chosen = [job for _, decision in decisions.values() for job in _jobs_of_decision(backend, decision)]
    missing = [job for method in request.methods for job in deciding.get(method.name, ())]
    order, copies = {seed: place for place, seed in enumerate(request.seeds)}, backend.copies
    jobs = sorted(
        dict.fromkeys([*together, *chosen, *missing]),
        key=lambda job: order[copies[job.seed][0] if job.seed in copies else job.seed],
    )
    return TrainingPlan(
        backend.tasks,
        tuple(method.name for method in request.methods),
        request.budgets,
        request.seeds,
        groupings,
        {
            (method.name, budget): frozenset(
                (frozenset(job.tasks), copies[job.seed][1] if job.seed in copies else 0)
                for job in deciding[method.name]
            )
            for method in request.methods
            if method.name in deciding
            for budget in (request.budgets if method.budgeted else (None,))
        },
        tuple((job.tasks, job.seed) for job in jobs),
        {job.seed: copies[job.seed] for job in jobs if job.seed in copies},
    )


def _differs_between_seeds(decision: Decision) -> bool:
    chosen = {(budget, choice.groups) for (budget, _), choice in decision.choices.items()}
    random = any(choice.shares is not None for choice in decision.choices.values())
    return random or len(chosen) > len({budget for budget, _ in chosen})


def _jobs_of_decision(backend: ExternalBackend, decision: Decision) -> list[Job]:
    return [backend.group_job(group, seed) for (_, seed), choice in decision.choices.items() for group in choice.groups]


class PlannedGroups(Method):
    """Uses groups that were chosen earlier or read from a table.

    Args:
        name: the name of the method that chose the groups.
        groups: the groups for each budget.
    """

    def __init__(self, name: str, groups: Mapping[int | None, tuple[Group, ...]]) -> None:
        self.name, self._groups = name, groups
        self.budgeted = None not in groups

    def decide(self, backend: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        costs = {}
        if self.name in ESTIMATORS:  # affinities are measured in one training of all tasks
            with suppress(Pending):
                costs = {seed: backend.cost([backend.job(backend.tasks, seed)]) for seed in seeds}
        choices = {(budget, seed): Choice(groups) for budget, groups in self._groups.items() for seed in seeds}
        return Decision(choices, costs)


def _disable_measuring(
    options: Options | None, methods: Sequence[Any], affinities: Sequence[Affinity]
) -> Options | None:
    """Disables the `affinity` option of `auto` unless cosines are provided, since `auto` cannot measure them here."""
    if "auto" not in methods or "cs" in _methods_using(affinities):
        return options
    given = dict(options or {})
    return given | {"auto": {**given.get("auto", {}), "affinity": False}}


def _methods_using(affinities: Sequence[Affinity]) -> tuple[str, ...]:
    found = {method_of_estimator(affinity.settings.get("estimator")) for affinity in affinities}
    return tuple(method for method in ESTIMATORS if method in found)


def _read_affinities(given: Affinities) -> tuple[Affinity, ...]:
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in (*ESTIMATORS, "auto")]
        if unknown:
            keys = "must only have the keys 'tag', 'cs' and 'auto'"
            raise InvalidInput("affinity", keys, ", ".join(map(repr, unknown)))
        given = tuple(given.values())
    found = () if given is None else (given,) if isinstance(given, Affinity) else given
    if not isinstance(found, Sequence) or not all(isinstance(one, Affinity) for one in found):
        expected = "must be an Affinity, a list or mapping of Affinities, or None"
        raise InvalidInput("affinity", expected, repr(given), "see Affinity.from_matrix")
    return tuple(found)


def _task_names(affinities: Sequence[Affinity], tasks: Sequence[str] | None) -> tuple[str, ...]:
    if tasks is None and len({frozenset(affinity.tasks) for affinity in affinities}) > 1:
        found = " and ".join(", ".join(affinity.tasks) for affinity in affinities)
        raise InvalidInput("affinity", "must contain affinities for the same tasks", found)
    return as_names(tasks if tasks is not None else affinities[0].tasks if affinities else ())


def _training_problems(name: str, options: Options | None, averages: bool) -> list[InvalidInput]:
    try:
        method = make_method(name, options)
        effort = read_effort(method.effort) if isinstance(method, AutoMethod) else None
    except (TypeError, ValueError):
        return []  # `check_request` reports the reason
    hint = "use Study, which trains them"
    if method.rule != "plain" or type(method).width is not Method.width:
        plain = "must not require balancing rules or wider networks if networks are trained elsewhere"
        return [InvalidInput("methods", plain, repr(name), hint)]
    if isinstance(method, Ensemble) and not averages:
        expected = "must not average the answers of networks if only their losses are known"
        return [InvalidInput("methods", expected, repr(name), PREDICTIONS_HINT)]
    if isinstance(method, AutoMethod) and method.screen is not None:
        none = "must be None if networks are trained elsewhere"
        return [InvalidInput("`options`: `screen`", none, repr(method.screen), hint)]
    if isinstance(method, AutoMethod) and effort is not None and effort.trainings is None:
        expected = "must be a number of training runs if networks are trained elsewhere"
        return [InvalidInput("effort", expected, repr(method.effort))]
    return []


def _affinities_by_method(
    methods: Sequence[str],
    affinities: Sequence[Affinity] | Mapping[str, Affinity],
    tasks: Sequence[str],
    problems: list[InvalidInput],
) -> dict[str, Affinity]:
    """Returns the affinities needed by `tag`, `cs` and `auto`.

    `auto` can use the affinity for `cs`.
    """
    required = [method for method in ESTIMATORS if method in methods]
    if required and not affinities:
        needed = f"is required for {', '.join(map(repr, required))}"
        problems.append(InvalidInput("affinity", needed, hint="measure it, or remove these methods"))
        return {}
    found: dict[str, Affinity] = {}
    if isinstance(affinities, Mapping):
        found = {method: affinities[method] for method in (*required, "auto") if method in affinities}
        affinities = [one for method, one in affinities.items() if method not in found]
    for method in ESTIMATORS:
        if method in found:
            continue
        mine = [one for one in affinities if method_of_estimator(one.settings.get("estimator")) == method]
        if not mine and method in required:
            *others, last = map(repr, ESTIMATORS[method])
            estimators = f"{', '.join(others)} or {last}"
            expected = f"must include a measurement with the estimator {estimators} for {method!r}"
            hint = f"measure it, or remove {method!r}"
            problems.append(InvalidInput("affinity", expected, _origins(affinities), hint))
        if method in required or (method == "cs" and "auto" in methods):
            if len(mine) > 1:
                origins = f"{len(mine)}: {_origins(mine)}"
                problems.append(
                    InvalidInput("affinity", f"must contain a single affinity for {method!r}", origins, "choose one")
                )
            if mine:
                found[method] = mine[0]
    lacking = [task for task in tasks if any(task not in affinity.tasks for affinity in found.values())]
    if lacking:
        missing = f"none for {', '.join(map(repr, lacking))}"
        problems.append(InvalidInput("affinity", "must have values for every task", missing))
    return found


def _origins(affinities: Sequence[Affinity]) -> str:
    known = [affinity.settings.get("estimator") for affinity in affinities]
    return ", ".join("one without an estimator" if name is None else repr(name) for name in known)
