"""Registers the same commands and problems as the entry points in pyproject.toml."""

from __future__ import annotations

from tagalong.plugins import register as register_plugins

COMMANDS = {"leaderboard": "tagalong_paper.truth.command:leaderboard", "paper": "tagalong_paper.commands:paper"}
PROBLEMS = {"celeba": "tagalong_paper.problems:CELEBA", "taskonomy": "tagalong_paper.problems:TASKONOMY"}


def register() -> None:
    """Adds `tagalong paper`, `tagalong leaderboard` and the problems "celeba" and "taskonomy".

    Calling this function is only necessary in a source checkout. An installed tagalong finds these plug-ins
    automatically.

    Example:
        >>> from tagalong.problems import problem_names
        >>> register()
        >>> "celeba" in problem_names()
        True
    """
    register_plugins(commands=COMMANDS, problems=PROBLEMS)
