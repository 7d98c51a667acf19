"""The methods, budgets and seeds that a study compares, which are validated before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from tagalong.errors import (
    InvalidInput,
    collect,
    first_few,
    is_integer,
    is_positive_integer,
    raise_problems,
)
from tagalong.learn import Problem, Table, check_data

from .defaults import default_budgets as default_budgets, default_methods
from .methods import Method, Mtl, make_method
from .records import TOGETHER, Label, label_key

MAX_COPIES = 1_000  # the largest budget above the number of tasks
EFFORT_METHODS = ("auto", "best-of")  # those that have the option `effort`
Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StudyRequest:
    """The methods, budgets and seeds of a study, after validation.

    Attributes:
        methods: the methods to compare. If the baseline `mtl` is missing, it is added before the other methods.
        budgets: the limits on the number of networks.
        seeds: the seeds of the networks.
        confirming: fresh seeds for the verdict, which are not used to choose groups.
        notes: sentences about default methods that cannot be used, and about budgets that methods cannot use.
        fresh_teachers: whether the teachers of taught networks are trained anew with the fresh seeds, too.
        reference: the method and budget that everything is compared with.
    """

    methods: tuple[Method, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    confirming: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    fresh_teachers: bool = True
    reference: Label = TOGETHER

    def to_document(self, options: Options | None) -> dict[str, Any]:
        """Converts the request to a JSON document."""
        return {
            "methods": [method.name for method in self.methods],
            "budgets": list(self.budgets),
            "seeds": list(self.seeds),
            "options": {name: dict(given) for name, given in (options or {}).items()},
            "confirming_seeds": list(self.confirming),
            "fresh_teachers": self.fresh_teachers,
            "reference": list(self.reference),
            "notes": list(self.notes),
        }


def check_request(
    tasks: Sequence[str],
    methods: Sequence[str | Method] | None,
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
    confirm: int = 0,
    fresh_teachers: bool = True,
    reference: str | None = None,
    *,
    problem: Problem | None = None,
    problems: Sequence[InvalidInput] = (),
) -> StudyRequest:
    """Returns the validated request, or raises a single error that lists every problem.

    Args:
        tasks: the names of all tasks.
        methods: see `Study.run`.
        budgets: see `Study.run`.
        seeds: see `Study.run`.
        options: see `Study.run`.
        confirm: see `Study.run`.
        fresh_teachers: see `Study.run`.
        reference: see `Study.run`.
        problem: the data and architecture, or None if networks are not trained here.
        problems: problems that the caller has already found.
    """
    check_options(options)
    collected, notes, n = list(problems), [], len(tasks)
    if problem is not None:
        collect(collected, check_data, problem)
    wanted = default_budgets(n) if budgets is None else budgets
    if methods is None:
        methods = ["mtl"]
        if problem is not None and not collected:
            usual = default_methods(problem, _possible(wanted), options or ())
            methods, notes = usual.names, usual.notes
            # An effort is meant for those that can be used.
            options = {
                name: own
                for name, own in (options or {}).items()
                if name not in usual.left_out or own.keys() - {"effort", "passes"}
            }
    made = _read_methods(methods, options, collected)
    for method in made:
        collected += method.problems(tasks, problem)
    read_budgets = _read_budgets(wanted, n, made, collected)
    read_seeds = _read_seeds(seeds, collected)
    if not is_integer(confirm, minimum=0):
        collected.append(InvalidInput("confirm", "must be a non-negative integer", repr(confirm)))
    label = _read_reference(reference, made, read_budgets, problem, collected)
    raise_problems(list({str(one): one for one in collected}.values()))

    if not any(method.name == "mtl" for method in made):
        made = [Mtl(), *made]
    first_fresh = max(read_seeds) + 1
    fresh = tuple(range(first_fresh, first_fresh + confirm))
    limited = [method.name for method in made if method.budgeted and not method.averages]
    if limited and max(read_budgets) > n:
        notes.append(f"No results for budgets above {n}, since one network serves each task: {first_few(limited)}.")
    return StudyRequest(tuple(made), read_budgets, read_seeds, fresh, tuple(notes), fresh_teachers, label)


def usable_budgets(method: Method, budgets: Sequence[int], n_tasks: int) -> list[int]:
    """Returns the budgets that a method can use, which is at most one network per task unless it averages answers."""
    return [budget for budget in budgets if method.averages or budget <= n_tasks]


def check_options(options: object) -> None:
    """Raises an error unless the options are a mapping from methods to mappings, or None."""
    if options is None or (isinstance(options, Mapping) and all(isinstance(own, Mapping) for own in options.values())):
        return
    expected, hint = "must be a mapping from methods to their options", "write {'tag': {'every': 1}}"
    raise InvalidInput("options", expected, short(options), hint)


def with_effort(
    options: Options | None,
    effort: Any,
    methods: Sequence[str | Method] | None = ("auto",),
    passes: int | None = None,
) -> Options | None:
    """Adds an effort to the options of `auto` and `best-of`, and `passes` to those of `auto`.

    Args:
        options: the options of each method.
        effort: the effort, or None to add none.
        methods: the methods of the study, or None for the default methods.
        passes: the maximum number of networks that answer a task, or None to add none.

    Raises:
        InvalidInput: If no method takes an argument.

    Example:
        >>> with_effort({"tag": {"every": 1}}, "quick", ["tag", "auto", "best-of"])
        {'tag': {'every': 1}, 'auto': {'effort': 'quick'}, 'best-of': {'effort': 'quick'}}
    """
    check_options(options)
    names: set[str] = set(EFFORT_METHODS)
    if isinstance(methods, Sequence):
        names = _method_names(methods)
    merged = {name: dict(own) for name, own in (options or {}).items()}
    for argument, value, users in (("effort", effort, EFFORT_METHODS), ("passes", passes, EFFORT_METHODS[:1])):
        if value is None:
            continue
        used = [name for name in users if name in names]
        if not used:
            expected = f"applies only to {' and '.join(map(repr, users))}, which are not among `methods`"
            raise InvalidInput(argument, expected, hint=f"omit `{argument}`")
        for name in used:
            merged.setdefault(name, {})[argument] = value
    return merged


def _method_names(methods: Sequence[str | Method]) -> set[str]:
    """Returns the names of methods, and of what they are combined from."""
    names = [str(entry) for entry in methods]
    return {*names, *(name.partition("+")[0] for name in names)}


def _read_methods(
    methods: Sequence[str | Method], options: Options | None, problems: list[InvalidInput]
) -> list[Method]:
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
    if unused := [name for name in options or {} if name not in _method_names(methods)]:
        listed = ", ".join(map(repr, unused))
        problems.append(InvalidInput("options", "must only refer to methods in the comparison", listed))
    return list(made.values())


def _read_budgets(
    budgets: Sequence[int], n: int, methods: Sequence[Method], problems: list[InvalidInput]
) -> tuple[int, ...]:
    if not isinstance(budgets, Sequence) or not all(is_integer(budget) for budget in budgets):
        hint = "write a list such as [2, 3]"
        problems.append(InvalidInput("budgets", "must be a list of integers", repr(budgets), hint))
        return ()
    averages = any(method.averages for method in methods)
    most = max(n, MAX_COPIES) if averages else n
    impossible = [budget for budget in budgets if not 1 <= budget <= most]
    if impossible:
        expected = f"must be between 1 and {'' if averages else 'the number of tasks, '}{most:,}"
        hint = "" if averages else "'ensemble' and 'best-of' can average the answers of more networks"
        problems.append(InvalidInput("budgets", expected, ", ".join(map(str, impossible)), hint))
    idle = [method.name for method in methods if method.budgeted and not usable_budgets(method, budgets, n)]
    if idle and not impossible:
        expected = f"must contain at least one budget for {', '.join(idle)}"
        problems.append(InvalidInput("budgets", expected, f"none up to {n}, the number of tasks", "for example [2, 3]"))
    return tuple(dict.fromkeys(map(int, budgets)))


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
        labels += [(method.name, budget) for budget in (budgets if method.budgeted else (None,))]
    if reference is None:
        is_table = problem is not None and isinstance(problem.table, Table)
        return ("boosting", None) if is_table and ("boosting", None) in labels else TOGETHER
    if reference in (words := {label_key(label): label for label in labels}):
        return words[reference]
    problems.append(InvalidInput("reference", f"must be one of {first_few(list(words))}", repr(reference)))
    return TOGETHER


def _possible(budgets: object) -> list[int]:
    """Returns the possible ones of some budgets that are not checked yet."""
    listed = budgets if isinstance(budgets, Sequence) else ()
    return [budget for budget in listed if is_integer(budget) and 1 <= budget <= MAX_COPIES]


def _read_seeds(seeds: int | Sequence[int], problems: list[InvalidInput]) -> tuple[int, ...]:
    if is_positive_integer(seeds):
        return tuple(range(seeds))
    listed = seeds if isinstance(seeds, Sequence) and not isinstance(seeds, str) else ()
    if listed and all(is_integer(seed, minimum=0) for seed in listed) and len(set(listed)) == len(listed):
        return tuple(int(seed) for seed in listed)
    expected = "must be a positive integer (3 means 0, 1, 2) or a list of distinct non-negative integers"
    problems.append(InvalidInput("seeds", expected, repr(seeds)))
    return ()
