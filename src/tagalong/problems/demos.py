"""The demos: problems that are small enough for the full comparison to take minutes on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tagalong.learn import Problem, Recipe

from .problem_registry import load_problem
from .qm9_problem import TARGETS

FAST_TASKS, FAST_SEEDS, FAST_EFFORT = 5, 3, 20
MOLECULES_RECIPE = Recipe(lr=5e-3, batch_size=256, epochs=400, patience=10, schedule="step", period=26)


@dataclass(frozen=True)
class Demo:
    """A problem for `tagalong demo`, and how much to train on it.

    Attributes:
        problem: the name of the problem, as for `load_problem`.
        about: what the data are.
        tasks: the tasks to compare, the most telling ones first.
        seeds: the number of seeds with which methods decide. As many fresh ones confirm the result.
        effort: the number of training runs that each search may spend.
        methods: the methods to compare, or None for those that a study compares by default.
        options: the options of the problem.
    """

    problem: str
    about: str
    tasks: tuple[str, ...]
    seeds: int
    effort: int
    methods: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, fast: bool = False) -> Problem:
        """Loads the problem of the demo.

        Args:
            fast: whether to keep only the first five tasks.

        Raises:
            ImportError: If the problem needs a package that is not installed. The message says how to install it.
        """
        return load_problem(self.problem, **self.options).only(self.tasks[:FAST_TASKS] if fast else self.tasks)

    def amount(self, fast: bool = False) -> dict[str, int]:
        """Returns how much to train: `seeds`, `confirm` and `effort`, as `Study.run` takes them.

        Example:
            >>> DEMOS["faces"].amount(fast=True)
            {'seeds': 3, 'confirm': 3, 'effort': 20}
        """
        seeds, effort = (FAST_SEEDS, min(self.effort, FAST_EFFORT)) if fast else (self.seeds, self.effort)
        return {"seeds": seeds, "confirm": seeds, "effort": effort}


# Seven tasks of the survey, so that `--all` can train a network for every subset of them within minutes.
DEMOS: dict[str, Demo] = {
    "nhanes": Demo(
        "nhanes",
        "a health survey of adults (NHANES): blood pressure, sugar, cholesterol and metals",
        ("systolic", "diastolic", "hba1c", "hdl", "lead", "cadmium", "mercury"),
        seeds=5,
        effort=40,
    ),
    "molecules": Demo(
        "qm9",
        "small organic molecules (QM9): quantum-mechanical properties from their geometry",
        tuple(TARGETS),
        seeds=5,
        effort=40,
        options={"rows": 4000, "hidden": (32, 32), "recipe": MOLECULES_RECIPE},
    ),
    "faces": Demo(
        "faces",
        "drawn faces, with the nine attributes that the paper takes from CelebA",
        (
            *("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard"),
            *("Brown_Hair", "Mustache", "Rosy_Cheeks", "Wearing_Hat"),
        ),
        seeds=3,
        effort=20,
        methods=("mtl", "ensemble", "best-of", "tag", "auto"),  # all others together take as long on two cores
    ),
}
