"""The method `auto`, which spends a given effort on networks and recommends the best of them for each budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, collect, first_few, is_positive_integer
from tagalong.group import Group
from tagalong.learn import Diverged, Split

from ..records import Cost
from ..search import (
    Plan,
    Recommendation,
    Round,
    SearchResult,
    SearchSettings,
    Spending,
    SpendingRound,
    SpendingSettings,
    mean_half_loss,
    search,
    spend,
)
from .effort import read_effort
from .ensemble import weighted_rows
from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

METER_SETTINGS: dict[str, Any] = {"estimator": "cosine"}
MIN_MEASURED_EFFORT = {True: 16, False: 6}  # training runs for a search, if answers are averaged and if not
MAX_OVERHEAD = 0.1  # of measuring, as a fraction of the first training
MAX_ANSWER_BYTES = 256 * 2**20  # of the answers of all networks on the validation rows
SCREEN_FRACTIONS = (0.125, 0.25, 0.5)
FLAGS = ("affinity", "average", "sets", "teach", "mixtures", "wide", "tabm")  # options that are True or False


class AutoMethod(Method):
    """Finds the best way to spend each budget: copies, groups, committees, wider, taught or TabM networks.

    Networks are trained with the first seed, and the best of them are recommended (see `tagalong.study.search.spend`).
    With all other seeds, the recommended networks are trained anew, but with the same teachers. If answers cannot be
    averaged, `auto` searches for groups in which one network answers each task.

    Args:
        effort: the number of full training runs, "quick" (20), "normal" (60), "thorough" (200), or a duration, e.g.
            "10min". The training runs of the first networks for all tasks are included.
        passes: the maximum number of networks that answer a task, or None for no limit. With 1, each task is answered
            by one network, as in the paper.
        average: whether the answers of several networks may be averaged. If not, `auto` searches for groups as in the
            paper, and the options below do not apply.
        sets: whether to train networks for sets of tasks.
        teach: whether networks may learn from the answers of others.
        mixtures: whether these networks may also learn from mixtures of training rows.
        wide: whether to train wider networks. One of k times the size uses as much of a budget as k plain networks.
        tabm: whether to train TabM networks on tables with the default network, if the effort pays for at least one.
            Each costs dozens of training runs, and uses as much of a budget as one plain network.
        affinity: whether to measure affinities in the first training run. They guide the search as far as its results
            confirm them.
        screen: the fraction of a training run after which the worse half of the proposals is dropped, or None to train
            all of them fully.
    """

    name = "auto"
    order = 60
    averages = True

    def __init__(
        self,
        effort: Any = "normal",
        affinity: bool = True,
        screen: float | None = None,
        passes: int | None = None,
        average: bool = True,
        sets: bool = True,
        teach: bool = True,
        mixtures: bool = True,
        wide: bool = True,
        tabm: bool = True,
    ) -> None:
        self.effort, self.affinity, self.screen, self.passes, self.average = effort, affinity, screen, passes, average
        self.sets, self.teach, self.mixtures, self.wide, self.tabm = sets, teach, mixtures, wide, tabm

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        problems: list[InvalidInput] = []
        collect(problems, read_effort, self.effort)
        if self.screen is not None and self.screen not in SCREEN_FRACTIONS:
            problems.append(
                InvalidInput("`options`: `screen`", f"must be one of {SCREEN_FRACTIONS} or None", repr(self.screen))
            )
        if self.passes is not None and not is_positive_integer(self.passes):
            problems.append(InvalidInput("passes", "must be a positive integer or None", repr(self.passes)))
        return problems + [
            InvalidInput(f"`options`: `{name}`", "must be True or False", repr(getattr(self, name)))
            for name in FLAGS
            if not isinstance(getattr(self, name), bool)
        ]

    def begin(self, runner: Runner, seeds: Sequence[int]) -> None:
        if self._measures(runner):
            others = [runner.job(runner.tasks, seed) for seed in seeds[1:]]
            runner.prepare(others, seeds[:1], _meter_settings(runner))
            with suppress(Diverged):  # the study continues if there are seeds that do not diverge
                self._measure_affinity(runner, seeds[0])

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        self.begin(runner, seeds)
        together = runner.cost([runner.job(runner.tasks, seeds[0])])
        affinity, extra = self._measure_with_extra_cost(runner, seeds[0], together)
        measuring = extra.steps / max(together.steps, 1)
        effort = read_effort(self.effort).in_trainings(together.seconds)
        hints, errors = (None, None) if affinity is None else (affinity.mean, affinity.stderr)
        settings = SearchSettings(screen=self.screen)
        measured: dict[str, Any] = {"hints": hints, "errors": errors, "spent": measuring}
        reason = why_not_averaged(runner, effort) if self.average else "`average` is False"
        if reason is None:
            kinds = self.sets, self.teach, self.mixtures, self.wide, self.tabm
            spending_settings = SpendingSettings(self.passes, *kinds, settings)
            spending = spend(runner, budgets, effort, seeds[0], settings=spending_settings, **measured)
            choices: dict[tuple[int | None, int], Choice] = {
                (budget, seed): _choice_of(runner, plan, is_first=seed == seeds[0])
                for budget, plan in spending.plans.items()
                for seed in seeds
            }
            jobs = [member.result.job for step in spending.rounds for member in step.members]
            jobs += [result.job for step in spending.rounds for result, _ in step.others]
            extra += _cost_of_steps(spending)
            log = _spending_document(spending, runner.tasks)
        else:
            possible = list(dict.fromkeys(min(budget, len(runner.tasks)) for budget in budgets))
            searched = search(runner, possible, effort, seeds, settings=settings, **measured)
            choices = {
                (budget, seed): Choice(_groups_of_recommendation(searched.chosen[min(budget, len(runner.tasks))]))
                for budget in budgets
                for seed in seeds
            }
            jobs = [result.job for step in searched.steps for result in step.results.values()]
            log = _search_document(searched, runner.tasks) | {"one_network_per_task": reason}
        spent = runner.cost(jobs) + extra
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        overhead = None if affinity is None else affinity.settings.get("overhead")
        about = {"effort": effort, "measuring": measuring, "overhead": overhead, **log}
        return Decision(choices, dict.fromkeys(seeds, shared), affinity, about)

    def _measures(self, runner: Runner) -> bool:
        """Whether affinities are measured, which pays only if the effort is enough for a search."""
        trainings = read_effort(self.effort).trainings
        averaged = self.average and why_not_averaged(runner, trainings or 1) is None
        enough = trainings is None or trainings >= MIN_MEASURED_EFFORT[averaged]
        return self.affinity and len(runner.tasks) > 1 and enough and (self.sets or not averaged)

    def _measure_with_extra_cost(self, runner: Runner, seed: int, mtl_cost: Cost) -> tuple[Affinity | None, Cost]:
        if not self._measures(runner):
            return None, Cost()
        affinity, cost = self._measure_affinity(runner, seed)
        extra = Cost(0, max(0, cost.steps - mtl_cost.steps), max(0.0, cost.seconds - mtl_cost.seconds))
        return affinity.averaged("trimmed", 0.05) if len(affinity.steps) else affinity, extra

    def _measure_affinity(self, runner: Runner, seed: int) -> tuple[Affinity, Cost]:
        affinity, costs = runner.measure_affinity([seed], _meter_settings(runner), self.name)
        return affinity, costs[seed]


def _meter_settings(runner: Runner) -> dict[str, Any]:
    return {**METER_SETTINGS, "every": measuring_interval(len(runner.tasks))}


def measuring_interval(n_tasks: int) -> int:
    """Returns the measuring interval, in steps, at which measuring increases the training cost by a tenth.

    Costs are computed rather than timed: a plain training step takes three passes, and measuring the cosines of n tasks
    takes n gradients of two passes each.

    Example:
        >>> measuring_interval(9)
        60
    """
    return math.ceil(2 * n_tasks / 3 / MAX_OVERHEAD)


def why_not_averaged(runner: Runner, effort: float) -> str | None:
    """Returns why `auto` lets one network answer each task, or None if it can average answers."""
    tasks = {name: runner.task(name) for name in runner.tasks}
    if None in tasks.values():
        return "only the losses of the networks are known"
    if unknown := [name for name, task in tasks.items() if task is not None and task.averaging is None]:
        return f"it is not known how to average the answers for {first_few(unknown)}; set `Task(average=…)`"
    if not isinstance(runner.problem.val, Split):
        return "the rows are read from files"
    targets = runner.targets("val")
    values = sum(
        targets[name].numel() * (task.head_size if task.kind == "multiclass" else 1)
        for name, task in tasks.items()
        if task is not None
    )
    if 8 * values * effort > MAX_ANSWER_BYTES:
        return f"the answers on the validation rows would take more than {MAX_ANSWER_BYTES >> 20} MB"
    return None


def _choice_of(runner: Runner, plan: Plan, is_first: bool) -> Choice:
    """Returns the networks of a plan, whose losses on validation rows are flattered for the seed that picked them.

    With other seeds, they are trained anew, but teachers that the validation rows picked flatter their students.
    """
    is_flattered = is_first or any(group.taught for group in plan.groups)
    return Choice(plan.groups, val_rows=weighted_rows(runner, plan.rows) if is_flattered else None)


def _groups_of_recommendation(recommendation: Recommendation) -> tuple[Group, ...]:
    return tuple(
        sorted(
            Group(network, [task for task, network_of in recommendation.serves.items() if network_of == network])
            for network in recommendation.networks
        )
    )


def _search_document(result: SearchResult, tasks: Sequence[str]) -> dict[str, Any]:
    return {
        "spent": result.spent,
        "chosen": {
            str(budget): {
                "expected": recommendation.expected,
                "doubt": recommendation.doubt,
                "tried": recommendation.tried,
                "agreement": recommendation.agreement,
            }
            for budget, recommendation in result.chosen.items()
        },
        "steps": [_round_document(step, tasks) for step in result.steps],
    }


def _cost_of_steps(spending: Spending) -> Cost:
    """Returns what the steps of wider and TabM networks cost in addition to as many steps of plain ones."""
    members = [member for step in spending.rounds for member in step.members]
    return Cost(0, round(sum((member.step_cost - 1) * member.result.steps for member in members)))


def _spending_document(spending: Spending, tasks: Sequence[str]) -> dict[str, Any]:
    return {
        "spent": spending.spent,
        "chosen": {
            str(budget): {
                "expected": plan.expected,
                "doubt": plan.doubt,
                "pool": plan.pool,
                "alternatives": plan.alternatives,
            }
            for budget, plan in spending.plans.items()
        },
        "teachers": [group.to_document(cost=False) for group in spending.teachers],
        "steps": [_spending_round_document(step, tasks) for step in spending.rounds],
    } | ({} if spending.no_wider is None else {"no_wider_networks": spending.no_wider})


def _spending_round_document(step: SpendingRound, tasks: Sequence[str]) -> dict[str, Any]:
    trained = []
    for member in step.members:
        taught = member.group.taught
        trained.append(
            {
                "tasks": [task for task in tasks if task in member.group.trains],
                "seed": member.result.job.seed,
                "fraction": 1.0,
                "effort": member.effort,
                "kind": member.kind,
                "val": {task: member.result.val[task].loss for task in tasks if task in member.group.trains},
            }
            | ({} if taught is None else {"mix": taught.mix, "mixtures": taught.mixtures})
            | ({} if member.group.size == 1 else {"size": member.group.size})
        )
    trained += [
        {
            "tasks": list(result.job.tasks),
            "seed": result.job.seed,
            "fraction": 1.0 if result.diverged else effort,
            "effort": effort,
            "val": {} if result.diverged else {task: score.loss for task, score in result.val.items()},
        }
        for result, effort in step.others
    ]
    return {"spent": step.spent, "best": {str(k): value for k, value in step.best.items()}, "trained": trained}


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
