"""The interface between the search and what trains or looks up networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Subset = frozenset[str]


@dataclass(frozen=True)
class Trial:
    """A network to train.

    Attributes:
        tasks: that it trains.
        seed: of its weights and rows.
        fraction: how much of a training, 1 for the whole of it.
    """

    tasks: Subset
    seed: int
    fraction: float = 1.0


@dataclass(frozen=True)
class Seen:
    """What a trial showed.

    Attributes:
        trial: that was trained.
        losses: on either half of the validation rows, by task; of an early look both may be the whole. NaN for a half
            without labels. Empty where training diverged.
        effort: what it took, in whole trainings.
    """

    trial: Trial
    losses: dict[str, tuple[float, float]]
    effort: float

    @property
    def diverged(self) -> bool:
        """Whether it came to nothing."""
        return not self.losses

    def loss(self, task: str) -> float:
        """On all validation rows, near enough: halves have about as many labels."""
        known = [loss for loss in self.losses[task] if not math.isnan(loss)]
        return sum(known) / len(known)


class Oracle(Protocol):
    """Knows, for its price, how networks do on validation rows.

    Attributes:
        tasks: names of all tasks.
        fractions: of a training after which it can look; empty if it cannot.
    """

    @property
    def tasks(self) -> tuple[str, ...]: ...

    @property
    def fractions(self) -> tuple[float, ...]: ...

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        """Trains these networks, together where that is faster; gives what they showed in the same order."""
        ...
