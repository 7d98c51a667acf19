"""The best grouping that an effort can find and confirm: `auto`. Affinity proposes, validation disposes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Problem

from ..records import Cost
from ..search import Chosen, SearchResult, Seen, Settings, Step, Trial, search
from .method import Choice, Decision, Method, everything

if TYPE_CHECKING:
    from ..backend import Lab
    from ..store import NetworkResult

WORDS = {"quick": 20, "normal": 60, "thorough": 200}
UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
METER: dict[str, Any] = {"estimator": "cosine"}
MOST_OVERHEAD = 0.1  # of the first training, for measuring
FRACTIONS = (0.125, 0.25, 0.5)
LEAST = 1e-9  # losses are compared by their logarithms, and a separable task can have none at all


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
            **_document(found, lab.problem.names),
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


def _document(found: SearchResult, tasks: Sequence[str]) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Effort:
    """What may be spent.

    Attributes:
        trainings: whole ones, or None.
        seconds: of computing, or None; as many trainings as that is worth by what networks of all tasks took.
    """

    trainings: float | None = None
    seconds: float | None = None

    def in_trainings(self, seconds_each: float) -> float:
        """How many trainings that is, if one takes so long."""
        if self.trainings is not None:
            return self.trainings
        assert self.seconds is not None
        return self.seconds / max(seconds_each, 1e-6)


def read_effort(effort: Any) -> Effort:
    """What a user means by an effort.

    Raises:
        ValueError: it is none.

    Example:
        >>> read_effort("quick").trainings, read_effort(35).trainings, read_effort("10min").seconds
        (20.0, 35.0, 600.0)
    """
    if isinstance(effort, str):
        word = effort.strip().lower()
        if word in WORDS:
            return Effort(float(WORDS[word]))
        timed = TIME.fullmatch(word)
        if timed and timed[2] in UNITS and float(timed[1]) > 0:
            return Effort(seconds=float(timed[1]) * UNITS[timed[2]])
        if re.fullmatch(r"\d+(\.\d+)?", word):
            effort = float(word)
    if isinstance(effort, (int, float)) and not isinstance(effort, bool) and math.isfinite(effort) and effort >= 1:
        return Effort(float(effort))
    raise ValueError(
        "`effort` must be a number of trainings from 1, 'quick' (20), 'normal' (60), 'thorough' (200) or a time such "
        f"as '10min', found {effort!r}"
    )


class LabOracle:
    """Trains what the search asks for; everything goes through the store, so that a killed search goes on.

    Args:
        lab: trains.
        seeds: of networks of all tasks, whose steps are what a whole training is.
    """

    def __init__(self, lab: Lab, seeds: Sequence[int]) -> None:
        self._lab = lab
        rows = lab.networks([lab.job(lab.problem.names, seed) for seed in seeds], "all tasks together")
        steps = [row.steps for row in rows.values()]
        self._whole = sum(steps) / len(steps)
        self.jobs: dict[Job, None] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._lab.problem.names

    @property
    def fractions(self) -> tuple[float, ...]:
        return FRACTIONS

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        """Trains these networks, batched where networks can be; gives what they showed in the same order."""
        jobs = [self._job(trial) for trial in trials]
        rows = self._lab.networks(jobs, "what auto proposes", diverged=True)
        self.jobs |= dict.fromkeys(jobs)
        return [self._seen(trial, rows[job]) for trial, job in zip(trials, jobs, strict=True)]

    def _job(self, trial: Trial) -> Job:
        job = self._lab.job(trial.tasks, trial.seed)
        return job if trial.fraction == 1 else Job(job.tasks, job.seed, epochs=self._epochs(trial.fraction))

    def _epochs(self, fraction: float) -> int:
        problem = self._lab.problem
        a_epoch = -(-len(problem.train) // problem.recipe.batch_size)
        return max(1, round(fraction * self._whole / a_epoch))

    def _seen(self, trial: Trial, row: NetworkResult) -> Seen:
        if row.diverged:
            return Seen(trial, {}, 1.0 if trial.fraction == 1 else row.steps / self._whole)
        halves = {task: _halves(row, task) for task in row.job.tasks}
        losses = {task: (max(first, LEAST), max(second, LEAST)) for task, (first, second) in halves.items()}
        return Seen(trial, losses, 1.0 if trial.fraction == 1 else row.steps / self._whole)


def _halves(row: NetworkResult, task: str) -> tuple[float, float]:
    """The whole for either where they were not kept, or were beyond what single precision holds."""
    first, second = row.halves.get(task, (math.nan, math.nan))
    whole = row.val[task].loss
    return (whole, whole) if math.isnan(first) and math.isnan(second) else (first, second)
