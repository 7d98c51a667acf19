"""The effort that a method may spend on its decision: a number of training runs or a duration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tagalong.errors import InvalidInput

EFFORT_LEVELS = {"quick": 20, "normal": 60, "thorough": 200}
MAX_TRAININGS = 10_000  # the search of `auto` compares every result with every other
SECONDS_PER_UNIT = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


@dataclass(frozen=True)
class Effort:
    """The effort of a decision: a number of training runs or a duration.

    Attributes:
        trainings: the number of full training runs, or None.
        seconds: the duration in seconds, or None. The duration is converted to training runs using the training time of
            the network for all tasks.
    """

    trainings: float | None = None
    seconds: float | None = None

    def in_trainings(self, seconds_per_training: float) -> float:
        """Returns the effort as a number of training runs, given the duration of one run in seconds."""
        if self.trainings is not None:
            return self.trainings
        assert self.seconds is not None
        return min(self.seconds / max(seconds_per_training, 1e-6), MAX_TRAININGS)


def read_effort(effort: Any) -> Effort:
    """Parses an effort: a number of training runs, a named effort or a duration.

    Raises:
        InvalidInput: If the effort is invalid.

    Example:
        >>> read_effort("quick").trainings, read_effort(35).trainings, read_effort("10min").seconds
        (20.0, 35.0, 600.0)
    """
    if isinstance(effort, str):
        word = effort.strip().lower()
        if word in EFFORT_LEVELS:
            return Effort(float(EFFORT_LEVELS[word]))
        if (seconds := read_seconds(word)) is not None:
            return Effort(seconds=seconds)
        if re.fullmatch(r"\d+(\.\d+)?", word):
            effort = float(word)
    if isinstance(effort, (int, float)) and not isinstance(effort, bool) and 1 <= effort <= MAX_TRAININGS:
        return Effort(float(effort))
    expected = (
        f"must be a number of training runs (1 to {MAX_TRAININGS:,}), 'quick' (20), 'normal' (60), 'thorough' (200), "
        "or a duration such as '10min'"
    )
    raise InvalidInput("effort", expected, repr(effort))


def read_seconds(text: str) -> float | None:
    """Returns the seconds of a duration such as "10min" or "2 h", or None if the text is something else."""
    timed = DURATION_PATTERN.fullmatch(text.strip().lower())
    if timed is None or timed[2] not in SECONDS_PER_UNIT:
        return None
    return float(timed[1]) * SECONDS_PER_UNIT[timed[2]] or None


def format_effort(effort: float) -> str:
    """Formats an effort with three significant digits, or as an integer if it has more than three digits.

    Example:
        >>> format_effort(45.125), format_effort(1.1), format_effort(60.0), format_effort(9656.2)
        ('45.1', '1.1', '60', '9,656')
    """
    return f"{effort:.3g}" if effort < 999.5 else f"{effort:,.0f}"
