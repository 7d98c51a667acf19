"""Served sets that are worth more than their prices, by branch and bound; no table of all sets.

A network of m tasks earns Σ over served j of (Σ over trained i ≠ j of Z[i→j]) / (m − 1) − price of j, and as there are
m − 1 such i, that is the sum of the surpluses Z[i→j] − price of j, over m − 1. For every m and every first served task
the others are decided one by one: served, trained as a helper, or left out. What is decided counts exactly. Of the
tasks still wanted each is given its best company, which bounds what they can add.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ._problem import Bools, Floats, Ints, Limits, Problem, indices
from ._reach import Reach, orders

CHUNK = 1 << 13  # nodes looked at together: what stays in the cache
MOST_LISTED = 200_000  # sets, found several times each
ENOUGH = 300  # sets found before prices are worth computing anew
SLACK = 1e-12  # far above what sums of doubles lose, far below a tie


class Work:
    """Nodes that may still be looked at."""

    def __init__(self, nodes: float) -> None:
        self.left = nodes

    def take(self, nodes: int, limits: Limits) -> None:
        """Counts them.

        Raises:
            TimeoutError: there are none left, or time is up.
        """
        self.left -= nodes
        if self.left < 0 or limits.over:
            raise TimeoutError


@dataclass(frozen=True)
class Question:
    """Which served sets are worth more than `least` above the prices of their tasks?

    Attributes:
        prices: of the tasks.
        least: what a set must earn.
        every: all such sets are wanted, not just the best of similar ones.
    """

    prices: Floats
    least: float
    every: bool = False


class _Nodes(NamedTuple):
    """Partly decided networks. Columns of `gets` and `gives` are the undecided positions."""

    first: Ints  # the task served first
    size: Ints  # tasks trained in the end
    left: Ints  # of them still to be chosen
    worth: Floats  # earned so far beyond the prices, times size − 1
    gets: Floats  # by each undecided task from the trained ones, beyond its price
    gives: Floats  # by each undecided task to the served ones, beyond their prices
    served: Bools  # nodes × tasks

    def only(self, rows: Bools) -> _Nodes:
        return _Nodes._make(column[rows] for column in self)


class Pricing:
    """Answers questions about one problem."""

    def __init__(self, problem: Problem) -> None:
        n = problem.n
        self.problem, self.order = problem, orders(problem)
        self.scores = problem.pairwise[self.order[:, :, None], self.order[:, None, :]]
        unit = np.zeros(n, dtype=np.int64)
        for number, link in enumerate(problem.links):
            unit[list(indices(link))] = number
        self.together = unit[:, None] == unit
        self.linked = self.together.sum(axis=1) > 1
        self.firsts = np.unique(unit, return_index=True)[1]  # one task of each unit; earlier units are not served
        self.barred = unit[self.order] < unit[:, None]
        place = np.argsort(self.order, axis=1)
        partners = np.where(self.together & ~np.eye(n, dtype=bool), place[:, None, :], n).min(axis=2)
        self.begun = np.take_along_axis(partners, self.order, axis=1) < np.arange(n)  # first × position

    def find(self, question: Question, work: Work, limits: Limits) -> Bools:
        """Such sets (rows); none only if there are none.

        Raises:
            TimeoutError: out of work or time before that was sure, or there are too many to list.
        """
        reach = Reach(self.scores - question.prices[self.order][:, None], self.barred)
        stack, found, count = [(1, self._roots(reach))], [self._alone(question)], 0
        while stack and (question.every or count < ENOUGH):
            depth, nodes = stack.pop()
            if len(nodes.first) > CHUNK:
                half = np.arange(len(nodes.first)) < len(nodes.first) // 2
                stack += [(depth, nodes.only(half)), (depth, nodes.only(~half))]
                continue
            work.take(len(nodes.first), limits)
            done = nodes.left == 0
            if count > MOST_LISTED:
                raise TimeoutError
            if done.any():
                found.append(self._complete(nodes.only(done), question))
                count += len(found[-1])
                nodes = nodes.only(~done)
            if len(nodes.first) and depth < self.problem.n:
                stack.append((depth + 1, self._expanded(nodes, depth, reach, question)))
        sets: Bools = np.unique(np.concatenate(found), axis=0)
        return sets

    def _alone(self, question: Question) -> Bools:
        """Networks of one task."""
        worth = np.where(self.linked, -np.inf, self.problem.alone) - question.prices
        return np.eye(self.problem.n, dtype=bool)[worth > question.least + SLACK]

    def _roots(self, reach: Reach) -> _Nodes:
        sizes = np.arange(2, min(self.problem.largest, self.problem.n) + 1)
        first, size = np.repeat(self.firsts, len(sizes)), np.tile(sizes, len(self.firsts))
        served = np.eye(self.problem.n, dtype=bool)[first]
        gets, gives = reach.surplus[first, 0, 1:], reach.surplus[first, 1:, 0]
        return _Nodes(first, size, size - 1, np.zeros(len(first)), gets, gives, served)

    def _complete(self, nodes: _Nodes, question: Question) -> Bools:
        good = nodes.worth > (question.least + SLACK) * (nodes.size - 1)
        if self.linked.any():
            good &= (nodes.served == ((nodes.served[:, None] & self.together).any(axis=2))).all(axis=1)
        return nodes.served[good]

    def _expanded(self, nodes: _Nodes, depth: int, reach: Reach, question: Question) -> _Nodes:
        """The next task left out, trained as a helper, and served; where that can still earn enough."""
        nodes = nodes.only(self._promising(nodes, depth, reach, question))
        task, which = self.order[nodes.first, depth], (nodes.first, depth, nodes.left - 1)
        serves = ~self.barred[nodes.first, depth]
        # In the best network for its served set a helper gives the set at least what it is worth, which is a mean.
        helps = (nodes.gives[:, 0] + reach.gives[which] > question.least - SLACK) | (nodes.size == 2)
        spare = nodes.left < self.problem.n - depth
        if not question.every:  # without a task that does not pay, the set is worth more
            serves &= self.linked[task] | (nodes.gets[:, 0] + reach.gets[which] > -SLACK)
        if self.linked.any():
            joined = (nodes.served & self.together[task]).any(axis=1)
            serves &= joined | ~self.begun[nodes.first, depth]
            helps, spare = helps & ~joined, spare & ~joined
        left_out = nodes._replace(gets=nodes.gets[:, 1:], gives=nodes.gives[:, 1:]).only(spare)
        helped = _trained(nodes.only(helps), depth, reach)
        served = _served(nodes.only(serves), depth, reach, task[serves])
        return _Nodes._make(np.concatenate(columns) for columns in zip(left_out, helped, served, strict=True))

    def _promising(self, nodes: _Nodes, depth: int, reach: Reach, question: Question) -> Bools:
        """Whether the best of the undecided, as many as are wanted, earn enough with what is decided."""
        served, helping = (table[nodes.first, nodes.left - 1] for table in reach.shares(depth))
        gain = nodes.gives + np.maximum(nodes.gets + served, helping)
        best = np.cumsum(-np.sort(-gain, axis=1), axis=1)[np.arange(len(gain)), nodes.left - 1]
        enough: Bools = nodes.worth + best > question.least * (nodes.size - 1)
        return enough


def _trained(nodes: _Nodes, depth: int, reach: Reach) -> _Nodes:
    """With the next task as a helper."""
    gets = nodes.gets[:, 1:] + reach.surplus[nodes.first, depth, depth + 1 :]
    worth = nodes.worth + nodes.gives[:, 0]
    return nodes._replace(left=nodes.left - 1, worth=worth, gets=gets, gives=nodes.gives[:, 1:])


def _served(nodes: _Nodes, depth: int, reach: Reach, task: Ints) -> _Nodes:
    """With the next task served."""
    trained, served = _trained(nodes, depth, reach), nodes.served.copy()
    served[np.arange(len(task)), task] = True
    gives = trained.gives + reach.surplus[nodes.first, depth + 1 :, depth]
    return trained._replace(worth=trained.worth + nodes.gets[:, 0], gives=gives, served=served)
