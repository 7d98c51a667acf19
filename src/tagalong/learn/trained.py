"""What is left of a training: the best weights, how it went, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.affinity import Affinity

from .recipe import Recipe


@dataclass(frozen=True)
class Job:
    """One network to be trained; together with the problem, everything that defines it.

    Attributes:
        tasks: names, in the order of the problem.
        seed: of row order, initial weights, dropout masks.
        rule: how losses are combined: "plain", "uw", "gradnorm", "pcgrad", or another rule's name.
        width: of the encoder, as a multiple.
        epochs: end after so many, for an early look; None: as many as the recipe says.
    """

    tasks: tuple[str, ...]
    seed: int = 0
    rule: str = "plain"
    width: float = 1.0
    epochs: int | None = None

    def last_epoch(self, recipe: Recipe) -> int:
        """How many epochs there are at most."""
        return recipe.epochs if self.epochs is None else min(self.epochs, recipe.epochs)


@dataclass(frozen=True, eq=False)
class Score:
    """How a task does on some rows.

    Attributes:
        loss: mean over the rows with a label.
        error: in the task's own measure; lower is better.
        rows: the loss of every row, NaN where the label is missing; None where it was not kept.
    """

    loss: float
    error: float
    rows: NDArray[np.float32] | None = field(default=None, repr=False)


UNKNOWN = Score(float("nan"), float("nan"))  # of a task in a network that diverged


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network.

    Attributes:
        job: what was trained.
        val: validation scores by task, with the best weights.
        test: test scores by task.
        curve: for each epoch the validation loss of each task, in the order of `job.tasks`.
        best_epoch: the epoch whose weights are kept, counted from 0; -1 where training diverged: then scores are NaN
            and there are no weights.
        steps: taken in all.
        seconds: spent; a share of the batch where networks were trained together.
        parameters: of encoder and heads.
        state: the best weights and buffers, as `Network.state_dict` names them; None where they were not kept.
        affinity: what the meter measured, where there was one.
    """

    job: Job
    val: Mapping[str, Score]
    test: Mapping[str, Score]
    curve: NDArray[np.float64]
    best_epoch: int
    steps: int
    seconds: float
    parameters: int
    state: Mapping[str, Tensor] | None = field(default=None, repr=False)
    affinity: Affinity | None = field(default=None, repr=False)

    @property
    def diverged(self) -> bool:
        """Whether there is nothing to keep of this training but what it took."""
        return self.best_epoch < 0
