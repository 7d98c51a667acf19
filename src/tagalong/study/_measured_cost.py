"""What measuring adds to a training, in plain steps."""

from __future__ import annotations

from tagalong.affinity import Affinity


def plain_steps(affinity: Affinity, steps: int) -> int:
    """The plain steps that a metered training of so many steps is worth.

    A plain step is three forward passes (the backward pass counts as two). Measuring n tasks takes n backward passes,
    and n more forward passes where every step is looked ahead.

    Args:
        affinity: what was measured.
        steps: of the training.

    Example:
        >>> import numpy as np
        >>> affinity = Affinity.from_history(np.zeros((10, 3, 3)), ["age", "ill", "fit"])
        >>> plain_steps(affinity, 100)
        123
    """
    n = len(affinity.tasks)
    passes = 1 + (3 if affinity.settings.get("estimator", "lookahead") == "lookahead" else 2) * n
    return round(steps + len(affinity.steps) * (passes - 3) / 3)
