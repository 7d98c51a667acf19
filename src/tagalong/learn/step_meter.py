"""Measures affinities during training with an `AffinityMeter`, which leaves the trained network as it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tagalong.measure import AffinityMeter

from .losses import LabeledBatch
from .network import evaluation_mode
from .randomness import derive_seed

if TYPE_CHECKING:
    from .module_step import ModuleStep


class StepMeter:
    """Computes the losses of each step with an `AffinityMeter`, which takes a measurement if one is due.

    Args:
        settings: the settings of the meter. With `"held_out": True`, the meter measures the losses on validation rows.
            These rows are drawn at random for each step, and the network is in evaluation mode.
        step: the steps to measure.
    """

    def __init__(self, settings: Mapping[str, Any], step: ModuleStep) -> None:
        defaults = {
            "shared": step.network.encoder,
            "optimizer": step.optimizer,
            "model": step.modules,
            "tasks": step.job.tasks,
            "scaler": step.scaler,
            "weights": step.balancer.weights,
        }
        own = {**defaults, **settings}
        self._step, self._is_held_out = step, bool(own.pop("held_out", False))
        self.meter = AffinityMeter(**own)

    def __call__(self, batch: LabeledBatch) -> Tensor:
        """Returns the loss of each task [tasks] before this step. Tasks without labels are not measured."""
        step = self._step
        before: list[Tensor] = []

        def training_losses() -> dict[str, Tensor]:
            losses, counts = step.task_losses(batch)
            if not before:  # the first call, without a lookahead step
                before.append(losses)
            return self._labeled(losses, counts)

        @cache
        def held_out_batch() -> LabeledBatch:
            draw = torch.Generator().manual_seed(derive_seed(step.job.seed, "held out", step.steps))
            return step.val.batch(torch.randperm(len(step.problem.val), generator=draw)[: step.recipe.batch_size])

        def held_out_losses() -> dict[str, Tensor]:
            with evaluation_mode(step.network):
                return self._labeled(*step.task_losses(held_out_batch()))

        self.meter(training_losses, held_out_losses if self._is_held_out else None)
        return before[0]

    def _labeled(self, losses: Tensor, counts: Tensor | None) -> dict[str, Tensor]:
        pairs = zip(self._step.job.tasks, losses, strict=True)
        return dict(pairs if counts is None else compress(pairs, counts.tolist()))
