"""The pages that `--help` shows, and what all commands have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

from typer.core import TyperCommand, TyperGroup

from .messages import interruptible

Examples = Sequence[tuple[str, str]]
PURPOSE = """Which tasks should train together?

Measures who helps whom in one training run, chooses the networks to train for a budget, trains and compares them with
the alternatives, and says whether grouping is worth it.
"""
FILES = (
    ("report.html", "the page: one file that fetches nothing and can be mailed"),
    ("results.json", "every result, the table and the verdict"),
    ("affinity.json, groupings.json", "who helps whom, and the groups of each method and budget"),
    ("networks/", "the recommended networks, for `tagalong predict`"),
    ("settings.json, run.log", "what was asked, versions, seeds, and what happened when"),
    ("run.sqlite, partial/", "trained networks: the same command goes on from there"),
)
EXIT_STATUS = (
    ("0", "all went well"),
    ("1", "a worker process died, or nobody reads what is printed"),
    ("2", "wrong input, said in a sentence before anything is trained"),
    ("130", "stopped by Ctrl-C; what is finished is kept, and the same command goes on"),
)
ENVIRONMENT = (
    ("COLUMNS", "how wide tables may be, instead of the width of the terminal"),
    ("NO_COLOR", "if set, nothing is coloured; files and pipes never are"),
)
EXAMPLES = re.compile(r"\n+Examples?:\n((?: +`[^`\n]+`: .+(?:\n|$))+)\s*$")
EXAMPLE = re.compile(r" +`([^`\n]+)`: (.+)")


def manual(examples: Examples) -> str:
    """Below the list of commands: one example of each, the files of a run, exit codes, environment."""
    sections = (
        _section("Examples", examples),
        _section("Files of a run (`--out`, by default `runs/` and its name)", FILES),
        _section("Exit status", EXIT_STATUS),
        _section("Environment", ENVIRONMENT),
        "`tagalong COMMAND --help` tells more; `tagalong --install-completion` teaches your shell.",
    )
    return "\n\n".join(sections)


def _section(title: str, lines: Examples) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- `{word}`: {said}" for word, said in lines)


def split_examples(text: str) -> tuple[str, Examples]:
    """The help of a command, and the examples that stand at its end: a command line and what it does.

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
    """Gives a command and those below it what all of ours have: examples below the options, a sentence at Ctrl-C."""
    for part in getattr(command, "commands", {}).values():
        finish_command(part)
    if command.callback is not None:
        command.callback = interruptible(command.callback)
    show_examples(command)


class Command(TyperCommand):
    """A command whose help shows flags without the type that they do not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


class Commands(TyperGroup):
    """Several of them, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


def _plain(parameters: Sequence[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(parameters)
