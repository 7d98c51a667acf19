"""Parses what is typed (lists, budgets, name=value pairs) into arguments of the library."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import typer

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.progress import Progress

RANGE = re.compile(r"(\d+)\s*(?:-|\.\.)\s*(\d+)")


def typed_number(text: str) -> float:
    """A number, or the sentence that typer shows."""
    try:
        return parse_number(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"must be a number, found {text!r}") from None


def typed_whole(text: str) -> int:
    """A whole number, or the sentence that typer shows."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, found {text!r}") from None


def parse_number(text: str) -> float:
    """A number, whole where it can be.

    Example:
        >>> parse_number("3"), parse_number("2.5")
        (3, 2.5)
    """
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def parse_value(text: str) -> Any:
    """A number, True, False, None or a list as Python writes it; else the text itself.

    Example:
        >>> parse_value("3"), parse_value("optimizer"), parse_value("True")
        (3, 'optimizer', True)
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@overload
def parse_names(text: str) -> list[str]: ...


@overload
def parse_names(text: None) -> None: ...


def parse_names(text: str | None) -> list[str] | None:
    """Names between commas; None if the option was not given.

    Example:
        >>> parse_names("age, ill")
        ['age', 'ill']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def parse_pairs(text: str | None, option: str) -> dict[str, str]:
    """name=word between commas.

    Example:
        >>> parse_pairs("age=regression, ill=binary", "kinds")
        {'age': 'regression', 'ill': 'binary'}
    """
    found = {}
    for part in parse_names(text or ""):
        name, sign, word = part.rpartition("=")
        if not sign:
            raise ValueError(f"`{option}` must be name=word between commas, found {part!r}")
        found[name.strip()] = word.strip()
    return found


def parse_options(texts: Sequence[str], option: str) -> dict[str, Any]:
    """name=value, one by one.

    Example:
        >>> parse_options(["rows=8000", "size=full"], "with")
        {'rows': 8000, 'size': 'full'}
    """
    found = {}
    for text in texts:
        name, sign, word = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise ValueError(f"`{option}` must be NAME=VALUE, found {text!r}")
        found[name] = parse_value(word)
    return found


def parse_problem_options(texts: Sequence[str], *options: str) -> dict[str, Any]:
    """Options of a problem, one by one, but for those that are options of the command."""
    found = parse_options(texts, "with")
    for name in (name for name in found if name in options):
        raise ValueError(f"`with` must name what the command itself has no option for, found {name!r}; use `{name}`")
    return found


def parse_method_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods.

    Example:
        >>> parse_method_options(["tag.every=1", "tag.update=optimizer"])
        {'tag': {'every': 1, 'update': 'optimizer'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, sign, word = text.partition("=")
        method, dot, option = path.strip().rpartition(".")
        if not sign or not dot or not method or not option:
            raise ValueError(f"`set` must be METHOD.OPTION=VALUE, such as tag.every=1, found {text!r}")
        found.setdefault(method, {})[option] = parse_value(word.strip())
    return found


def parse_budgets(text: str, tasks: int) -> list[float]:
    """Several budgets: numbers and ranges between commas, or all.

    Example:
        >>> parse_budgets("1,3-5", tasks=9), parse_budgets("all", tasks=3)
        ([1, 3, 4, 5], [1, 2, 3])
    """
    if text.strip().lower() == "all":
        return list(range(1, tasks + 1))
    found: list[float] = []
    for part in parse_names(text):
        span = RANGE.fullmatch(part)
        try:
            some = range(int(span[1]), int(span[2]) + 1) if span else [parse_number(part)]
        except (ValueError, OverflowError):
            some = []
        if not some:
            raise ValueError(f"`budgets` must be numbers and ranges such as 1,2,3 or 1-5, or all, found {part!r}")
        found += some
    if not found:
        raise ValueError("`budgets` must be numbers and ranges such as 1,2,3 or 1-5, or all, found none")
    return list(dict.fromkeys(found))


def parse_whole_budgets(text: str, tasks: int) -> list[int]:
    """Several numbers of networks.

    Example:
        >>> parse_whole_budgets("1,3-5", tasks=9)
        [1, 3, 4, 5]
    """
    found = parse_budgets(text, tasks)
    broken = [budget for budget in found if not isinstance(budget, int)]
    if broken:
        raise ValueError(f"`budgets` must be whole numbers of networks, found {broken[0]:g}")
    return [int(budget) for budget in found]


def parse_weights(texts: Sequence[str]) -> dict[str, float] | None:
    """Weights as name=number between commas.

    Example:
        >>> parse_weights(["age=2,ill=0.5"])
        {'age': 2, 'ill': 0.5}
    """
    found: dict[str, float] = {}
    for part in (part for text in texts for part in parse_names(text)):
        name, sign, value = part.rpartition("=")
        try:
            weight = parse_number(value)
        except (ValueError, OverflowError):
            sign = ""
        if not sign:
            raise ValueError(f"`weights` must be name=number between commas, such as age=2,ill=0.5, found {part!r}")
        if name.strip() in found:
            raise ValueError(f"`weights` must name each task once, found {name.strip()!r} again")
        found[name.strip()] = weight
    return found or None


def parse_links(texts: Sequence[str], option: str) -> list[tuple[str, ...]]:
    """One link per time the option is given."""
    found = [tuple(parse_names(text)) for text in texts]
    short = [text for text, link in zip(texts, found, strict=True) if len(set(link)) < 2]
    if short:
        raise ValueError(f"`{option}` must be two or more names, such as age,ill, found {short[0]!r}")
    return found


def parse_cost(text: str | None, tasks: Collection[str]) -> Any:
    """A number, half-single, ENCODER+HEAD, or a file of groups and costs.

    Example:
        >>> parse_cost("10+0.5", [])(frozenset({"age", "ill"}))
        11.0
        >>> parse_cost("half-single", [])(frozenset({"age"}))
        0.5
    """
    if text is None:
        return None
    if text.strip().lower() == "half-single":
        return lambda group: 0.5 if len(group) == 1 else 1.0
    try:
        parts = [parse_number(part) for part in text.split("+")]
    except (ValueError, OverflowError):
        parts = []
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return _encoder_and_heads(*parts)
    if not Path(text).exists():
        expected = "a number, half-single, ENCODER+HEAD such as 10+0.5, or a file of groups and costs"
        raise ValueError(f"`cost` must be {expected}, found {text!r}")
    from tagalong.group import read_costs

    return read_costs(text, tasks)


def _encoder_and_heads(encoder: float, head: float) -> Callable[[frozenset[str]], float]:
    return lambda group: encoder + head * len(group)


def check_folder(out: Path | None) -> None:
    """Refuses a file where a folder is meant, on the way there too, and a folder that cannot be written to."""
    if out is None:
        return
    there = next(folder for folder in (out, *out.parents, Path()) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"`out` must be a folder, found the file {there}")
    if not os.access(there, os.W_OK):
        raise ValueError(f"`out` must be a folder that can be written to, found {there}, which cannot")


def load_input(what: str, table: dict[str, Any], problem: dict[str, Any], progress: Progress | None = None) -> Problem:
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

        return Problem.from_table(what, given.pop("targets"), **given)
    _refuse_others(given, "a table", what)
    from tagalong.problems import load_problem

    return load_problem(what, **{**chosen, "progress": progress})


def is_table(what: str) -> bool:
    """Whether a file is meant, rather than the name of a problem."""
    return Path(what).suffix.lower() in (".csv", ".tsv", ".txt", ".gz", ".zip", ".parquet") or Path(what).is_file()


def _refuse_others(given: dict[str, Any], wanted: str, what: str) -> None:
    if given:
        options = ", ".join(f"`{name}`" for name in given)
        raise ValueError(f"{options} must be given with {wanted}, found {what!r}")


def with_recipe(problem: Problem, texts: Sequence[str]) -> Problem:
    """The problem with some settings of its recipe changed."""
    known, changed = sorted(one.name for one in fields(problem.recipe)), parse_options(texts, "recipe")
    unknown = [name for name in changed if name not in known]
    if unknown:
        raise ValueError(f"`recipe` must change one of {', '.join(known)}, found {', '.join(unknown)}")
    return replace(problem, recipe=replace(problem.recipe, **changed)) if changed else problem
