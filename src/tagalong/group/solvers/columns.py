"""Column generation, for more tasks than a table of all served sets could hold.

Prices of the tasks and of a network come from a linear programme over the served sets known so far. Sets that are worth
more than their prices join them: first those that climbing from known ones finds, then those that a branch and bound
(`Pricing`) finds, which also says when there are none left. Then the prices prove a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..problem import TIE, Bools, Floats, Ints, Limits, Problem, Solution, choice_value, indices, solution_value
from .local_search import solve_search
from .programmes import Dual, Pull, best_choice, find_prices
from .served_sets import values_of
from .ties import first_in_order

MOST_TASKS = 64  # the tables of the pricing: 100 megabytes
STRENGTHS = (0.01, 0.001)  # of the pull on prices, one after the other
MORE = 0.01  # of a network, in the programme that finds prices
SHORT, FIRST_NODES = 20, 200_000  # kicks of the first search, and nodes after it
CLIMBS = 50  # rounds of climbing before the branch and bound is asked
SAVED = 2_000  # climbed sets kept per round

STARTS = 60  # sets to climb from
STEPS = 12
PAYING = 1e-9  # what a set must earn to be kept

NODES_AT_ONCE = 1 << 13  # of the branch and bound: what stays in the cache
MOST_FOUND = 200_000  # sets, found several times each
ENOUGH = 300  # sets found before prices are worth computing anew
SLACK = 1e-12  # far above what sums of doubles lose, far below a tie


def solve_columns(
    problem: Problem, budgets: Sequence[float], limits: Limits, nodes: float = float("inf")
) -> list[Solution]:
    """The best choice for each budget, proven unless time or work (nodes of the branch and bound) runs out."""
    pricing = Pricing(problem)
    return [_solved(problem, int(budget), pricing, limits, Work(nodes)) for budget in budgets]


def _solved(problem: Problem, networks: int, pricing: Pricing, limits: Limits, work: Work) -> Solution:
    """A short search and few nodes first, which is enough where groups are clear; then a long search and the rest."""
    start = solve_search(problem, [networks], replace(limits, kicks=min(SHORT, limits.kicks)))[0]
    first = Work(min(work.left, FIRST_NODES))
    generation = _Generation(problem, networks, start, pricing, limits, first)
    found = generation.solved()
    work.left -= FIRST_NODES - max(first.left, 0)
    if not found.proven and limits.kicks > SHORT:
        start = solve_search(problem, [networks], limits)[0]
        better = max(start, found, key=lambda solution: solution_value(problem, solution.choices))
        start = Solution(better.choices, min(start.bound, found.bound), False, prices=found.prices)
        generation = _Generation(problem, networks, start, pricing, limits, work)
        found = generation.solved()
    return generation.ordered(found)


class _Generation:
    """The served sets, prices and bound so far, for one budget."""

    def __init__(
        self, problem: Problem, networks: int, start: Solution, pricing: Pricing, limits: Limits, work: Work
    ) -> None:
        self.problem, self.networks, self.start = problem, networks, start
        self.pricing, self.limits, self.work = pricing, limits, work
        self.known = solution_value(problem, start.choices)
        self.bound, self.dual = start.bound, None if start.prices is None else Dual.of(start.prices)
        served = np.zeros((len(start.choices), problem.n), dtype=bool)
        for row, choice in enumerate(start.choices):
            served[row, list(indices(choice.serves))] = True
        self.members = neighbours(problem, served)
        self.values = values_of(problem, self.members)

    def solved(self) -> Solution:
        """The proof, or as far as it got."""
        try:
            for strength in STRENGTHS:
                if self._open:
                    self._converge(strength)
            if self._open and self.dual is not None:
                return self._decided(self.dual)
        except TimeoutError:
            pass
        prices = None if self.dual is None else self.dual.prices
        return Solution(self.start.choices, self.bound, self.bound - self.known <= TIE, prices=prices)

    def ordered(self, found: Solution) -> Solution:
        """The first of equal choices, where time allows to list the sets that they can use."""
        if not found.proven or found.prices is None:
            return found
        dual = Dual.of(found.prices)
        missing = solution_value(self.problem, found.choices) - dual.bound(self.networks)
        question = Question(dual.tasks, dual.network + missing - 2 * TIE, every=True)
        try:
            sets = self.pricing.find(question, self.work, self.limits)
        except TimeoutError:
            return found
        return first_in_order(self.problem, self.networks, found, sets) or found

    def _converge(self, strength: float) -> None:
        """Until no set is worth more than its prices, or the bound meets the known choice."""
        pull = Pull(self._center() if self.dual is None else self.dual.tasks, strength)
        last = TIE / (10 * self.networks)
        earning = first = max((self.bound - self.known) / self.networks / 2, last)
        while True:
            dual = self._climbed(pull)
            sets = self._paying(dual, earning)
            while not len(sets) and earning > last and self._open:
                earning = max(earning / 4, last) if earning > first / 50 else last
                sets = self._paying(dual, earning)
            if not len(sets) or not self._add(sets):
                return

    def _paying(self, dual: Dual, earning: float) -> Bools:
        """Sets that earn more than `earning`; if there are none, that proves a bound."""
        sets = self.pricing.find(Question(dual.tasks, dual.network + earning), self.work, self.limits)
        dearer = Dual(dual.tasks, dual.network + earning)
        bound = dearer.bound(self.networks)
        if not len(sets) and (self.dual is None or bound < self.dual.bound(self.networks)):
            self.bound, self.dual = min(bound, self.bound), dearer
        return sets

    @property
    def _open(self) -> bool:
        """Whether the prices so far leave a gap to the known choice."""
        return self.dual is None or self.dual.bound(self.networks) - self.known > TIE

    def _climbed(self, pull: Pull) -> Dual:
        """Prices that no climb beats."""
        dual = self._priced(pull)
        for _ in range(CLIMBS):
            sets = climb(self.problem, self.members, self.values, dual)
            if not len(sets) or not self._add(sets, dual) or self.limits.over:
                break
            dual = self._priced(pull)
        return dual

    def _priced(self, pull: Pull | None) -> Dual:
        """Of the optimal prices those where a network is cheap and tasks are dear: then large sets do not pay."""
        networks = self.networks + MORE
        return find_prices(self.problem, self.members, self.values, networks, self.limits, pull)

    def _add(self, sets: Bools, dual: Dual | None = None) -> int:
        """How many of the sets are new; of very many those that earn most are kept."""
        values = values_of(self.problem, sets)
        if dual is not None and len(sets) > SAVED:
            best = np.argsort(sets @ dual.tasks - values, kind="stable")[:SAVED]
            sets, values = sets[best], values[best]
        members, rows = np.unique(np.concatenate([self.members, sets]), axis=0, return_index=True)
        added = len(members) - len(self.members)
        self.members, self.values = members, np.concatenate([self.values, values])[rows]
        return added

    def _center(self) -> Floats:
        """What the tasks score in the known choice, less an even share of what one network more would bring."""
        dual = self._priced(None)
        center = np.zeros(self.problem.n)
        for choice in self.start.choices:
            served = list(indices(choice.serves))
            center[served] = (choice_value(self.problem, choice) - dual.network) / len(served)
        return center

    def _decided(self, dual: Dual) -> Solution:
        """Any choice better than the known one uses only sets that miss their prices by less than the gap."""
        least = dual.network + self.known - dual.bound(self.networks) - TIE
        sets = self.pricing.find(Question(dual.tasks, least, every=True), self.work, self.limits)
        values = values_of(self.problem, sets)
        return best_choice(self.problem, sets, values, self.networks, self.start, dual, self.limits)


def neighbours(problem: Problem, served: Bools) -> Bools:
    """Served sets with one unit more or less, every unit alone, and every pair of units: a start for prices."""
    pairs = (problem.units[:, None] | problem.units).reshape(-1, problem.n)
    near = (served[:, None] ^ problem.units).reshape(-1, problem.n)
    sets = np.unique(np.concatenate([served, near, pairs]), axis=0)
    return sets[np.isfinite(values_of(problem, sets))]


def climb(problem: Problem, members: Bools, values: Floats, dual: Dual) -> Bools:
    """New sets that pay, found by adding or dropping one unit at a time, the best each time."""
    earned = values - members @ dual.tasks
    start = np.argsort(-earned, kind="stable")[:STARTS]
    here, worth, found = members[start], earned[start], [members[:0]]
    for _ in range(STEPS):
        near = here[:, None] ^ problem.units
        flat = near.reshape(-1, problem.n)
        earns = (values_of(problem, flat) - flat @ dual.tasks).reshape(len(here), -1)
        found.append(near[earns > dual.network + PAYING])
        best = earns.argmax(axis=1)
        climbing = earns.max(axis=1) > worth + PAYING
        if not climbing.any():
            break
        here, worth = near[np.arange(len(here)), best][climbing], earns.max(axis=1)[climbing]
    return np.unique(np.concatenate(found), axis=0)


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
            if len(nodes.first) > NODES_AT_ONCE:
                half = np.arange(len(nodes.first)) < len(nodes.first) // 2
                stack += [(depth, nodes.only(half)), (depth, nodes.only(~half))]
                continue
            work.take(len(nodes.first), limits)
            done = nodes.left == 0
            if count > MOST_FOUND:
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


class Reach:
    """The best sums over undecided tasks, for given surpluses: what a source gives a target beyond its price.

    Attributes:
        surplus: first task × source position × target position.
        gets: first task × position × number: the most a task gets, if served, from so many later ones.
        gives: the same for what it gives to so many later ones that are served.
    """

    def __init__(self, surplus: Floats, barred: Bools) -> None:
        self.surplus, self.barred = surplus, barred
        self.given = np.where(barred[:, None], 0.0, np.maximum(surplus, 0.0))
        self.gives = _sums(np.triu(self.given, 1), axis=2)
        later = np.where(np.tri(surplus.shape[1], k=0, dtype=bool).T, -np.inf, surplus)  # sources after the target
        self.gets = _sums(later, axis=1).transpose(0, 2, 1)
        self._shares: dict[int, tuple[Floats, Floats]] = {}

    def shares(self, depth: int) -> tuple[Floats, Floats]:
        """First task × number × undecided position: the most that a task adds, served or as a helper.

        That is among so many others that are undecided, where half of what a source gives a target is counted for
        either: then both ends of a pair must be wanted for it to count in full.
        """
        if depth not in self._shares:
            given = self.given[:, depth:, depth:].transpose(0, 2, 1)
            served = self.surplus[:, depth:, depth:] + given
            self._shares[depth] = (_others(served / 2, self.barred[:, depth:]), _others(given / 2))
        return self._shares[depth]


def _sums(values: Floats, axis: int) -> Floats:
    """The sums of the 0, 1, 2 … largest."""
    sums = np.cumsum(-np.sort(-values, axis=axis), axis=axis)
    return np.concatenate([np.zeros_like(np.take(sums, [0], axis=axis)), sums], axis=axis)


def _others(values: Floats, barred: Bools | None = None) -> Floats:
    """Of values[:, other, position] the sums of the 0, 1, 2 … largest others; −inf where barred."""
    same = np.arange(values.shape[1])
    values[:, same, same] = -np.inf
    sums = _sums(values, axis=1)[:, : len(same)]
    return sums if barred is None else np.where(barred[:, None], -np.inf, sums)


def orders(problem: Problem) -> Ints:
    """First task × position: each task, then the others, near ones first, links unbroken."""
    return np.array([_near(problem, first) for first in range(problem.n)])


def _near(problem: Problem, first: int) -> Ints:
    both = problem.pairwise[first] + problem.pairwise[:, first]
    links = [np.array(indices(link)) for link in problem.links]
    links.sort(key=lambda link: np.inf if first in link else both[link].max(), reverse=True)
    order: Ints = np.concatenate(links)
    return np.concatenate([[first], order[order != first]])
