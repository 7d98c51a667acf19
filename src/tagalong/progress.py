"""Progress updates of long work."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """Is told how far a long piece of work is."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        """A piece of work of so many networks, or of another `unit`, begins."""

    def advance(self, n: int) -> None:
        """So many more are finished."""

    def done(self) -> None:
        """The piece of work is over."""


class Silent:
    """Progress that nobody watches."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def done(self) -> None:
        pass


@runtime_checkable
class CountsSteps(Protocol):
    """Is told of steps too: a long training is then seen to move."""

    def steps(self, n: int) -> None:
        """So many more steps of the optimiser were taken."""


class Teller:
    """Tells whoever watches of networks and, if wanted, of steps; is called with networks that are finished."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._early = progress, 0

    def __call__(self, n: int) -> None:
        self._progress.advance(n)

    def steps(self, n: int) -> None:
        """Steps of a training under way."""
        self._early += n
        self._tell(n)

    def finished(self, steps: int) -> None:
        """What a finished piece of work took in all; steps that were told while it was under way are not told again."""
        self._tell(steps - self._early)
        self._early = 0

    def _tell(self, n: int) -> None:
        if n > 0 and isinstance(self._progress, CountsSteps):
            self._progress.steps(n)
