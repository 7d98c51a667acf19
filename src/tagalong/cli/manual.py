"""Help pages, and the behavior that all commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .messages import end_with_message

Examples = Sequence[tuple[str, str]]
PURPOSE = """Which tasks should train together?

Measures which tasks help each other in a single training run, chooses the networks to train within a budget, trains
them, compares them with the alternatives, and tells you whether grouping is worth it.
"""
RUN_FILES = (
    ("report.html", "the report: a single file that works offline and can be emailed"),
    ("results.json", "all results, including the table and the verdict"),
    ("affinity.json, groupings.json", "the affinities, and the groups for each method and budget"),
    ("networks/", "the recommended networks, for `tagalong predict`"),
    ("settings.json, run.log", "the settings, versions and seeds; a log with timestamps"),
    ("run.sqlite, partial/", "trained networks, which let the same command resume"),
)
EXIT_STATUSES = (
    ("0", "success"),
    ("1", "a worker process died, or the output pipe was closed"),
    ("2", "invalid input, reported before anything is trained"),
    ("130", "stopped by Ctrl-C; finished work is kept, and the same command resumes"),
)
ENVIRONMENT_VARIABLES = (
    ("COLUMNS", "the width of tables, if different from that of the terminal"),
    ("NO_COLOR", "turns colors off; output to files and pipes never has colors"),
)
EXAMPLES_PATTERN = re.compile(r"\n+Examples?:\n((?: +`[^`\n]+`: .+(?:\n|$))+)\s*$")
EXAMPLE_PATTERN = re.compile(r" +`([^`\n]+)`: (.+)")


def manual(examples: Examples) -> str:
    """Returns the text below the commands in `tagalong --help`: examples, run files, exit status and environment."""
    sections = (
        _section("Examples", examples),
        _section("Files in the folder of a run (`--out`; by default in `runs/`)", RUN_FILES),
        _section("Exit status", EXIT_STATUSES),
        _section("Environment", ENVIRONMENT_VARIABLES),
        "See `tagalong COMMAND --help` for details; `tagalong --install-completion` sets up shell completion.",
    )
    return "\n\n".join(sections)


def _section(title: str, lines: Examples) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- `{term}`: {meaning}" for term, meaning in lines)


def split_examples(text: str) -> tuple[str, Examples]:
    """Splits a command's help into a description and a list of examples, each a command line with its explanation.

    Example:
        >>> split_examples("Rolls a die.\\n\\nExample:\\n    `tagalong roll 6`: as usual\\n")
        ('Rolls a die.', [('tagalong roll 6', 'as usual')])
    """
    examples = EXAMPLES_PATTERN.search(text)
    if examples is None:
        return text, []
    return text[: examples.start()], EXAMPLE_PATTERN.findall(examples[1])


def show_examples(command: Any) -> None:
    """Moves the examples in a command's help below its options, and stores them in `command.examples`."""
    command.help, command.examples = split_examples(cleandoc(command.help or ""))
    if command.examples and not command.epilog:
        command.epilog = _section("Examples" if len(command.examples) > 1 else "Example", command.examples)


def finish_command(command: Any) -> None:
    """Adds the behavior that all commands share: examples are shown below the options, and errors as messages."""
    for part in getattr(command, "commands", {}).values():
        finish_command(part)
    if command.callback is not None:
        command.callback = end_with_message(command.callback, command.params)
    show_examples(command)


class Command(TyperCommand):
    """A command whose help page does not show a type for flags, and whose options must not be empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line."""
        _reject_empty_values(ctx, args, super().get_params(ctx))
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's options and arguments."""
        return _without_flag_types(super().get_params(ctx))


class Commands(TyperGroup):
    """A group of commands whose help page does not show a type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's options and arguments."""
        return _without_flag_types(super().get_params(ctx))


def _reject_empty_values(ctx: Any, args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Rejects empty options and arguments; as a path, an empty text would be the current folder."""
    options = {
        name: parameter
        for parameter in parameters
        for name in parameter.opts
        if name.startswith("-") and not parameter.is_flag
    }
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=")
        empty = name if name in options and equals and not value.strip() else before if not word.strip() else ""
        if empty in options:
            raise typer.BadParameter("must not be empty", ctx=ctx, param=options[empty])
        if not word.strip():
            ctx.fail("arguments must not be empty")


def _without_flag_types(parameters: Sequence[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(parameters)
