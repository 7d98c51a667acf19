"""The method `auto`, which searches for the best grouping within a given effort and confirms it on validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, collect
from tagalong.group import Group
from tagalong.learn import Diverged

from ..records import Cost
from ..search import Recommendation, Round, SearchResult, SearchSettings, mean_half_loss, search
from .effort import read_effort
from .method import Choice, Decision, Method, single_group

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..backend import Backend

METER_SETTINGS: dict[str, Any] = {"estimator": "cosine"}
MAX_OVERHEAD = 0.1  # of measuring, as a fraction of the first training
SCREEN_FRACTIONS = (0.125, 0.25, 0.5)


class AutoMethod(Method):
    """Trains a few networks suggested by affinities and earlier results, and recommends those confirmed on validation.

    Args:
        effort: the number of full training runs, "quick" (20), "normal" (60), "thorough" (200), or a duration, e.g.
            "10min". The training runs of the first networks for all tasks are included.
        affinity: whether to measure affinities in the first training run and base the first proposals on them.
        screen: the fraction of a training run after which the worse half of the proposals is dropped, or None to train
            all of them fully.
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
            others = [backend.job(backend.tasks, seed) for seed in seeds[1:]]
            backend.prepare(others, seeds[:1], _meter_settings(backend))
            with suppress(Diverged):  # the study continues if there are seeds that do not diverge
                self._measure_affinity(backend, seeds[0])

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(backend.tasks) == 1:
            return Decision.pooled({budget: Choice(single_group(backend.tasks)) for budget in budgets}, seeds)
        self.begin(backend, seeds)
        together = backend.cost([backend.job(backend.tasks, seeds[0])])
        affinity, extra = self._measure_with_extra_cost(backend, seeds[0], together)
        measuring = extra.steps / max(together.steps, 1)
        effort = read_effort(self.effort).in_trainings(together.seconds)
        hints, errors = (None, None) if affinity is None else (affinity.mean, affinity.stderr)
        settings = SearchSettings(screen=self.screen)
        found = search(backend, budgets, effort, seeds, hints=hints, errors=errors, spent=measuring, settings=settings)
        choices = {budget: Choice(_groups_of_recommendation(chosen)) for budget, chosen in found.chosen.items()}
        spent = backend.cost(result.job for step in found.steps for result in step.results.values()) + extra
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        overhead = None if affinity is None else affinity.settings.get("overhead")
        about = {
            "effort": effort,
            "measuring": measuring,
            "overhead": overhead,
            **_search_document(found, backend.tasks),
        }
        return Decision.pooled(choices, seeds, dict.fromkeys(seeds, shared), affinity, about)

    def _measure_with_extra_cost(self, backend: Backend, seed: int, mtl_cost: Cost) -> tuple[Affinity | None, Cost]:
        """Returns the affinity and the additional cost of measuring it."""
        if not self.affinity:
            return None, Cost()
        affinity, cost = self._measure_affinity(backend, seed)
        extra = Cost(0, max(0, cost.steps - mtl_cost.steps), max(0.0, cost.seconds - mtl_cost.seconds))
        return affinity.averaged("trimmed", 0.05) if len(affinity.steps) else affinity, extra

    def _measure_affinity(self, backend: Backend, seed: int) -> tuple[Affinity, Cost]:
        affinity, costs = backend.measure_affinity([seed], _meter_settings(backend), self.name)
        return affinity, costs[seed]


def _meter_settings(backend: Backend) -> dict[str, Any]:
    return {**METER_SETTINGS, "every": measuring_interval(len(backend.tasks))}


def measuring_interval(n_tasks: int) -> int:
    """Returns the measuring interval, in steps, at which measuring increases the training cost by a tenth.

    Costs are computed rather than timed: a plain training step takes three passes, and measuring the cosines of n tasks
    takes n gradients of two passes each.

    Example:
        >>> measuring_interval(9)
        60
    """
    return math.ceil(2 * n_tasks / 3 / MAX_OVERHEAD)


def _groups_of_recommendation(recommendation: Recommendation) -> tuple[Group, ...]:
    return tuple(
        sorted(
            Group(network, [task for task, network_of in recommendation.serves.items() if network_of == network])
            for network in recommendation.networks
        )
    )


def _search_document(result: SearchResult, tasks: Sequence[str]) -> dict[str, Any]:
    """Converts the training runs, their results and the recommendations to a JSON document."""
    return {
        "spent": result.spent,
        "chosen": {
            str(budget): {"expected": one.expected, "doubt": one.doubt, "tried": one.tried, "agreement": one.agreement}
            for budget, one in result.chosen.items()
        },
        "steps": [_round_document(step, tasks) for step in result.steps],
    }


def _round_document(search_round: Round, tasks: Sequence[str]) -> dict[str, Any]:
    trained = [
        {
            "tasks": [task for task in tasks if task in trial.tasks],
            "seed": trial.seed,
            "fraction": trial.fraction,
            "effort": search_round.efforts[trial],
            "val": {} if result.diverged else {t: mean_half_loss(result, t) for t in tasks if t in trial.tasks},
        }
        for trial, result in search_round.results.items()
    ]
    return {
        "spent": search_round.spent,
        "best": {str(k): value for k, value in search_round.best.items()},
        "trained": trained,
    }
