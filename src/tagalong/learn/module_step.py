"""Steps of one network: with any balancing rule, schedule, precision and rows, and with a meter."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.measure import AffinityMeter
from tagalong.score import Score

from .balance import make_balancer
from .captured_step import CapturedStep, can_be_captured
from .job import Job
from .losses import LabeledBatch, LabeledRows, Losses, Targets
from .network import build_network, evaluation_mode, join_layers
from .problem import Problem
from .randomness import batches, derive_seed
from .recipe import LossWindows, adapt_optimizer_state, set_rate
from .rows import Split
from .scoring import average_scores_on
from .tabm import MemberHead

# What changes during training, besides the number of steps and the best weights
STATEFUL_PARTS = ("network", "optimizer", "balancer", "scaler", "meter", "windows")


class ModuleStep:
    """Takes the steps of one network, see `Step`.

    Args:
        problem: the problem, with the job's network and row weights.
        job: the network to train.
        device: the device to train on.
        targets: the training targets that replace those of the problem.
        meter: the settings of an `AffinityMeter`, which may include "held_out", see `train`.

    Attributes:
        network: the network with its current weights.
        modules: the modules whose parameters are trained.
        rows: the training rows, with the targets of the job's tasks.
        val: the validation rows.
        optimizer: the optimizer.
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
        self.recipe, self.steps = job.adapt(problem.recipe), 0
        self.tasks = [problem.task(name) for name in job.tasks]
        self.network = build_network(problem, job.tasks, job.seed, job.width).to(device)
        train = problem.train.only(job.tasks).to(device)
        val = problem.val.only(job.tasks).to(device)
        self.losses = Losses(self.tasks, self.network, val)
        self.rows, self.val = LabeledRows(train, self.losses, [targets or {}]), LabeledRows(val, self.losses)
        self.balancer = make_balancer(job.rule, self.network, self.tasks)
        self.is_resumable = self.balancer.resumable
        self.windows = LossWindows(self.recipe) if self.recipe.schedule == "windows" else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.recipe.amp == "fp16")
        self._one = torch.ones((), device=device)
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

        # On a GPU, steps are replayed as CUDA graphs if they read no values back from it.
        is_static = self._joined_heads is not None and isinstance(train, Split)
        is_static &= self.windows is None and not self.scaler.is_enabled()
        is_captured = device.type == "cuda" and is_static and can_be_captured(self.network)
        # With a meter, steps are not captured, but the optimizer is the same, so that the meter leaves no trace.
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self.optimizer = self.recipe.make_optimizer(parameters, self.balancer.parameters(), captured=is_captured)
        self._captured_step: CapturedStep | None = None
        if is_captured and meter is None:
            self._captured_step = CapturedStep(lambda rows: self.minimize(self.rows.batch(rows)), self._seed_step)
        self.meter: AffinityMeter | None = None
        if meter is not None:
            defaults = {
                "shared": self.network.encoder,
                "optimizer": self.optimizer,
                "model": self.modules,
                "tasks": job.tasks,
                "scaler": self.scaler,
                "weights": self.balancer.weights,
            }
            settings = {**defaults, **meter}
            self._is_held_out = bool(settings.pop("held_out", False))
            self.meter = AffinityMeter(**settings)

    def rates(self, epoch: int) -> NDArray[np.float64]:
        return np.array([self.recipe.rate(epoch) if self.windows is None else self.windows.rate])

    def train_epoch(self, epoch: int, running: NDArray[np.bool_]) -> None:
        parts = batches(self.job.seed, epoch, len(self.problem.train), self.recipe.batch_size)
        set_rate(self.optimizer, float(self.rates(epoch)[0]))
        if self._captured_step is not None:
            for rows in torch.cat(parts).to(self.device).split([len(part) for part in parts]):
                self._captured_step(rows)
                self.steps += 1
            return
        for batch in self.rows.batches(parts, (self.job.seed, epoch)):
            losses = self.minimize(batch)
            self.steps += 1
            if self.windows is not None:
                self.windows.add_loss(float((losses.double() * self.balancer.task_weights).sum()), epoch)
                set_rate(self.optimizer, self.windows.rate)

    def minimize(self, batch: LabeledBatch) -> Tensor:
        """Takes a step, and a measurement if one is due. Returns the loss of each task [tasks] before the step."""
        self.optimizer.zero_grad()
        losses = self.task_losses(batch)[0] if self.meter is None else self._measured_losses(batch, self.meter)
        self.balancer.backward(losses, self.scaler.scale(self._one))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return losses.detach()

    def task_losses(self, batch: LabeledBatch) -> tuple[Tensor, Tensor | None]:
        """Returns each task's mean loss, with the dropout masks of this step, and how much its labels count [tasks]."""
        self.network.at_step(self.steps)
        with self.recipe.precision(self.device):
            losses, counts = self.losses.means(self._outputs(batch.inputs), batch)
        return losses.squeeze(0), None if counts is None else counts.squeeze(0)

    def _outputs(self, inputs: Tensor) -> Sequence[Tensor]:
        # In evaluation mode, members of one head are averaged, depending on the kind of the task.
        if self._joined_heads is None or not (self.network.training or isinstance(self._joined_heads, nn.Linear)):
            return self.losses.join(self.network(inputs))
        outputs = self._joined_heads(self.network.encode(inputs)).unsqueeze(0)
        return self.losses.split(outputs)

    def _measured_losses(self, batch: LabeledBatch, meter: AffinityMeter) -> Tensor:
        """Returns the loss of each task [tasks], after a measurement if one is due.

        Tasks without labels in the batch are not measured. On validation rows, which are drawn at random for each step,
        the network is in evaluation mode.
        """
        before: list[Tensor] = []

        def training_losses() -> dict[str, Tensor]:
            losses, counts = self.task_losses(batch)
            if not before:  # the first call, without a lookahead step
                before.append(losses)
            return self._labeled(losses, counts)

        @cache
        def held_out_batch() -> LabeledBatch:
            draw = torch.Generator().manual_seed(derive_seed(self.job.seed, "held out", self.steps))
            return self.val.batch(torch.randperm(len(self.problem.val), generator=draw)[: self.recipe.batch_size])

        def held_out_losses() -> dict[str, Tensor]:
            with evaluation_mode(self.network):
                return self._labeled(*self.task_losses(held_out_batch()))

        meter(training_losses, held_out_losses if self._is_held_out else None)
        return before[0]

    def _labeled(self, losses: Tensor, counts: Tensor | None) -> dict[str, Tensor]:
        pairs = zip(self.job.tasks, losses, strict=True)
        return dict(pairs if counts is None else compress(pairs, counts.tolist()))

    def _seed_step(self) -> Sequence[torch.Generator]:
        self.network.at_step(self.steps).reseed_part("encoder")
        return ()

    def validate(self) -> NDArray[np.float64]:
        with evaluation_mode(self.network):
            return self.val.mean_losses(self._outputs)

    def keep(self, networks: NDArray[np.intp]) -> None:
        self._best = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}

    def scores(self, part: str, learned: NDArray[np.bool_]) -> list[dict[str, Score]]:
        if not learned.any():
            return [{}]
        self.network.load_state_dict(self._best)
        rows = self.problem.splits[part].only(self.job.tasks).to(self.device)
        return [average_scores_on(self.problem, [self.network], rows)]

    def states(self) -> list[dict[str, Tensor]]:
        return [{name: tensor.cpu() for name, tensor in self._best.items()}]

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in STATEFUL_PARTS}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {"steps": self.steps, "best": self._best, **states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self._best = state["steps"], state["best"]
        states = {**state, "optimizer": adapt_optimizer_state(state["optimizer"], self.optimizer)}
        for name in STATEFUL_PARTS:
            if name in states:
                getattr(self, name).load_state_dict(states[name])
