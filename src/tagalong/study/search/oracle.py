"""What the search asks, whoever answers: a laboratory that trains networks, or a table that looks them up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Settings:
    """How the search proposes and decides.

    Attributes:
        optimism: standard deviations by which doubt counts in favour of a proposal.
        rounds: in which the effort is spent, about; trainings of a round can run together.
        together: the share of the effort for networks of all tasks, which everything is compared with.
        reserved: the share of the effort for further seeds of the best networks, at the end, while these are in doubt.
        clear: standard deviations that the expected gain must exceed to be in no doubt.
        caution: standard deviations by which doubt counts against moving a task, in the final choice.
        sure: standard deviations that the expected gain must exceed to be recommended.
        screen: train proposals to this fraction first, and end the worse half there; None: train all to the end.
    """

    optimism: float = 1.0
    rounds: int = 12
    together: float = 0.15
    reserved: float = 0.25
    clear: float = 3.0
    caution: float = 0.25
    sure: float = 1.5
    screen: float | None = None


Array = NDArray[np.float64]
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
