"""The average over steps of each pair: mean, trimmed mean or median.

All three are one thing: the mean of what is left when some values are cut at either end. The mean cuts none,
the trimmed mean a share, the median all but the one or two in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._check import Floats
from ._level import Onto, onto, step_levels

AVERAGES = ("mean", "trimmed", "median")
TRIM = 0.05  # the share cut at either end unless told otherwise


@dataclass(frozen=True)
class Average:
    """Which average: "mean", "trimmed" (a share `trim` is cut at either end) or "median"."""

    name: str = "mean"
    trim: float = TRIM

    def __post_init__(self) -> None:
        if self.name not in AVERAGES:
            raise ValueError(f"`average` must be one of {', '.join(map(repr, AVERAGES))}, found {self.name!r}")
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"`trim` must be a share in [0, 0.5) to cut at either end, found {self.trim!r}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Average:
        """The average that an affinity's settings name."""
        return cls(settings.get("average", "mean"), settings.get("trim", TRIM))

    @property
    def settings(self) -> dict[str, Any]:
        """How an affinity's settings name this average."""
        return {"average": self.name, **({"trim": self.trim} if self.name == "trimmed" else {})}

    def cut(self, counts: NDArray[Any]) -> Floats:
        """How many of `counts` values are cut at either end."""
        if self.name == "median":
            return np.maximum((counts - 1.0) // 2, 0.0)
        return np.asarray(np.floor(counts * (self.trim if self.name == "trimmed" else 0.0)))


def averages(history: Floats, null: Floats, average: Average) -> Floats:
    """The averaged matrix [source, target] of a history and its null steps."""
    targets = (onto(history, null, j) for j in range(history.shape[1]))
    return np.stack([_average(target, average) for target in targets], axis=1)


def centred(aligned: Onto) -> Floats:
    """Values less what their step did to all sources alike, NaN where nothing was measured.

    The common part can be many times what tells sources apart. Trimming or taking the median of a sum is
    not the sum of trimming: cutting must look at the differences between sources alone.
    """
    return np.where(aligned.present, aligned.values - step_levels(aligned)[:, None], np.nan)


def _average(aligned: Onto, average: Average) -> Floats:
    if average.name == "mean":
        return aligned.means()
    ordered = np.sort(centred(aligned), axis=0)
    counts = aligned.counts()
    cut = average.cut(counts)
    rank = np.arange(len(ordered))[:, None]
    kept = (rank >= cut) & (rank < counts - cut)
    return ratio(np.where(kept, ordered, 0.0).sum(axis=0), counts - 2 * cut)


def ratio(sums: Floats, counts: NDArray[Any]) -> Floats:
    """Sums over counts, NaN where there is nothing to average."""
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)
