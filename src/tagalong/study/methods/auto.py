"""The method `auto`, which spends a given effort on models and recommends the best of them for each budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tagalong.errors import InvalidInput, collect, first_few
from tagalong.group import Group
from tagalong.learn import Split

from ..records import Cost
from ..search import Member, search_groups, spend
from .effort import read_effort
from .method import Budget, Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

MAX_ANSWER_BYTES = 256 * 2**20  # of the answers of all networks on the validation rows


class AutoMethod(Method):
    """Finds the best way to spend each budget: copies, other kinds of models, groups, committees, or taught networks.

    Models are trained with the first seed, and the best of them are recommended (see `tagalong.study.search.spend`).
    With all other seeds, the recommended models are trained anew, but with the same teachers. If answers cannot be
    averaged, `auto` searches for groups in which one network answers each task.

    Args:
        effort: the number of full training runs, "quick" (20), "normal" (60), "thorough" (200), or a duration, e.g.
            "10min". The training runs of the first networks for all tasks are included.
        passes: the maximum number of networks that answer a task: None for no limit, or 1 as in the paper.
        average: whether the answers of several networks may be averaged. If not, `auto` searches for groups as in the
            paper, and the other options do not apply.
        teach: whether networks may learn from the answers of others.
    """

    name = "auto"
    order = 60
    averages = True

    def __init__(
        self, effort: Any = "normal", passes: int | None = None, average: bool = True, teach: bool = True
    ) -> None:
        self.effort, self.passes, self.average, self.teach = effort, passes, average, teach

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        problems: list[InvalidInput] = []
        collect(problems, read_effort, self.effort)
        if self.passes not in (None, 1):
            problems.append(InvalidInput("passes", "must be 1, or None for no limit", repr(self.passes)))
        return problems + [
            InvalidInput(f"`options`: `{name}`", "must be True or False", repr(getattr(self, name)))
            for name in ("average", "teach")
            if not isinstance(getattr(self, name), bool)
        ]

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        seconds = runner.cost([runner.job(runner.tasks, seeds[0])]).seconds
        effort = read_effort(self.effort).in_trainings(seconds)
        choices: dict[tuple[Budget, int], Choice] = {}
        chosen: dict[str, dict[str, Any]] = {}
        about: dict[str, Any] = {"effort": effort, "chosen": chosen}
        reason = why_not_averaged(runner, effort) if self.average else "`average` is False"
        if reason is None:
            spending = spend(runner, budgets, effort, seeds[0], passes=self.passes, teach=self.teach)
            for budget, plan in spending.plans.items():
                shown = ("family", "expected", "doubt", "families")
                chosen[str(budget)] = {name: getattr(plan, name) for name in shown}
                for seed in seeds:
                    # The rows picked the models of the first seed. With other seeds they are trained anew, but teachers
                    # that the rows picked flatter their students.
                    is_flattered = seed == seeds[0] or any(group.taught for group in plan.groups)
                    choices[budget, seed] = Choice(plan.groups, val_rows=plan.rows if is_flattered else None)
            trained = [*spending.members, *spending.lost]
            about["teachers"] = [group.to_document(cost=False) for group in spending.teachers]
        else:
            about["one_network_per_task"] = reason
            search = search_groups(runner, [min(budget, len(runner.tasks)) for budget in budgets], effort, seeds)
            for budget in budgets:
                recommended = search.chosen[min(budget, len(runner.tasks))]
                chosen[str(budget)] = {name: getattr(recommended, name) for name in ("expected", "doubt", "agreement")}
                for seed in seeds:
                    choices[budget, seed] = Choice(recommended.groups)
            trained = [
                Member("set", Group(trial.tasks, trial.tasks), result, 1.0) for trial, result in search.results.items()
            ]

        about["trained"] = [_describe(member) for member in trained]
        about["spent"] = sum(member.effort for member in trained)
        spent = sum((_cost(runner, member) for member in trained), Cost())
        shared = Cost(round(spent.networks / len(seeds)), round(spent.steps / len(seeds)), spent.seconds / len(seeds))
        return Decision(choices, dict.fromkeys(seeds, shared), about=about)


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


def _cost(runner: Runner, member: Member) -> Cost:
    """Returns what a model cost. A step counts by its multiplications, as a multiple of a step of a plain network."""
    result, group = member.result, member.group
    return Cost(1, round(result.steps * group.size * runner.step_cost(group.network)), result.seconds)


def _describe(member: Member) -> dict[str, Any]:
    job, group = member.result.job, member.group
    document = {"kind": member.kind, "effort": member.effort, "tasks": list(job.tasks), "seed": job.seed}
    if group.size > 1:
        document["size"] = group.size
    if group.taught is not None:
        document |= {"mix": group.taught.mix, "mixtures": group.taught.mixtures}
    if not member.result.diverged:
        document["val"] = {task: score.loss for task, score in member.result.val.items()}
    return document
