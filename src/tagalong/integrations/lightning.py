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

from .final_grouping import check_budget, select_final_groups
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

    Args:
        task_losses: A function that computes ``{task: loss}`` from the module and a batch, or the name of a method of
            the module. It is called several times per measured step, so it should not call ``self.log``.
        shared: The part of the module that the tasks share, given as its name or as a function of the module.
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
        task_losses: TaskLosses | str = "task_losses",
        shared: str | Callable[[Any], Any] = "encoder",
        *,
        path: str | Path | None = None,
        budget: int | None = 2,
        log: bool = True,
        **options: Any,
    ) -> None:
        self._task_losses, self._shared = task_losses, shared
        self._path, self._budget, self._log, self._options = path, check_budget(budget), log, options
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
        given = self._task_losses
        losses_of = (
            resolve_part(pl_module, given, "task_losses") if isinstance(given, str) else partial(given, pl_module)
        )

        def closure() -> Mapping[str, Any]:
            with trainer.precision_plugin.train_step_context():
                return losses_of(batch)

        if self.meter.measure_only(closure) and self._log and self.meter.measured:
            for logger in trainer.loggers:
                logger.log_metrics(self.meter.latest().metrics(), step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.meter is None or not self.meter.measured:
            return
        self.grouping = select_final_groups(self.meter, self._budget)
        if trainer.is_global_zero:
            self._save_affinity(Path(self._path or Path(trainer.default_root_dir) / "affinity.json"))
            if self.grouping is not None:
                log.info("%s", self.grouping)

    def _save_affinity(self, path: Path) -> None:
        assert self.meter is not None
        affinity = self.meter.affinity()
        path.parent.mkdir(parents=True, exist_ok=True)
        affinity.save(path)
        log.info("%s\naffinity written to %s", affinity, path)

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.meter is None else self.meter.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict
