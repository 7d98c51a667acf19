"""Trains one network, with early stopping, checkpoints and affinity measurements."""

from __future__ import annotations

import io
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
from torch import Tensor, nn

from tagalong._version import NUMERICS
from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_nonnegative, raise_problems
from tagalong.files import (
    add_checksum,
    damage_logger,
    remove_checksum,
    report_damage,
    write_atomic,
)
from tagalong.group import Taught
from tagalong.measure import AffinityMeter
from tagalong.score import Score

from .balance import make_balancer
from .captured_step import CapturedStep, why_not_captured
from .early_stopping import stopping_flattery
from .losses import LabeledRows, Labels, Losses
from .network import build_network, evaluation_mode, join_layers
from .own_targets import Targets, replace_targets, target_problems, targets_digest
from .problem import Problem
from .randomness import batches, derive_seed, reseed
from .recipe import LossWindows, Recipe, set_rate
from .rows import Rows, Split
from .scoring import UNKNOWN_SCORE, scores_on

LossesAndCounts = dict[str, tuple[Tensor, Tensor]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A training job. The job and the problem together determine the result.

    Attributes:
        tasks: the names of the tasks, in the problem's order.
        seed: the seed for the row order, the initial weights and the dropout masks.
        rule: the rule that combines the losses: "plain", "uw", "gradnorm", "pcgrad", or the name of another rule.
        width: the width of the encoder, as a multiple of its default width.
        epochs: the number of epochs for a short trial run. If None, the recipe's number of epochs is used.
        lr: the initial learning rate, to which the recipe's schedule applies. If None, the recipe's rate is used.
        taught: the networks whose answers the network learns from, or None. Their answers are passed as `targets` (see
            `Lesson`).
        network: the name of another network than the problem's own (see `Problem.alternatives`), or None.
    """

    tasks: tuple[str, ...]
    seed: int = 0
    rule: str = "plain"
    width: float = 1.0
    epochs: int | None = None
    lr: float | None = None
    taught: Taught | None = None
    network: str | None = None

    def last_epoch(self, recipe: Recipe) -> int:
        """Returns the maximum number of epochs."""
        return recipe.epochs if self.epochs is None else min(self.epochs, recipe.epochs)

    def adapt(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with this job's learning rate."""
        return recipe if self.lr is None else replace(recipe, lr=self.lr)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network.

    Attributes:
        job: the job that was run.
        val: the validation score of each task, with the kept weights.
        test: the test score of each task, with the kept weights.
        curve: the validation losses [epochs, tasks], in the order of `job.tasks`.
        best_epoch: the epoch whose weights are kept, counting from 0. If training diverged, this is -1, the scores are
            NaN and there are no weights.
        steps: the number of optimizer steps.
        seconds: the training time in seconds. If several networks were trained together, the time is divided among
            them.
        parameters: the number of parameters of the encoder and heads.
        state: the kept weights and buffers as a `Network.state_dict`, or None if they were not stored.
        affinity: the measured affinity, if there was a meter.
        flattery: for each task, an estimate of how much too low its validation loss is because the validation rows
            also chose the epoch (see `stopping_flattery`). Empty if unknown.
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
    flattery: Mapping[str, float] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether training diverged, in which case there are no scores or weights."""
        return self.best_epoch < 0


class Diverged(ValueError):
    """Raised if the validation loss was never finite or, with `recipe.keep` "last", was not finite in the last epoch.

    Args:
        message: the error message, which names the diverged networks and suggests a fix.
        networks: the diverged networks, which have no scores or weights.
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
    targets: Targets | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> Trained:
    """Trains one network.

    Args:
        problem: the problem.
        job: the network to train.
        device: the device to train on.
        meter: the settings of an `AffinityMeter`, which takes measurements during training without changing the result.
            With `"held_out": True`, the meter measures the losses on a batch of validation rows.
        targets: training targets that replace those of the problem, by task, e.g. the predictions of another network.
            Targets of binary tasks may be probabilities, and those of multiclass tasks probabilities [rows, classes].
            The targets of the validation and test rows stay the same.
        checkpoint: the file that is written after each epoch. If the file exists, training resumes from it. The file is
            removed when training ends.
        checkpoint_every: the minimum number of seconds between checkpoints.
        progress: called after each epoch with the number of finished epochs.

    Raises:
        Diverged: If the validation loss was never finite.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the losses of all tasks are NaN")  # `Diverged` is clearer than this warning
        training = Training(problem, job, device, meter, targets)
        if checkpoint is not None and checkpoint.exists():
            load_checkpoint(checkpoint, training)
        saved = time.monotonic()
        while not training.finished:
            training.run_epoch()
            if checkpoint is not None and time.monotonic() - saved >= checkpoint_every:
                save_checkpoint(checkpoint, training)
                saved = time.monotonic()
            if progress is not None:
                progress(training.epoch)
        trained = training.result()
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    if trained.diverged:
        when = "from the first epoch" if problem.recipe.keep == "best" else "before the last epoch"
        names = ", ".join(job.tasks)
        raise Diverged(f"training {names} with seed {job.seed} diverged {when}; lower `recipe.lr`", [trained])
    return trained


def job_problems(
    problem: Problem, job: Job, device: torch.device, targets: Targets | None = None
) -> list[InvalidInput]:
    """Returns the reasons why a job cannot run for this problem on this device, with targets of its own or without."""
    problems = target_problems(problem, job.tasks, targets)
    if job.taught is not None and targets is None:
        hint = "use `teach`, or the problem, jobs and targets of a `Lesson`"
        problems.append(InvalidInput("targets", "are required to train a network that is taught", "None", hint))
    unknown = [task for task in job.tasks if task not in problem.names]
    if unknown or not job.tasks:
        known, found = (", ".join(map(repr, names)) for names in (problem.names, unknown))
        problems.append(InvalidInput("`job.tasks`", f"must be a subset of {known}", found or "none"))
    if job.tasks != tuple(name for name in problem.names if name in job.tasks) and not unknown:
        expected = "must be distinct and in the same order as in the problem"
        problems.append(InvalidInput("`job.tasks`", expected, repr(job.tasks)))
    if job.network is not None and job.network not in problem.alternatives:
        expected = f"must be None{''.join(f' or {name!r}' for name in problem.alternatives)} for this problem"
        problems.append(InvalidInput("`job.network`", expected, repr(job.network)))
    if not job.width > 0:
        problems.append(InvalidInput("`job.width`", "must be a positive number", repr(job.width)))
    if job.epochs is not None and job.epochs < 1:
        problems.append(InvalidInput("`job.epochs`", "must be a positive integer or None", repr(job.epochs)))
    if job.lr is not None and not (is_nonnegative(job.lr) and job.lr):
        problems.append(InvalidInput("`job.lr`", "must be a positive number or None", repr(job.lr)))
    if device.type == "cuda" and not torch.cuda.is_available():
        problems.append(InvalidInput("", "CUDA is not available", hint="use `device='cpu'`"))
    if problem.recipe.amp == "fp16" and device.type == "cpu":
        problems.append(InvalidInput("`recipe.amp`", "must be 'bf16' or None on a CPU", "'fp16'"))
    return problems


class Training:
    """Trains one network, as `train` does, but can be inspected between epochs.

    This seeds torch's global random number generators. Use `torch.random.fork_rng()`, as `train` does, to restore them.

    Args:
        problem: the problem.
        job: the network to train.
        device: the device to train on.
        meter: see `train`.
        targets: see `train`.

    Raises:
        InvalidInput: If the job is not valid for the problem or the device.

    Attributes:
        network: the network with its current weights. The best weights so far are in `best`.
        rows: the problem's training rows, with the targets of the job's tasks.
        val: the problem's validation rows, with the same targets.
        epoch: the number of finished epochs.
        steps: the number of optimizer steps.
        curve: the validation loss of each task after each epoch.
        half_curve: the same on each half of the validation rows.

    Example:
        >>> from tagalong.learn import Recipe
        >>> inputs = torch.rand(60, 3)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=Recipe(epochs=2))
        >>> with torch.random.fork_rng():
        ...     training = Training(problem, Job(("sum",)))
        ...     while not training.finished:
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
        targets: Targets | None = None,
    ) -> None:
        self.job, self.device = job, torch.device(device)
        raise_problems(job_problems(problem, job, self.device, targets))
        self.problem = problem = problem.with_network(job.network)
        self.recipe, self._own_targets = job.adapt(problem.recipe), targets
        self.tasks = [problem.task(name) for name in job.tasks]
        self.network = build_network(problem, job.tasks, job.seed, job.width).to(self.device)
        self.rows = replace_targets(self._select_rows(problem.train), targets)
        self.val = self._select_rows(problem.val)
        self.balancer = make_balancer(job.rule, self.network, self.tasks)
        self.scaler = torch.amp.GradScaler(self.device.type) if self.recipe.amp == "fp16" else None
        self.windows = LossWindows(self.recipe) if self.recipe.schedule == "windows" else None
        self._sums_losses = job.rule == "plain" and self.windows is None
        inputs, labels = self.val.batch(torch.arange(min(2, len(self.val))))
        with evaluation_mode(self.network), torch.no_grad():
            outputs = self.network(inputs)
        self.task_losses = Losses(self.tasks, outputs, labels)
        self.weights = self.task_losses.weights(next(iter(outputs.values())))
        # Heads are trained as one layer if possible, which is faster but leaves them without gradients of their own.
        can_join = job.rule == "plain" and not self.task_losses.separate and self.network.has_linear_heads
        ordered = [self.network.tasks.index(task.name) for task in self.task_losses.tasks]
        self.joined_heads = join_layers([self.network.heads[place] for place in ordered]) if can_join else None
        self.modules: list[nn.Module] = [self.network]
        if self.joined_heads is not None:
            self.modules = [self.network.encoder, self.joined_heads]
        self.labeled_rows = LabeledRows(self.rows, self.task_losses)
        self.labeled_val = LabeledRows(self.val, self.task_losses)
        reason = None if self.device.type == "cuda" else "CUDA graphs need a GPU"
        reason = self._why_not_captured() if reason is None else reason
        # with a meter, steps are not captured, but the optimizer is the same, so that the meter leaves no trace
        self.optimizer = self._make_optimizer(capturable=reason is None)
        self._captured_step: CapturedStep | None = None
        if reason is None and meter is None:
            self._captured_step = CapturedStep(self._step_on, self._seed_step)
        elif self.device.type == "cuda":
            logger.info("training %s without CUDA graphs: %s", ", ".join(job.tasks), reason or "there is a meter")
        self.step_meter = None if meter is None else StepMeter(meter, self)
        self.meter = None if self.step_meter is None else self.step_meter.meter
        self.epoch = self.steps = 0
        self.seconds = 0.0
        self.best_epoch, self.best_loss = -1, float("inf")
        self.best: dict[str, Tensor] = {}
        self.curve: list[list[float]] = []
        self.half_curve: list[list[list[float]]] = []

    def _select_rows(self, rows: Rows) -> Rows:
        return rows.only(self.job.tasks).to(self.device)

    def _why_not_captured(self) -> str | None:
        """Returns why steps cannot be replayed as CUDA graphs, or None if they can."""
        if not self._sums_losses or self.scaler is not None:
            return "the rule, the schedule or amp='fp16' reads values back from the GPU"
        if self.joined_heads is None or not isinstance(self.rows, Split):
            return "a task has a head, loss or dense targets of its own, or rows are read from files"
        return why_not_captured(self.network)

    def _make_optimizer(self, capturable: bool) -> torch.optim.Optimizer:
        return self.recipe.make_optimizer(
            [parameter for module in self.modules for parameter in module.parameters()],
            self.balancer.parameters(),
            fused=capturable or self.device.type == "cpu" or None,
            capturable=capturable,
        )

    def _step_on(self, rows: Tensor) -> None:
        """Performs a step on these rows, without anything that cannot be captured."""
        self._minimize(*self.labeled_rows.batch(rows))

    def _seed_step(self) -> Sequence[torch.Generator]:
        self.network.at_step(self.steps).reseed_part("encoder")
        return ()

    def run_epoch(self) -> None:
        """Trains for one epoch, then computes the validation losses."""
        start = time.perf_counter()
        reseed(derive_seed(self.job.seed, "epoch", self.epoch))  # for layers that are not known to be random
        parts = batches(self.job.seed, self.epoch, len(self.rows), self.recipe.batch_size)
        if self._captured_step is not None:
            self._replay_steps(self._captured_step, parts)
        else:
            for inputs, labels in self.labeled_rows.batches(parts, (self.job.seed, self.epoch)):
                self.step(inputs, labels)
        self._validate()
        self.epoch += 1
        self.seconds += time.perf_counter() - start

    def _replay_steps(self, step: CapturedStep, parts: Sequence[Tensor]) -> None:
        set_rate(self.optimizer, self.rate)
        for rows in torch.cat(list(parts)).to(self.device).split([len(part) for part in parts]):
            step(rows)
            self.steps += 1

    def step(self, inputs: Tensor, labels: Sequence[Labels]) -> None:
        """Performs an optimizer step on a batch of `labeled_rows`, including measurements if there is a meter."""
        set_rate(self.optimizer, self.rate)
        if self._sums_losses and self.step_meter is None:
            self._minimize(inputs, labels)
        else:
            self._minimize_by_rule(inputs, labels)
        self.steps += 1

    def _minimize(self, inputs: Tensor, labels: Sequence[Labels]) -> None:
        """Performs an optimizer step on the weighted sum of the losses."""
        self.optimizer.zero_grad()
        self.network.at_step(self.steps)
        with self.recipe.precision(self.device):
            means, _ = self.task_losses.means(self._outputs(inputs), labels)
            total = (means * self.weights).sum()
        (total if self.scaler is None else self.scaler.scale(total)).backward()
        self._update()

    def _minimize_by_rule(self, inputs: Tensor, labels: Sequence[Labels]) -> None:
        self.optimizer.zero_grad()
        losses = self.losses(inputs, labels) if self.step_meter is None else self.step_meter(inputs, labels)
        self.balancer.backward(losses, self.scaler)
        self._update()
        if self.windows is not None:
            total = sum(task.weight * float(losses[task.name].detach()) for task in self.tasks)
            self.windows.add_loss(total, self.epoch)

    def _update(self) -> None:
        """Updates the weights."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.recipe.rate(self.epoch) if self.windows is None else self.windows.rate

    def losses(self, inputs: Tensor, labels: Sequence[Labels]) -> dict[str, Tensor]:
        """Returns the loss of each task on the given rows, using this step's dropout masks."""
        return {task: loss for task, (loss, _) in self.losses_and_counts(inputs, labels).items()}

    def losses_and_counts(self, inputs: Tensor, labels: Sequence[Labels]) -> LossesAndCounts:
        """Returns the mean loss of each task on the given rows, and the number of labels that were used."""
        self.network.at_step(self.steps)
        with self.recipe.precision(self.device):
            means, counts = self.task_losses.means(self._outputs(inputs), labels)
        pairs = zip(means.unbind(), counts.unbind(), strict=True)
        found = dict(zip([task.name for task in self.task_losses.tasks], pairs, strict=True))
        return {name: found[name] for name in self.job.tasks}

    def _outputs(self, inputs: Tensor) -> Sequence[Tensor]:
        """Returns the outputs of each family of tasks and each separate task."""
        if self.joined_heads is None:
            return self.task_losses.join(self.network(inputs))
        outputs: Tensor = self.joined_heads(self.network.encode(inputs))
        return torch.split(outputs, self.task_losses.sizes, 1)

    def _validate(self) -> None:
        """Records the validation losses, and stores the weights if they are the best so far or from the last epoch."""
        with evaluation_mode(self.network):
            table = self.labeled_val.mean_losses(self._outputs)
        self.curve.append(table[:, 0].tolist())
        self.half_curve.append(table[:, 1:].tolist())
        loss = sum(task.weight * value for task, value in zip(self.tasks, self.curve[-1], strict=True))
        last = self.epoch + 1 == self.job.last_epoch(self.recipe) and math.isfinite(loss)
        if last if self.recipe.keep == "last" else loss < self.best_loss:
            self.best_epoch, self.best_loss = self.epoch, loss
            self._keep_weights()

    def _keep_weights(self) -> None:
        state = self.network.state_dict()
        if not self.best:
            self.best = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        torch._foreach_copy_(list(self.best.values()), list(state.values()))

    @property
    def finished(self) -> bool:
        """Whether training has reached the last epoch, run out of patience, or reached the lowest learning rate."""
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= self.job.last_epoch(self.recipe) or self.recipe.should_stop(self.epoch, waited, self.rate)

    def result(self) -> Trained:
        """Returns the network with the kept weights, and its validation and test scores."""
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
            affinity=None if diverged or self.step_meter is None else self.step_meter.affinity(),
            flattery={} if diverged else self._flattery(),
        )

    def _flattery(self) -> dict[str, float]:
        if self.recipe.keep == "last":  # validation rows choose nothing
            return dict.fromkeys(self.job.tasks, 0.0)
        found = stopping_flattery(self.half_curve, [task.weight for task in self.tasks])
        return dict(zip(self.job.tasks, found.tolist(), strict=True))

    def _scores(self, rows: Rows) -> dict[str, Score]:
        if self.best_epoch < 0:
            return dict.fromkeys(self.job.tasks, UNKNOWN_SCORE)
        return scores_on(self.problem, self.network, self._select_rows(rows))

    @property
    def identity(self) -> str:
        """A string that identifies the training run in checkpoints.

        Like network keys, it omits settings that have their default values.
        """
        job, recipe = self.job, ", ".join(f"{name}={value!r}" for name, value in self.recipe.definition.items())
        network = f"tasks={job.tasks!r}, seed={job.seed}, rule={job.rule!r}, width={job.width}, epochs={job.epochs}"
        network += "" if job.network is None else f", network={job.network!r}"
        meter = "without a meter" if self.meter is None else "with a meter"
        data = f"{self.problem.name} {self.problem.fingerprint}"
        if self._own_targets:
            data += f" with targets {targets_digest(self._own_targets)}"
        return f"({network}) of {data} by Recipe({recipe}) with numerics {NUMERICS}, {meter}"


EXECUTION_SETTINGS = ("lr", "fused", "foreach", "capturable")  # of an optimizer: how it runs, not what it computes
# Attributes of `Training` that a checkpoint contains: plain ones, and those with a `state_dict`.
PLAIN_ATTRIBUTES = ("epoch", "steps", "seconds", "best_epoch", "best_loss", "best", "curve", "half_curve")
STATEFUL_ATTRIBUTES = ("network", "optimizer", "balancer", "scaler", "meter", "windows")


def save_checkpoint(path: Path, training: Training) -> None:
    """Writes a checkpoint atomically. If the process is killed, the previous checkpoint remains."""
    if not training.balancer.resumable:
        return
    state: dict[str, Any] = {"of": training.identity, **{name: getattr(training, name) for name in PLAIN_ATTRIBUTES}}
    parts = {name: getattr(training, name) for name in STATEFUL_ATTRIBUTES}
    state |= {name: part.state_dict() for name, part in parts.items() if part is not None}
    content = io.BytesIO()
    torch.save(state, content)
    write_atomic(path, add_checksum(content.getvalue()))


def load_checkpoint(path: Path, training: Training) -> None:
    """Restores a training run from a checkpoint. A damaged file is ignored with a warning.

    The file contains tensors and plain values only, so reading it does not execute any code.

    Raises:
        InvalidInput: If the checkpoint belongs to a different training run.
    """

    def restore_location(storage: Any, location: str) -> Any:
        # tensors saved from the CPU stay there: optimizers' step counters and the state of some rules
        wanted = location if location == "cpu" else str(training.device)
        return torch.serialization.default_restore_location(storage, wanted)

    try:
        content = io.BytesIO(remove_checksum(path.read_bytes()))
        state = torch.load(content, map_location=restore_location, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else "it contains more than tensors and plain values"
        damage_logger.warning("could not use %s (%s); training from scratch", path, reason)
        return
    identity = str(state.get("of")) if isinstance(state, dict) else type(state).__name__
    if identity != training.identity:
        raise InvalidInput(
            f"`checkpoint` {path}",
            f"must come from the same training job ({training.identity})",
            identity,
            "delete the file, or choose another one",
        )
    with report_damage(path, InvalidInput, "delete it"):
        for name in PLAIN_ATTRIBUTES:
            setattr(training, name, state[name])
        for name in STATEFUL_ATTRIBUTES:
            part = getattr(training, name)
            if part is not None:
                own = state[name]
                part.load_state_dict(_as_run_here(own, part) if name == "optimizer" else own)


def _as_run_here(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns an optimizer's saved state with the settings of this device instead of those of the one that saved it."""
    here = [{name: group.get(name) for name in EXECUTION_SETTINGS} for group in optimizer.param_groups]
    groups = [{**group, **own} for group, own in zip(saved["param_groups"], here, strict=True)]
    return {**saved, "param_groups": groups}


class StepMeter:
    """Computes the losses of each step with an `AffinityMeter`, without affecting training.

    Args:
        settings: the settings of the meter. With `"held_out": True`, the meter measures the losses on validation rows.
            These rows are drawn at random for each step, and the network is in evaluation mode.
        training: the training run to measure.
    """

    def __init__(self, settings: Mapping[str, Any], training: Training) -> None:
        given = dict(settings)
        self._held_out = bool(given.pop("held_out", False))
        self._training = training
        self._may_lack_labels = _may_lack_labels(training.rows)
        self._held_out_batch: tuple[int, tuple[Tensor, Sequence[Labels]]] | None = None
        self.meter = AffinityMeter(
            **{
                "shared": training.network.encoder,
                "optimizer": training.optimizer,
                "model": training.modules,
                "tasks": training.job.tasks,
                "scaler": training.scaler,
                "weights": training.balancer.weights,
                **given,
            }
        )

    def __call__(self, inputs: Tensor, labels: Sequence[Labels]) -> dict[str, Tensor]:
        """Returns the losses of this step, and takes a measurement if one is due."""
        training = self._training
        held_out = self._held_out_losses if self._held_out else None
        if not self._may_lack_labels:
            return self.meter(lambda: training.losses(inputs, labels), held_out)
        losses: dict[str, Tensor] = {}
        labeled: list[str] = []

        def losses_with_labels() -> dict[str, Tensor]:
            found = training.losses_and_counts(inputs, labels)
            if not losses:  # the first call, without a lookahead step
                losses.update({task: loss for task, (loss, _) in found.items()})
                labeled.extend(_labeled_tasks(found))
            return {task: found[task][0] for task in labeled}

        self.meter(losses_with_labels, held_out)
        return losses  # unlike the meter's result, this includes tasks without labels in this batch

    def affinity(self) -> Affinity:
        """Returns the measured affinity.

        Its settings include the overhead, i.e. the ratio of measuring time to training time.
        """
        affinity = self.meter.affinity()
        return replace(affinity, settings={**affinity.settings, "overhead": round(self.meter.overhead, 4)})

    def _held_out_losses(self) -> dict[str, Tensor]:
        training = self._training
        if self._held_out_batch is None or self._held_out_batch[0] != training.steps:
            draw = torch.Generator().manual_seed(derive_seed(training.job.seed, "held out", training.steps))
            rows = torch.randperm(len(training.val), generator=draw)[: training.recipe.batch_size]
            self._held_out_batch = training.steps, training.labeled_val.batch(rows)
        with evaluation_mode(training.network):
            found = training.losses_and_counts(*self._held_out_batch[1])
        return {task: found[task][0] for task in _labeled_tasks(found)}


def _may_lack_labels(rows: Rows) -> bool:
    """Returns whether labels may be missing. For rows that are read from files, this is always True."""
    return not isinstance(rows, Split) or any(not target.isfinite().all() for target in rows.targets.values())


def _labeled_tasks(found: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Returns the tasks with labels in a batch."""
    counts = torch.stack([labels for _, labels in found.values()]).tolist()
    return [task for task, count in zip(found, counts, strict=True) if count]
