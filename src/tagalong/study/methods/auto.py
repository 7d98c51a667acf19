"""The method `auto`: searches for the best grouping within an effort and confirms it on validation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, collect
from tagalong.group import Group
from tagalong.learn import Diverged

from ..records import Cost
from ..search import Recommendation, Round, SearchResult, SearchSettings, mean_half_loss, search
from .method import Choice, Decision, Method, everything

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..backend import Backend

NAMED_EFFORTS = {"quick": 20, "normal": 60, "thorough": 200}
UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
METER_SETTINGS: dict[str, Any] = {"estimator": "cosine"}
MAX_OVERHEAD = 0.1  # of measuring, as a fraction of the first training
SCREEN_FRACTIONS = (0.125, 0.25, 0.5)


class AutoMethod(Method):
    """Trains a few networks suggested by affinities and earlier results, and recommends those confirmed on validation.

    Args:
        effort: the number of full trainings to spend, including the first networks for all tasks; "quick" (20),
            "normal" (60), "thorough" (200), or a time, e.g. "10min".
        affinity: whether to measure affinities in the first training and base the first proposals on them.
        screen: the fraction of a training after which the worse half of the proposals is dropped; None trains all of
            them fully.
    """

    name = "auto"
    order = 60

    def __init__(self, effort: Any = "normal", affinity: bool = True, screen: float | None = None) -> None:
        self.effort, self.affinity, self.screen = effort, affinity, screen

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        problems: list[InvalidInput] = []
        collect(problems, read_effort, self.effort)
        if self.screen is not None and self.screen not in SCREEN_FRACTIONS:
            problems.append(
                InvalidInput("`options`: `screen`", f"must be one of {SCREEN_FRACTIONS} or None", repr(self.screen))
            )
        return problems

    def begin(self, backend: Backend, seeds: Sequence[int]) -> None:
        if self.affinity and len(backend.tasks) > 1:
            with suppress(Diverged):  # the study continues if there are seeds that do not diverge
                self._affinity(backend, seeds[0])

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(backend.tasks) == 1:
            return Decision.pooled({budget: Choice(everything(backend.tasks)) for budget in budgets}, seeds)
        self.begin(backend, seeds)
        together = backend.cost([backend.job(backend.tasks, seeds[0])])
        affinity, extra = self._measure(backend, seeds[0], together)
        measuring = extra.steps / max(together.steps, 1)
        effort = read_effort(self.effort).in_trainings(together.seconds)
        hints, errors = (None, None) if affinity is None else (affinity.mean, affinity.stderr)
        settings = SearchSettings(screen=self.screen)
        found = search(backend, budgets, effort, seeds, hints=hints, errors=errors, spent=measuring, settings=settings)
        choices = {budget: Choice(_groups(chosen)) for budget, chosen in found.chosen.items()}
        spent = backend.cost(result.job for step in found.steps for result in step.results.values()) + extra
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        overhead = None if affinity is None else affinity.settings.get("overhead")
        about = {
            "effort": effort,
            "measuring": measuring,
            "overhead": overhead,
            **_document(found, backend.tasks),
        }
        return Decision.pooled(choices, seeds, dict.fromkeys(seeds, shared), affinity, about)

    def _measure(self, backend: Backend, seed: int, together: Cost) -> tuple[Affinity | None, Cost]:
        """Returns the affinity and the cost that measuring added to the training."""
        if not self.affinity:
            return None, Cost()
        affinity, cost = self._affinity(backend, seed)
        extra = Cost(0, max(0, cost.steps - together.steps), max(0.0, cost.seconds - together.seconds))
        return affinity.averaged("trimmed", 0.05) if len(affinity.steps) else affinity, extra

    def _affinity(self, backend: Backend, seed: int) -> tuple[Affinity, Cost]:
        settings = {**METER_SETTINGS, "every": measuring_interval(len(backend.tasks))}
        affinity, costs = backend.measure_affinity([seed], settings, self.name)
        return affinity, costs[seed]


def measuring_interval(tasks: int) -> int:
    """Returns the number of steps between measurements such that measuring costs a tenth of the training.

    Costs are counted, not timed: a plain step takes three passes, and a measurement of cosines takes n gradients of two
    passes each.

    Example:
        >>> measuring_interval(9)
        60
    """
    return math.ceil(2 * tasks / 3 / MAX_OVERHEAD)


def _groups(chosen: Recommendation) -> tuple[Group, ...]:
    return tuple(
        sorted(
            Group(network, [task for task, network_of in chosen.serves.items() if network_of == network])
            for network in chosen.networks
        )
    )


def _document(found: SearchResult, tasks: Sequence[str]) -> dict[str, Any]:
    """Converts the trainings, their results and the recommendations to a JSON document."""
    return {
        "spent": found.spent,
        "chosen": {
            str(budget): {"expected": one.expected, "doubt": one.doubt, "tried": one.tried, "agreement": one.agreement}
            for budget, one in found.chosen.items()
        },
        "steps": [_round_document(step, tasks) for step in found.steps],
    }


def _round_document(step: Round, tasks: Sequence[str]) -> dict[str, Any]:
    trained = [
        {
            "tasks": [task for task in tasks if task in trial.tasks],
            "seed": trial.seed,
            "fraction": trial.fraction,
            "effort": step.efforts[trial],
            "val": {} if result.diverged else {t: mean_half_loss(result, t) for t in tasks if t in trial.tasks},
        }
        for trial, result in step.results.items()
    ]
    return {"spent": step.spent, "best": {str(k): value for k, value in step.best.items()}, "trained": trained}


@dataclass(frozen=True)
class Effort:
    """The effort that a search may spend: a number of trainings or a time.

    Attributes:
        trainings: the number of full trainings, or None.
        seconds: the time in seconds, or None; converted to trainings with the training time of the network for all
            tasks.
    """

    trainings: float | None = None
    seconds: float | None = None

    def in_trainings(self, seconds_each: float) -> float:
        """Returns the effort in trainings, given the time of one training in seconds."""
        if self.trainings is not None:
            return self.trainings
        assert self.seconds is not None
        return self.seconds / max(seconds_each, 1e-6)


def read_effort(effort: Any) -> Effort:
    """Parses an effort: a number of trainings, a named effort or a time.

    Raises:
        InvalidInput: the effort is invalid.

    Example:
        >>> read_effort("quick").trainings, read_effort(35).trainings, read_effort("10min").seconds
        (20.0, 35.0, 600.0)
    """
    if isinstance(effort, str):
        word = effort.strip().lower()
        if word in NAMED_EFFORTS:
            return Effort(float(NAMED_EFFORTS[word]))
        timed = TIME.fullmatch(word)
        if timed and timed[2] in UNITS and float(timed[1]) > 0:
            return Effort(seconds=float(timed[1]) * UNITS[timed[2]])
        if re.fullmatch(r"\d+(\.\d+)?", word):
            effort = float(word)
    if isinstance(effort, (int, float)) and not isinstance(effort, bool) and math.isfinite(effort) and effort >= 1:
        return Effort(float(effort))
    expected = (
        "must be a number of training runs (at least 1), 'quick' (20), 'normal' (60), 'thorough' (200), or a time, "
        "e.g. '10min'"
    )
    raise InvalidInput("effort", expected, repr(effort))
