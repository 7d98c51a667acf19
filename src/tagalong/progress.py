"""Progress reporting for long-running work."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """Receives progress updates from long-running work, which may have multiple stages."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        """Starts a stage of `total` units, such as networks."""

    def advance(self, n: int) -> None:
        """Records `n` more finished units."""

    def done(self) -> None:
        """Ends the stage."""


class NoProgress:
    """Ignores progress updates."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def done(self) -> None:
        pass


@runtime_checkable
class StepProgress(Protocol):
    """A progress receiver that also accepts optimizer steps, so that long training runs show progress."""

    def steps(self, n: int) -> None:
        """Records `n` more optimizer steps."""


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
        if n > 0 and isinstance(self._progress, StepProgress):
            self._progress.steps(n)
        self._steps += n

    def finished(self, networks: int, steps: int) -> None:
        """Reports the end of a piece of work of so many networks and steps."""
        self.networks(networks)
        self.steps(steps - self._steps)
        self._networks = self._steps = 0
