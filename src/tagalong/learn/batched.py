"""Trains many networks as one computation, where a trial shows that this gives the same numbers."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import refuse

from .memory import networks_at_once
from .network import Network, build_network
from .problem import Problem
from .randomness import batches, derived, reseed
from .recipe import Recipe
from .rows import Split, held
from .scoring import mean_loss
from .stacking import TOGETHER, PairLosses, Stack, Tensors, scores_of_stack
from .trained import UNKNOWN, Job, Trained
from .trainer import Diverged, _problems, train

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


ROWS_TRIED = 8
AGREE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.int64: 0.0}  # of the largest value; GPUs may use TF32
COARSE, TINY = 0.1, 1e-12
GRADIENT = "the gradient of "


def why_not_batched(
    problem: Problem, jobs: Sequence[Job] | None = None, *, device: torch.device | str = "cpu"
) -> str | None:
    """Why these networks would be trained one by one; None if `train_many` trains them together.

    Args:
        problem: what is learnt.
        jobs: the networks; None: plain ones of any tasks.
        device: where.
    """
    if not all(isinstance(split, Split) for split in problem.splits.values()):
        return "rows are read from files, batch by batch"
    if problem.recipe.schedule == "windows":
        return "schedule='windows' lowers the learning rate of each network at its own steps"
    jobs = [Job(problem.names)] if jobs is None else jobs
    rules = sorted({job.rule for job in jobs} - {"plain"})
    if rules:
        return f"rule {', '.join(map(repr, rules))} combines the losses of each network in its own way"
    for width in sorted({job.width for job in jobs}):
        wanted = {name for job in jobs if job.width == width for name in job.tasks}
        if reason := _why_not(problem, [name for name in problem.names if name in wanted], width, torch.device(device)):
            return reason
    return None


def _why_not(problem: Problem, tasks: Sequence[str], width: float, device: torch.device) -> str | None:
    coarse = problem.recipe.amp is not None
    if problem.recipe.amp == "fp16":
        return "amp='fp16' scales the losses of each network by its own factor; 'bf16' can be batched"
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
        warnings.simplefilter("error")  # layers that vmap can only loop over warn
        network = build_network(problem, tasks, 0, width).to(device).at_step(0)
        if _shares_weights(network):
            return "heads share weights with each other or with the encoder"
        if not network.state_dict():
            return "the network has no weights"
        alone = [_step_alone(problem, network, place) for place in range(2)]
        try:
            together = _step_together(problem, network)
        except Exception as error:  # whatever a layer or loss that cannot be batched raises
            return f"vmap: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    unlike = _unlike({name: torch.stack([found[name] for found in alone]) for name in alone[0]}, together, coarse)
    return f"batched, {', '.join(unlike)} would differ from a network alone" if unlike else None


def _shares_weights(network: Network) -> bool:
    owners: dict[int, set[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        part = name.split(".")
        owners.setdefault(id(parameter), set()).add(".".join(part[: 1 if part[0] == "encoder" else 2]))
    return any(len(parts) > 1 for parts in owners.values())


def _shifted(network: Network, place: int) -> Tensors:
    """Weights of the first or second network of the trial: two that differ."""
    return {name: parameter.detach() * (1 + 0.1 * place) for name, parameter in network.named_parameters()}


def _step_alone(problem: Problem, network: Network, place: int) -> Tensors:
    """Losses, gradients and buffers of a step of one network, by name."""
    alone = copy.deepcopy(network)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter.copy_(_shifted(network, place)[name])
    inputs, targets = _rows(problem, network)
    with precision(problem.recipe, inputs.device):
        outputs = alone(inputs)
        losses = {name: mean_loss(problem.task(name), outputs[name], targets[name]) for name in network.tasks}
    torch.stack(list(losses.values())).sum().backward()
    return _found(losses, dict(alone.named_parameters()), dict(alone.named_buffers()))


def _step_together(problem: Problem, network: Network) -> Tensors:
    """The same of both networks: everything has a first dimension of two."""
    stack = Stack(network, 2)
    shifted = [_shifted(network, place) for place in range(2)]
    with torch.no_grad():
        for name, parameter in stack.parameters.items():
            parameter.copy_(torch.stack([own[name] for own in shifted]))
    inputs, targets = _rows(problem, network)
    with precision(problem.recipe, inputs.device):
        outputs = stack(inputs)
        losses = {}
        for name in network.tasks:
            task, target = problem.task(name), targets[name]
            pairs = torch.stack([target, target])
            losses[name] = torch.vmap(lambda out, own, task=task: mean_loss(task, out, own))(outputs[name], pairs)
    torch.stack(list(losses.values())).sum().backward()
    stack.outputs_on(inputs, ROWS_TRIED)  # what vmap can train it may not be able to evaluate
    return _found(losses, stack.parameters, stack.buffers)


def _rows(problem: Problem, network: Network) -> tuple[Tensor, Tensors]:
    device = next(iter(network.state_dict().values())).device
    rows = torch.arange(min(ROWS_TRIED, len(problem.train)))
    inputs, targets = problem.train.only(network.tasks).batch(rows)
    return inputs.to(device), {name: target.to(device) for name, target in targets.items()}


def _found(losses: Tensors, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Tensors:
    named = {f"the loss of {name}": loss.detach() for name, loss in losses.items()}
    named |= {f"{GRADIENT}{name}": p.grad for name, p in parameters.items() if p.grad is not None}
    return named | {f"the buffer {name}": buffer for name, buffer in buffers.items()}


def _unlike(alone: Tensors, together: Tensors, coarse: bool) -> list[str]:
    """What differs by more than rounding; gradients are compared with the largest of all, as some are nothing else."""
    gradients = [float(value.abs().max()) for name, value in alone.items() if name.startswith(GRADIENT)]
    unlike = []
    for name, wanted in alone.items():
        found = together.get(name)
        largest = max(gradients) if name.startswith(GRADIENT) else float(wanted.abs().max())
        within = (COARSE if coarse else AGREE.get(wanted.dtype, COARSE)) * largest + TINY
        if found is None or found.shape != wanted.shape or not bool(((wanted - found).abs() <= within).all()):
            unlike.append(name)
    return unlike


log = logging.getLogger("tagalong.learn")


def train_many(
    problem: Problem,
    jobs: Sequence[Job],
    *,
    device: torch.device | str = "cpu",
    memory: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Trained]:
    """Trains many networks, to the same results as `train` one by one, in a fraction of the time.

    Networks of one seed and width become one batched computation: same rows, initial weights and dropout masks, each
    with its own early stopping and best weights. What cannot be batched (see `why_not_batched`) is trained one by one.

    Args:
        problem: what is learnt.
        jobs: the networks, of any tasks, seeds, rules and widths.
        device: where.
        memory: bytes that networks trained together may take; None: what is free, on a CPU no more than helps.
        progress: called with the number of networks finished so far.

    Yields:
        The trained networks, as soon as those trained with them are finished; not in the order of the jobs.

    Raises:
        Diverged: some networks never had a finite validation loss; raised when all others are out.

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
    where = torch.device(device)
    refuse(list(dict.fromkeys(found for job in jobs for found in _problems(problem, job, where))))
    return _trained(problem, list(jobs), where, memory, progress or (lambda finished: None))


def _trained(
    problem: Problem, jobs: list[Job], device: torch.device, memory: int | None, progress: Callable[[int], None]
) -> Iterator[Trained]:
    diverged: list[Trained] = []
    done = 0
    for chunk in _chunks(problem, jobs, device, memory):

        def stopped(number: int, done: int = done) -> None:
            progress(done + number)

        finished = _train_chunk(problem, chunk, device, stopped)
        diverged += [trained for trained in finished if trained.diverged]
        done += len(chunk)
        progress(done)
        yield from (trained for trained in finished if not trained.diverged)
    if diverged:
        listed = "; ".join(f"{', '.join(one.job.tasks)} with seed {one.job.seed}" for one in diverged)
        raise Diverged(f"training diverged from the first epoch, lower `recipe.lr`: {listed}", diverged)


def _train_chunk(
    problem: Problem, jobs: list[Job], device: torch.device, stopped: Callable[[int], None]
) -> list[Trained]:
    """The networks of a chunk, diverged ones too; in halves, where memory was less than it seemed."""
    if len(jobs) == 1:
        try:
            return [train(problem, jobs[0], device=device)]
        except Diverged as error:
            return list(error.networks)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return Together(problem, jobs, device).run(stopped)
    except torch.OutOfMemoryError:
        log.warning("%d networks at once did not fit into memory; trying half as many", len(jobs))
    torch.cuda.empty_cache()
    half = len(jobs) // 2
    first = _train_chunk(problem, jobs[:half], device, stopped)
    return first + _train_chunk(problem, jobs[half:], device, lambda number: stopped(half + number))


def _chunks(problem: Problem, jobs: list[Job], device: torch.device, memory: int | None) -> Iterator[list[Job]]:
    """Jobs that are trained together: of one seed and width, as many as fit, in chunks of about one size."""
    kinds: dict[tuple[str, float, int | None], list[Job]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, job.width, job.epochs), []).append(job)
    for alike in kinds.values():
        by_seed: dict[int, list[Job]] = {}
        for job in alike:
            by_seed.setdefault(job.seed, []).append(job)
        most = max(len(group) for group in by_seed.values())
        size = 1 if most == 1 else _size(problem, alike, device, memory)
        for group in by_seed.values():
            yield from _evenly(group, size)


def _size(problem: Problem, jobs: list[Job], device: torch.device, memory: int | None) -> int:
    reason = why_not_batched(problem, jobs, device=device)
    if reason is not None:
        level = logging.INFO if jobs[0].rule != "plain" else logging.WARNING
        log.log(level, "%d networks of %s are trained one by one: %s", len(jobs), problem.name, reason)
        return 1
    wanted = {name for job in jobs for name in job.tasks}
    network = build_network(problem, wanted, jobs[0].seed, jobs[0].width).to(device)
    return networks_at_once(problem, network, device, memory)


def _evenly(jobs: list[Job], size: int) -> Iterator[list[Job]]:
    parts = -(-len(jobs) // size)
    for part in range(parts):
        yield jobs[part * len(jobs) // parts : (part + 1) * len(jobs) // parts]
