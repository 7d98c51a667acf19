"""Problems by name: built-in ones, those registered by users, and those from other packages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tagalong.errors import InvalidInput, did_you_mean, is_installed
from tagalong.learn import Problem
from tagalong.progress import Progress
from tagalong.registry import Registry

from .faces_problem import faces
from .nhanes_problem import nhanes
from .qm9_problem import qm9


def register_problem(name: str, problem: Callable[..., Problem] | ProblemSpec) -> None:
    """Registers a problem under a name.

    Args:
        name: the name for `load_problem`.
        problem: a function that creates the problem from its options, or a `ProblemSpec` with this name. Other packages
            can declare a problem in the "tagalong.problems" entry point group instead.

    Raises:
        InvalidInput: If the name or the problem is invalid.

    Example:
        >>> def coins(rows=50):
        ...     '''Tossed coins.'''
        ...     return Problem.from_arrays([[i] for i in range(rows)], [i % 2 for i in range(rows)], ["heads"])
        >>> register_problem("coins", coins)
        >>> load_problem("coins", rows=40).names
        ('heads',)
    """
    _problems.register(name, problem)


def known_problems() -> tuple[ProblemSpec, ...]:
    """Returns all problems, with those from other packages last. Broken problems are skipped with a warning."""
    return tuple(_problems.load().values())


def problem_names() -> list[str]:
    """Returns the names of all problems, including those from other packages.

    Example:
        >>> problem_names()[:3]
        ['nhanes', 'faces', 'qm9']
    """
    return _problems.names()


def load_problem(name: str, *, progress: Progress | None = None, **options: Any) -> Problem:
    """Loads a problem by name.

    Args:
        name: one of `problem_names()`.
        progress: called with progress updates if loading takes a long time.
        **options: the options of the problem.

    Raises:
        InvalidInput: If no problem has this name, or its package cannot be loaded. The message suggests the closest
            name.
        ImportError: If the problem needs a package that is not installed. The message says how to install it.

    Example:
        >>> load_problem("faces", rows=500, pixels=8).names[:2]
        ('5_o_Clock_Shadow', 'Black_Hair')
    """
    return _problems.find(name).load(progress, **options)


@dataclass(frozen=True)
class ProblemSpec:
    """Describes a problem that can be loaded by name.

    Attributes:
        name: the name for `load_problem`.
        description: a one-line description of the problem.
        tasks: the number of tasks, or None if it is not known until the problem is loaded.
        size: the number of rows and inputs, as text.
        module: a module with a function that has the same name as the problem. It is imported when the problem is
            loaded. Set either this or `function`.
        function: a function that creates the problem. Its arguments are the problem's options.
        package: the import name of an additional package that the problem needs.
        install: the argument for `pip install`, e.g. "tagalong[demo]".
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
        """Whether the package that the problem needs is installed."""
        return self.package is None or is_installed(self.package)

    def load(self, progress: Progress | None = None, **options: Any) -> Problem:
        """Creates the problem.

        Args:
            progress: called with progress updates if loading takes a long time.
            **options: the options of the problem.

        Raises:
            InvalidInput: If one of the options does not exist.
        """
        make = self.function or getattr(importlib.import_module(self.module), self.name)
        allowed = inspect.signature(make).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in allowed.values()):
            for option in options:
                if option not in allowed:
                    raise InvalidInput(option, f"is not an option of {self.name!r}", hint=did_you_mean(option, allowed))
        extra = {"progress": progress} if "progress" in allowed else {}
        problem: Problem = make(**options, **extra)
        return problem


BUILT_IN_PROBLEMS = (
    ProblemSpec(
        "nhanes",
        "health survey: blood pressure, lipids, sugar and metals of adults",
        tasks=9,
        size="5,265 rows, 77 inputs",
        function=nhanes,
        package="nhanes",
        install="tagalong[demo]",
    ),
    ProblemSpec(
        "faces",
        "drawn faces with nine CelebA attributes: hair, beard, cheeks, hat",
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
        install="tagalong[molecules]",
    ),
)


def _to_spec(name: str, problem: Any) -> ProblemSpec:
    if isinstance(problem, ProblemSpec):
        if problem.name != name:
            raise InvalidInput("problem", f"must have the name {name!r}", repr(problem.name))
        return problem
    if not callable(problem):
        raise InvalidInput("problem", "must be a function or a ProblemSpec", type(problem).__name__)
    return ProblemSpec(name, (inspect.getdoc(problem) or name).split("\n")[0], function=problem)


_problems = Registry("problem", _to_spec, {spec.name: spec for spec in BUILT_IN_PROBLEMS})
