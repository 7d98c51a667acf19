"""Proposition 1's condition on cos(g_a, g_c), in each version that the paper prints, and as its proof gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ._losses import Floats


@dataclass(frozen=True)
class Bound:
    """An upper bound on cos(g_a, g_c) under which g_b is said to stay the better partner.

    Attributes:
        name: for commands and files.
        where: it is found.
        formula: as it is written.
        value: from α, β and η.
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
        "the same with the term −(η/2)·β‖g_b‖² that the proof loses",
        "(ηβ − 3)/2",
        lambda alpha, beta, eta: (eta * beta - 3) / 2,
    ),
)
