"""The meter inside a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tagalong.measure import AffinityMeter

from ._network import evaluating
from ._rows import Batch, Rows, Split
from ._seeds import derived

if TYPE_CHECKING:
    from ._trainer import _Training


class Measuring:
    """Lets an `AffinityMeter` look at the losses of each step; training goes on as if it were not there.

    Args:
        settings: of the meter, and "held_out": whether steps are judged by validation rows. They are drawn anew
            for every step, from the seed and the step, and looked at as validation does, in evaluation mode.
        training: that is watched.
    """

    def __init__(self, settings: Mapping[str, Any], training: _Training) -> None:
        given = dict(settings)
        self._held_out = bool(given.pop("held_out", False))
        self._training = training
        self._gaps = has_gaps(training.rows)
        self._held_out_batch: tuple[int, Batch] | None = None
        self.meter = AffinityMeter(
            **{
                "shared": training.network.encoder,
                "optimizer": training.optimizer,
                "model": training.network,
                "tasks": training.job.tasks,
                "scaler": training.scaler,
                "weights": training.balancer.weights,
                **given,
            }
        )

    def __call__(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The losses of this step, and a measurement if one is due."""
        training = self._training
        held_out = self._held_out_losses if self._held_out else None
        if not self._gaps:
            return self.meter(lambda: training.losses(inputs, targets), held_out)
        first: dict[str, Tensor] = {}
        labelled: list[str] = []

        def shown() -> dict[str, Tensor]:
            found = training.losses_and_labels(inputs, targets)
            if not first:
                first.update({task: loss for task, (loss, _) in found.items()})
                labelled.extend(_labelled(found))
            return {task: found[task][0] for task in labelled}

        self.meter(shown, held_out)
        return first  # the meter gives back its first call, too, but without the tasks that have no labels here

    def _held_out_losses(self) -> dict[str, Tensor]:
        training = self._training
        if self._held_out_batch is None or self._held_out_batch[0] != training.steps:
            draw = torch.Generator().manual_seed(derived(training.job.seed, "held out", training.steps))
            rows = torch.randperm(len(training.val), generator=draw)[: training.recipe.batch_size]
            self._held_out_batch = training.steps, training.val.batch(rows)
        with evaluating(training.network):
            found = training.losses_and_labels(*self._held_out_batch[1])
        return {task: found[task][0] for task in _labelled(found)}


def has_gaps(rows: Rows) -> bool:
    """Whether labels are missing somewhere; of rows read from files that is not known before."""
    return not isinstance(rows, Split) or any(not target.isfinite().all() for target in rows.targets.values())


def _labelled(found: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The tasks with labels in a batch."""
    counts = torch.stack([labels for _, labels in found.values()]).tolist()
    return [task for task, count in zip(found, counts, strict=True) if count]
