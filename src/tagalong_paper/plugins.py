"""The paper as a plug-in: its commands and problems, which pyproject.toml declares as entry points too."""

from __future__ import annotations

from tagalong.plugins import register as register_plugins

COMMANDS = {"leaderboard": "tagalong_paper.truth.command:leaderboard", "paper": "tagalong_paper.commands:paper"}
PROBLEMS = {"celeba": "tagalong_paper.problems:CELEBA", "taskonomy": "tagalong_paper.problems:TASKONOMY"}


def register() -> None:
    """Adds `tagalong paper`, `tagalong leaderboard` and the problems "celeba" and "taskonomy" by hand.

    An installed tagalong finds them by itself; this is for a checkout that is not installed.

    Example:
        >>> from tagalong.problems import problem_names
        >>> register()
        >>> "celeba" in problem_names()
        True
    """
    register_plugins(commands=COMMANDS, problems=PROBLEMS)
