"""The best grouping that an effort can find and confirm: `auto`. Affinity proposes, validation disposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.group import Group
from tagalong.learn import Problem

from .._record import Cost
from ..search import Chosen, Outcome, Settings, Step, search
from ._auto_lab import FRACTIONS, LabOracle
from ._effort import Effort, read_effort
from ._method import Choice, Decision, Method, everything

if TYPE_CHECKING:
    from .._lab import Lab

METER: dict[str, Any] = {"estimator": "cosine"}
MOST_OVERHEAD = 0.1  # of the first training, for measuring


class Auto(Method):
    """Trains a few networks that affinities and what was learnt so far suggest, and recommends what is confirmed.

    Args:
        effort: whole trainings that may be spent, the first ones of all tasks together among them; "quick" (20),
            "normal" (60), "thorough" (200), or a time such as "10min".
        affinity: measure affinities in the first training and let them propose.
        screen: end the worse half of the proposals after this part of a training; None: train all to the end.
    """

    name = "auto"
    order = 60

    def __init__(self, effort: Any = "normal", affinity: bool = True, screen: float | None = None) -> None:
        self.effort, self.affinity, self.screen = effort, affinity, screen

    def problems(self, problem: Problem) -> list[str]:
        try:
            read_effort(self.effort)
        except ValueError as error:
            return [str(error)]
        if self.screen is not None and self.screen not in FRACTIONS:
            return [f"`options`: `screen` must be one of {FRACTIONS} or None, found {self.screen!r}"]
        return []

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(lab.problem.names) == 1:
            return Decision.pooled({budget: Choice(everything(lab.problem)) for budget in budgets}, seeds)
        affinity, measuring = self._measured(lab, seeds[0])
        oracle = LabOracle(lab, seeds[:1])
        effort = self._trainings(lab, seeds[0], read_effort(self.effort))
        hints, errors = (None, None) if affinity is None else (affinity.mean, affinity.stderr)
        settings = Settings(screen=self.screen)
        found = search(oracle, budgets, effort, seeds, hints=hints, errors=errors, spent=measuring, settings=settings)
        choices = {budget: Choice(_groups(chosen)) for budget, chosen in found.chosen.items()}
        spent = lab.cost(oracle.jobs)
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        overhead = None if affinity is None else affinity.settings.get("overhead")
        about = {
            "effort": effort,
            "measuring": measuring,
            "overhead": overhead,
            **to_document(found, lab.problem.names),
        }
        return Decision.pooled(choices, seeds, dict.fromkeys(seeds, shared), affinity, about)

    def _measured(self, lab: Lab, seed: int) -> tuple[Affinity | None, float]:
        """Affinities of the first seed, and what measuring added, in trainings."""
        if not self.affinity:
            return None, 0.0
        affinity, cost = lab.affinities([seed], {**METER, "every": every(len(lab.problem.names))})[seed]
        plain = lab.cost([lab.job(lab.problem.names, seed)])
        return affinity.averaged("trimmed", 0.05), max(0.0, cost.steps / max(plain.steps, 1) - 1)

    def _trainings(self, lab: Lab, seed: int, effort: Effort) -> float:
        return effort.in_trainings(lab.cost([lab.job(lab.problem.names, seed)]).seconds)


def every(tasks: int) -> int:
    """Steps between two measurements, so that measuring takes a tenth of the training.

    Counted, not timed: a plain step is three passes, a measurement of cosines n gradients of two.

    Example:
        >>> every(9)
        60
    """
    return math.ceil(2 * tasks / 3 / MOST_OVERHEAD)


def _groups(chosen: Chosen) -> tuple[Group, ...]:
    return tuple(
        sorted(
            Group(network, [task for task, network_of in chosen.serves.items() if network_of == network])
            for network in chosen.networks
        )
    )


def to_document(found: Outcome, tasks: Sequence[str]) -> dict[str, Any]:
    """What was tried, what it taught, and how the best expectation fell with the effort; as JSON can hold it."""
    return {
        "spent": found.spent,
        "chosen": {
            str(budget): {"expected": one.expected, "doubt": one.doubt, "tried": one.tried, "agreement": one.agreement}
            for budget, one in found.chosen.items()
        },
        "steps": [_step(step, tasks) for step in found.steps],
    }


def _step(step: Step, tasks: Sequence[str]) -> dict[str, Any]:
    trained = [
        {
            "tasks": [task for task in tasks if task in one.trial.tasks],
            "seed": one.trial.seed,
            "fraction": one.trial.fraction,
            "effort": one.effort,
            "val": {task: one.loss(task) for task in tasks if task in one.trial.tasks},
        }
        for one in step.seen
    ]
    return {"spent": step.spent, "best": {str(k): value for k, value in step.best.items()}, "trained": trained}
