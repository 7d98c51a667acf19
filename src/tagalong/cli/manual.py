"""The pages that `--help` shows, and what all commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

from typer.core import TyperCommand, TyperGroup

from .messages import end_with_message

Examples = Sequence[tuple[str, str]]
PURPOSE = """Which tasks should train together?

Measures who helps whom in one training run, chooses the networks to train for a budget, trains and compares them with
the alternatives, and tells whether grouping is worth it.
"""
FILES = (
    ("report.html", "the page: one file that fetches nothing and can be mailed"),
    ("results.json", "all results, with the table and the verdict"),
    ("affinity.json, groupings.json", "who helps whom, and the groups of each method and budget"),
    ("networks/", "the recommended networks, for `tagalong predict`"),
    ("settings.json, run.log", "the request, versions and seeds; what happened when"),
    ("run.sqlite, partial/", "trained networks, from which the same command continues"),
)
EXIT_STATUS = (
    ("0", "success"),
    ("1", "a worker process died, or the output pipe was closed"),
    ("2", "invalid input, reported before anything is trained"),
    ("130", "stopped by Ctrl-C; finished work is kept, and the same command continues"),
)
ENVIRONMENT = (
    ("COLUMNS", "the width of tables, if it should not be that of the terminal"),
    ("NO_COLOR", "turns colors off; files and pipes never have any"),
)
EXAMPLES = re.compile(r"\n+Examples?:\n((?: +`[^`\n]+`: .+(?:\n|$))+)\s*$")
EXAMPLE = re.compile(r" +`([^`\n]+)`: (.+)")


def manual(examples: Examples) -> str:
    """Returns what `tagalong --help` shows below the commands: examples, files of a run, exit status, environment."""
    sections = (
        _section("Examples", examples),
        _section("Files of a run (`--out`, by default `runs/` and its name)", FILES),
        _section("Exit status", EXIT_STATUS),
        _section("Environment", ENVIRONMENT),
        "See `tagalong COMMAND --help` for details; `tagalong --install-completion` sets up your shell.",
    )
    return "\n\n".join(sections)


def _section(title: str, lines: Examples) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- `{term}`: {meaning}" for term, meaning in lines)


def split_examples(text: str) -> tuple[str, Examples]:
    """Separates a command's help from the examples at its end, each a command line and what it does.

    Example:
        >>> split_examples("Rolls a die.\\n\\nExample:\\n    `tagalong roll 6`: as usual\\n")
        ('Rolls a die.', [('tagalong roll 6', 'as usual')])
    """
    found = EXAMPLES.search(text)
    if found is None:
        return text, []
    return text[: found.start()], EXAMPLE.findall(found[1])


def show_examples(command: Any) -> None:
    """Moves the examples of a command's help below its options, and keeps them in `command.examples`."""
    command.help, command.examples = split_examples(cleandoc(command.help or ""))
    if command.examples and not command.epilog:
        command.epilog = _section("Examples" if len(command.examples) > 1 else "Example", command.examples)


def finish_command(command: Any) -> None:
    """Adds what all commands share, also to subcommands: examples below the options, and errors as messages."""
    for part in getattr(command, "commands", {}).values():
        finish_command(part)
    if command.callback is not None:
        command.callback = end_with_message(command.callback, command.params)
    show_examples(command)


class Command(TyperCommand):
    """A command whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns options and arguments."""
        return _without_flag_types(super().get_params(ctx))


class Commands(TyperGroup):
    """A group of commands whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns options and arguments."""
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(parameters: Sequence[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(parameters)
