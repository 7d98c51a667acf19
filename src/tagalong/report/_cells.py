"""What the cells of a heat map say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagalong.affinity import Affinity

from ._centre import Centre, Floats, from_centre
from ._labels import literal, plus_minus, power_of_thousand


@dataclass(frozen=True)
class Cells:
    """The pairs of an affinity as cells.

    Attributes:
        affinity: what was measured.
        beyond: how far each affinity lies from the centre of the colours.
        error: the standard error of that distance.
        centre: "zero" or "target".
        size: the largest affinity between two tasks, which the unit of the numbers follows.
        reach: the largest distance from the centre, where the colours end.
    """

    affinity: Affinity
    beyond: Floats
    error: Floats
    centre: Centre
    size: float
    reach: float

    @classmethod
    def of(cls, affinity: Affinity, centre: Centre, beside: Affinity | None = None) -> Cells:
        """The cells of an affinity, in the unit and colours of the larger one where another is looked at beside it."""
        beyond, error = from_centre(affinity, centre)
        size, reach = largest(affinity.mean), largest(beyond)
        if beside is not None:
            size = max(size, largest(beside.mean))
            reach = max(reach, largest(from_centre(beside, centre)[0]))
        return cls(affinity, beyond, error, centre, size, reach)

    def unsure(self, i: int, j: int) -> bool:
        """Whether a pair lies within two standard errors of the centre."""
        return bool(i != j and abs(self.beyond[i, j]) < 2 * self.error[i, j])

    def kind(self, i: int, j: int) -> str:
        """Which layer of the heat map a pair belongs to."""
        if not np.isfinite(self.affinity.mean[i, j]):
            return "never measured"
        return "self-affinity" if i == j else "within noise" if self.unsure(i, j) else "sure"

    @property
    def colour(self) -> Floats:
        """Distances from the centre, in the unit of the numbers."""
        return self.beyond / 10.0**self.power

    @property
    def limit(self) -> float:
        """Where the colours end, in the same unit; 1 if nothing lies off the centre."""
        return self.reach / 10.0**self.power or 1.0

    @property
    def power(self) -> int:
        """The power of ten in which the numbers are written."""
        return power_of_thousand(self.size)

    def number(self, i: int, j: int) -> str:
        """What is written into a cell."""
        mean, unit = self.affinity.mean[i, j], 10.0**self.power
        if not np.isfinite(mean):
            return ""
        digits = 2 if self.size < 10 * unit else 1
        return f"{mean / unit:.{digits}f}" + ("~" if self.unsure(i, j) else "")

    def note(self, i: int, j: int) -> str:
        """What hovering over a cell shows."""
        source, target = literal(self.affinity.tasks[i]), literal(self.affinity.tasks[j])
        kind, count = self.kind(i, j), int(self.affinity.count[i, j])
        lines = [f"{source} → {target}"]
        if kind == "never measured":
            return "<br>".join([*lines, kind])
        lines.append(plus_minus(self.affinity.mean[i, j], self.affinity.stderr[i, j]))
        if self.centre == "target" and i != j:
            lines.append(f"{plus_minus(self.beyond[i, j], self.error[i, j])} from the mean onto {target}")
        lines.append(f"{count} value" if count == 1 else f"{count} values")
        return "<br>".join(lines if kind == "sure" else [*lines, kind])


def largest(matrix: Floats) -> float:
    """The largest magnitude between two tasks; self-affinities are far larger and would hide the rest."""
    apart = np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool)
    return float(np.abs(matrix[apart]).max(initial=0.0))
