"""The method `blend`: averages models of several families, e.g. a network, TabM, boosting and ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import (
    Problem,
    average_outputs,
    constant_losses,
    first_half,
    mean_skill,
    row_skills,
    score_outputs,
    skill_units,
    task_skills,
)

from .ensemble import Ensemble
from .method import Choice, Decision

if TYPE_CHECKING:
    from ..runner import Runner

FAMILIES = (None, "tabm", "boosting", "ridge")  # None is the problem's own network
Family = str | None


class Blend(Ensemble):
    """Trains a model of each family for all tasks, and averages those that are best together on validation rows.

    All tasks are answered by the same families, which count the same: weights of their own, and a choice for each
    task, fit the validation rows too well. For each number of models, all sets of as many families are compared by
    their mean skill (see `tagalong.learn.mean_skill`), averaged over seeds.
    """

    name = "blend"
    order = 20

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        if problem is None:
            return [InvalidInput(f"`methods`: {self.name!r}", "requires the data")]
        if len(_families(problem)) < 2:
            return [InvalidInput(f"`methods`: {self.name!r}", "requires a table", "a problem with one kind of network")]
        return super().problems(tasks, problem)

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        problem, families = runner.problem, _families(runner.problem)
        jobs = {
            (seed, family): runner.group_job(Group(runner.tasks, runner.tasks, network=family), seed)
            for seed in seeds
            for family in families
        }
        outputs = runner.outputs(jobs.values(), "val")
        constants, units = constant_losses(problem, "val"), skill_units(problem)
        weights = {task.name: task.weight for task in problem.tasks}
        targets = runner.targets("val")

        def losses_of(members: Sequence[Mapping[str, Tensor]]) -> dict[str, NDArray[Any]]:
            losses: dict[str, NDArray[Any]] = {}
            for name in runner.tasks:
                task = problem.task(name)
                assert task.averaging is not None
                average = average_outputs([member[name] for member in members], task.averaging)
                scale = problem.answer_scales.get(name)
                rows = score_outputs(task, average, targets[name], scale, problem.val.weights).rows
                assert rows is not None
                losses[name] = rows
            return losses

        losses = {
            chosen: [losses_of([outputs[jobs[seed, family]] for family in chosen]) for seed in seeds]
            for size in range(1, min(max(budgets), len(families)) + 1)
            for chosen in combinations(families, size)
        }
        skills = {
            chosen: [row_skills(rows, constants, units) for rows in by_seed] for chosen, by_seed in losses.items()
        }

        def skill_of(chosen: tuple[Family, ...], part: NDArray[np.bool_]) -> float:
            counted = [{task: rows[part] for task, rows in by_task.items()} for by_task in skills[chosen]]
            return sum(mean_skill(task_skills(rows), weights) for rows in counted) / len(seeds)

        # The families are chosen on all validation rows, and judged on rows of the half that did not choose them.
        first = first_half(len(problem.val), problem.val.groups).numpy()
        everything = np.ones_like(first)
        choices: dict[tuple[int | None, int], Choice] = {}
        for budget in budgets:
            possible = [chosen for chosen in skills if len(chosen) <= budget]
            best, by_first, by_second = (
                max(possible, key=partial(skill_of, part=part)) for part in (everything, first, ~first)
            )
            groups = tuple(Group(runner.tasks, runner.tasks, network=family) for family in best)
            for place, seed in enumerate(seeds):
                judged = losses[by_second][place], losses[by_first][place]
                rows = {task: np.where(first, *(half[task] for half in judged)) for task in runner.tasks}
                choices[budget, seed] = Choice(groups, val_rows=rows)
        deciding = {seed: runner.cost(jobs[seed, family] for family in families) for seed in seeds}
        names = {"+".join(family or "network" for family in chosen): skill_of(chosen, everything) for chosen in skills}
        return Decision(choices, deciding, about={"skills": names})


def _families(problem: Problem) -> list[Family]:
    return [family for family in FAMILIES if family is None or family in problem.alternatives]
