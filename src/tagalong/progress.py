"""Progress reporting for long-running work."""

from __future__ import annotations

from time import monotonic
from typing import Protocol


class Progress(Protocol):
    """Receives progress updates from long-running work, which may have multiple stages."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        """Starts a stage of `total` units, such as networks."""

    def advance(self, n: int) -> None:
        """Records `n` more finished units."""

    def steps(self, n: int) -> None:
        """Records `n` more optimizer steps, so that long training runs show progress."""

    def done(self) -> None:
        """Ends the stage."""


class NoProgress:
    """Ignores progress updates."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def steps(self, n: int) -> None:
        pass

    def done(self) -> None:
        pass


class TimeIsUp(Exception):
    """Raised by a `TimeLimit` where work reports progress."""


class TimeLimit:
    """Passes progress on, and interrupts work once the time is up.

    Args:
        progress: the object that receives the updates.
        seconds: the time from now on.

    Attributes:
        interrupts: whether work may be interrupted now.
    """

    def __init__(self, progress: Progress, seconds: float) -> None:
        self._progress, self._end, self.interrupts = progress, monotonic() + seconds, False

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._check()
        self._progress.start(total, what, unit)

    def advance(self, n: int) -> None:
        self._progress.advance(n)
        self._check()

    def steps(self, n: int) -> None:
        self._progress.steps(n)
        self._check()

    def done(self) -> None:
        self._progress.done()

    def _check(self) -> None:
        if self.interrupts and monotonic() > self._end:
            raise TimeIsUp


class ProgressReporter:
    """Reports pieces of work while they run, if their worker can, and whatever is left when they are finished.

    Args:
        progress: the object that receives the updates.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._networks, self._steps = progress, 0, 0

    def networks(self, number: int) -> None:
        """Reports how many networks of the current piece of work are finished, in total."""
        if number > self._networks:
            self._progress.advance(number - self._networks)
            self._networks = number

    def steps(self, n: int) -> None:
        """Reports `n` more steps of the current piece of work."""
        if n > 0:
            self._progress.steps(n)
        self._steps += n

    def finished(self, networks: int, steps: int) -> None:
        """Reports the end of a piece of work of so many networks and steps."""
        self.networks(networks)
        self.steps(steps - self._steps)
        self._networks = self._steps = 0
