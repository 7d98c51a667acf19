"""`Score`: the loss and error of a network on one task."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Score:
    """The loss and error of a network on one task, for a set of rows.

    Attributes:
        loss: the mean loss over the labeled rows.
        error: the value of the task's error measure; lower is better. NaN if unknown.
        rows: the loss of each row, with NaN for missing labels, or None if the losses were not kept. Ignored in
            comparisons.

    Two scores are equal if their losses and errors are equal or both NaN.
    """

    loss: float
    error: float
    rows: NDArray[np.float32] | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        return self._comparable == other._comparable if isinstance(other, Score) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._comparable)

    @property
    def _comparable(self) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(value) else value for value in (self.loss, self.error))
