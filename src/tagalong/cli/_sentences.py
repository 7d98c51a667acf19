"""Errors as one plain sentence, in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from ._terminal import say

OPTIONS = (
    *("budgets", "budget", "cost", "max_cost", "max_size", "must_link", "cannot_link", "allow_single", "weights"),
    *("objective", "axis", "average", "complete", "tasks", "solver", "time_limit", "seed", "resamples"),
    *(
        "targets",
        "features_file",
        "features",
        "ignore",
        "categorical",
        "kinds",
        "errors",
        "split_column",
        "group_column",
    ),
    *("methods", "seeds", "set", "price_per_hour", "confirm", "recipe", "executor", "device", "size", "with", "out"),
)
SPELT = {"allow_single=False": "--no-single", "allow_single=True": "--allow-single"}


def complain(message: str) -> None:
    """Prints a sentence where errors go, wrapped on a terminal; names in it that would move the cursor cannot."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    for line in f"tagalong: {message}".split("\n"):
        say(console, line, hang=4 if line.startswith("  - ") else 2)


def sentence(error: Exception, file: str | None = None) -> str:
    """What an error says, with options instead of arguments, and the file's name instead of `scores`.

    Example:
        >>> sentence(ValueError("`max_cost` needs `cost`, found none"))
        '--max-cost needs --cost, found none'
        >>> sentence(ValueError("`solver='lp'` needs at most 24 tasks; solver='auto' chooses one that fits"))
        '--solver lp needs at most 24 tasks; --solver auto chooses one that fits'
    """
    text = str(error)
    for name in OPTIONS:
        option = f"--{name.replace('_', '-')}"
        text = re.sub(rf"`?\b{name}=(True|False)\b`?", lambda found: SPELT.get(found[0].strip("`"), found[0]), text)
        text = re.sub(rf"`?\b{name}=['\"]?([\w.]+)['\"]?`?", rf"{option} \1", text)
        text = text.replace(f"`{name}`", option)
    text = text.replace("`scores`", file or "the scores").replace("`groups`", "the groups")
    text = text.replace("`", "")  # arguments that are no options, such as those of a problem
    first, *others = text.split("\n")
    return "\n".join([first, *(f"  - {line.removeprefix('  - ')}" for line in others)])


@contextmanager
def called(**typed: str) -> Iterator[None]:
    """Errors inside name what was typed, instead of the library's arguments.

    Example:
        >>> with called(path="table.csv"):
        ...     raise ValueError("`path` must have rows, found none")
        Traceback (most recent call last):
        ValueError: table.csv must have rows, found none
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        for argument, word in typed.items():
            text = text.replace(f"`{argument}`", word)
        raise ValueError(text) from error


def usage(message: str) -> str:
    """What typer says about an option, without its frame.

    Example:
        >>> usage("Invalid value for '--budget' / '-b': must be a number, found 'x'.")
        "--budget must be a number, found 'x'"
        >>> usage("Invalid value for 'what': Value error, 'x' is not one of 'a', 'b'.")
        "'x' is not one of 'a', 'b'"
    """
    found = re.fullmatch(r"Invalid value for '([\w-]+)'(?: / '[^']+')*: (.*)", message, re.DOTALL)
    if not found:
        return message.rstrip(".")
    said = found[2].removeprefix("Value error, ").rstrip(".")
    if not found[1].startswith("--"):
        return said
    return f"{found[1]}{'' if said.startswith('must') else ':'} {said}"
