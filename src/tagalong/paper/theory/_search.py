"""Looking for cases that meet the conditions of a statement and break what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._bounds import Bound
from ._losses import Cases, Floats, cosines, logistic_cases, quadratic_cases

COUNT = 100_000


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        met: cases that meet the conditions.
        broken: those of them in which the statement is false.
    """

    met: int
    broken: int

    @property
    def share(self) -> float:
        """Of the cases that meet the conditions."""
        return self.broken / self.met if self.met else float("nan")

    def __add__(self, other: Search) -> Search:
        return Search(self.met + other.met, self.broken + other.broken)


def lemma_gap(cases: Cases) -> Floats:
    """Right less left side of Lemma 1: g_a·g_b − (g_a·g_c − ½βη‖g_c‖² + ½αη‖g_b‖²); never negative if it holds."""

    def dot(first: Floats, second: Floats) -> Floats:
        found: Floats = (first * second).sum(1)
        return found

    right = dot(cases.g_a, cases.g_b)
    left = dot(cases.g_a, cases.g_c) - cases.beta * cases.eta / 2 * dot(cases.g_c, cases.g_c)
    return right - left - cases.alpha * cases.eta / 2 * dot(cases.g_b, cases.g_b)


def search_lemma(count: int = COUNT, seed: int = 0) -> dict[str, Search]:
    """Lemma 1 on quadratics and on logistic regressions."""
    random = np.random.default_rng(seed)
    found = {}
    for name, cases in (("quadratic", quadratic_cases(count, random)), ("logistic", logistic_cases(count, random))):
        met = cases.b_has_more_affinity
        size = (cases.g_a * cases.g_a).sum(1)
        found[name] = Search(int(met.sum()), int((met & (lemma_gap(cases) < -1e-9 * size)).sum()))
    return found


def search_proposition(bound: Bound, count: int = COUNT, seed: int = 0) -> Search:
    """Proposition 1 with this version of its bound, on quadratics that meet all of its conditions."""
    cases = quadratic_cases(count, np.random.default_rng(seed), highest=bound.value)
    limit = bound.value(cases.alpha, cases.beta, cases.eta)
    met = cases.b_has_more_affinity & (cosines(cases.g_a, cases.g_c) <= limit)
    return Search(int(met.sum()), int((met & ~cases.b_is_the_better_partner).sum()))


def search_margin(count: int = COUNT, seed: int = 0) -> dict[str, Search]:
    """What holds: if b's advantage is at least βη²‖g_a‖‖g_b − g_c‖, then b is the better partner."""
    random = np.random.default_rng(seed)
    found = {}
    for name, cases in (("quadratic", quadratic_cases(count, random)), ("logistic", logistic_cases(count, random))):
        lengths = np.linalg.norm(cases.g_a, axis=1) * np.linalg.norm(cases.g_b - cases.g_c, axis=1)
        met = cases.after(cases.g_c) - cases.after(cases.g_b) >= cases.beta * cases.eta**2 * lengths
        found[name] = Search(int(met.sum()), int((met & ~cases.b_is_the_better_partner).sum()))
    return found
