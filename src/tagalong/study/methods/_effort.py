"""How much may be spent on looking for groups: a number of trainings, a word, or a time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

WORDS = {"quick": 20, "normal": 60, "thorough": 200}
UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


@dataclass(frozen=True)
class Effort:
    """What may be spent.

    Attributes:
        trainings: whole ones, or None.
        seconds: of computing, or None; as many trainings as that is worth by what networks of all tasks took.
    """

    trainings: float | None = None
    seconds: float | None = None

    def in_trainings(self, seconds_each: float) -> float:
        """How many trainings that is, if one takes so long."""
        if self.trainings is not None:
            return self.trainings
        assert self.seconds is not None
        return self.seconds / max(seconds_each, 1e-6)


def read_effort(effort: Any) -> Effort:
    """What a user means by an effort.

    Raises:
        ValueError: it is none.

    Example:
        >>> read_effort("quick").trainings, read_effort(35).trainings, read_effort("10min").seconds
        (20.0, 35.0, 600.0)
    """
    if isinstance(effort, str):
        word = effort.strip().lower()
        if word in WORDS:
            return Effort(float(WORDS[word]))
        timed = TIME.fullmatch(word)
        if timed and timed[2] in UNITS and float(timed[1]) > 0:
            return Effort(seconds=float(timed[1]) * UNITS[timed[2]])
        if re.fullmatch(r"\d+(\.\d+)?", word):
            effort = float(word)
    if isinstance(effort, (int, float)) and not isinstance(effort, bool) and math.isfinite(effort) and effort >= 1:
        return Effort(float(effort))
    raise ValueError(
        "`effort` must be a number of trainings from 1, 'quick' (20), 'normal' (60), 'thorough' (200) or a time such "
        f"as '10min', found {effort!r}"
    )
