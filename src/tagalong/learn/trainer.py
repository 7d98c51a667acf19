"""Trains one network: mini-batches, early stopping on validation, checkpoints, the best weights kept."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong._version import NUMERICS
from tagalong.affinity import Affinity
from tagalong.errors import refuse
from tagalong.files import open_atomic
from tagalong.measure import AffinityMeter

from .balance import make_balancer
from .network import build_network, evaluating
from .problem import Problem
from .randomness import batches, derived, reseed
from .recipe import LossWindows, Recipe
from .rows import Batch, Rows, Split
from .scoring import UNKNOWN, Score, loss_and_labels, losses_on, scores_on

logger = logging.getLogger(__name__)


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
    progress: Callable[[int], None] | None = None,
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
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the losses of all tasks are NaN")  # the meter's; `Diverged` says it better
        training = Training(problem, job, device, meter)
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


def job_problems(problem: Problem, job: Job, device: torch.device) -> list[str]:
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


class Training:
    """A training under way, epoch by epoch; what `train` does, for those who want to look in between.

    It seeds torch's random numbers as it goes: wrap it in `torch.random.fork_rng()`, as `train` does.

    Args:
        problem: what is learnt.
        job: which tasks, which seed, which rule.
        device: where.
        meter: see `train`.

    Raises:
        ValueError: the job does not fit the problem or the device.

    Attributes:
        network: with the weights of now; `best` has those of the best epoch.
        rows: of the problem's train part, with the targets of the job's tasks.
        val: of its validation part, likewise.
        epoch: epochs done.
        steps: taken.
        curve: for each epoch the validation loss of each task.

    Example:
        >>> from tagalong.learn import Recipe
        >>> inputs = torch.rand(60, 3)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=Recipe(epochs=2))
        >>> with torch.random.fork_rng():
        ...     training = Training(problem, Job(("sum",)))
        ...     while not training.over:
        ...         training.run_epoch()
        >>> training.epoch, training.steps
        (2, 2)
    """

    def __init__(
        self,
        problem: Problem,
        job: Job,
        device: torch.device | str = "cpu",
        meter: Mapping[str, Any] | None = None,
    ) -> None:
        self.problem, self.job, self.device, self.recipe = problem, job, torch.device(device), problem.recipe
        refuse(job_problems(problem, job, self.device))
        self.tasks = [problem.task(name) for name in job.tasks]
        self.network = build_network(problem, job.tasks, job.seed, job.width).to(self.device)
        self.rows, self.val = self._part(problem.train), self._part(problem.val)
        self.balancer = make_balancer(job.rule, self.network, self.tasks)
        self.optimizer = self.recipe.make_optimizer(self.network.parameters(), self.balancer.parameters())
        self.scaler = torch.amp.GradScaler(self.device.type) if self.recipe.amp == "fp16" else None
        self.windows = LossWindows(self.recipe) if self.recipe.schedule == "windows" else None
        self.measuring = None if meter is None else Measuring(meter, self)
        self.meter = None if self.measuring is None else self.measuring.meter
        self.epoch = self.steps = 0
        self.seconds = 0.0
        self.best_epoch, self.best_loss = -1, float("inf")
        self.best: dict[str, Tensor] = {}
        self.curve: list[list[float]] = []

    def _part(self, rows: Rows) -> Rows:
        return rows.only(self.job.tasks).to(self.device)

    def run_epoch(self) -> None:
        """Every row once, then validation."""
        start = time.perf_counter()
        reseed(derived(self.job.seed, "epoch", self.epoch))  # for layers that draw unasked
        parts = batches(self.job.seed, self.epoch, len(self.rows), self.recipe.batch_size)
        for inputs, targets in self.rows.batches(parts, (self.job.seed, self.epoch)):
            self.step(inputs, targets)
        self.balancer.after_epoch()
        self._validate()
        self.epoch += 1
        self.seconds += time.perf_counter() - start

    def step(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        """One step of the optimiser on a batch, measured if there is a meter."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.zero_grad()
        losses = self.losses(inputs, targets) if self.measuring is None else self.measuring(inputs, targets)
        self.balancer.backward(losses, self.scaler)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.balancer.after_step(lambda: self.losses(inputs, targets))
        if self.windows is not None:
            self.windows.see(sum(task.weight * float(losses[task.name].detach()) for task in self.tasks), self.epoch)
        self.steps += 1

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.recipe.rate(self.epoch) if self.windows is None else self.windows.rate

    def losses(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss of each task on some rows, with this step's dropout masks."""
        return {task: loss for task, (loss, _) in self.losses_and_labels(inputs, targets).items()}

    def losses_and_labels(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """The same, each with the number of labels that it is the mean over."""
        with self.recipe.precision(self.device):
            outputs = self.network.at_step(self.steps)(inputs)
            return {task.name: loss_and_labels(task, outputs[task.name], targets[task.name]) for task in self.tasks}

    def _validate(self) -> None:
        """Keeps the weights of this epoch if they are the best so far, or the last where those are wanted."""
        self.curve.append([float(loss) for loss in losses_on(self.network, self.tasks, self.val)])
        loss = sum(task.weight * value for task, value in zip(self.tasks, self.curve[-1], strict=True))
        last = self.epoch + 1 == self.job.last_epoch(self.recipe) and math.isfinite(loss)
        if last if self.recipe.keep == "last" else loss < self.best_loss:
            self.best_epoch, self.best_loss = self.epoch, loss
            self.best = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    @property
    def over(self) -> bool:
        """Whether the last epoch, the end of patience, or the lowest learning rate is reached."""
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= self.job.last_epoch(self.recipe) or self.recipe.stops(self.epoch, waited, self.rate)

    def finished(self) -> Trained:
        """The best weights, and how they do on validation and test rows."""
        diverged = self.best_epoch < 0
        if not diverged:
            self.network.load_state_dict(self.best)
        return Trained(
            self.job,
            val=self._scores(self.problem.val),
            test=self._scores(self.problem.test),
            curve=np.array(self.curve),
            best_epoch=self.best_epoch,
            steps=self.steps,
            seconds=self.seconds,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            state=None if diverged else {name: tensor.cpu() for name, tensor in self.best.items()},
            affinity=None if diverged or self.measuring is None else self.measuring.affinity(),
        )

    def _scores(self, rows: Rows) -> dict[str, Score]:
        if self.best_epoch < 0:
            return dict.fromkeys(self.job.tasks, UNKNOWN)
        return scores_on(self.problem, self.network, self._part(rows))

    @property
    def identity(self) -> str:
        """What is trained, on what and how; like keys it says nothing of settings that change nothing."""
        job, recipe = self.job, ", ".join(f"{name}={value!r}" for name, value in self.recipe.definition.items())
        network = f"tasks={job.tasks!r}, seed={job.seed}, rule={job.rule!r}, width={job.width}, epochs={job.epochs}"
        meter = "without a meter" if self.meter is None else "with a meter"
        of = f"{self.problem.name} {self.problem.fingerprint}"
        return f"({network}) of {of} by Recipe({recipe}) with numerics {NUMERICS}, {meter}"


# What a checkpoint holds of a training: attributes as they are, and those that have a state of their own.
PLAIN = ("epoch", "steps", "seconds", "best_epoch", "best_loss", "best", "curve")
STATEFUL = ("network", "optimizer", "balancer", "scaler", "meter", "windows")


def save_checkpoint(path: Path, training: Training) -> None:
    """Writes the file whole or not at all: a kill half-way leaves the checkpoint before."""
    state: dict[str, Any] = {"of": training.identity, **{name: getattr(training, name) for name in PLAIN}}
    parts = {name: getattr(training, name) for name in STATEFUL}
    state |= {name: part.state_dict() for name, part in parts.items() if part is not None}
    with open_atomic(path) as file:
        torch.save(state, file)


def load_checkpoint(path: Path, training: Training) -> None:
    """Puts the training where the checkpoint left it; a file that cannot be read is left aside, with a warning.

    Raises:
        ValueError: the checkpoint is of another training.
    """

    def place(storage: Any, location: str) -> Any:
        # what was on the CPU stays there: counters of optimisers, and what some rules work out
        wanted = location if location == "cpu" else str(training.device)
        return torch.serialization.default_restore_location(storage, wanted)

    try:
        # whole objects are in it (balancing rules), so it is as trusted as the code that wrote it
        state = torch.load(path, map_location=place, weights_only=False)
    except Exception as error:
        logger.warning("%s cannot be read (%s); training starts again", path, error)
        return
    if state["of"] != training.identity:
        raise ValueError(
            f"`checkpoint` {path} must be of this training, {training.identity}, found {state['of']}; delete the file "
            "or name another"
        )
    for name in PLAIN:
        setattr(training, name, state[name])
    for name in STATEFUL:
        part = getattr(training, name)
        if part is not None:
            part.load_state_dict(state[name])


class Measuring:
    """Lets an `AffinityMeter` look at the losses of each step; training goes on as if it were not there.

    Args:
        settings: of the meter, and "held_out": whether steps are judged by validation rows. They are drawn anew
            for every step, from the seed and the step, and looked at as validation does, in evaluation mode.
        training: that is watched.
    """

    def __init__(self, settings: Mapping[str, Any], training: Training) -> None:
        given = dict(settings)
        self._held_out = bool(given.pop("held_out", False))
        self._training = training
        self._gaps = _has_gaps(training.rows)
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

    def affinity(self) -> Affinity:
        """What was measured, and seconds of measuring per second of training."""
        affinity = self.meter.affinity()
        return replace(affinity, settings={**affinity.settings, "overhead": round(self.meter.overhead, 4)})

    def _held_out_losses(self) -> dict[str, Tensor]:
        training = self._training
        if self._held_out_batch is None or self._held_out_batch[0] != training.steps:
            draw = torch.Generator().manual_seed(derived(training.job.seed, "held out", training.steps))
            rows = torch.randperm(len(training.val), generator=draw)[: training.recipe.batch_size]
            self._held_out_batch = training.steps, training.val.batch(rows)
        with evaluating(training.network):
            found = training.losses_and_labels(*self._held_out_batch[1])
        return {task: found[task][0] for task in _labelled(found)}


def _has_gaps(rows: Rows) -> bool:
    """Whether labels are missing somewhere; of rows read from files that is not known before."""
    return not isinstance(rows, Split) or any(not target.isfinite().all() for target in rows.targets.values())


def _labelled(found: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The tasks with labels in a batch."""
    counts = torch.stack([labels for _, labels in found.values()]).tolist()
    return [task for task, count in zip(found, counts, strict=True) if count]
