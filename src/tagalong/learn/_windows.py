"""A learning rate that falls when the training loss no longer does: loss-tracking windows (Standley et al. 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._recipe import Recipe

WIDEST = 4  # times the first window
UNTOUCHED = 2  # epochs at the start whose rate is never lowered
SHARE = 3 / 8  # of a window: its beginning and its end, which are compared
OUTLIERS = 0.05  # of either end's losses, on both sides
SAME = 0.99  # p-value from which beginning and end count as equal


class LossWindows:
    """Multiplies the rate whenever the end of a window of training losses is no lower than its beginning.

    Losses of beginning and end are sorted, trimmed and compared in a paired t-test; each time the rate falls, the
    window doubles, up to four times the first one, and starts anew.

    Args:
        recipe: with the first window in rows, and the factor.

    Attributes:
        rate: the learning rate of the next step.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.rate = recipe.lr
        self._factor, self._first = recipe.factor, max(1, recipe.window // recipe.batch_size)
        self._window = self._first
        self._losses: list[float] = []

    def see(self, loss: float, epoch: int) -> None:
        """Takes the loss of a step into account."""
        self._losses.append(loss)
        del self._losses[: -self._window - 1]
        if epoch >= UNTOUCHED and len(self._losses) > self._window and stalled(np.array(self._losses[-self._window :])):
            self.rate *= self._factor
            self._window = min(2 * self._window, WIDEST * self._first)
            self._losses.clear()

    def state_dict(self) -> dict[str, Any]:
        """What changes while training."""
        return {"rate": self.rate, "window": self._window, "losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts it back."""
        self.rate, self._window, self._losses = state["rate"], state["window"], list(state["losses"])


def stalled(losses: NDArray[np.float64]) -> bool:
    """Whether the end of these losses is no lower than their beginning.

    Example:
        >>> stalled(np.linspace(1, 0, 80)), stalled(np.linspace(0, 1, 80)), stalled(np.ones(80))
        (False, True, True)
    """
    from scipy.special import stdtr

    size = max(1, int(len(losses) * SHARE))
    gain = _trimmed(losses[:size]) - _trimmed(losses[-size:])
    mean, deviation = float(gain.mean()), float(gain.std(ddof=1)) if len(gain) > 1 else 0.0
    if mean <= 0 or not deviation:
        return mean <= 0
    chance = 2 * stdtr(len(gain) - 1, -mean / deviation * np.sqrt(len(gain)))
    return bool(chance > SAME)


def _trimmed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = int(len(losses) * OUTLIERS)
    return np.sort(losses)[cut : len(losses) - cut]
