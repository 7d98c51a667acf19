"""How far a long piece of work is, told to whoever watches."""

from __future__ import annotations

from typing import Protocol


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
