"""Tests the paper's theory on random losses: Lemma 1, all versions of Proposition 1, and a corrected proposition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CASE_COUNT = 100_000  # number of random cases per statement
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """An upper bound on cos(g_a, g_c) that, according to the paper, ensures that b is the better partner.

    Attributes:
        name: a short name for tables.
        where: the location in the paper.
        formula: the formula of the bound as text.
        value: a function that computes the bound from α, β and η.
    """

    name: str
    where: str
    formula: str
    value: Callable[[Floats, Floats, Floats], Floats]


BOUNDS = (
    Bound(
        "main text",
        "section 4.3 and the appendix's restatement",
        "η/4 · αβ/(β−α) − 1",
        lambda alpha, beta, eta: eta / 4 * alpha * beta / (beta - alpha) - 1,
    ),
    Bound(
        "proof",
        "last line of the proof",
        "η/4 · (β/α)/(β/α−1) − 1",
        lambda alpha, beta, eta: eta / 4 * beta / (beta - alpha) - 1,
    ),
    Bound(
        "example",
        "the quadratic counterexample",
        "η/4 · (β/α)/(β/α−1)",
        lambda alpha, beta, eta: eta / 4 * beta / (beta - alpha),
    ),
    Bound(
        "proof's last inequality",
        "the line before, solved for the cosine",
        "ηβ/2 + α/(2(β−α)) − 1",
        lambda alpha, beta, eta: eta * beta / 2 + alpha / (2 * (beta - alpha)) - 1,
    ),
    Bound(
        "corrected",
        "the same with the term −(η/2)·β‖g_b‖² that the proof drops",
        "(ηβ − 3)/2",
        lambda alpha, beta, eta: (eta * beta - 3) / 2,
    ),
)


@dataclass(frozen=True)
class CaseBatch:
    """A batch of cases, each with a loss L_a, a point, a learning rate and three gradients.

    Attributes:
        loss: a function that returns L_a at points [cases, dimensions].
        theta: the starting points of the steps.
        alpha: the strong convexity constant of each loss.
        beta: the smoothness constant of each loss.
        eta: the learning rates, at most 1/β.
        g_a: the gradients of L_a at theta.
        g_b: the gradients of task b.
        g_c: the gradients of task c.
    """

    loss: Callable[[Floats], Floats]
    theta: Floats
    alpha: Floats
    beta: Floats
    eta: Floats
    g_a: Floats
    g_b: Floats
    g_c: Floats

    def loss_after(self, gradient: Floats) -> Floats:
        """Returns L_a after a step along a gradient."""
        return self.loss(self.theta - self.eta[:, None] * gradient)

    @property
    def b_has_more_affinity(self) -> NDArray[np.bool_]:
        """Whether a step on b alone lowers L_a at least as much as a step on c alone."""
        found: NDArray[np.bool_] = self.loss_after(self.g_b) <= self.loss_after(self.g_c)
        return found

    @property
    def b_is_better_partner(self) -> NDArray[np.bool_]:
        """Whether a step on a and b lowers L_a at least as much as a step on a and c, up to rounding."""
        with_b, with_c = self.loss_after(self.g_a + self.g_b), self.loss_after(self.g_a + self.g_c)
        found: NDArray[np.bool_] = with_b <= with_c + 1e-12 * np.abs(with_c)
        return found


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for counterexamples.

    Attributes:
        met: the number of cases that meet the conditions.
        broken: the number of cases that meet the conditions but contradict the statement.
    """

    met: int
    broken: int

    @property
    def fraction(self) -> float:
        """The fraction of counterexamples among the cases that meet the conditions."""
        return self.broken / self.met if self.met else float("nan")

    def __add__(self, other: SearchResult) -> SearchResult:
        return SearchResult(self.met + other.met, self.broken + other.broken)


def search_lemma(count: int = CASE_COUNT, seed: int = 0) -> dict[str, SearchResult]:
    """Searches for counterexamples to Lemma 1 among quadratics and logistic regressions."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, cases in (("quadratic", quadratic_cases(count, rng)), ("logistic", logistic_cases(count, rng))):
        met = cases.b_has_more_affinity
        size = (cases.g_a * cases.g_a).sum(1)
        found[name] = SearchResult(int(met.sum()), int((met & (lemma_gap(cases) < -1e-9 * size)).sum()))
    return found


def lemma_gap(cases: CaseBatch) -> Floats:
    """Returns the right-hand side of Lemma 1 minus the left-hand side. The result is nonnegative if the lemma holds.

    The difference is g_a·g_b − (g_a·g_c − ½βη‖g_c‖² + ½αη‖g_b‖²).
    """

    def dot(first: Floats, second: Floats) -> Floats:
        found: Floats = (first * second).sum(1)
        return found

    right = dot(cases.g_a, cases.g_b)
    left = dot(cases.g_a, cases.g_c) - cases.beta * cases.eta / 2 * dot(cases.g_c, cases.g_c)
    return right - left - cases.alpha * cases.eta / 2 * dot(cases.g_b, cases.g_b)


def search_proposition(bound: Bound, count: int = CASE_COUNT, seed: int = 0) -> SearchResult:
    """Searches for counterexamples to Proposition 1 with this bound, among quadratics that meet its conditions."""
    cases = quadratic_cases(count, np.random.default_rng(seed), max_cosine=bound.value)
    limit = bound.value(cases.alpha, cases.beta, cases.eta)
    met = cases.b_has_more_affinity & (cosines(cases.g_a, cases.g_c) <= limit)
    return SearchResult(int(met.sum()), int((met & ~cases.b_is_better_partner).sum()))


def search_margin(count: int = CASE_COUNT, seed: int = 0) -> dict[str, SearchResult]:
    """Searches for counterexamples to a corrected proposition.

    The corrected proposition states that b is the better partner if its advantage is at least βη²‖g_a‖‖g_b − g_c‖.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for name, cases in (("quadratic", quadratic_cases(count, rng)), ("logistic", logistic_cases(count, rng))):
        lengths = np.linalg.norm(cases.g_a, axis=1) * np.linalg.norm(cases.g_b - cases.g_c, axis=1)
        met = cases.loss_after(cases.g_c) - cases.loss_after(cases.g_b) >= cases.beta * cases.eta**2 * lengths
        found[name] = SearchResult(int(met.sum()), int((met & ~cases.b_is_better_partner).sum()))
    return found


def quadratic_cases(
    count: int, rng: np.random.Generator, *, max_cosine: Callable[[Floats, Floats, Floats], Floats] | None = None
) -> CaseBatch:
    """Draws random quadratics in two dimensions with gradients of equal length.

    Args:
        count: the number of cases.
        rng: the random number generator.
        max_cosine: a function of α, β and η that returns an upper bound on cos(g_a, g_c). If None, any direction is
            allowed.
    """
    alpha = np.exp(rng.uniform(-1, 1, count))
    beta = alpha * np.exp(rng.uniform(0.05, 3.5, count))
    eta = rng.uniform(0.02, 1.0, count) / beta
    curvature = np.stack([alpha, beta], 1)
    theta = rng.standard_normal((count, 2))
    g_a = theta * curvature
    limit = np.ones(count) if max_cosine is None else np.clip(max_cosine(alpha, beta, eta), -1, 1)
    g_c = _rotate(g_a, rng.uniform(-1, limit) if max_cosine is not None else np.cos(_random_angles(count, rng)), rng)
    g_b = _rotate(g_a, np.cos(_random_angles(count, rng)), rng)

    def loss(x: Floats) -> Floats:
        total: Floats = 0.5 * (curvature * x * x).sum(1)
        return total

    return CaseBatch(loss, theta, alpha, beta, eta, g_a, g_b, g_c)


def logistic_cases(count: int, rng: np.random.Generator, dimensions: int = 4, rows: int = 6) -> CaseBatch:
    """Draws random logistic regressions with weight decay, which are strongly convex and smooth."""
    features = 2 * rng.standard_normal((count, rows, dimensions))
    alpha = np.exp(rng.uniform(-3, 0, count))
    beta = alpha + np.linalg.norm(features, 2, axis=(1, 2)) ** 2 / 4
    eta = rng.uniform(0.02, 1.0, count) / beta
    theta = rng.standard_normal((count, dimensions))

    def loss(x: Floats) -> Floats:
        margins = np.einsum("crd,cd->cr", features, x)
        total: Floats = np.logaddexp(0, -margins).sum(1) + 0.5 * alpha * (x * x).sum(1)
        return total

    slopes = -1 / (1 + np.exp(np.einsum("crd,cd->cr", features, theta)))
    g_a = np.einsum("cr,crd->cd", slopes, features) + alpha[:, None] * theta
    lengths = np.linalg.norm(g_a, axis=1, keepdims=True) * np.exp(rng.uniform(-1, 1, (2, count, 1)))
    g_b, g_c = (_normalize(rng.standard_normal((count, dimensions))) * length for length in lengths)
    return CaseBatch(loss, theta, alpha, beta, eta, g_a, g_b, g_c)


def cosines(first: Floats, second: Floats) -> Floats:
    """Returns the cosines between corresponding rows."""
    found: Floats = (_normalize(first) * _normalize(second)).sum(1)
    return found


def _normalize(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def _random_angles(count: int, rng: np.random.Generator) -> Floats:
    return rng.uniform(0, np.pi, count)


def _rotate(vectors: Floats, cosine: Floats, rng: np.random.Generator) -> Floats:
    """Rotates vectors by an angle with the given cosine, either clockwise or counterclockwise."""
    across = np.stack([-vectors[:, 1], vectors[:, 0]], 1) * rng.choice([-1.0, 1.0], (len(vectors), 1))
    sine = np.sqrt(np.clip(1 - cosine**2, 0, None))
    found: Floats = cosine[:, None] * vectors + sine[:, None] * across
    return found


@dataclass(frozen=True)
class Case:
    """A case with a quadratic loss in two dimensions, L_a(x) = ½(α·x₁² + β·x₂²)."""

    alpha: float
    beta: float
    eta: float
    theta: tuple[float, float]
    g_b: tuple[float, float]
    g_c: tuple[float, float]

    @property
    def cases(self) -> CaseBatch:
        """This case as a batch of size one."""
        theta, b, c = (np.array([values]) for values in (self.theta, self.g_b, self.g_c))
        curvature = np.array([self.alpha, self.beta])
        alpha, beta, eta = (np.array([value]) for value in (self.alpha, self.beta, self.eta))
        return CaseBatch(lambda x: 0.5 * (x * x) @ curvature, theta, alpha, beta, eta, theta * curvature, b, c)

    @property
    def cosine(self) -> float:
        """The cosine between g_a and g_c."""
        return float(cosines(self.cases.g_a, self.cases.g_c)[0])


# Found by `search_proposition`. It meets every condition of the proposition in the main text.
COUNTEREXAMPLE = Case(
    alpha=1.0,
    beta=9.349563,
    eta=0.057449,
    theta=(0.33962, 0.42377),
    g_b=(-0.76530, -3.90227),
    g_c=(0.13811, -3.97421),
)
ALPHA, BETA, ETA, THETA = 1.0, 10.0, 0.09, (-2.0, -1.0)  # the appendix's quadratic example


@dataclass(frozen=True)
class Panel:
    """One panel of the counterexample figure.

    Attributes:
        letter: the letter of the panel, from a to d.
        caption: the caption of the panel.
        b: the direction of g_b.
        c: the direction of g_c.
        combined: whether a step follows the sum of g_a and the other gradient.
        printed: the printed values of L_a after the steps with b and with c.
    """

    letter: str
    caption: str
    b: tuple[float, float]
    c: tuple[float, float]
    combined: bool
    printed: tuple[float, float]


FIRST_DIRECTIONS, SECOND_DIRECTIONS = ((8.0, -2.0), (-12.0, 2.0)), ((8.0, -2.0), (-0.2, 15.0))
PANELS = (
    Panel("a", "g_b lowers L_a more than g_c", *FIRST_DIRECTIONS, False, (6.96, 6.98)),
    Panel("b", "g_a + g_c lowers L_a more than g_a + g_b", *FIRST_DIRECTIONS, True, (6.09, 6.07)),
    Panel("c", "another g_c, which meets the condition", *SECOND_DIRECTIONS, False, (6.96, 7.96)),
    Panel("d", "g_a + g_b lowers L_a more than g_a + g_c", *SECOND_DIRECTIONS, True, (6.09, 6.98)),
)


def losses_after_steps(panel: Panel, *, unit: bool = True) -> tuple[float, float]:
    """Returns L_a after the panel's steps with b and with c.

    Args:
        panel: the panel.
        unit: whether gradients have unit length, which reproduces the printed numbers to within 0.03. Otherwise, all
            gradients have the length of g_a, as the paper says.
    """
    found = gradients(panel, unit=unit)
    start = found["a"] if panel.combined else np.zeros(2)
    steps = np.stack([start + found["b"], start + found["c"]])
    with_b, with_c = example_loss(np.array(THETA) - ETA * steps).tolist()
    return with_b, with_c


def gradients(panel: Panel, *, unit: bool = True) -> dict[str, Floats]:
    """Returns g_a, g_b and g_c, either with unit length or with the length of g_a, as the paper says."""
    g_a = np.array(THETA) * np.array([ALPHA, BETA])
    length = 1.0 if unit else float(np.linalg.norm(g_a))
    return {
        name: length * np.asarray(vector) / np.linalg.norm(vector)
        for name, vector in (("a", g_a), ("b", panel.b), ("c", panel.c))
    }


def example_loss(x: Floats) -> Floats:
    """Returns the loss of the paper's example, ½(x₁² + 10·x₂²), at points [points, 2]."""
    found: Floats = 0.5 * (x * x) @ np.array([ALPHA, BETA])
    return found
