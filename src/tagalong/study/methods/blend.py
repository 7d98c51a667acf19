"""The method `blend`: averages models of several families, e.g. a network, TabM, boosting and ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import (
    Problem,
    average_outputs,
    constant_losses,
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

        def skill_of(members: Sequence[Mapping[str, Tensor]]) -> float:
            losses: dict[str, Any] = {}
            for name in units:
                task = problem.task(name)
                assert task.averaging is not None
                average = average_outputs([member[name] for member in members], task.averaging)
                scale = problem.scales.get(name)
                losses[name] = score_outputs(task, average, targets[name], scale, problem.val.weights).rows
            return mean_skill(task_skills(row_skills(losses, constants, units)), weights)

        choices, skills = {}, {}
        for budget in budgets:
            for chosen in combinations(families, min(budget, len(families))):
                by_seed = [skill_of([outputs[jobs[seed, family]] for family in chosen]) for seed in seeds]
                skills[chosen] = sum(by_seed) / len(seeds)
            best = max((chosen for chosen in skills if len(chosen) <= budget), key=lambda chosen: skills[chosen])
            choices[budget] = Choice(tuple(Group(runner.tasks, runner.tasks, network=family) for family in best))
        deciding = {seed: runner.cost(jobs[seed, family] for family in families) for seed in seeds}
        names = {"+".join(family or "network" for family in chosen): skill for chosen, skill in skills.items()}
        return Decision.pooled(choices, seeds, deciding, about={"skills": names})


def _families(problem: Problem) -> list[Family]:
    return [family for family in FAMILIES if family is None or family in problem.alternatives]
