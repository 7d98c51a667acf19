"""Trains one network: mini-batches, early stopping on validation, the best weights kept (the paper's protocol)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong._names import refuse
from tagalong._version import NUMERICS
from tagalong.affinity import Affinity
from tagalong.measure import AffinityMeter

from ._balance import make_balancer
from ._checkpoint import load_checkpoint, save_checkpoint
from ._measuring import Measuring
from ._network import build_network
from ._problem import Problem
from ._scoring import loss_and_labels, losses_on, scores_on
from ._seeds import batches, derived, reseed
from ._trained import UNKNOWN, Job, Score, Trained
from ._windows import LossWindows

Progress = Callable[[int], None]


class Diverged(ValueError):
    """No epoch of a training had a finite validation loss, or the last had none and its weights were to be kept.

    Args:
        message: which networks, and what to do.
        networks: what they took; they have no scores and no weights.
    """

    def __init__(self, message: str, networks: Sequence[Trained] = ()) -> None:
        super().__init__(message)
        self.networks = tuple(networks)


def train(
    problem: Problem,
    job: Job,
    *,
    device: torch.device | str = "cpu",
    meter: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float = 0.0,
    progress: Progress | None = None,
) -> Trained:
    """Trains one network.

    Args:
        problem: what is learnt.
        job: which tasks, which seed, which rule.
        device: where.
        meter: settings of an `AffinityMeter` that measures while the network trains; it leaves no trace. With
            "held_out": True the losses it looks at are those of validation rows, as many as a batch has.
        checkpoint: a file to write after each epoch and to go on from, if it is there; removed at the end.
        checkpoint_every: seconds between two checkpoints, at least: short trainings need not write any.
        progress: called after each epoch with the number of epochs done.

    Raises:
        Diverged: the validation loss was never finite.
    """
    refuse(_problems(problem, job, torch.device(device)))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the losses of all tasks are NaN")  # the meter's; `Diverged` says it better
        training = _Training(problem, job, torch.device(device), meter)
        if checkpoint is not None and checkpoint.exists():
            load_checkpoint(checkpoint, training)
        saved = time.monotonic()
        while not training.over:
            training.run_epoch()
            if checkpoint is not None and time.monotonic() - saved >= checkpoint_every:
                save_checkpoint(checkpoint, training)
                saved = time.monotonic()
            if progress is not None:
                progress(training.epoch)
        trained = training.finished()
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    if trained.diverged:
        when = "from the first epoch" if problem.recipe.keep == "best" else "before the last epoch"
        names = ", ".join(job.tasks)
        raise Diverged(f"training {names} with seed {job.seed} diverged {when}; lower `recipe.lr`", [trained])
    return trained


def _problems(problem: Problem, job: Job, device: torch.device) -> list[str]:
    """What stands against this training."""
    problems = []
    unknown = [task for task in job.tasks if task not in problem.names]
    if unknown or not job.tasks:
        known = ", ".join(map(repr, problem.names))
        problems.append(f"`job.tasks` must be some of {known}, found {', '.join(map(repr, unknown)) or 'none'}")
    if job.tasks != tuple(name for name in problem.names if name in job.tasks) and not unknown:
        problems.append(f"`job.tasks` must be in the order of the problem, each once, found {job.tasks!r}")
    if not job.width > 0:
        problems.append(f"`job.width` must be a positive number, found {job.width!r}")
    if job.epochs is not None and job.epochs < 1:
        problems.append(f"`job.epochs` must be a whole number from 1 or None, found {job.epochs!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        problems.append(f"`device` must be one that this machine has, found {device}, and torch sees no GPU; use 'cpu'")
    if problem.recipe.amp == "fp16" and device.type == "cpu":
        problems.append("`recipe.amp` 'fp16' needs a GPU, found the CPU; use 'bf16' or None")
    return problems


class _Training:
    """A training under way; what changes is listed in `_checkpoint`."""

    def __init__(self, problem: Problem, job: Job, device: torch.device, meter: Mapping[str, Any] | None) -> None:
        self.problem, self.job, self.device, self.recipe = problem, job, device, problem.recipe
        self.tasks = [problem.task(name) for name in job.tasks]
        self.network = build_network(problem, job.tasks, job.seed, job.width).to(device)
        self.rows, self.val = problem.train.only(job.tasks).to(device), problem.val.only(job.tasks).to(device)
        self.balancer = make_balancer(job.rule, self.network, self.tasks)
        self.optimizer = self.recipe.make_optimizer(self.network.parameters(), self.balancer.parameters())
        self.scaler = torch.amp.GradScaler(device.type) if self.recipe.amp == "fp16" else None
        self.windows = LossWindows(self.recipe) if self.recipe.schedule == "windows" else None
        self.measuring = None if meter is None else Measuring(meter, self)
        self.meter = None if self.measuring is None else self.measuring.meter
        self.epoch = self.steps = 0
        self.seconds = 0.0
        self.best_epoch, self.best_loss = -1, float("inf")
        self.best: dict[str, Tensor] = {}
        self.curve: list[list[float]] = []

    @property
    def identity(self) -> str:
        """What is trained, on what and how; like keys it says nothing of settings that change nothing."""
        job, recipe = self.job, ", ".join(f"{name}={value!r}" for name, value in self.recipe.definition.items())
        network = f"tasks={job.tasks!r}, seed={job.seed}, rule={job.rule!r}, width={job.width}, epochs={job.epochs}"
        meter = "without a meter" if self.meter is None else "with a meter"
        of = f"{self.problem.name} {self.problem.fingerprint}"
        return f"({network}) of {of} by Recipe({recipe}) with numerics {NUMERICS}, {meter}"

    @property
    def over(self) -> bool:
        """Whether the last epoch, the end of patience, or the lowest learning rate is reached."""
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= self.job.last_epoch(self.recipe) or self.recipe.stops(self.epoch, waited, self.rate)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.recipe.rate(self.epoch) if self.windows is None else self.windows.rate

    def run_epoch(self) -> None:
        """Every row once, then validation."""
        start = time.perf_counter()
        reseed(derived(self.job.seed, "epoch", self.epoch))  # for layers that draw unasked
        parts = batches(self.job.seed, self.epoch, len(self.rows), self.recipe.batch_size)
        for inputs, targets in self.rows.batches(parts, (self.job.seed, self.epoch)):
            self._step(inputs, targets)
        self.balancer.after_epoch()
        self._validate()
        self.epoch += 1
        self.seconds += time.perf_counter() - start

    def _step(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

        def losses() -> dict[str, Tensor]:
            return self.losses(inputs, targets)

        self.optimizer.zero_grad()
        found = losses() if self.measuring is None else self.measuring(inputs, targets)
        self.balancer.backward(found, self.scaler)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.balancer.after_step(losses)
        if self.windows is not None:
            self.windows.see(sum(task.weight * float(found[task.name].detach()) for task in self.tasks), self.epoch)
        self.steps += 1

    def losses(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss of each task on some rows, with this step's dropout masks."""
        return {task: loss for task, (loss, _) in self.losses_and_labels(inputs, targets).items()}

    def losses_and_labels(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """The same, each with the number of labels that it is the mean over."""
        with self._precision():
            outputs = self.network.at_step(self.steps)(inputs)
            return {task.name: loss_and_labels(task, outputs[task.name], targets[task.name]) for task in self.tasks}

    def _validate(self) -> None:
        self.curve.append([float(loss) for loss in losses_on(self.network, self.tasks, self.val)])
        loss = sum(task.weight * value for task, value in zip(self.tasks, self.curve[-1], strict=True))
        last = self.epoch + 1 == self.job.last_epoch(self.recipe) and math.isfinite(loss)
        if last if self.recipe.keep == "last" else loss < self.best_loss:
            self.best_epoch, self.best_loss = self.epoch, loss
            self.best = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def finished(self) -> Trained:
        """The best weights, and how they do on validation and test rows."""
        diverged = self.best_epoch < 0
        if not diverged:
            self.network.load_state_dict(self.best)
        return Trained(
            self.job,
            val=self._scores("val"),
            test=self._scores("test"),
            curve=np.array(self.curve),
            best_epoch=self.best_epoch,
            steps=self.steps,
            seconds=self.seconds,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            state=None if diverged else {name: tensor.cpu() for name, tensor in self.best.items()},
            affinity=None if diverged or self.meter is None else self._affinity(self.meter),
        )

    def _scores(self, part: str) -> dict[str, Score]:
        if self.best_epoch < 0:
            return dict.fromkeys(self.job.tasks, UNKNOWN)
        return scores_on(self.problem, self.network, self.problem.splits[part].only(self.job.tasks).to(self.device))

    @staticmethod
    def _affinity(meter: AffinityMeter) -> Affinity:
        """What was measured, and seconds of measuring per second of training."""
        affinity = meter.affinity()
        return replace(affinity, settings={**affinity.settings, "overhead": round(meter.overhead, 4)})

    def _precision(self) -> AbstractContextManager[Any]:
        if self.recipe.amp is None:
            return nullcontext()
        dtype = torch.bfloat16 if self.recipe.amp == "bf16" else torch.float16
        return torch.autocast(self.device.type, dtype)
