"""The problems that come with the package, and those that other packages offer."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from tagalong._progress import Progress
from tagalong.learn import Problem
from tagalong.learn._table_roles import closest

from ._needs import is_installed

GROUP = "tagalong.problems"
log = logging.getLogger(__name__)

# What the demo learns: few enough tasks for every subset to be trained within two minutes on two cores.
DEMO_TASKS = {
    "nhanes": ("systolic", "diastolic", "hba1c", "hdl", "lead", "cadmium", "mercury"),
    "faces": ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard"),
}


@dataclass(frozen=True)
class Known:
    """A problem that can be loaded by name.

    Attributes:
        name: for `load_problem`.
        description: in a line.
        tasks: how many; None if that is only known once loaded.
        size: rows and inputs, in words.
        module: where the function of the same name is found; see `function`.
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
        make = self.function or getattr(importlib.import_module(self.module, __package__), self.name)
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
        module="._nhanes",
        package="nhanes",
        install="tagalong[demo]",
    ),
    Known(
        "faces",
        "drawn faces with nine attributes of CelebA: hair, beard, cheeks, hat",
        tasks=9,
        size="any number of rows, images of any size",
        module="._faces",
    ),
    Known(
        "qm9",
        "small molecules: dipole, polarisability, orbitals, energies",
        tasks=9,
        size="up to 130,831 rows, 34 inputs",
        module="._qm9",
        package="qm9pack",
        install="qm9pack",
    ),
    Known(
        "celeba",
        "photographs with attributes of CelebA, from your own copy (--with data=FOLDER)",
        tasks=9,
        size="202,599 images of 64×64",
        module="._celeba",
        package="PIL",
        install="tagalong[images]",
    ),
    Known(
        "taskonomy",
        "rooms of buildings: segmentation, depth, normals, 2d edges, 2d keypoints",
        tasks=5,
        size="your copy of Taskonomy, images of 256×256",
        module="._taskonomy",
        package="PIL",
        install="tagalong[images]",
    ),
)


def known_problems() -> tuple[Known, ...]:
    """All problems, those of other packages last.

    A package offers a problem through the entry point group "tagalong.problems": the name of the problem, and a
    function that makes it, or a `Known`.
    """
    names = {known.name for known in SHIPPED}
    return (*SHIPPED, *(found for found in _offered() if found.name not in names))


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
        ValueError: no problem has this name.
        ImportError: it needs a package that is not there; says how to install it.

    Example:
        >>> load_problem("faces", rows=500, pixels=8).names[:2]
        ('5_o_Clock_Shadow', 'Black_Hair')
    """
    for known in known_problems():
        if known.name == name:
            return known.load(progress, **options)
    names = problem_names()
    listed = ", ".join(map(repr, names))
    near = closest(name, names)
    hint = f"; {near}" if near.startswith("did") else ""
    raise ValueError(f"`name` must be a problem, one of {listed}, found {name!r}{hint}")


def _offered() -> list[Known]:
    offered = []
    for point in entry_points(group=GROUP):
        try:
            made = point.load()
        except Exception as error:  # a broken package must not hide the others
            log.warning("the problem %r of %s cannot be loaded: %s", point.name, point.value, error)
            continue
        described = (inspect.getdoc(made) or point.value).split("\n")[0]
        offered.append(made if isinstance(made, Known) else Known(point.name, described, function=made))
    return offered
