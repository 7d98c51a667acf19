"""What a step is, whatever optimiser takes it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from ._pieces import Piece


class StepRule(ABC):
    """The step Δθ that some of the shared parameters would take on one task's gradient.

    Made anew for every measured step: settings and state are read when it is made, and only then.

    Attributes:
        elementwise: Whether each number's step depends on that number's own history alone, so that the step
            can be computed on slices of a tensor.
        separable: Whether each tensor's step depends on that tensor alone.
        idle: Whether a zero gradient means no step at all (no momentum, no decay).
    """

    elementwise = True
    separable = True

    @property
    def idle(self) -> bool:
        return False

    @property
    def state_bytes(self) -> int:
        """Bytes of state that a step copies."""
        return 0

    def slope(self, piece: Piece) -> float | None:
        """The factor c where the step on a gradient is the step on zero plus c·g, or None."""
        return None

    @abstractmethod
    def add(
        self, out: Sequence[Tensor], pieces: Sequence[Piece], gradients: Sequence[Tensor], origin: Sequence[Tensor]
    ) -> None:
        """Adds to `out` the step on `gradients`, taken from `origin` (the present values of these pieces).

        `out` may hold the parameters themselves (then it holds the looked-ahead values afterwards) or zeros
        (then the step). Only `out` is written.
        """
