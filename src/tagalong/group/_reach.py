"""What tasks that are not decided yet can still add to a network: tables for the bounds of the pricing."""

from __future__ import annotations

import numpy as np

from ._problem import Bools, Floats, Ints, Problem, indices


def orders(problem: Problem) -> Ints:
    """First task × position: each task, then the others, near ones first, links unbroken."""
    return np.array([_near(problem, first) for first in range(problem.n)])


def _near(problem: Problem, first: int) -> Ints:
    both = problem.pairwise[first] + problem.pairwise[:, first]
    links = [np.array(indices(link)) for link in problem.links]
    links.sort(key=lambda link: np.inf if first in link else both[link].max(), reverse=True)
    order: Ints = np.concatenate(links)
    return np.concatenate([[first], order[order != first]])


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
