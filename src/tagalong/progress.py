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
    """Reports the number of finished networks when called, and optimizer steps if the receiver accepts them.

    Args:
        progress: the object that receives the updates.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._reported_steps = progress, 0

    def __call__(self, n: int) -> None:
        self._progress.advance(n)

    def steps(self, n: int) -> None:
        """Reports steps of a training run that is still in progress."""
        self._reported_steps += n
        self._report_steps(n)

    def finished(self, steps: int) -> None:
        """Reports the steps of finished work that have not been reported yet."""
        self._report_steps(steps - self._reported_steps)
        self._reported_steps = 0

    def _report_steps(self, n: int) -> None:
        if n > 0 and isinstance(self._progress, StepProgress):
            self._progress.steps(n)
