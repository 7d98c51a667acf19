"""Trains many networks of one seed and width together, each to where its own patience ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._network import build_network
from ._pair_losses import TOGETHER, PairLosses
from ._problem import Problem
from ._recipe import Recipe
from ._rows import held
from ._seeds import batches, derived, reseed
from ._stack import Stack
from ._stack_scores import scores_of_stack
from ._trained import UNKNOWN, Job, Trained

WORTH_DROPPING = 0.25  # of the networks have stopped: copying the others pays
FUSED = ("cpu", "cuda")


class Together:
    """Networks under way; a row of the stack is a network that trains, or has stopped lately.

    Args:
        problem: what is learnt.
        jobs: of one seed, one width and one number of epochs.
        device: where.
    """

    def __init__(self, problem: Problem, jobs: Sequence[Job], device: torch.device) -> None:
        self.problem, self.jobs, self.device, self.recipe = problem, list(jobs), device, problem.recipe
        self.tasks = [task for task in problem.tasks if any(task.name in job.tasks for job in jobs)]
        names = [task.name for task in self.tasks]
        self.trains = np.array([[name in job.tasks for name in names] for job in jobs])
        network = build_network(problem, names, jobs[0].seed, jobs[0].width).to(device)
        self.stack, self.best = Stack(network, len(jobs)), Stack(network, len(jobs))
        self.optimizer = self._make_optimizer()
        train, val = held(problem.train, TOGETHER), held(problem.val, TOGETHER)
        self.rows, self.val = train.only(names).to(device), val.only(names).to(device)
        self.at = np.arange(len(jobs))  # which job is in each row of the stack
        self._pose_losses()
        self.epoch = self.steps = 0
        self.best_epoch, self.best_loss = np.full(len(jobs), -1), np.full(len(jobs), np.inf)
        self.epochs_run = np.zeros(len(jobs), dtype=int)
        self.curve: list[NDArray[np.float64]] = []

    @property
    def running(self) -> NDArray[np.bool_]:
        """Which jobs have neither reached the last epoch nor the end of their patience."""
        stops = [self.recipe.stops(self.epoch, self.epoch - 1 - int(best)) for best in self.best_epoch]
        running: NDArray[np.bool_] = (self.epochs_run == self.epoch) & ~np.array(stops)
        return running & (self.epoch < self.jobs[0].last_epoch(self.recipe))

    def run(self, stopped: Callable[[int], None]) -> list[Trained]:
        """Trains all; tells after each epoch how many have stopped. Networks that diverged are among them."""
        start = time.perf_counter()
        while (running := self.running).any():
            self._drop_stopped(running)
            self._run_epoch(running)
            stopped(int((~self.running).sum()))
        return self._finished(start)

    def _run_epoch(self, running: NDArray[np.bool_]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.epoch)
        reseed(derived(self.jobs[0].seed, "epoch", self.epoch))  # as in `train`, for layers that draw unasked
        parts = batches(self.jobs[0].seed, self.epoch, len(self.rows), self.recipe.batch_size)
        for rows in torch.cat(parts).to(self.device).split([len(part) for part in parts]):
            self._step(rows)
        self._validate(running)
        self.epochs_run[running] += 1
        self.epoch += 1

    def _step(self, rows: Tensor) -> None:
        inputs = self.rows.inputs.index_select(0, rows)
        targets = [target.index_select(1, rows) for target in self._train_targets]
        self.optimizer.zero_grad()
        self.stack.network.at_step(self.steps)
        with precision(self.recipe, self.device):
            losses = self.losses(self.stack(inputs), targets)
        (losses * self.losses.weights).sum().backward()
        self.optimizer.step()
        self.steps += 1

    def _validate(self, running: NDArray[np.bool_]) -> None:
        outputs = self.stack.outputs_on(self.val.inputs, self.recipe.batch_size)
        table = np.full(self.trains.shape, np.nan)
        table[self.at] = self.losses.table(self.losses(outputs, self._val_targets))
        self.curve.append(table)
        weights = np.array([task.weight for task in self.tasks])
        total = np.where(self.trains, weights * table, 0).sum(1)
        last = np.isfinite(total) & (self.epoch + 1 == self.jobs[0].last_epoch(self.recipe))
        better = np.flatnonzero(running & (last if self.recipe.keep == "last" else total < self.best_loss))
        if len(better):
            self.best_epoch[better], self.best_loss[better] = self.epoch, total[better]
            rows = np.flatnonzero(np.isin(self.at, better))
            self.best.copy_from(self.stack, self._indices(rows), self._indices(self.at[rows]))

    def _drop_stopped(self, running: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(running[self.at])
        if len(rows) > (1 - WORTH_DROPPING) * len(self.at):
            return
        chosen, old = self._indices(rows), self.optimizer
        moved = self.stack.keep(chosen)
        self.at = self.at[rows]
        self.optimizer = self._make_optimizer()
        for parameter, state in old.state.items():
            self.optimizer.state[moved[parameter]] = {
                name: value.index_select(0, chosen) if value.shape == parameter.shape else value
                for name, value in state.items()
            }
        self._pose_losses()

    def _pose_losses(self) -> None:
        self.losses = PairLosses(self.problem, self.tasks, self.trains[self.at], self.device)
        self._train_targets = self.losses.targets(self.rows.targets)
        self._val_targets = self.losses.targets(self.val.targets)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return self.recipe.make_optimizer(self.stack.parameters.values(), fused=self.device.type in FUSED or None)

    def _indices(self, rows: NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _finished(self, start: float) -> list[Trained]:
        names = [task.name for task in self.tasks]
        trains = [[name for name in names if name in job.tasks] for job in self.jobs]
        learnt = self.trains & (self.best_epoch >= 0)[:, None]
        scores = {part: scores_of_stack(self.problem, self.best, learnt, part) for part in ("val", "test")}
        states = self.best.states(trains)
        curve = np.stack(self.curve, 1)  # [jobs, epochs, tasks]
        steps = self.epochs_run * (self.steps // self.epoch)
        shares = (time.perf_counter() - start) * steps / steps.sum()
        return [
            Trained(
                job,
                val={task: scores["val"][k].get(task, UNKNOWN) for task in trains[k]},
                test={task: scores["test"][k].get(task, UNKNOWN) for task in trains[k]},
                curve=curve[k, : self.epochs_run[k]][:, [names.index(task) for task in job.tasks]],
                best_epoch=int(self.best_epoch[k]),
                steps=int(steps[k]),
                seconds=float(shares[k]),
                parameters=self.stack.parameters_of(trains[k]),
                state=states[k] if self.best_epoch[k] >= 0 else None,
            )
            for k, job in enumerate(self.jobs)
        ]


def precision(recipe: Recipe, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision, where the recipe asks for it; float16 is never batched, its loss scale is each network's own."""
    return nullcontext() if recipe.amp is None else torch.autocast(device.type, torch.bfloat16)
