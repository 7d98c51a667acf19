"""The method `random`: the expected result of groups drawn at random."""

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

    from ..backend import Backend

Names = tuple[str, ...]


class Random(Method):
    """The expected result of groups drawn at random.

    The paper reports an "expected value from randomly selecting task groupings" and does not define it. Here every
    partition into exactly k groups is equally likely. The expectation is exact if other methods of the same run request
    the networks of all possible groups (as `optimal` does), else it is the mean over drawn partitions.

    Args:
        samples: number of partitions to draw for each seed and budget.
        exact: True trains missing networks for the exact expectation, False always draws; None is exact if no network
            has to be trained for it. Networks of earlier runs do not count, so that a repeated run is the same.
        overlap: True draws covers that may overlap instead: k different groups, each task in any number of them,
            all such covers equally likely, and each task served by any group that trains it.
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
            hint = "leave out `exact` or `overlap`"
            problems.append(InvalidInput("`options`: 'random'", "has no exact expectation over covers", hint=hint))
        return problems

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        mtl = {seed: backend.cost([backend.job(backend.tasks, seed)]) for seed in seeds}  # the paper counts one run
        choices: dict[tuple[Budget, int], Choice] = {
            (budget, seed): self._choice(backend, budget, seed) for budget in budgets for seed in seeds
        }
        return Decision(choices, mtl)

    def _choice(self, backend: Backend, budget: int, seed: int) -> Choice:
        names = backend.tasks
        possible = backend.subsets(largest=len(names) - budget + 1)
        exact = self.exact
        if exact is None:
            exact = not self.overlap and backend.requested(backend.job(subset, seed) for subset in possible)
        if exact:
            shares = {Group(block, block): block_share(len(block), len(names), budget) for block in possible}
        else:
            # A random stream for each seed and budget, so that another budget changes nothing.
            draw = np.random.default_rng([seed % 2**32, budget, len(names), self.overlap])
            drawn = [self._draw(names, budget, draw) for _ in range(self.samples)]
            counts = Counter(group for groups in drawn for group in groups)
            shares = {group: count / self.samples for group, count in counts.items()}
        likely = {group: share for group, share in sorted(shares.items()) if share}
        return Choice(tuple(likely), tuple(likely.values()))

    def _draw(self, names: Names, budget: int, draw: np.random.Generator) -> list[Group]:
        if self.overlap:
            return random_cover(names, budget, draw)
        return [Group(block, block) for block in random_partition(names, budget, draw)]


@cache
def partitions(n: int, k: int) -> int:
    """Returns the number of partitions of n tasks into exactly k groups (Stirling numbers of the second kind).

    Example:
        >>> [partitions(4, k) for k in range(6)]
        [0, 1, 7, 6, 1, 0]
    """
    if n == 0 or k == 0:
        return int(n == k)
    return partitions(n - 1, k - 1) + k * partitions(n - 1, k)


def block_share(size: int, n: int, k: int) -> float:
    """Returns the probability that a given set of this size is a group of a random partition of n tasks into k groups.

    Example:
        >>> block_share(1, 3, 2)  # of {a}{bc}, {b}{ac}, {c}{ab} one has {a}
        0.3333333333333333
    """
    return partitions(n - size, k - 1) / partitions(n, k)


def random_partition(names: Names, k: int, draw: np.random.Generator) -> list[frozenset[str]]:
    """Draws a partition into exactly k groups; all partitions are equally likely."""
    blocks: list[set[str]] = []
    left = k
    ahead = []
    for n in range(len(names), 0, -1):  # the last name starts a new group, or joins one of k existing ones
        alone = draw.random() < partitions(n - 1, left - 1) / partitions(n, left)
        ahead.append((names[n - 1], alone))
        left -= alone
    for name, alone in reversed(ahead):
        if alone:
            blocks.append({name})
        else:
            blocks[int(draw.integers(len(blocks)))].add(name)
    return [frozenset(block) for block in blocks]


def random_cover(names: Names, k: int, draw: np.random.Generator) -> list[Group]:
    """Draws k different groups that cover all tasks, all covers equally likely; one of its groups serves each task."""
    while True:
        members = draw.integers(1, 2**k, size=len(names))  # for each task, the bits of its groups
        trains = [frozenset(name for name, bits in zip(names, members, strict=True) if bits >> i & 1) for i in range(k)]
        if all(trains) and len(set(trains)) == k:
            break
    served = [int(draw.choice([i for i in range(k) if name in trains[i]])) for name in names]
    return [
        Group(group, {name for name, by in zip(names, served, strict=True) if by == i})
        for i, group in enumerate(trains)
    ]
