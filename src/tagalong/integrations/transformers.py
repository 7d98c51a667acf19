"""Measures affinities inside the Hugging Face Trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tagalong.errors import missing_package
from tagalong.files import open_atomic
from tagalong.group import Grouping
from tagalong.measure import AffinityMeter

from .final_grouping import check_budget, select_final_groups
from .model_parts import resolve_part

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise missing_package(__name__, "transformers", "tagalong[transformers]") from error

METER_FILE = "affinity_meter.pt"
log = logging.getLogger(__name__)


class AffinityMixin:
    """Measures affinities before training steps.

    The training itself is unchanged, bit for bit. The mixin must precede `Trainer` in the list of base classes. It
    supports gradient accumulation, mixed precision and data parallelism. With gradient accumulation, each micro-batch
    counts as one call of the meter. The meter's state is saved in the trainer's checkpoints and restored by
    `resume_from_checkpoint`.

    Args:
        task_losses: A function that computes ``{task: loss}`` from the model and a batch of inputs. It is called
            several times per measured step.
        shared: The part of the model that the tasks share, given as its name or as a function of the model.
        budget: The maximum number of groups to select after training. If None, no groups are selected.
        log_affinity: Whether to log the values of every measured step. They are named after the estimator and the
            tasks, for example ``lookahead onto target/source``.
        meter_options: Options for the `AffinityMeter`, such as `every`, `estimator` or `tasks`.

    Attributes:
        meter: The meter, or None before the first training step.
        grouping: The groups selected after training, or None if no groups have been selected.
    """

    meter: AffinityMeter | None = None
    grouping: Grouping | None = None

    def __init__(
        self,
        *args: Any,
        task_losses: Callable[[nn.Module, Any], Mapping[str, Any]],
        shared: str | Callable[[Any], Any] = "encoder",
        budget: int | None = 2,
        log_affinity: bool = True,
        meter_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._task_losses, self._shared, self._log_affinity = task_losses, shared, log_affinity
        self._meter_options, self._checkpoint = meter_options or {}, None
        self._budget = check_budget(budget)
        self.add_callback(_SaveMeterCallback(self))  # type: ignore[attr-defined]

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        found = resume_from_checkpoint
        self._checkpoint = get_last_checkpoint(self.args.output_dir) if found is True else found or None
        self.meter = self.grouping = None
        output = super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        self.grouping = select_final_groups(self.meter, self._budget)
        if self.grouping is not None and self.is_world_process_zero():
            log.info("%s", self.grouping)
        return output

    def training_step(self: Any, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.meter is None:
            self.meter = self._make_meter()
        inputs = self._prepare_inputs(inputs)

        def closure() -> Mapping[str, Any]:
            model.train()
            with self.compute_loss_context_manager():
                return self._task_losses(model, inputs)  # type: ignore[no-any-return]

        if self.meter.measure_only(closure) and self._log_affinity and self.meter.measured:
            self.log(self.meter.latest().metrics())
        return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def _make_meter(self: Any) -> AffinityMeter:
        options = {"model": self.model, "scaler": getattr(self.accelerator, "scaler", None)} | dict(self._meter_options)
        meter = AffinityMeter(resolve_part(self.model, self._shared, "shared"), self.optimizer, **options)
        state = None if self._checkpoint is None else Path(self._checkpoint, METER_FILE)
        if state is not None and state.exists():
            meter.load_state_dict(torch.load(state, weights_only=True))
        return meter


class _SaveMeterCallback(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self._trainer.meter is not None and args.should_save and folder.exists():
            with open_atomic(folder / METER_FILE) as file:
                torch.save(self._trainer.meter.state_dict(), file)


class AffinityTrainer(AffinityMixin, Trainer):
    """The Hugging Face Trainer with an affinity meter (see `AffinityMixin`)."""
