"""The method `random`, which computes the expected result of random groupings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tagalong.errors import InvalidInput
from tagalong.group import Group

from .method import Budget, Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

Names = tuple[str, ...]


class Random(Method):
    """Computes the expected result of random groupings.

    The paper reports an "expected value from randomly selecting task groupings" without defining it. Here, every
    partition into exactly k groups is equally likely. The expectation is exact if other methods in the same run request
    the networks of all possible groups, as `optimal` does. Otherwise, the expectation is estimated by sampling
    partitions.

    Args:
        samples: the number of partitions to sample for each seed and budget.
        exact: whether to train any missing networks to compute the exact expectation (True) or always sample (False).
            If None, the exact expectation is computed only if this requires no additional networks. Networks from
            earlier runs are ignored here, so repeating a run gives the same results.
        overlap: whether to sample covers instead of partitions. A cover consists of k different groups that may
            overlap, and each task is served by a random group that includes it. All covers are equally likely.
    """

    name = "random"
    order = 60

    def __init__(self, samples: int = 5, exact: bool | None = None, overlap: bool = False) -> None:
        self.samples, self.exact, self.overlap = samples, exact, overlap

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        problems = []
        if not isinstance(self.samples, int) or self.samples < 1:
            problems.append(
                InvalidInput("`options`: `samples` of 'random'", "must be a positive integer", repr(self.samples))
            )
        if self.overlap and self.exact:
            hint = "omit `exact` or `overlap`"
            problems.append(
                InvalidInput(
                    "`options`: 'random'", "cannot compute the exact expectation for overlapping groups", hint=hint
                )
            )
        return problems

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        # As in the paper, deciding costs one training.
        deciding = {seed: runner.cost([runner.job(runner.tasks, seed)]) for seed in seeds}
        choices: dict[tuple[Budget, int], Choice] = {
            (budget, seed): self._make_choice(runner, budget, seed) for budget in budgets for seed in seeds
        }
        return Decision(choices, deciding)

    def _make_choice(self, runner: Runner, budget: int, seed: int) -> Choice:
        names = runner.tasks
        possible = runner.subsets(largest=len(names) - budget + 1)
        exact = self.exact
        if exact is None:
            exact = not self.overlap and runner.requested(runner.job(subset, seed) for subset in possible)
        if exact:
            shares = {Group(block, block): block_probability(len(block), len(names), budget) for block in possible}
        else:
            # Each seed and budget has its own random stream, so that results do not depend on the other budgets.
            rng = np.random.default_rng([seed % 2**32, budget, len(names), self.overlap])
            drawn = [self._draw_groups(names, budget, rng) for _ in range(self.samples)]
            counts = Counter(group for groups in drawn for group in groups)
            shares = {group: count / self.samples for group, count in counts.items()}
        likely = {group: share for group, share in sorted(shares.items()) if share}
        return Choice(tuple(likely), tuple(likely.values()))

    def _draw_groups(self, names: Names, budget: int, rng: np.random.Generator) -> list[Group]:
        if self.overlap:
            return random_cover(names, budget, rng)
        return [Group(block, block) for block in random_partition(names, budget, rng)]


@cache
def count_partitions(n: int, k: int) -> int:
    """Returns the number of partitions of n tasks into exactly k groups (a Stirling number of the second kind).

    Example:
        >>> [count_partitions(4, k) for k in range(6)]
        [0, 1, 7, 6, 1, 0]
    """
    if n == 0 or k == 0:
        return int(n == k)
    return count_partitions(n - 1, k - 1) + k * count_partitions(n - 1, k)


def block_probability(size: int, n: int, k: int) -> float:
    """Returns the probability that a given set of this size is a group in a random partition of n tasks into k groups.

    Example:
        >>> block_probability(1, 3, 2)  # one of {a}{bc}, {b}{ac} and {c}{ab} has {a}
        0.3333333333333333
    """
    return count_partitions(n - size, k - 1) / count_partitions(n, k)


def random_partition(names: Names, k: int, rng: np.random.Generator) -> list[frozenset[str]]:
    """Draws a random partition into exactly k groups. All partitions are equally likely."""
    blocks: list[set[str]] = []
    remaining = k
    assignments = []
    for n in range(len(names), 0, -1):  # the last name either starts a new group or joins an existing one
        starts_group = rng.random() < count_partitions(n - 1, remaining - 1) / count_partitions(n, remaining)
        assignments.append((names[n - 1], starts_group))
        remaining -= starts_group
    for name, starts_group in reversed(assignments):
        if starts_group:
            blocks.append({name})
        else:
            blocks[int(rng.integers(len(blocks)))].add(name)
    return [frozenset(block) for block in blocks]


def random_cover(names: Names, k: int, rng: np.random.Generator) -> list[Group]:
    """Draws k different random groups that cover all tasks. All covers are equally likely.

    Each task is served by a random group.
    """
    while True:
        members = rng.integers(1, 2**k, size=len(names))  # for each task, a bit mask of its groups
        trains = [frozenset(name for name, bits in zip(names, members, strict=True) if bits >> i & 1) for i in range(k)]
        if all(trains) and len(set(trains)) == k:
            break
    served = [int(rng.choice([i for i in range(k) if name in trains[i]])) for name in names]
    return [
        Group(group, {name for name, by in zip(names, served, strict=True) if by == i})
        for i, group in enumerate(trains)
    ]
