"""`Job`, a network to train, and `Trained`, its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Taught
from tagalong.score import Score

from .classical import FITTED
from .losses import Targets
from .problem import Problem
from .recipe import Recipe
from .rows import require_in_memory


@dataclass(frozen=True)
class Job:
    """A training job. The job and the problem together determine the result.

    Attributes:
        tasks: the names of the tasks, in the problem's order.
        seed: the seed for the row order, the initial weights and the dropout masks. Always 0 for networks that are
            fitted, i.e. boosting and ridge.
        rule: the rule that combines the losses: "plain", "uw", "gradnorm", "pcgrad", or the name of another rule.
        width: the width of the encoder, as a multiple of its default width.
        lr: the initial learning rate, to which the recipe's schedule applies. If None, the recipe's rate is used.
        taught: the networks whose answers the network learns from, or None. Their answers are passed as `targets` (see
            `prepare_students`).
        network: the name of another network than the problem's own (see `Problem.alternatives`), or None.
        weighting: the name of other row weights than the problem's own (see `Problem.weightings`), or None.
    """

    tasks: tuple[str, ...]
    seed: int = 0
    rule: str = "plain"
    width: float = 1.0
    lr: float | None = None
    taught: Taught | None = None
    network: str | None = None
    weighting: str | None = None

    def __post_init__(self) -> None:
        if self.network in FITTED:  # nothing in it is random, so it is fitted once for all seeds
            object.__setattr__(self, "seed", 0)

    def adapt(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with this job's learning rate."""
        return recipe if self.lr is None else replace(recipe, lr=self.lr)


@dataclass(frozen=True)
class Trained:
    """A trained network. In a store, it is a row.

    Attributes:
        job: the job that was run.
        val: the validation score of each task, with the kept weights.
        test: the test score of each task, with the kept weights.
        steps: the number of optimizer steps.
        seconds: the training time in seconds. If several networks were trained together, the time is divided among
            them.
        parameters: the number of parameters of the encoder and heads, or 0 if unknown.
        best_epoch: the epoch whose weights are kept, counting from 0. If training diverged, this is -1, the scores are
            NaN and there are no weights.
        curve: the validation losses [epochs, tasks], in the order of `job.tasks`. Empty if unknown.
        state: the kept weights and buffers as a `Network.state_dict`, or None if they were not kept.
        affinity: the measured affinity, if there was a meter.
        flattery: for each task, an estimate of how much too low its validation loss is because the validation rows
            also chose the epoch (see `stopping_flattery`). Empty if unknown.
        halves: each task's loss on each half of the validation rows (see `halve_rows`). Empty if unknown.
        key: the key in a store, or an empty string if there is none.

    Arrays do not count in comparisons.
    """

    job: Job
    val: Mapping[str, Score]
    test: Mapping[str, Score]
    steps: int
    seconds: float
    parameters: int
    best_epoch: int = 0
    curve: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)
    state: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    affinity: Affinity | None = field(default=None, repr=False, compare=False)
    flattery: Mapping[str, float] = field(default_factory=dict)
    halves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    key: str = ""

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


def check_job(problem: Problem, job: Job, device: torch.device, targets: Targets | None = None) -> None:
    """Raises an error if a job cannot run for this problem on this device, with targets of its own or without."""
    if not job.tasks or job.tasks != tuple(name for name in problem.names if name in job.tasks):
        expected = f"must be some of {', '.join(map(repr, problem.names))}, in this order"
        raise InvalidInput("`job.tasks`", expected, repr(job.tasks))
    problem.with_network(job.network).weighted(job.weighting)  # which raise errors for unknown names
    job.adapt(problem.recipe)  # which raises an error for an invalid learning rate
    if not job.width > 0:
        raise InvalidInput("`job.width`", "must be a positive number", repr(job.width))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("", "CUDA is not available", hint="use `device='cpu'`")
    if problem.recipe.amp == "fp16" and device.type == "cpu":
        raise InvalidInput("`recipe.amp`", "must be 'bf16' or None on a CPU", "'fp16'")
    if job.taught is not None and targets is None:
        hint = "use `teach`, or the problem and targets of `prepare_students`"
        raise InvalidInput("targets", "are required to train a network that is taught", "None", hint)
    _check_targets(problem, job.tasks, targets or {})


def _check_targets(problem: Problem, tasks: Sequence[str], targets: Targets) -> None:
    """Raises an error if these targets cannot replace the training targets of a network with these tasks."""
    for name, target in targets.items():
        if name not in tasks:
            raise InvalidInput("targets", f"must be for tasks of the network, which are {', '.join(tasks)}", repr(name))
        task, argument = problem.task(name), f"`targets[{name!r}]`"
        labels = require_in_memory(problem.train, "training with other targets").targets[name]
        shapes = [list(labels.shape)]
        has_classes = task.kind == "multiclass" if task.loss is None else task.averaging == "softmax"
        if has_classes and labels.dim() == 1:
            shapes.append([len(labels), task.head_size])  # probabilities
        if list(target.shape) not in shapes or not target.is_floating_point():
            expected = f"must be a floating-point tensor of shape {' or '.join(map(str, shapes))}"
            raise InvalidInput(argument, expected, f"{target.dtype} of shape {list(target.shape)}")
        if task.loss is None and (task.kind == "binary" or target.dim() > labels.dim()):
            probabilities = target[target.isfinite()]
            if ((probabilities < 0) | (probabilities > 1)).any():
                raise InvalidInput(argument, "must be probabilities between 0 and 1, or NaN", "others")
