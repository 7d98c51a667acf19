"""The appendix's quadratic example, and the case in which Proposition 1 fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._losses import Case, Floats

ALPHA, BETA, ETA, THETA = 1.0, 10.0, 0.09, (-2.0, -1.0)

# Found by a search as in `search_proposition`; it meets every condition of the main text's version.
COUNTEREXAMPLE = Case(
    alpha=1.0,
    beta=9.349563,
    eta=0.057449,
    theta=(0.33962, 0.42377),
    g_b=(-0.76530, -3.90227),
    g_c=(0.13811, -3.97421),
)


@dataclass(frozen=True)
class Panel:
    """One panel of the counterexample figure.

    Attributes:
        letter: (a) to (d).
        caption: what it shows.
        b: the direction of g_b.
        c: the direction of g_c.
        combined: whether steps are on a and the other task together.
        printed: L_a after the step with b and with c, as the text prints them.
    """

    letter: str
    caption: str
    b: tuple[float, float]
    c: tuple[float, float]
    combined: bool
    printed: tuple[float, float]


FIRST, SECOND = ((8.0, -2.0), (-12.0, 2.0)), ((8.0, -2.0), (-0.2, 15.0))
PANELS = (
    Panel("a", "g_b lowers L_a more than g_c", *FIRST, False, (6.96, 6.98)),
    Panel("b", "g_a + g_c lowers L_a more than g_a + g_b", *FIRST, True, (6.09, 6.07)),
    Panel("c", "another g_c, which meets the condition", *SECOND, False, (6.96, 7.96)),
    Panel("d", "g_a + g_b lowers L_a more than g_a + g_c", *SECOND, True, (6.09, 6.98)),
)


def example_loss(x: Floats) -> Floats:
    """½(x₁² + 10·x₂²) of points [points, 2]."""
    found: Floats = 0.5 * (x * x) @ np.array([ALPHA, BETA])
    return found


def gradients(panel: Panel, *, unit: bool = True) -> dict[str, Floats]:
    """g_a, g_b and g_c: all of unit length, or of the length of g_a, as the text says."""
    g_a = np.array(THETA) * np.array([ALPHA, BETA])
    length = 1.0 if unit else float(np.linalg.norm(g_a))
    return {
        name: length * np.asarray(vector) / np.linalg.norm(vector)
        for name, vector in (("a", g_a), ("b", panel.b), ("c", panel.c))
    }


def after_steps(panel: Panel, *, unit: bool = True) -> tuple[float, float]:
    """L_a after the panel's step with b and with c.

    Args:
        panel: which.
        unit: whether all gradients have unit length, which gives the printed numbers to within 0.03, or that of g_a,
            as printed.
    """
    found = gradients(panel, unit=unit)
    start = found["a"] if panel.combined else np.zeros(2)
    steps = np.stack([start + found["b"], start + found["c"]])
    with_b, with_c = example_loss(np.array(THETA) - ETA * steps).tolist()
    return with_b, with_c
