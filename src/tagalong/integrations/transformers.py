"""Measures affinities inside the Hugging Face Trainer."""

from __future__ import annotations

import inspect
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

from .batch_task import TaskOf, check_task_options, find_task
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

    If each batch comes from one dataset, pass `task_of` instead of `task_losses`. The mixin then observes the gradient
    of every backward pass (see `AffinityMeter.observe`), which needs no further pass.

    Args:
        task_losses: A function that computes ``{task: loss}`` from the model and a batch of inputs. It is called
            several times per measured step.
        task_of: The column of the batch that contains the task, or a function of the batch that returns it. All rows
            of a batch must belong to the same task. Numbers in the column are replaced by the names in
            ``meter_options["tasks"]``, if given. The column is kept in the dataset and removed before the model is
            called, unless the model's ``forward`` has an argument of that name.
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
        task_losses: Callable[[nn.Module, Any], Mapping[str, Any]] | None = None,
        task_of: TaskOf | None = None,
        shared: str | Callable[[Any], Any] = "encoder",
        budget: int | None = 2,
        log_affinity: bool = True,
        meter_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._meter_options = check_task_options(task_losses, task_of, meter_options or {})
        self._task_losses, self._task_of = task_losses, task_of
        super().__init__(*args, **kwargs)
        self._shared, self._log_affinity, self._checkpoint = shared, log_affinity, None
        self._budget = check_budget(budget)
        self.add_callback(_SaveMeterCallback(self))  # type: ignore[attr-defined]

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        self._checkpoint = resume_from_checkpoint or None
        if resume_from_checkpoint is True:
            self._checkpoint = get_last_checkpoint(self.args.output_dir)
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
        task = self._find_task(inputs)
        if self._task_losses is not None:
            self._measure(model, inputs)
        if isinstance(self._task_of, str) and self._task_of not in _arguments(self.model):
            inputs = {name: value for name, value in inputs.items() if name != self._task_of}
        loss = super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        if task is not None:
            self.meter.observe(task)
        return loss

    def _measure(self: Any, model: nn.Module, inputs: Any) -> None:
        def closure() -> Mapping[str, Any]:
            model.train()
            with self.compute_loss_context_manager():
                return self._task_losses(model, inputs)  # type: ignore[no-any-return]

        if self.meter.measure_only(closure) and self._log_affinity and self.meter.measured:
            self.log(self.meter.affinity(last=True).metrics())

    def _find_task(self: Any, inputs: Any) -> str | None:
        """Returns the task of the batch if gradients are observed."""
        if self._task_of is None or not self.meter.observes:
            return None
        return find_task(inputs, self._task_of, self._meter_options.get("tasks"))

    def _set_signature_columns_if_needed(self: Any) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if isinstance(self._task_of, str) and self._task_of not in self._signature_columns:
            self._signature_columns.append(self._task_of)  # otherwise, the Trainer would remove the column

    def _make_meter(self: Any) -> AffinityMeter:
        options = {"model": self.model, "scaler": getattr(self.accelerator, "scaler", None)} | self._meter_options
        meter = AffinityMeter(resolve_part(self.model, self._shared, "shared"), self.optimizer, **options)
        state = None if self._checkpoint is None else Path(self._checkpoint, METER_FILE)
        if state is not None and state.exists():
            meter.load_state_dict(torch.load(state, weights_only=True))
        return meter


def _arguments(model: nn.Module) -> Mapping[str, Any]:
    return inspect.signature(model.forward).parameters


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
