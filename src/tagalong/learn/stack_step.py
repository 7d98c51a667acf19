"""Steps of many networks at once, whose weights are stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.measure import AffinityMeter
from tagalong.score import Score

from .captured_step import WARM_UP_STEPS, CapturedStep, can_be_captured
from .job import Job
from .losses import LabeledRows, Losses, Targets
from .network import build_network
from .problem import Problem
from .randomness import batches
from .recipe import adapt_optimizer_state, set_rate
from .rows import require_in_memory
from .scoring import scores_of_outputs
from .stacking import Stack
from .task import Task

OPERATION = "training many networks together"  # what needs rows in memory, for messages
DROP_FRACTION = 0.25  # drop stopped networks once they make up this fraction of the stack
GPU_DROP_FRACTION = 0.5  # on a GPU, a smaller stack must be captured again
MAX_FREE_VALUES = 2**23  # a GPU takes no longer for this many input values per step than for those of one small network


class StackStep:
    """Takes the steps of many networks, see `Step`. Stopped networks are dropped from the stack from time to time.

    Args:
        problem: the problem, with the jobs' network.
        jobs: the networks to train, with the same rule and width.
        tasks: the tasks that any of the jobs trains.
        trains: whether each job trains each of these tasks [jobs, tasks].
        device: the device to train on.
        targets: the training targets that replace those of the problem, for some of the jobs.

    Attributes:
        network: the network whose layers are used, see `Stack`.
        stack: the networks that are trained, seed by seed.
        job_of_row: the index of the job of each network of the stack.
    """

    is_resumable = True
    meter: AffinityMeter | None = None  # only networks that are trained alone are measured

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        tasks: Sequence[Task],
        trains: NDArray[np.bool_],
        device: torch.device,
        targets: Mapping[Job, Targets],
    ) -> None:
        self.problem, self.jobs, self.device, self.steps = problem, jobs, device, 0
        self.tasks, self.trains = tasks, trains
        names = [task.name for task in tasks]
        self._recipes = [job.adapt(problem.recipe) for job in jobs]
        self._own_targets = [targets.get(job, {}) for job in jobs]
        self._problems = [problem.weighted(job.weighting) for job in jobs]
        self._train_rows = require_in_memory(problem.train, OPERATION).only(names).to(device)
        self._val_rows = require_in_memory(problem.val, OPERATION).only(names).to(device)

        # Networks with the same seed and row weights start equal: heads may start at the base rates of weighted rows.
        starts = [(job.seed, weighted) for job, weighted in zip(jobs, self._problems, strict=True)]
        distinct = list(dict.fromkeys(starts))
        networks = [build_network(weighted, names, seed, jobs[0].width).to(device) for seed, weighted in distinct]
        origins = np.array([distinct.index(start) for start in starts])
        self.job_of_row = self._arrange(range(len(jobs)))
        self.stack, self._best = Stack(networks, origins[self.job_of_row]), Stack(networks, origins)
        self.network = self.stack.network
        self._prepare()

    def _arrange(self, jobs: Iterable[int]) -> NDArray[np.intp]:
        """Returns the jobs seed by seed. Repeats jobs of some seeds, so that there are equally many of each seed."""
        by_seed: dict[int, list[int]] = {}
        for job in jobs:
            by_seed.setdefault(self.jobs[job].seed, []).append(job)
        most = max(map(len, by_seed.values()))
        return np.concatenate([np.resize(own, most) for own in by_seed.values()])

    def _prepare(self) -> None:
        """Prepares the losses, labels, learning rates and optimizer for the networks that are in the stack."""
        self.losses = Losses(self.tasks, self.network, self._val_rows, self.trains[self.job_of_row])
        problems = [self._problems[job] for job in self.job_of_row]
        train_weights, val_weights = zip(*((own.train.weights, own.val.weights) for own in problems), strict=True)
        targets = [self._own_targets[job] for job in self.job_of_row]
        self.rows = LabeledRows(self._train_rows, self.losses, targets, train_weights)
        self.val = LabeledRows(self._val_rows, self.losses, (), val_weights)

        recipes = [self._recipes[job] for job in self.job_of_row]
        self._fastest = max(recipes, key=lambda recipe: recipe.lr)
        relative = [recipe.lr / self._fastest.lr for recipe in recipes]
        self._relative_rates: dict[Tensor, Tensor] = {}  # for each trained parameter, a factor for each network
        for parameter in self.stack.parameters.values():
            if min(relative) < 1 and parameter.requires_grad:
                factors = parameter.new_tensor(relative).view(-1, *[1] * (parameter.dim() - 1))
                self._relative_rates[parameter] = factors

        # A loss of a task's own may read values back from a GPU.
        is_captured = self.device.type == "cuda" and not any(task.loss for task in self.tasks)
        is_captured &= can_be_captured(self.network)
        self.optimizer = self._fastest.make_optimizer(self.stack.parameters.values(), captured=is_captured)
        self._step: Callable[[Tensor], object] = self._minimize
        if is_captured:
            self._step = CapturedStep(self._minimize, self.stack.seed_masks, 1 if self.steps else WARM_UP_STEPS)

    def rates(self, epoch: int) -> NDArray[np.float64]:
        return np.array([recipe.rate(epoch) for recipe in self._recipes])

    def train_epoch(self, epoch: int, running: NDArray[np.bool_]) -> None:
        self._drop_stopped(running)
        set_rate(self.optimizer, self._fastest.rate(epoch))
        count = len(self._train_rows)
        parts = [batches(seed, epoch, count, self.problem.recipe.batch_size) for seed in self.stack.seeds]
        rows = torch.stack([torch.cat(own) for own in parts]).to(self.device)
        for batch in rows.split([len(part) for part in parts[0]], 1):
            self.network.at_step(self.steps)
            self._step(batch)
            self.steps += 1

    def _minimize(self, rows: Tensor) -> None:
        """Takes a step on the rows [seeds, batch size] of each seed."""
        batch = self.rows.batch(rows[0] if len(rows) == 1 else rows)
        self.optimizer.zero_grad()
        with self._fastest.precision(self.device):
            losses, _ = self.losses.means(self.losses.join(self.stack(batch.inputs)), batch)
        (losses * self.losses.weights).sum().backward()

        # Every optimizer of a `Recipe` changes the weights by the learning rate times a value that does not depend on
        # the rate (AdamW's weight decay included), and keeps nothing that depends on it. Interpolating between the
        # weights before and after a step with the highest rate is therefore exact, and amplifies no rounding errors.
        before = [parameter.detach().clone() for parameter in self._relative_rates]
        self.optimizer.step()
        with torch.no_grad():
            for (parameter, relative), old in zip(self._relative_rates.items(), before, strict=True):
                torch.lerp(old, parameter, relative, out=parameter)

    def validate(self) -> NDArray[np.float64]:
        losses, size = np.full((*self.trains.shape, 3), np.nan), self.problem.recipe.batch_size
        losses[self.job_of_row] = self.val.mean_losses(
            lambda inputs: self.losses.join(self.stack.outputs_on(inputs, size))
        )
        losses[~self.trains] = np.nan
        return losses

    def keep(self, networks: NDArray[np.intp]) -> None:
        rows = self._rows_of(networks)
        current = {name: tensor.index_select(0, rows) for name, tensor in self.stack.tensors.items()}
        self._best.load(current, torch.as_tensor(networks, device=self.device))

    def _drop_stopped(self, running: NDArray[np.bool_]) -> None:
        # Only if it pays
        jobs = self._arrange(job for job in dict.fromkeys(self.job_of_row.tolist()) if running[job])
        fraction = DROP_FRACTION
        if self.device.type == "cuda":
            values = self._train_rows.inputs[:1].numel() * self.problem.recipe.batch_size * len(self.job_of_row)
            fraction = 1.0 if values <= MAX_FREE_VALUES else GPU_DROP_FRACTION
        if len(jobs) <= (1 - fraction) * len(self.job_of_row):
            self._keep_only(jobs)

    def _keep_only(self, jobs: NDArray[np.intp]) -> None:
        rows, old = self._rows_of(jobs), self.optimizer
        moved = self.stack.keep_only(rows)
        self.job_of_row = jobs
        self._prepare()
        for parameter, state in old.state.items():
            self.optimizer.state[moved[parameter]] = {
                name: value.index_select(0, rows) if value.shape == parameter.shape else value
                for name, value in state.items()
            }

    def _rows_of(self, jobs: NDArray[np.intp]) -> Tensor:
        row_of_job = {job: row for row, job in enumerate(self.job_of_row.tolist())}
        return torch.tensor([row_of_job[job] for job in jobs.tolist()], device=self.device)

    def scores(self, part: str, learned: NDArray[np.bool_]) -> list[dict[str, Score]]:
        split = require_in_memory(self.problem.splits[part], OPERATION).to(self.device)
        outputs = self._best.outputs_on(split.inputs, self.problem.recipe.batch_size)
        scores: list[dict[str, Score]] = [{} for _ in self.jobs]
        trained = [(task, np.flatnonzero(own)) for task, own in zip(self.tasks, learned.T, strict=True) if own.any()]
        for task, networks in trained:
            own_outputs = outputs.pop(task.name).index_select(0, torch.as_tensor(networks, device=self.device))
            weights = [self._problems[network].splits[part].weights for network in networks]
            scale = self.problem.answer_scales.get(task.name)
            task_scores = scores_of_outputs(task, own_outputs, split.targets[task.name], scale, weights)
            for network, score in zip(networks, task_scores, strict=True):
                scores[network][task.name] = score
        return scores

    def states(self) -> list[dict[str, Tensor]]:
        return self._best.state_dicts([job.tasks for job in self.jobs])

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "job_of_row": self.job_of_row.tolist(),
            "stack": self.stack.tensors,
            "best": self._best.tensors,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._keep_only(np.array(state["job_of_row"]))
        self.steps = state["steps"]
        self.stack.load(state["stack"])
        self._best.load(state["best"])
        self.optimizer.load_state_dict(adapt_optimizer_state(state["optimizer"], self.optimizer))
