"""Trains networks: one loop over epochs, for one network or for many at once.

From top to bottom:

- `train` and `train_many` are the doors. `train_many` trains networks together if they can be stacked (`make_chunks`).
- `Training` is the loop. In each epoch, it lets the networks take their optimizer steps, computes their validation
  losses, keeps the weights that are best so far, and decides who trains on.
- A `Step` holds the weights and takes the optimizer steps. There are two kinds: a `ModuleStep` trains one real module,
  and a `StackStep` many networks whose weights are stacked. Rows, losses, masks, seeds and scores are shared, so both
  give the same networks.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong._version import NUMERICS
from tagalong.errors import InvalidInput
from tagalong.files import checksum, damage_logger, open_atomic
from tagalong.measure import AffinityMeter
from tagalong.score import Score

from .chunks import make_chunks
from .early_stopping import halve_rows, stopping_flattery
from .fitted import fit
from .fitted_heads import FittedHeads
from .job import Diverged, Job, Trained, check_job
from .losses import Targets
from .module_step import ModuleStep
from .network import Network, count_multiplications
from .problem import Problem
from .randomness import borrowed_rng, derive_seed, reseed
from .rows import Split
from .scoring import UNKNOWN_SCORE
from .stack_step import StackStep

# Multiplications per step, which take one core about 2 ms. Below, a second core saves less than 1 ms per step if it is
# idle, and costs several if it is busy, since each operation waits for it.
ONE_THREAD_MULTIPLICATIONS = 2**26
logger = logging.getLogger(__name__)


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
    device, own_targets = torch.device(device), {} if targets is None else {job: targets}
    check_job(problem, job, device, targets)

    def report(training: Training) -> None:
        if progress is not None:
            progress(training.epoch)

    (trained,) = _train_together(problem, [job], device, own_targets, checkpoint, checkpoint_every, report, meter)
    if trained.diverged:
        raise _diverged([trained])
    return trained


def train_many(
    problem: Problem,
    jobs: Sequence[Job],
    *,
    device: torch.device | str = "cpu",
    targets: Mapping[Job, Targets] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Trained]:
    """Trains many networks with the same results as separate calls to `train`, but in a fraction of the time.

    Networks of the same kind and width are trained as one batched computation, each with its own early stopping.
    Networks with the same seed share batches, initial weights and dropout masks. Networks that cannot be batched (see
    `why_not_batched`) are trained one by one.

    Args:
        problem: the problem.
        jobs: the networks to train. Their tasks, seeds, rules, widths, learning rates, row weights and kinds may
            differ.
        device: the device to train on.
        targets: for some of the jobs, training targets that replace those of the problem, by task (see `train`).
        checkpoint: where to write checkpoints, for example "run/partial.pt". Networks that are trained together share a
            file, whose name ends with a digest of them. If it exists, their training resumes from it. The file is
            removed when their training ends.
        checkpoint_every: the minimum number of seconds between checkpoints.
        progress: called with the number of networks finished so far.

    Yields:
        Each trained network, once all networks that are trained together with it have finished. The order of the
        networks may differ from the order of the jobs.

    Raises:
        Diverged: If some networks never have a finite validation loss. Raised after all other networks have been
            yielded.

    Example:
        >>> from tagalong.learn import Recipe, Task
        >>> inputs = torch.rand(60, 3)
        >>> tasks = [Task("sum", kind="regression"), Task("above")]
        >>> targets = {"sum": inputs.sum(1), "above": (inputs[:, 0] > 0.5).float()}
        >>> problem = Problem.from_arrays(inputs, targets, tasks, recipe=Recipe(epochs=2))
        >>> jobs = [Job(("sum",)), Job(("above",)), Job(("sum", "above"))]
        >>> [(trained.job.tasks, trained.steps) for trained in train_many(problem, jobs)]
        [(('sum',), 2), (('above',), 2), (('sum', 'above'), 2)]
    """
    device, own_targets = torch.device(device), targets or {}
    for job in jobs:
        check_job(problem, job, device, own_targets.get(job))
    if unknown := [job for job in own_targets if job not in jobs]:
        raise InvalidInput("targets", "must be for the given jobs", repr(unknown[0]))

    def train_chunks() -> Iterator[Trained]:
        diverged: list[Trained] = []
        finished = 0

        def report(training: Training) -> None:
            if progress is not None:
                progress(finished + int((~training.running).sum()))

        waiting = list(make_chunks(problem, jobs, device, own_targets))
        while waiting:
            chunk = waiting.pop(0)
            try:
                networks = _train_together(
                    problem, chunk, device, own_targets, checkpoint, checkpoint_every, report, add_digest=True
                )
            except torch.OutOfMemoryError:
                if len(chunk) == 1:
                    raise
                networks = []
            if not networks:  # only now that the exception is gone, the memory of the failed attempt is free
                logger.warning("%d networks do not fit in memory at once; trying half as many", len(chunk))
                torch.cuda.empty_cache()
                waiting[:0] = [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
                continue
            finished += len(chunk)
            if progress is not None:
                progress(finished)
            diverged += [trained for trained in networks if trained.diverged]
            yield from (trained for trained in networks if not trained.diverged)
        if diverged:
            raise _diverged(diverged)

    return train_chunks()


def _train_together(
    problem: Problem,
    jobs: Sequence[Job],
    device: torch.device,
    targets: Mapping[Job, Targets],
    checkpoint: Path | None,
    checkpoint_every: float,
    report: Callable[[Training], None],
    meter: Mapping[str, Any] | None = None,
    *,
    add_digest: bool = False,
) -> list[Trained]:
    """Trains one network, or many as one computation, and returns them, including diverged ones.

    If `add_digest` is True, the name of the checkpoint ends with a digest of the networks.
    """
    own = problem.with_network(jobs[0].network).weighted(jobs[0].weighting)
    if isinstance(own.head, FittedHeads):
        return [fit(own, job) for job in jobs]
    with borrowed_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the losses of all tasks are NaN")  # which `Diverged` says
        training = Training(problem, jobs, device, targets, meter)
        if checkpoint is not None and add_digest:
            digest = derive_seed(0, training.identity)
            checkpoint = checkpoint.with_name(f"{checkpoint.stem}-{digest:x}{checkpoint.suffix}")
        training.run(report, checkpoint, checkpoint_every)
        networks = training.results()
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return networks


def _diverged(networks: Sequence[Trained]) -> Diverged:
    names = "; ".join(f"{', '.join(trained.job.tasks)} with seed {trained.job.seed}" for trained in networks)
    return Diverged(f"training diverged for {names}; lower `recipe.lr`", networks)


class Training:
    """The training of one network, or of many networks with the same rule and width.

    This seeds torch's global random number generators, which `train` and `train_many` restore.

    Args:
        problem: the problem.
        jobs: the networks to train.
        device: the device to train on.
        targets: the training targets that replace those of the problem, for some of the jobs.
        meter: see `train`. Requires a single job.

    Attributes:
        step: the networks, with their current weights.
        epoch: the number of finished epochs.
        epochs_run: the number of epochs of each network.
        best_epoch: the epoch whose weights are kept for each network, or -1.
        best_loss: the weighted sum of the validation losses in that epoch.
        curve: the validation losses after each epoch [networks, tasks, 3]: on all rows, and on each half of them.

    Example:
        >>> from tagalong.learn import Recipe
        >>> inputs = torch.rand(60, 3)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=Recipe(epochs=2))
        >>> with torch.random.fork_rng():
        ...     training = Training(problem, [Job(("sum",))])
        ...     training.run()
        >>> training.epoch, training.step.steps
        (2, 2)
    """

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        device: torch.device | str = "cpu",
        targets: Mapping[Job, Targets] | None = None,
        meter: Mapping[str, Any] | None = None,
    ) -> None:
        self.jobs, self.device, self.targets = list(jobs), torch.device(device), targets or {}
        self.problem = problem.with_network(jobs[0].network)
        self.tasks = [task for task in problem.tasks if any(task.name in job.tasks for job in jobs)]
        self.trains = np.array([[task.name in job.tasks for task in self.tasks] for job in jobs])
        self.step: Step
        weighted = self.problem.weighted(jobs[0].weighting)
        if len(jobs) == 1:
            self.step = ModuleStep(weighted, jobs[0], self.device, self.targets.get(jobs[0]), meter)
        else:
            self.step = StackStep(self.problem, jobs, self.tasks, self.trains, self.device, self.targets)
        self.epoch, self.seconds = 0, 0.0
        self.epochs_run, self.best_epoch = np.zeros(len(jobs), dtype=int), np.full(len(jobs), -1)
        self.best_loss = np.full(len(jobs), np.inf)
        self.curve: list[NDArray[np.float64]] = []

    def run(
        self,
        report: Callable[[Training], None] = lambda training: None,
        checkpoint: Path | None = None,
        checkpoint_every: float = 0.0,
    ) -> None:
        """Trains until all networks have stopped, and calls `report` after each epoch. See `train` for the rest."""
        if checkpoint is not None:
            self._resume(checkpoint)
        saved = time.monotonic()
        with self._suitable_threads():
            while self.running.any():
                self.run_epoch()
                is_due = self.step.is_resumable and time.monotonic() - saved >= checkpoint_every
                if checkpoint is not None and is_due:
                    with open_atomic(checkpoint) as file:
                        torch.save({"of": self.identity, **self.state_dict()}, file)
                    saved = time.monotonic()
                report(self)

    def _resume(self, checkpoint: Path) -> None:
        """Restores a checkpoint, if there is one. If it is damaged, training starts again, with a warning."""
        try:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            return
        except Exception as error:  # torch may raise anything for a file that is not its own
            reason = str(error).partition("\n")[0]
            damage_logger.warning("could not use %s (%s); training from scratch", checkpoint, reason)
            return
        if state["of"] != self.identity:
            expected = f"must come from the same training ({self.identity})"
            raise InvalidInput(f"`checkpoint` {checkpoint}", expected, state["of"], "delete it")
        self.load_state_dict(state)

    @property
    def running(self) -> NDArray[np.bool_]:
        """Whether each network trains on: it has neither reached the last epoch or rate, nor run out of patience."""
        recipe = self.problem.recipe
        if self.epoch == 0:
            return np.ones(len(self.jobs), dtype=bool)
        if self.epoch >= recipe.epochs:
            return np.zeros(len(self.jobs), dtype=bool)
        running = (self.epochs_run == self.epoch) & (self.step.rates(self.epoch) >= recipe.lowest_lr)
        if recipe.patience is not None:
            running &= self.epoch - 1 - self.best_epoch < recipe.patience
        return np.asarray(running)

    def run_epoch(self) -> None:
        """Takes the steps of an epoch, computes the validation losses, and keeps the weights that are best so far."""
        start = time.perf_counter()
        running, recipe = self.running, self.problem.recipe
        reseed(derive_seed(self.jobs[0].seed, "epoch", self.epoch))  # for layers that are not known to be random
        self.step.train_epoch(self.epoch, running)

        # The weighted sum of the validation losses decides whether the weights are the best so far.
        losses = self.step.validate()
        self.curve.append(losses)
        weights = np.array([task.weight for task in self.tasks])
        total = np.where(self.trains, weights * losses[..., 0], 0).sum(1)
        is_better = total < self.best_loss
        if recipe.keep == "last":
            is_better = np.isfinite(total) & (self.epoch + 1 == recipe.epochs)
        better = np.flatnonzero(running & is_better)
        if len(better):
            self.best_epoch[better], self.best_loss[better] = self.epoch, total[better]
            self.step.keep(better)

        self.epochs_run[running] += 1
        self.epoch += 1
        self.seconds += time.perf_counter() - start

    def results(self) -> list[Trained]:
        """Returns the networks with the kept weights, and their validation and test scores."""
        learned = self.trains & (self.best_epoch >= 0)[:, None]
        val, test, states = self.step.scores("val", learned), self.step.scores("test", learned), self.step.states()
        affinity = None
        if self.step.meter is not None and learned.any():
            affinity = self.step.meter.affinity()
            overhead = round(self.step.meter.overhead, 4)  # seconds spent measuring per second of training
            affinity = replace(affinity, settings={**affinity.settings, "overhead": overhead})
        curve = np.stack(self.curve, 1)  # [networks, epochs, tasks, 3]
        steps = self.epochs_run * (self.step.steps // self.epoch)
        seconds = self.seconds * steps / steps.sum()
        networks = []
        for number, job in enumerate(self.jobs):
            diverged = bool(self.best_epoch[number] < 0)
            own_curve = curve[number, : self.epochs_run[number]][:, self.trains[number]]
            flattery = dict.fromkeys(job.tasks, 0.0)
            if self.problem.recipe.keep == "best":  # otherwise, validation rows choose nothing
                weights = [self.problem.task(name).weight for name in job.tasks]
                by_task = stopping_flattery(own_curve[..., 1:], weights).tolist()
                flattery = dict(zip(job.tasks, by_task, strict=True))
            val_scores = {task: val[number].get(task, UNKNOWN_SCORE) for task in job.tasks}
            trained = Trained(
                job,
                val=val_scores,
                test={task: test[number].get(task, UNKNOWN_SCORE) for task in job.tasks},
                curve=own_curve[..., 0],
                best_epoch=int(self.best_epoch[number]),
                steps=int(steps[number]),
                seconds=float(seconds[number]),
                parameters=self.step.network.count_parameters(job.tasks),
                state=None if diverged else states[number],
                affinity=affinity,
                flattery={} if diverged else flattery,
                halves=halve_rows({task: score.rows for task, score in val_scores.items()}, self.problem.val.groups),
            )
            networks.append(trained)
        return networks

    @property
    def identity(self) -> str:
        """A string that identifies the training in checkpoints."""
        networks = []
        for job in self.jobs:
            fingerprint, recipe = self.problem.weighted(job.weighting).fingerprint, job.adapt(self.problem.recipe)
            digest = tensors_digest(self.targets[job]) if self.targets.get(job) else None
            networks.append(f"{job!r} with {recipe} on {fingerprint} with targets {digest}")
        meter = "without a meter" if self.step.meter is None else "with a meter"
        return f"{'; '.join(networks)} of {self.problem.name}, numerics {NUMERICS}, {meter}"

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that changes during training, as tensors and plain values only."""
        curve = torch.from_numpy(np.array(self.curve))
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in ("epochs_run", "best_epoch", "best_loss")}
        return {"epoch": self.epoch, "seconds": self.seconds, "curve": curve, **arrays, "step": self.step.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state."""
        self.step.load_state_dict(state["step"])
        self.epoch, self.seconds, self.curve = state["epoch"], state["seconds"], list(state["curve"].numpy())
        for name in ("epochs_run", "best_epoch", "best_loss"):
            setattr(self, name, state[name].numpy())

    @contextmanager
    def _suitable_threads(self) -> Iterator[None]:
        """Trains small networks with one thread: the others would take longer to start than to compute their share."""
        threads, recipe = torch.get_num_threads(), self.problem.recipe
        if self.device.type == "cpu" and threads > 1 and isinstance(self.problem.train, Split):
            forward = count_multiplications(self.step.network, self.problem.train.inputs[:2]) / 2
            per_step = 3 * forward * recipe.batch_size * len(self.jobs)  # the backward pass takes twice as many
            used = 1 if per_step < ONE_THREAD_MULTIPLICATIONS else threads
            logger.info("training with %d of %d threads: %.1e multiplications per step", used, threads, per_step)
            torch.set_num_threads(used)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a string that identifies named tensors by their contents."""
    contents = b""
    for name, tensor in sorted(tensors.items()):
        contents += f"{name!r} {tuple(tensor.shape)}".encode() + tensor.detach().cpu().double().numpy().tobytes()
    return checksum(contents)[:16]


class Step(Protocol):
    """Optimizer steps of one network (`ModuleStep`) or of many (`StackStep`), whose weights it holds.

    Attributes:
        network: the network, or one whose layers all networks use.
        steps: the number of steps so far.
        meter: measures affinities, or None.
        is_resumable: whether training can continue from `state_dict`.
    """

    network: Network
    steps: int
    meter: AffinityMeter | None
    is_resumable: bool

    def rates(self, epoch: int) -> NDArray[np.float64]:
        """Returns the learning rate of the next step of each network, in this epoch."""

    def train_epoch(self, epoch: int, running: NDArray[np.bool_]) -> None:
        """Takes a step on each batch of an epoch. The steps of networks that are not running may be spared.

        Networks with the same seed visit the rows in the same order, see `batches`.
        """

    def validate(self) -> NDArray[np.float64]:
        """Returns the mean validation losses on all rows and on each half of them [networks, tasks, 3]."""

    def keep(self, networks: NDArray[np.intp]) -> None:
        """Keeps the current weights of these networks as their best."""

    def scores(self, part: str, learned: NDArray[np.bool_]) -> list[dict[str, Score]]:
        """Returns the scores of the kept weights on the rows of a split, for the tasks that each network learned."""

    def states(self) -> list[dict[str, Tensor]]:
        """Returns the kept weights and buffers of each network."""

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that changes during training, as tensors and plain values only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state."""
