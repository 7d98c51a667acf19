"""Progress updates of long work."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """Receives progress updates of long work, which may come in several stages."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        """Begins a stage of `total` units, such as networks."""

    def advance(self, n: int) -> None:
        """Counts `n` more finished units."""

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
    """Receives updates about optimizer steps as well, so that a long training is seen to advance."""

    def steps(self, n: int) -> None:
        """Counts `n` more optimizer steps."""


class ProgressReporter:
    """Reports finished networks, by being called with their number, and steps if the receiver counts them.

    Args:
        progress: receives the updates.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._reported_steps = progress, 0

    def __call__(self, n: int) -> None:
        self._progress.advance(n)

    def steps(self, n: int) -> None:
        """Reports steps of a training that is not finished."""
        self._reported_steps += n
        self._report_steps(n)

    def finished(self, steps: int) -> None:
        """Reports the steps of finished work, without those that were reported while it was running."""
        self._report_steps(steps - self._reported_steps)
        self._reported_steps = 0

    def _report_steps(self, n: int) -> None:
        if n > 0 and isinstance(self._progress, StepProgress):
            self._progress.steps(n)
