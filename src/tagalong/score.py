"""`Score`: the loss and error of a network on one task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """The loss and error of a network on one task, for a set of rows.

    Attributes:
        loss: the mean loss over the labeled rows.
        error: the value of the task's error measure; lower is better. NaN if unknown.
        rows: the loss of each row, with NaN for missing labels, or None if the losses were not kept. Ignored in
            comparisons.
    """

    loss: float
    error: float
    rows: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
