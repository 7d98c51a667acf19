"""Methods that train candidate groups and choose among them: pairs (`hoa`) or all subsets (`optimal`, `oracle`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from tagalong.errors import InvalidInput
from tagalong.group import select_groups

from ..relative_losses import Subset, relative_losses
from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

Table = dict[Subset, dict[str, float]]
MAX_TASKS = 12  # by default, for training all subsets


def choose_groups(
    runner: Runner, table: Table, budgets: Sequence[int], seeds: Sequence[int], complete: Literal["pairs"] | None = None
) -> Decision:
    """Chooses the groups with the lowest losses.

    Args:
        runner: the runner that has the networks.
        table: the relative loss of each task in the network of each set of tasks.
        budgets: the numbers of networks to choose.
        seeds: the seeds, over which relative losses are averaged.
        complete: how larger groups are predicted, see `select_groups`.
    """
    groupings = select_groups(table, budgets, complete=complete, objective="min")
    choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
    deciding = {seed: runner.cost(runner.job(subset, seed) for subset in table) for seed in seeds}
    return Decision.pooled(choices, seeds, deciding)


class Hoa(Method):
    """Trains single tasks and pairs, and predicts a task's loss in a larger group as the mean over the group's pairs.

    Groups are chosen by their validation losses. Each loss is divided by the loss of the same task trained alone with
    the same seed, and the ratios are averaged over seeds. The choice therefore does not depend on the scale of the
    targets.
    """

    name = "hoa"
    order = 30

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        table = relative_losses(runner, runner.subsets(largest=2), seeds, split="val", reference="alone")
        return choose_groups(runner, table, budgets, seeds, complete="pairs")


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
        return choose_groups(runner, self.table(runner, self.subsets(runner), seeds), budgets, seeds)

    def subsets(self, runner: Runner) -> list[Subset]:
        """Returns the sets of tasks to choose from."""
        return list(dict.fromkeys([*runner.subsets(largest=self.max_size), frozenset(runner.tasks)]))

    def table(self, runner: Runner, subsets: Sequence[Subset], seeds: Sequence[int]) -> Table:
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
