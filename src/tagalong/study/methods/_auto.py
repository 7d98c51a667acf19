"""The best grouping that an effort can find and confirm: `auto`. Affinity proposes, validation disposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.group import Group
from tagalong.learn import Diverged, Problem

from .._record import Cost
from ..search import Chosen, Outcome, Settings, Step, search
from ._auto_lab import FRACTIONS, LabOracle
from ._effort import read_effort
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

    def begin(self, lab: Lab, seeds: Sequence[int]) -> None:
        if self.affinity and len(lab.problem.names) > 1:
            with suppress(Diverged):  # the study goes on with seeds that do not, if there are any
                self._affinity(lab, seeds[0])

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(lab.problem.names) == 1:
            return Decision.pooled({budget: Choice(everything(lab.problem)) for budget in budgets}, seeds)
        self.begin(lab, seeds)
        together = lab.cost([lab.job(lab.problem.names, seeds[0])])
        affinity, extra = self._measured(lab, seeds[0], together)
        measuring = extra.steps / max(together.steps, 1)
        oracle = LabOracle(lab, seeds[:1])
        effort = read_effort(self.effort).in_trainings(together.seconds)
        hints, errors = (None, None) if affinity is None else (affinity.mean, affinity.stderr)
        settings = Settings(screen=self.screen)
        found = search(oracle, budgets, effort, seeds, hints=hints, errors=errors, spent=measuring, settings=settings)
        choices = {budget: Choice(_groups(chosen)) for budget, chosen in found.chosen.items()}
        spent = lab.cost(oracle.jobs) + extra
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        overhead = None if affinity is None else affinity.settings.get("overhead")
        about = {
            "effort": effort,
            "measuring": measuring,
            "overhead": overhead,
            **to_document(found, lab.problem.names),
        }
        return Decision.pooled(choices, seeds, dict.fromkeys(seeds, shared), affinity, about)

    def _measured(self, lab: Lab, seed: int, together: Cost) -> tuple[Affinity | None, Cost]:
        """Affinities of the first seed, and what measuring added to its training."""
        if not self.affinity:
            return None, Cost()
        affinity, cost = self._affinity(lab, seed)
        extra = Cost(0, max(0, cost.steps - together.steps), max(0.0, cost.seconds - together.seconds))
        return affinity.averaged("trimmed", 0.05), extra

    def _affinity(self, lab: Lab, seed: int) -> tuple[Affinity, Cost]:
        return lab.affinities([seed], {**METER, "every": every(len(lab.problem.names))})[seed]


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
            "val": {task: one.loss(task) for task in tasks if task in one.losses},  # empty where it diverged
        }
        for one in step.seen
    ]
    return {"spent": step.spent, "best": {str(k): value for k, value in step.best.items()}, "trained": trained}
