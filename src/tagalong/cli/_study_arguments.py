"""From what is typed to the problem and the settings of a study."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._arguments import names

if TYPE_CHECKING:
    from tagalong._progress import Progress
    from tagalong.learn import Problem


def is_table(what: str) -> bool:
    """Whether a file is meant, rather than the name of a problem."""
    return Path(what).suffix.lower() in (".csv", ".tsv", ".txt") or Path(what).is_file()


def listed(text: str | None) -> list[str] | None:
    """Names between commas, or None."""
    return None if text is None else names(text)


def pairs(text: str | None, option: str) -> dict[str, str]:
    """name=word between commas.

    Example:
        >>> pairs("age=regression, ill=binary", "kinds")
        {'age': 'regression', 'ill': 'binary'}
    """
    found = {}
    for part in names(text or ""):
        name, sign, word = part.rpartition("=")
        if not sign:
            raise ValueError(f"`{option}` must be name=word between commas, found {part!r}")
        found[name.strip()] = word.strip()
    return found


def value(text: str) -> Any:
    """A number, True, False, None or a list as Python writes it; else the text itself.

    Example:
        >>> value("3"), value("optimizer"), value("True")
        (3, 'optimizer', True)
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods.

    Example:
        >>> settings(["tag.every=1", "tag.update=optimizer"])
        {'tag': {'every': 1, 'update': 'optimizer'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, sign, word = text.partition("=")
        method, dot, option = path.strip().rpartition(".")
        if not sign or not dot or not method or not option:
            raise ValueError(f"`set` must be METHOD.OPTION=VALUE, such as tag.every=1, found {text!r}")
        found.setdefault(method, {})[option] = value(word.strip())
    return found


def values(texts: Sequence[str], option: str) -> dict[str, Any]:
    """name=value, one by one.

    Example:
        >>> values(["rows=8000", "size=full"], "with")
        {'rows': 8000, 'size': 'full'}
    """
    found = {}
    for text in texts:
        name, sign, word = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise ValueError(f"`{option}` must be NAME=VALUE, found {text!r}")
        found[name] = value(word)
    return found


def of_problem(texts: Sequence[str], *options: str) -> dict[str, Any]:
    """Options of a problem, one by one, but for those that are options of the command."""
    found = values(texts, "with")
    for name in (name for name in found if name in options):
        raise ValueError(f"`with` must name what the command itself has no option for, found {name!r}; use `{name}`")
    return found


def with_recipe(problem: Problem, texts: Sequence[str]) -> Problem:
    """The problem with some settings of its recipe changed."""
    known, changed = sorted(one.name for one in fields(problem.recipe)), values(texts, "recipe")
    unknown = [name for name in changed if name not in known]
    if unknown:
        raise ValueError(f"`recipe` must change one of {', '.join(known)}, found {', '.join(unknown)}")
    return replace(problem, recipe=replace(problem.recipe, **changed)) if changed else problem


def load(what: str, table: dict[str, Any], problem: dict[str, Any], progress: Progress | None = None) -> Problem:
    """The problem of a table or of a name.

    Args:
        what: the file or the name.
        table: options of tables that were given.
        problem: options of problems that were given.
        progress: is told how far it is, if that takes long.
    """
    given = {name: option for name, option in table.items() if option not in (None, [], {})}
    chosen = {name: option for name, option in problem.items() if option is not None}
    if is_table(what):
        _refuse_others(chosen, "a problem by name", what)
        if "targets" not in given:
            raise ValueError(f"`targets` must name the columns of {what} to be learnt, such as --targets age,ill")
        from tagalong.learn import Problem

        if not Path(what).is_file():
            raise ValueError(f"{what}: there is no such file")
        return Problem.from_csv(what, given.pop("targets"), **given)
    _refuse_others(given, "a table", what)
    from tagalong.problems import load_problem

    return load_problem(what, **{**chosen, "progress": progress})


def _refuse_others(given: dict[str, Any], wanted: str, what: str) -> None:
    if given:
        options = ", ".join(f"`{name}`" for name in given)
        raise ValueError(f"{options} must be given with {wanted}, found {what!r}")
