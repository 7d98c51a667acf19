"""Strongly convex and smooth losses of task a, with gradients of tasks b and c beside its own; many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cases:
    """Many cases: a loss L_a, a point, a learning rate and three gradients each.

    Attributes:
        loss: of points [cases, dimensions], one value per case.
        theta: where the step starts.
        alpha: strong convexity of each loss.
        beta: smoothness.
        eta: learning rate, at most 1/β.
        g_a: gradient of L_a at theta.
        g_b: of task b, of the same length.
        g_c: of task c, of the same length.
    """

    loss: Callable[[Floats], Floats]
    theta: Floats
    alpha: Floats
    beta: Floats
    eta: Floats
    g_a: Floats
    g_b: Floats
    g_c: Floats

    def after(self, gradient: Floats) -> Floats:
        """L_a after a step on this gradient."""
        return self.loss(self.theta - self.eta[:, None] * gradient)

    @property
    def b_has_more_affinity(self) -> NDArray[np.bool_]:
        """Whether a step on b alone lowers L_a at least as much as one on c alone."""
        found: NDArray[np.bool_] = self.after(self.g_b) <= self.after(self.g_c)
        return found

    @property
    def b_is_the_better_partner(self) -> NDArray[np.bool_]:
        """Whether a step on a and b lowers L_a at least as much as one on a and c, up to rounding."""
        with_b, with_c = self.after(self.g_a + self.g_b), self.after(self.g_a + self.g_c)
        found: NDArray[np.bool_] = with_b <= with_c + 1e-12 * np.abs(with_c)
        return found


@dataclass(frozen=True)
class Case:
    """One quadratic in two dimensions, L_a(x) = ½(α·x₁² + β·x₂²)."""

    alpha: float
    beta: float
    eta: float
    theta: tuple[float, float]
    g_b: tuple[float, float]
    g_c: tuple[float, float]

    @property
    def cases(self) -> Cases:
        """As a collection of one."""
        theta, b, c = (np.array([values]) for values in (self.theta, self.g_b, self.g_c))
        curvature = np.array([self.alpha, self.beta])
        alpha, beta, eta = (np.array([value]) for value in (self.alpha, self.beta, self.eta))
        return Cases(lambda x: 0.5 * (x * x) @ curvature, theta, alpha, beta, eta, theta * curvature, b, c)

    @property
    def cosine(self) -> float:
        """Of g_a and g_c."""
        return float(cosines(self.cases.g_a, self.cases.g_c)[0])


def quadratic_cases(
    count: int, random: np.random.Generator, *, highest: Callable[[Floats, Floats, Floats], Floats] | None = None
) -> Cases:
    """Quadratics in two dimensions with gradients of equal length.

    Args:
        count: how many.
        random: draws them.
        highest: a bound on cos(g_a, g_c) from α, β and η; c is then drawn below it. None: any direction.
    """
    alpha = np.exp(random.uniform(-1, 1, count))
    beta = alpha * np.exp(random.uniform(0.05, 3.5, count))
    eta = random.uniform(0.02, 1.0, count) / beta
    curvature = np.stack([alpha, beta], 1)
    theta = random.standard_normal((count, 2))
    g_a = theta * curvature
    limit = np.ones(count) if highest is None else np.clip(highest(alpha, beta, eta), -1, 1)
    g_c = _turned(g_a, random.uniform(-1, limit) if highest is not None else np.cos(_angles(count, random)), random)
    g_b = _turned(g_a, np.cos(_angles(count, random)), random)

    def loss(x: Floats) -> Floats:
        total: Floats = 0.5 * (curvature * x * x).sum(1)
        return total

    return Cases(loss, theta, alpha, beta, eta, g_a, g_b, g_c)


def logistic_cases(count: int, random: np.random.Generator, dimensions: int = 4, rows: int = 6) -> Cases:
    """Logistic regressions with weight decay: strongly convex and smooth, not quadratic; gradients of any length."""
    features = 2 * random.standard_normal((count, rows, dimensions))
    alpha = np.exp(random.uniform(-3, 0, count))
    beta = alpha + np.linalg.norm(features, 2, axis=(1, 2)) ** 2 / 4
    eta = random.uniform(0.02, 1.0, count) / beta
    theta = random.standard_normal((count, dimensions))

    def loss(x: Floats) -> Floats:
        margins = np.einsum("crd,cd->cr", features, x)
        total: Floats = np.logaddexp(0, -margins).sum(1) + 0.5 * alpha * (x * x).sum(1)
        return total

    slopes = -1 / (1 + np.exp(np.einsum("crd,cd->cr", features, theta)))
    g_a = np.einsum("cr,crd->cd", slopes, features) + alpha[:, None] * theta
    lengths = np.linalg.norm(g_a, axis=1, keepdims=True) * np.exp(random.uniform(-1, 1, (2, count, 1)))
    g_b, g_c = (_unit(random.standard_normal((count, dimensions))) * length for length in lengths)
    return Cases(loss, theta, alpha, beta, eta, g_a, g_b, g_c)


def cosines(first: Floats, second: Floats) -> Floats:
    """Between rows."""
    found: Floats = (_unit(first) * _unit(second)).sum(1)
    return found


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def _angles(count: int, random: np.random.Generator) -> Floats:
    return random.uniform(0, np.pi, count)


def _turned(vectors: Floats, cosine: Floats, random: np.random.Generator) -> Floats:
    """Vectors of the same length at this cosine, to either side."""
    across = np.stack([-vectors[:, 1], vectors[:, 0]], 1) * random.choice([-1.0, 1.0], (len(vectors), 1))
    sine = np.sqrt(np.clip(1 - cosine**2, 0, None))
    found: Floats = cosine[:, None] * vectors + sine[:, None] * across
    return found
