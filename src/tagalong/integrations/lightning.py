"""Measures affinities inside Lightning's Trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tagalong.errors import missing_package
from tagalong.group import Grouping
from tagalong.measure import AffinityMeter

from .batch_task import TaskOf, check_task_options, find_task
from .final_grouping import check_budget, final_affinity, select_final_groups
from .model_parts import resolve_part

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise missing_package(__name__, "lightning", "tagalong[lightning]") from error

TaskLosses = Callable[[Any, Any], Mapping[str, Any]]
log = logging.getLogger(__name__)


class AffinityCallback(Callback):
    """Measures affinities before training steps. The training itself is unchanged, bit for bit.

    The callback supports automatic and manual optimization, gradient accumulation, mixed precision and data
    parallelism. With gradient accumulation, each micro-batch counts as one call of the meter. The meter's state is
    saved in checkpoints and restored from them.

    If each batch comes from one dataset, pass `task_of` and ``task_losses=None``. The callback then observes the
    gradient of every backward pass (see `AffinityMeter.observe`), which needs no further pass.

    Args:
        task_losses: A function that computes ``{task: loss}`` from the module and a batch, or the name of a method of
            the module. It is called several times per measured step, so it should not call ``self.log``.
        shared: The part of the module that the tasks share, given as its name or as a function of the module.
        task_of: The key of the batch that contains the task, or a function of the batch that returns it. All rows of a
            batch must belong to the same task. Numbers are replaced by the names in the option `tasks`, if given.
        path: The file to which the affinity is written after training. Defaults to ``affinity.json`` in the trainer's
            folder.
        budget: The maximum number of groups to select after training. If None, no groups are selected.
        log: Whether to send the values of every measured step to the trainer's loggers. They are named after the
            estimator and the tasks, for example ``lookahead onto target/source``.
        options: Options for the `AffinityMeter`, such as `every`, `estimator` or `tasks`.

    Attributes:
        meter: The meter, or None before training starts.
        grouping: The groups selected after training, or None if no groups have been selected.
    """

    meter: AffinityMeter | None = None
    grouping: Grouping | None = None

    def __init__(
        self,
        task_losses: TaskLosses | str | None = "task_losses",
        shared: str | Callable[[Any], Any] = "encoder",
        *,
        task_of: TaskOf | None = None,
        path: str | Path | None = None,
        budget: int | None = 2,
        log: bool = True,
        **options: Any,
    ) -> None:
        self._options = check_task_options(task_losses, task_of, options)
        self._task_losses, self._task_of, self._shared = task_losses, task_of, shared
        self._path, self._budget, self._log = path, check_budget(budget), log
        self._task: str | None = None
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.grouping = None
        shared = resolve_part(pl_module, self._shared, "shared")
        shared_ids = {id(p) for p in (shared.parameters() if hasattr(shared, "parameters") else shared)}
        optimizers = [
            o for o in trainer.optimizers if any(id(p) in shared_ids for g in o.param_groups for p in g["params"])
        ]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.meter = AffinityMeter(shared, optimizers, **({"model": pl_module, "scaler": scaler} | self._options))
        if self._state:
            self.meter.load_state_dict(self._state)
            self._state = {}  # the next fit starts from scratch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert self.meter is not None
        if self._task_of is not None and self.meter.observes:
            self._task = find_task(batch, self._task_of, self._options.get("tasks"))
        if self._task_losses is None:
            return
        losses_of: Callable[[Any], Mapping[str, Any]]
        if isinstance(self._task_losses, str):
            losses_of = resolve_part(pl_module, self._task_losses, "task_losses")
        else:
            losses_of = partial(self._task_losses, pl_module)

        def closure() -> Mapping[str, Any]:
            with trainer.precision_plugin.train_step_context():
                return losses_of(batch)

        if self.meter.measure_only(closure) and self._log and self.meter.measured:
            for logger in trainer.loggers:
                logger.log_metrics(self.meter.affinity(last=True).metrics(), step=trainer.global_step)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._task is not None and self.meter is not None:
            self.meter.observe(self._task)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        affinity = final_affinity(self.meter)
        if affinity is None:
            return
        self.grouping = select_final_groups(self.meter, self._budget)
        if trainer.is_global_zero:
            path = Path(self._path or Path(trainer.default_root_dir) / "affinity.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            affinity.save(path)
            log.info("%s\naffinity written to %s", affinity, path)
            if self.grouping is not None:
                log.info("%s", self.grouping)

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.meter is None else self.meter.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict
