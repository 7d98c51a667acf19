"""The methods, budgets and seeds that a study compares, which are validated before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from reprlib import repr as short
from typing import Any

import torch

from tagalong.errors import (
    InvalidInput,
    collect,
    did_you_mean,
    first_few,
    is_integer,
    is_positive,
    is_positive_integer,
    raise_problems,
)
from tagalong.learn import Problem, Rows, Table, check_data

from .defaults import default_budgets, default_methods
from .methods import Method, Mtl, make_method, read_seconds
from .records import TOGETHER, Label, label_key

MAX_COPIES = 1_000  # the largest budget
EFFORT_METHODS = ("auto", "best-of")  # those that have the option `effort`
DEFAULT_SEEDS, DEFAULT_FOLDS, FEW_ROWS = 3, 5, 2_000  # folds of tables with fewer labelled rows
FOLD_EFFORT = "quick"  # in each fold, unless an effort is given
Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StudyRequest:
    """The methods, budgets and seeds of a study, after validation.

    Attributes:
        methods: the methods to compare. If the baseline `mtl` is missing, it is added before the other methods.
        budgets: the limits on the number of networks.
        seeds: the seeds of the networks.
        options: the options of each method, including its effort.
        confirming: fresh seeds for the verdict, which are not used to choose groups.
        notes: sentences about default methods that cannot be used, and about budgets that methods cannot use.
        reference: the method and budget that everything is compared with.
        repeats: the number of folds, or 1 for one split.
        seconds: how long to train, or None.
    """

    methods: tuple[Method, ...] = ()
    budgets: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    options: Options = field(default_factory=dict)
    confirming: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    reference: Label = TOGETHER
    repeats: int = 1
    seconds: float | None = None

    def in_fold(self, number: int) -> StudyRequest:
        """Returns the request for a fold, which has every n-th seed of n folds."""
        seeds, fresh = (some[number :: self.repeats] for some in (self.seeds, self.confirming))
        return replace(self, seeds=seeds, confirming=fresh)

    def to_document(self) -> dict[str, Any]:
        """Converts the request to a JSON document."""
        return {
            "methods": [method.name for method in self.methods],
            "budgets": list(self.budgets),
            "seeds": list(self.seeds),
            "options": {name: dict(own) for name, own in self.options.items()},
            "confirming_seeds": list(self.confirming),
            "reference": list(self.reference),
            "repeats": self.repeats,
            "notes": list(self.notes),
        }


def check_request(
    tasks: Sequence[str],
    methods: Sequence[str | Method] | None,
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    options: Options | None = None,
    *,
    confirm: int = 0,
    effort: Any = None,
    reference: str | None = None,
    repeats: int | None = None,
    time: str | float | None = None,
    problem: Problem | None = None,
) -> StudyRequest:
    """Returns the validated request, or raises a single error that lists every problem.

    Args:
        tasks: the names of all tasks.
        methods: see `Study.run`.
        budgets: see `Study.run`.
        seeds: see `Study.run`.
        options: see `Study.run`.
        confirm: see `Study.run`.
        effort: see `Study.run`.
        reference: see `Study.run`.
        repeats: see `Study.run`.
        time: see `Study.run`.
        problem: the data and architecture, or None if networks are not trained here.
    """
    if not isinstance(options or {}, Mapping) or not all(isinstance(own, Mapping) for own in (options or {}).values()):
        expected, hint = "must be a mapping from methods to their options", "write {'tag': {'every': 1}}"
        raise InvalidInput("options", expected, short(options), hint)
    problems: list[InvalidInput] = []
    if problem is not None:
        collect(problems, check_data, problem)
    read_budgets = collect(problems, _read_budgets, default_budgets(len(tasks)) if budgets is None else budgets)
    folds = collect(problems, _read_repeats, repeats, seeds, None if problems else problem) or 1
    usual_seeds = DEFAULT_SEEDS if folds == 1 else folds
    read_seeds = collect(problems, _read_seeds, usual_seeds if seeds is None else seeds)
    if not is_integer(confirm, minimum=0):
        problems.append(InvalidInput("confirm", "must be a non-negative integer", repr(confirm)))
    seconds = collect(problems, _read_time, time)

    # The effort is an option of the methods that take it.
    own_options = {name: dict(own) for name, own in (options or {}).items()}
    notes: list[str] = []
    if methods is None:
        methods = ["mtl"]
        if problem is not None and not problems:
            with_options = {*own_options, *(EFFORT_METHODS if effort is not None else ())}
            usual = default_methods(problem, read_budgets, with_options)
            methods, notes = usual.names, usual.notes
    names = _method_names(methods)
    if effort is not None:
        if not names & set(EFFORT_METHODS):
            expected = f"applies only to {' and '.join(map(repr, EFFORT_METHODS))}, which are not among `methods`"
            problems.append(InvalidInput("effort", expected, hint="omit `effort`"))
        for name in names & set(EFFORT_METHODS):
            own_options[name] = {**own_options.get(name, {}), "effort": effort}
    if folds > 1:  # in each of which methods decide anew
        for name in names & set(EFFORT_METHODS):
            own_options[name] = {"effort": FOLD_EFFORT, **own_options.get(name, {})}
    made = _read_methods(methods, own_options, problems)
    for method in made:
        problems += method.problems(tasks, problem)

    if read_budgets is not None:
        idle = [m.name for m in made if m.budgeted and not usable_budgets(m, read_budgets, len(tasks))]
        if idle:
            expected = f"must contain at least one budget for {', '.join(idle)}"
            found = f"none up to {len(tasks)}, the number of tasks"
            problems.append(InvalidInput("budgets", expected, found, "for example [2, 3]"))
    label = _read_reference(reference, made, read_budgets or (), problem, problems)
    raise_problems(list({str(one): one for one in problems}.values()))

    if not any(method.name == "mtl" for method in made):
        made = [Mtl(), *made]
    limited = [method.name for method in made if method.budgeted and not method.averages]
    if limited and max(read_budgets) > len(tasks):
        sentence = f"No results for budgets above {len(tasks)}, since one network serves each task"
        notes.append(f"{sentence}: {first_few(limited)}.")
    first_fresh = max(read_seeds) + 1
    fresh = tuple(range(first_fresh, first_fresh + confirm * folds))
    return StudyRequest(tuple(made), read_budgets, read_seeds, own_options, fresh, tuple(notes), label, folds, seconds)


def usable_budgets(method: Method, budgets: Sequence[int], n_tasks: int) -> list[int]:
    """Returns the budgets that a method can use, which is at most one network per task unless it averages answers."""
    return [budget for budget in budgets if method.averages or budget <= n_tasks]


def _method_names(methods: object) -> set[str]:
    """Returns the names of methods, and of what they are combined from."""
    names = [str(entry) for entry in methods] if isinstance(methods, Sequence) else []
    return {*names, *(name.partition("+")[0] for name in names)}


def _read_methods(methods: Sequence[str | Method], options: Options, problems: list[InvalidInput]) -> list[Method]:
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        problems.append(InvalidInput("methods", "must be a list of names", repr(methods), f"write [{methods!r}]"))
        return []
    if not len(methods):
        problems.append(InvalidInput("methods", "must name at least one method", "none", "for example ['mtl', 'tag']"))
    made: dict[str, Method] = {}
    for entry in methods:
        try:
            method = entry if isinstance(entry, Method) else make_method(str(entry), options)
        except (TypeError, ValueError) as error:
            problems += error.problems if isinstance(error, InvalidInput) else [InvalidInput("", str(error))]
            continue
        if method.name in made:
            problems.append(InvalidInput("methods", "must be distinct", f"{method.name!r} more than once"))
        made[method.name] = method
    if unused := [name for name in options if name not in _method_names(methods)]:
        listed = ", ".join(map(repr, unused))
        problems.append(InvalidInput("options", "must only refer to methods in the comparison", listed))
    return list(made.values())


def _read_time(time: str | float | None) -> float | None:
    seconds = read_seconds(time) if isinstance(time, str) else time
    if time is not None and not is_positive(seconds):
        raise InvalidInput("time", "must be a duration such as '10min' or '90s'", repr(time))
    return seconds


def _read_budgets(budgets: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(budgets, Sequence) or not all(is_integer(budget) for budget in budgets):
        hint = "write a list such as [2, 3]"
        raise InvalidInput("budgets", "must be a list of integers", repr(budgets), hint)
    if impossible := [str(budget) for budget in budgets if not 1 <= budget <= MAX_COPIES]:
        raise InvalidInput("budgets", f"must be between 1 and {MAX_COPIES:,}", ", ".join(impossible))
    return tuple(dict.fromkeys(map(int, budgets)))


def _read_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if is_positive_integer(seeds):
        return tuple(range(seeds))
    listed = seeds if isinstance(seeds, Sequence) and not isinstance(seeds, str) else ()
    if listed and all(is_integer(seed, minimum=0) for seed in listed) and len(set(listed)) == len(listed):
        return tuple(int(seed) for seed in listed)
    expected = "must be a positive integer (3 means 0, 1, 2) or a list of distinct non-negative integers"
    raise InvalidInput("seeds", expected, repr(seeds))


def _read_repeats(repeats: int | None, seeds: int | Sequence[int] | None, problem: Problem | None) -> int:
    """Returns the number of folds: by default, five for small tables and arrays unless seeds are given."""
    if problem is None or repeats == 1:
        return 1
    if repeats is None:
        is_small = 0 < sum(map(_labelled_rows, problem.splits.values())) < FEW_ROWS
        with suppress(InvalidInput):  # rows in given splits, or too few
            return len(problem.folds(DEFAULT_FOLDS)) if seeds is None and is_small else 1
        return 1
    if seeds is not None:
        hint = "omit one of them: each fold has one seed"
        raise InvalidInput("`repeats` and `seeds`", "must not both be given", f"{repeats!r}, {seeds!r}", hint)
    if not is_integer(repeats, 3):
        raise InvalidInput("repeats", "must be 1, or at least 3", repr(repeats))
    return len(problem.folds(repeats))


def _labelled_rows(rows: Rows) -> int:
    """Returns the number of rows with any label."""
    return int(torch.stack([rows.labelled(task) for task in rows.tasks]).any(0).sum())


def _read_reference(
    reference: str | None,
    methods: Sequence[Method],
    budgets: Sequence[int],
    problem: Problem | None,
    problems: list[InvalidInput],
) -> Label:
    """Returns the method and budget to compare with: by default, boosting for tables, and otherwise one network."""
    labels: list[Label] = [TOGETHER]
    for method in methods:
        if not method.trains or method.name == "random":
            continue  # without networks to compare with
        labels += [(method.name, budget) for budget in (budgets if method.budgeted else (None,))]
    if reference is None:
        is_table = problem is not None and isinstance(problem.table, Table)
        return ("boosting", None) if is_table and ("boosting", None) in labels else TOGETHER
    if reference in (words := {label_key(label): label for label in labels}):
        return words[reference]
    expected = "must be a method in the comparison"
    problems.append(InvalidInput("reference", expected, repr(reference), did_you_mean(reference, words)))
    return TOGETHER
