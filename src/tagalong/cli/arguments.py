"""Parses command-line text (lists, budgets, name=value pairs) into library arguments."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import typer

from tagalong.errors import InvalidInput, first_few

from .messages import name_arguments
from .terminal import spinner

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.progress import Progress

MAX_BUDGETS = 10_000
ENCODERS = ("mlp", "tabm")  # importing `EncoderName` would import torch, which is too slow for shell completion
RANGE_PATTERN = re.compile(r"(\d+)(?:\s*(?:-|\.\.)\s*(\d+))?")


def number_option(text: str) -> float:
    """Parses an option that takes a number."""
    try:
        return parse_number(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"must be a number, found {text!r}") from None


def integer_option(text: str) -> int:
    """Parses an option that takes an integer."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be an integer, found {text!r}") from None


def parse_number(text: str) -> float:
    """Parses a number, returning an int if possible.

    Example:
        >>> parse_number("3"), parse_number("2.5")
        (3, 2.5)
    """
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def parse_value(text: str) -> Any:
    """Parses a Python literal (a number, True, None, a list, …) or `true` or `false`; other text is not changed.

    Example:
        >>> parse_value("3"), parse_value("optimizer"), parse_value("True"), parse_value("false")
        (3, 'optimizer', True, False)
    """
    if text in ("true", "false"):  # as in JSON and YAML
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@overload
def parse_names(text: str) -> list[str]: ...


@overload
def parse_names(text: None) -> None: ...


def parse_names(text: str | None) -> list[str] | None:
    """Parses comma-separated names. Returns None if the option was not given.

    Example:
        >>> parse_names("age, ill")
        ['age', 'ill']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def parse_methods(text: str) -> list[str]:
    """Parses a comma-separated list of at least one method."""
    names = parse_names(text)
    if not names:
        raise InvalidInput("methods", "must name at least one method", "none", "pass `methods=mtl,tag`")
    return names


def check_exists(path: Path, expected: str) -> None:
    """Rejects a path at which there is nothing.

    Args:
        path: the path.
        expected: what kind of file or folder is expected there.
    """
    if not path.exists():
        raise InvalidInput(path, "does not exist", hint=f"pass {expected}")


def parse_columns(text: str | None, option: str) -> list[str] | None:
    """Parses comma-separated names of columns; an option that is given must name at least one.

    Example:
        >>> parse_columns(" , ", "ignore")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `ignore` must name at least one column, found ' , '
    """
    names = parse_names(text)
    if names == []:
        raise InvalidInput(option, "must name at least one column", repr(text))
    return names


def parse_pairs(text: str | None, option: str) -> dict[str, str]:
    """Parses comma-separated pairs of the form name=word.

    Example:
        >>> parse_pairs("age=regression, ill=binary", "kinds")
        {'age': 'regression', 'ill': 'binary'}
    """
    pairs = {}
    for part in parse_names(text or ""):
        name, sign, word = part.rpartition("=")
        if not sign:
            raise InvalidInput(option, "must be comma-separated NAME=VALUE pairs", repr(part))
        pairs[name.strip()] = word.strip()
    return pairs


def parse_options(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Parses options of the form NAME=VALUE.

    Example:
        >>> parse_options(["rows=8000", "size=full"], "with")
        {'rows': 8000, 'size': 'full'}
    """
    options = {}
    for text in texts:
        name, sign, word = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise InvalidInput(option, "must have the form NAME=VALUE", repr(text))
        options[name] = parse_value(word)
    return options


def parse_problem_options(texts: Sequence[str], *own_options: str) -> dict[str, Any]:
    """Parses problem options, rejecting settings that have their own command-line option."""
    options = parse_options(texts, "with")
    for name in (name for name in options if name in own_options):
        hint = f"use `{name}` instead"
        raise InvalidInput("with", "cannot be used for settings that have their own option", repr(name), hint)
    return options


def parse_method_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parses method options of the form METHOD.OPTION=VALUE.

    Example:
        >>> parse_method_options(["tag.every=1", "tag.update=optimizer"])
        {'tag': {'every': 1, 'update': 'optimizer'}}
    """
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, sign, word = text.partition("=")
        method, dot, option = path.strip().rpartition(".")
        if not sign or not dot or not method or not option:
            raise InvalidInput("set", "must have the form METHOD.OPTION=VALUE, e.g. tag.every=1", repr(text))
        options.setdefault(method, {})[option] = parse_value(word.strip())
    return options


def parse_budgets(text: str, tasks: int) -> list[int]:
    """Parses numbers of networks: comma-separated integers and ranges, or "all".

    Example:
        >>> parse_budgets("1,3-5", tasks=9), parse_budgets("all", tasks=3)
        ([1, 3, 4, 5], [1, 2, 3])
    """
    if text.strip().lower() == "all":
        return list(range(1, tasks + 1))
    expected = "must be 'all', or a list of integers or ranges (e.g. 1,2,3 or 1-5)"
    budgets: list[int] = []
    for part in parse_names(text):
        span = RANGE_PATTERN.fullmatch(part)
        if span is None or int(span[2] or span[1]) - int(span[1]) not in range(MAX_BUDGETS):
            raise InvalidInput("budgets", expected, repr(part))
        budgets += range(int(span[1]), int(span[2] or span[1]) + 1)
    if not budgets:
        raise InvalidInput("budgets", expected, "none")
    return list(dict.fromkeys(budgets))


def parse_weights(texts: Sequence[str]) -> dict[str, float] | None:
    """Parses comma-separated weights of the form name=number.

    Example:
        >>> parse_weights(["age=2,ill=0.5"])
        {'age': 2, 'ill': 0.5}
    """
    weights: dict[str, float] = {}
    for part in (part for text in texts for part in parse_names(text)):
        name, sign, value = part.rpartition("=")
        try:
            weight = parse_number(value)
        except (ValueError, OverflowError):
            sign = ""
        if not sign:
            raise InvalidInput(
                "weights", "must be comma-separated TASK=WEIGHT pairs (e.g. age=2,income=0.5)", repr(part)
            )
        if name.strip() in weights:
            raise InvalidInput("weights", "must name each task only once", f"{name.strip()!r} twice")
        weights[name.strip()] = weight
    return weights or None


def parse_explained(names: Sequence[str], tasks: Sequence[str]) -> Sequence[str]:
    """Checks the names of tasks to explain; "all" stands for every task."""
    unknown = [repr(name) for name in names if name not in (*tasks, "all")]
    if unknown:
        expected = f"must be one of {', '.join(map(repr, tasks))}, or 'all'"
        raise InvalidInput("explain", expected, ", ".join(unknown))
    return tasks if "all" in names else names


def parse_links(texts: Sequence[str], option: str) -> list[tuple[str, ...]]:
    """Parses the values of a repeatable link option, one link per value."""
    links = [tuple(parse_names(text)) for text in texts]
    short = [text for text, link in zip(texts, links, strict=True) if len(set(link)) < 2]
    if short:
        raise InvalidInput(option, "must list two or more names (e.g. age,income)", repr(short[0]))
    return links


def parse_cost(text: str | None, tasks: Collection[str]) -> Any:
    """Parses the cost of a network: a number, half-single, ENCODER+HEAD, or a file of groups and costs.

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
        if not 0 < parts[0] < float("inf"):
            raise InvalidInput("cost", "must be a positive number", repr(text))
        return parts[0]
    if len(parts) == 2:
        return _encoder_and_heads(*parts)
    if not Path(text).exists():
        expected = "must be a number, 'half-single', ENCODER+HEAD (e.g. 10+0.5), or a file that lists group costs"
        raise InvalidInput("cost", expected, repr(text))
    from .score_files import read_costs

    return read_costs(text, tasks)


def _encoder_and_heads(encoder: float, head: float) -> Callable[[frozenset[str]], float]:
    return lambda group: encoder + head * len(group)


def check_folder(out: Path | None) -> None:
    """Rejects an output folder that cannot be created or written to."""
    if out is None:
        return
    existing = next(folder for folder in (out, *out.parents, Path()) if folder.exists())
    if not existing.is_dir():
        raise InvalidInput("out", "must be a folder", f"the file {existing}")
    if not os.access(existing, os.W_OK):
        raise InvalidInput("out", "must be a writable folder", f"{existing}, which is read-only")


def parse_encoder(text: str | None) -> str | None:
    """Checks the name of an encoder."""
    if text is not None and text not in ENCODERS:
        raise InvalidInput("encoder", "must be 'mlp' or 'tabm'", repr(text))
    return text


def load_input(
    source: str, table: dict[str, Any], problem: dict[str, Any], progress: Progress | None = None
) -> Problem:
    """Loads a problem from a table file or by name.

    Args:
        source: the path of the table, or the name of the problem.
        table: the options that apply to tables.
        problem: the options that apply to named problems.
        progress: an object that receives progress updates.
    """
    table_options = {name: option for name, option in table.items() if option not in (None, [], {})}
    problem_options = {name: option for name, option in problem.items() if option is not None}
    if is_table(source) or (table_options and not _is_problem(source)):
        _reject_options(problem_options, "named problems", source)
        if "targets" not in table_options:
            raise InvalidInput(
                "targets", f"must name the columns of {source} to predict", hint="for example `targets=age,income`"
            )
        from tagalong.learn import Problem

        with spinner(f"reading {source}", quiet=progress is None):
            return Problem.from_table(source, table_options.pop("targets"), **table_options)
    _reject_options(table_options, "tables", source)
    from tagalong.problems import load_problem

    return load_problem(source, **{**problem_options, "progress": progress})


def is_table(source: str) -> bool:
    """Returns whether the text refers to a table file rather than to a named problem."""
    path = Path(source)
    return path.suffix.lower() in (".csv", ".tsv", ".txt", ".gz", ".zip", ".parquet") or path.is_file()


def _is_problem(source: str) -> bool:
    from tagalong.problems import problem_names

    return source in problem_names()


def _reject_options(options: dict[str, Any], purpose: str, source: str) -> None:
    if options:
        names = ", ".join(f"`{name}`" for name in options)
        raise InvalidInput(names, f"can only be used with {purpose}", repr(source))


def with_weights(problem: Problem, texts: Sequence[str]) -> Problem:
    """Returns the problem with these weights of tasks, e.g. "age=2,ill=1"."""
    weights = parse_weights(texts) or {}
    if unknown := [name for name in weights if name not in problem.names]:
        raise InvalidInput("weights", f"must name tasks: {first_few(problem.names)}", first_few(unknown))
    tasks = [replace(task, weight=weights.get(task.name, task.weight)) for task in problem.tasks]
    return replace(problem, tasks=tuple(tasks)) if weights else problem


def with_recipe(problem: Problem, texts: Sequence[str]) -> Problem:
    """Returns the problem with the given changes to its recipe."""
    known = sorted(setting.name for setting in fields(problem.recipe))
    changed = parse_options(texts, "recipe")
    unknown = [name for name in changed if name not in known]
    if unknown:
        raise InvalidInput("recipe", f"must contain only known settings ({', '.join(known)})", ", ".join(unknown))
    with name_arguments(**{name: f"--recipe {name}" for name in known}):
        return replace(problem, recipe=replace(problem.recipe, **changed)) if changed else problem
