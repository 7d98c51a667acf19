"""Steps of one network: with any balancing rule, schedule, precision and rows, and with a meter."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.measure import AffinityMeter
from tagalong.score import Score

from .balance import make_balancer
from .captured_step import CapturedStep, why_not_captured
from .job import Job
from .losses import LabeledBatch, LabeledRows, Losses
from .network import build_network, evaluation_mode, join_layers
from .own_targets import Targets, replace_targets
from .problem import Problem
from .randomness import derive_seed
from .recipe import LossWindows, adapt_optimizer_state, set_rate
from .rows import Rows, Split
from .scoring import scores_on
from .tabm import MemberHead

logger = logging.getLogger(__name__)
STATEFUL_PARTS = ("network", "optimizer", "balancer", "scaler", "meter", "windows")


class ModuleStep:
    """Takes the steps of one network, see `Step`.

    Args:
        problem: the problem, with the job's network.
        job: the network to train.
        device: the device to train on.
        targets: the training targets that replace those of the problem.
        meter: the settings of an `AffinityMeter`, which may include "held_out", see `train`.

    Attributes:
        network: the network with its current weights.
        rows: the training rows, with the targets of the job's tasks.
        val: the validation rows.
        optimizer: the optimizer.
        meter: the meter, or None.
    """

    def __init__(
        self,
        problem: Problem,
        job: Job,
        device: torch.device,
        targets: Targets | None = None,
        meter: Mapping[str, Any] | None = None,
    ) -> None:
        self.problem, self.job, self.device = problem, job, device
        self.recipe, self.seeds, self.steps = job.adapt(problem.recipe), [job.seed], 0
        self.tasks = [problem.task(name) for name in job.tasks]
        self.trains = np.ones((1, len(self.tasks)), dtype=bool)
        self.network = build_network(problem, job.tasks, job.seed, job.width).to(device)
        train = replace_targets(problem.train.only(job.tasks).to(device), targets)
        val = problem.val.only(job.tasks).to(device)
        self.losses = Losses(self.tasks, self.network, val)
        self.rows, self.val = LabeledRows(train, self.losses), LabeledRows(val, self.losses)
        self.balancer = make_balancer(job.rule, self.network, self.tasks)
        self.is_resumable = self.balancer.resumable
        self.scaler = torch.amp.GradScaler(device.type) if self.recipe.amp == "fp16" else None
        self.windows = LossWindows(self.recipe) if self.recipe.schedule == "windows" else None
        self._best: dict[str, Tensor] = {}

        # Heads are trained as one layer if possible, which is faster but leaves them without gradients of their own.
        self._joined_heads: nn.Module | None = None
        self.modules: list[nn.Module] = [self.network]
        if job.rule == "plain" and not self.losses.separate and self.network.head_type in (nn.Linear, MemberHead):
            heads = dict(zip(self.network.tasks, self.network.heads, strict=True))
            self._joined_heads = copy.deepcopy(self.network.heads[0])
            outputs_dim = 0 if self.network.head_type is nn.Linear else -1
            join_layers([heads[task.name] for task in self.losses.tasks], self._joined_heads, outputs_dim)
            self.modules = [self.network.encoder, self._joined_heads]

        # With a meter, steps are not captured, but the optimizer is the same, so that the meter leaves no trace.
        reason = self._why_not_captured(isinstance(train, Split))
        self.optimizer = self.recipe.make_optimizer(
            [parameter for module in self.modules for parameter in module.parameters()],
            self.balancer.parameters(),
            fused=reason is None or device.type == "cpu" or None,
            capturable=reason is None,
        )
        self._captured_step: CapturedStep | None = None
        if reason is None and meter is None:
            self._captured_step = CapturedStep(self._minimize_on, self._seed_step)
        elif device.type == "cuda":
            logger.info("training %s without CUDA graphs: %s", ", ".join(job.tasks), reason or "there is a meter")
        self._step_meter = None if meter is None else StepMeter(meter, self, train)
        self.meter = None if self._step_meter is None else self._step_meter.meter

    def _why_not_captured(self, in_memory: bool) -> str | None:
        """Returns why steps cannot be replayed as CUDA graphs, or None if they can."""
        if self.device.type != "cuda":
            return "CUDA graphs need a GPU"
        if self.job.rule != "plain" or self.windows is not None or self.scaler is not None:
            return "the rule, the schedule or amp='fp16' reads values back from the GPU"
        if self._joined_heads is None or not in_memory:
            return "a task has a head, loss or dense targets of its own, or rows are read from files"
        return why_not_captured(self.network)

    def rate(self, epoch: int) -> float:
        """Returns the learning rate of the next step, in this epoch."""
        return self.recipe.rate(epoch) if self.windows is None else self.windows.rate

    def train_epoch(self, epoch: int, parts: Sequence[Sequence[Tensor]]) -> None:
        (batches,) = parts
        if self._captured_step is not None:
            set_rate(self.optimizer, self.rate(epoch))
            for rows in torch.cat(list(batches)).to(self.device).split([len(batch) for batch in batches]):
                self._captured_step(rows)
                self.steps += 1
            return
        for batch in self.rows.batches(batches, (self.job.seed, epoch)):
            set_rate(self.optimizer, self.rate(epoch))
            loss = self.minimize(batch)
            self.steps += 1
            if self.windows is not None:
                self.windows.add_loss(loss, epoch)

    def minimize(self, batch: LabeledBatch) -> float:
        """Takes a step, and measures affinities if there is a meter. Returns the loss if the learning rate needs it."""
        self.optimizer.zero_grad()
        loss = 0.0
        if self.job.rule == "plain" and self._step_meter is None and self.windows is None:
            self.network.at_step(self.steps)
            with self.recipe.precision(self.device):
                means, _ = self.losses.means(self._outputs(batch.inputs), batch)
                total = (means * self.losses.weights).sum()
            (total if self.scaler is None else self.scaler.scale(total)).backward()
        else:
            compute = self.task_losses if self._step_meter is None else self._step_meter
            losses = compute(batch)
            self.balancer.backward(losses, self.scaler)
            if self.windows is not None:
                loss = sum(task.weight * float(losses[task.name].detach()) for task in self.tasks)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def _minimize_on(self, rows: Tensor) -> None:
        self.minimize(self.rows.batch(rows))

    def _seed_step(self) -> Sequence[torch.Generator]:
        self.network.at_step(self.steps).reseed_part("encoder")
        return ()

    def _outputs(self, inputs: Tensor) -> Sequence[Tensor]:
        # In evaluation mode, members of one head are averaged, depending on the kind of the task.
        if self._joined_heads is None or not (self.network.training or isinstance(self._joined_heads, nn.Linear)):
            return self.losses.join(self.network(inputs))
        return torch.split(self._joined_heads(self.network.encode(inputs)), self.losses.sizes, 1)

    def task_losses(self, batch: LabeledBatch) -> dict[str, Tensor]:
        """Returns the mean loss of each task on these rows, with the dropout masks of this step."""
        return {task: loss for task, (loss, _) in self.labeled_losses(batch).items()}

    def labeled_losses(self, batch: LabeledBatch) -> dict[str, tuple[Tensor, Tensor]]:
        """Returns the same, with whether there are any labels."""
        self.network.at_step(self.steps)
        with self.recipe.precision(self.device):
            means, labeled = self.losses.means(self._outputs(batch.inputs), batch)
        places = self.losses.places
        return {name: (means[place], labeled[place]) for name, place in zip(self.job.tasks, places, strict=True)}

    def validate(self) -> NDArray[np.float64]:
        with evaluation_mode(self.network):
            return self.val.mean_losses(self._outputs)[None]

    def drop(self, running: NDArray[np.bool_]) -> None:
        pass  # there are no other networks

    def keep(self, networks: NDArray[np.intp]) -> None:
        state = self.network.state_dict()
        if not self._best:
            self._best = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        torch._foreach_copy_(list(self._best.values()), list(state.values()))

    def scores(self, part: str, learned: NDArray[np.bool_]) -> list[dict[str, Score]]:
        if not learned.any():
            return [{}]
        self.network.load_state_dict(self._best)
        return [scores_on(self.problem, self.network, self.problem.splits[part].only(self.job.tasks).to(self.device))]

    def states(self) -> list[dict[str, Tensor]]:
        return [{name: tensor.cpu() for name, tensor in self._best.items()}]

    def count_parameters(self) -> list[int]:
        return [sum(parameter.numel() for parameter in self.network.parameters())]

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in STATEFUL_PARTS}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {"steps": self.steps, "best": self._best, **states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self._best = state["steps"], state["best"]
        for name in STATEFUL_PARTS:
            part = getattr(self, name)
            if part is not None:
                part.load_state_dict(adapt_optimizer_state(state[name], part) if name == "optimizer" else state[name])


class StepMeter:
    """Computes the losses of each step with an `AffinityMeter`, without affecting training.

    Args:
        settings: the settings of the meter. With `"held_out": True`, the meter measures the losses on validation rows.
            These rows are drawn at random for each step, and the network is in evaluation mode.
        step: the steps to measure.
        rows: the training rows.
    """

    def __init__(self, settings: Mapping[str, Any], step: ModuleStep, rows: Rows) -> None:
        own = dict(settings)
        self._held_out = bool(own.pop("held_out", False))
        self._step = step
        targets = rows.targets.values() if isinstance(rows, Split) else ()
        are_complete = bool(targets) and all(target.isfinite().all() for target in targets)
        self._may_lack_labels = not are_complete or rows.weights is not None
        self._held_out_batch: tuple[int, LabeledBatch] | None = None
        defaults = {
            "shared": step.network.encoder,
            "optimizer": step.optimizer,
            "model": step.modules,
            "tasks": step.job.tasks,
            "scaler": step.scaler,
            "weights": step.balancer.weights,
        }
        self.meter = AffinityMeter(**{**defaults, **own})

    def __call__(self, batch: LabeledBatch) -> dict[str, Tensor]:
        """Returns the losses of this step, and takes a measurement if one is due."""
        step = self._step
        held_out = self._held_out_losses if self._held_out else None
        if not self._may_lack_labels:
            return self.meter(lambda: step.task_losses(batch), held_out)
        losses: dict[str, Tensor] = {}
        labeled: list[str] = []

        def losses_with_labels() -> dict[str, Tensor]:
            pairs = step.labeled_losses(batch)
            if not losses:  # the first call, without a lookahead step
                losses.update({task: loss for task, (loss, _) in pairs.items()})
                labeled.extend(_labeled_tasks(pairs))
            return {task: pairs[task][0] for task in labeled}

        self.meter(losses_with_labels, held_out)
        return losses  # unlike the meter's result, this includes tasks without labels in this batch

    def _held_out_losses(self) -> dict[str, Tensor]:
        step = self._step
        if self._held_out_batch is None or self._held_out_batch[0] != step.steps:
            draw = torch.Generator().manual_seed(derive_seed(step.job.seed, "held out", step.steps))
            rows = torch.randperm(len(step.problem.val), generator=draw)[: step.recipe.batch_size]
            self._held_out_batch = step.steps, step.val.batch(rows)
        with evaluation_mode(step.network):
            pairs = step.labeled_losses(self._held_out_batch[1])
        return {task: pairs[task][0] for task in _labeled_tasks(pairs)}


def _labeled_tasks(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Returns the tasks with labels in a batch."""
    labeled = torch.stack([is_labeled for _, is_labeled in pairs.values()]).tolist()
    return list(compress(pairs, labeled))
