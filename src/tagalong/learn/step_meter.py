"""Measures affinities during training with an `AffinityMeter`, which leaves the trained network as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.measure import AffinityMeter

from .losses import LabeledBatch
from .network import evaluation_mode
from .randomness import derive_seed
from .rows import Rows, Split

if TYPE_CHECKING:
    from .module_step import ModuleStep


class StepMeter:
    """Computes the losses of each step with an `AffinityMeter`.

    Args:
        settings: the settings of the meter. With `"held_out": True`, the meter measures the losses on validation rows.
            These rows are drawn at random for each step, and the network is in evaluation mode.
        step: the steps to measure.
        rows: the training rows.
    """

    def __init__(self, settings: Mapping[str, Any], step: ModuleStep, rows: Rows) -> None:
        self._step, own = step, dict(settings)
        self._held_out = self._held_out_losses if own.pop("held_out", False) else None
        defaults = {
            "shared": step.network.encoder,
            "optimizer": step.optimizer,
            "model": step.modules,
            "tasks": step.job.tasks,
            "scaler": step.scaler,
            "weights": step.balancer.weights,
        }
        self.meter = AffinityMeter(**{**defaults, **own})
        # Asking which tasks have labels in a batch would let each step wait for the GPU.
        self._is_complete = isinstance(rows, Split) and rows.weights is None
        self._is_complete &= all(bool(rows.labelled(name).all()) for name in rows.tasks)
        self._held_out_batch: tuple[int, LabeledBatch] | None = None

    def __call__(self, batch: LabeledBatch) -> Tensor:
        """Returns the loss of each task [tasks] before this step, and takes a measurement if one is due."""
        before: list[Tensor] = []
        names = list(self._step.job.tasks)

        def labeled_losses() -> dict[str, Tensor]:
            losses, counts = self._step.task_losses(batch)
            if not before:  # the first call, without a lookahead step
                before.append(losses)
                names[:] = names if self._is_complete else compress(names, counts.tolist())
            return {name: loss for name, loss in zip(self._step.job.tasks, losses, strict=True) if name in names}

        self.meter(labeled_losses, self._held_out)
        return before[0]

    def _held_out_losses(self) -> dict[str, Tensor]:
        step = self._step
        if self._held_out_batch is None or self._held_out_batch[0] != step.steps:
            draw = torch.Generator().manual_seed(derive_seed(step.job.seed, "held out", step.steps))
            rows = torch.randperm(len(step.problem.val), generator=draw)[: step.recipe.batch_size]
            self._held_out_batch = step.steps, step.val.batch(rows)
        with evaluation_mode(step.network):
            losses, counts = step.task_losses(self._held_out_batch[1])
        return dict(compress(zip(step.job.tasks, losses, strict=True), counts.tolist()))

    def affinity(self) -> Affinity:
        """Returns the measured affinity, with the meter's share of the training time."""
        affinity = self.meter.affinity()
        return replace(affinity, settings={**affinity.settings, "overhead": round(self.meter.overhead, 4)})
