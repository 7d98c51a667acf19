"""Methods that train candidate groups and choose among them: pairs (`hoa`) or all subsets (`optimal`, `oracle`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from tagalong.errors import InvalidInput
from tagalong.group import select_groups

from ..relative_losses import relative_losses
from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

MAX_TASKS = 12  # by default, for training all subsets


class Hoa(Method):
    """Trains single tasks and pairs, and predicts a task's loss in a larger group as the mean over the group's pairs.

    Groups are chosen by their validation losses. Each loss is divided by the loss of the same task trained alone with
    the same seed, and the ratios are averaged over seeds. The choice therefore does not depend on the scale of the
    targets.
    """

    name = "hoa"
    order = 30

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        subsets = runner.subsets(largest=2)
        jobs = {seed: [runner.job(subset, seed) for subset in subsets] for seed in seeds}
        all_jobs = [job for jobs_of_seed in jobs.values() for job in jobs_of_seed]
        runner.networks(all_jobs, "all pairs", diverged=True)
        table = relative_losses(runner, subsets, seeds, split="val", reference="alone")
        groupings = select_groups(table, budgets, complete="pairs", objective="min")
        choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
        return Decision.pooled(choices, seeds, {seed: runner.cost(jobs_of_seed) for seed, jobs_of_seed in jobs.items()})


class Optimal(Method):
    """Trains every subset of tasks and chooses the groups with the lowest validation losses.

    Losses are divided by those of the network for all tasks with the same seed, and then averaged over seeds.

    Args:
        max_size: the maximum size of the subsets to train, in addition to the network for all tasks, or None for no
            limit.
        max_tasks: the maximum number of tasks if `max_size` is not set, since 2^n − 1 networks are trained per seed.
    """

    name = "optimal"
    order = 40
    part: ClassVar[Literal["val", "test"]] = "val"

    def __init__(self, max_size: int | None = None, max_tasks: int = MAX_TASKS) -> None:
        self.max_size, self.max_tasks = max_size, max_tasks

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        n, options = len(tasks), "`options`: `{}` of " + repr(self.name)
        if self.max_size is not None and (not isinstance(self.max_size, int) or self.max_size < 1):
            return [InvalidInput(options.format("max_size"), "must be a positive integer", repr(self.max_size))]
        if not isinstance(self.max_tasks, int):
            return [InvalidInput(options.format("max_tasks"), "must be an integer", repr(self.max_tasks))]
        if self.max_size is None and n > self.max_tasks:
            reason = f"trains every subset of the {n} tasks, which requires {2**n - 1:,} networks per seed"
            hint = f"use 'hoa', or set the option max_size to 3 or max_tasks to {n}"
            return [InvalidInput(f"`methods`: {self.name!r}", reason, hint=hint)]
        return []

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        subsets = self.subsets(runner)
        jobs = {seed: [runner.job(subset, seed) for subset in subsets] for seed in seeds}
        all_jobs = [job for jobs_of_seed in jobs.values() for job in jobs_of_seed]
        runner.networks(all_jobs, "all subsets", diverged=True)
        groupings = select_groups(self.table(runner, subsets, seeds), budgets, objective="min")
        choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
        return Decision.pooled(choices, seeds, {seed: runner.cost(jobs_of_seed) for seed, jobs_of_seed in jobs.items()})

    def subsets(self, runner: Runner) -> list[frozenset[str]]:
        """Returns the sets of tasks to choose from."""
        return list(dict.fromkeys([*runner.subsets(largest=self.max_size), frozenset(runner.tasks)]))

    def table(
        self, runner: Runner, subsets: Sequence[frozenset[str]], seeds: Sequence[int]
    ) -> dict[frozenset[str], dict[str, float]]:
        """Returns the relative loss of each task in each subset's network (lower is better)."""
        return relative_losses(runner, subsets, seeds, split=self.part, reference="together")


class Oracle(Optimal):
    """Like `Optimal`, but chooses by test losses, as the paper's "Optimal" does.

    The result is an upper bound on the possible gain.
    """

    name = "oracle"
    order = 41
    honest = False
    part: ClassVar[Literal["val", "test"]] = "test"
