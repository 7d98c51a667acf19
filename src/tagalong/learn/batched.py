"""Trains many networks as one computation, each with its own early stopping."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, raise_problems
from tagalong.score import Score

from .batchable import why_not_batched, why_seeds_not_mixed
from .captured_step import WARM_UP_STEPS, CapturedStep, why_not_captured
from .early_stopping import stopping_flattery
from .losses import LabeledRows, Losses
from .memory import networks_at_once
from .network import build_network, evaluation_mode
from .own_targets import Targets
from .problem import Problem
from .randomness import batches, derive_seed, reseed
from .recipe import set_rate
from .rows import require_in_memory
from .scoring import UNKNOWN_SCORE, scores_of_outputs
from .stacking import Stack
from .trainer import Diverged, Job, Trained, job_problems, train

DROP_FRACTION = 0.25  # drop stopped networks once they make up this fraction of the stack
GPU_DROP_FRACTION = 0.5  # on a GPU, a smaller stack must be captured again
MAX_FREE_VALUES = 2**23  # a GPU takes no longer for this many input values per step than for those of one small network
FUSED_DEVICES = ("cpu", "cuda")
MIN_FILLED = 0.5  # seeds are trained together if each has more than this fraction of the networks of the largest
OPERATION = "training many networks together"  # what needs rows in memory, for messages
logger = logging.getLogger(__name__)


def train_many(
    problem: Problem,
    jobs: Sequence[Job],
    *,
    device: torch.device | str = "cpu",
    targets: Mapping[Job, Targets] | None = None,
    memory: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Trained]:
    """Trains many networks with the same results as separate calls to `train`, but in a fraction of the time.

    Networks of the same kind and width are trained as one batched computation, each with its own early stopping.
    Networks with the same seed share batches, initial weights and dropout masks. Networks that cannot be batched (see
    `why_not_batched`) are trained one by one.

    Args:
        problem: the problem.
        jobs: the networks to train. Their tasks, seeds, rules, widths, learning rates and kinds may differ.
        device: the device to train on.
        targets: for some of the jobs, training targets that replace those of the problem, by task (see `train`).
        memory: the number of bytes that networks trained together may use. If None, a fraction of the free memory is
            used. On a CPU, this is capped where more memory no longer speeds up training.
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
    where, own = torch.device(device), targets or {}
    found = [found for job in jobs for found in job_problems(problem, job, where, own.get(job))]
    if unknown := [job for job in own if job not in jobs]:
        found.append(InvalidInput("targets", "must be for the given jobs", repr(unknown[0])))
    raise_problems(list({str(one): one for one in found}.values()))
    return _train_chunks(problem, list(jobs), where, own, memory, progress or (lambda finished: None))


def _train_chunks(
    problem: Problem,
    jobs: list[Job],
    device: torch.device,
    targets: Mapping[Job, Targets],
    memory: int | None,
    progress: Callable[[int], None],
) -> Iterator[Trained]:
    diverged: list[Trained] = []
    done = 0
    for chunk in _chunks(problem, jobs, device, targets, memory):

        def report(stopped: int, done: int = done) -> None:
            progress(done + stopped)

        finished = _train_chunk(problem, chunk, device, targets, report)
        diverged += [trained for trained in finished if trained.diverged]
        done += len(chunk)
        progress(done)
        yield from (trained for trained in finished if not trained.diverged)
    if diverged:
        names = "; ".join(f"{', '.join(one.job.tasks)} with seed {one.job.seed}" for one in diverged)
        raise Diverged(f"lower `recipe.lr`, since training diverged from the first epoch for {names}", diverged)


def _chunks(
    problem: Problem, jobs: list[Job], device: torch.device, targets: Mapping[Job, Targets], memory: int | None
) -> Iterator[list[Job]]:
    """Yields chunks of jobs to train together: jobs of the same kind and width that fit into memory."""
    kinds: dict[tuple[str, float, int | None, str | None], list[Job]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, job.width, job.epochs, job.network), []).append(job)
    for similar in kinds.values():
        yield from _chunks_of_kind(problem.with_network(similar[0].network), similar, device, targets, memory)


def _chunks_of_kind(
    problem: Problem, similar: list[Job], device: torch.device, targets: Mapping[Job, Targets], memory: int | None
) -> Iterator[list[Job]]:
    if len(similar) == 1 or not _can_batch(problem, similar, device):
        yield from ([job] for job in similar)
        return
    wanted = {name for job in similar for name in job.tasks}
    network = build_network(problem, wanted, similar[0].seed, similar[0].width).to(device)
    replaced = max(sum(target.nbytes for target in targets.get(job, {}).values()) for job in similar)
    sizes = [
        networks_at_once(problem, network, device, memory, several_seeds=several, own_targets=replaced)
        for several in (False, True)
    ]
    for groups in _join_seeds(problem, similar, device, sizes[1]):
        yield from _split_evenly(groups, sizes[len(groups) > 1])


def _can_batch(problem: Problem, jobs: list[Job], device: torch.device) -> bool:
    reason = why_not_batched(problem, jobs, device=device)
    if reason is not None:
        level = logging.INFO if jobs[0].rule != "plain" else logging.WARNING
        logger.log(level, "training %d networks of %s one at a time: %s", len(jobs), problem.name, reason)
    return reason is None


def _join_seeds(problem: Problem, jobs: list[Job], device: torch.device, size: int) -> list[list[list[Job]]]:
    """Groups jobs by seed, and returns lists of the groups that are trained together.

    On a CPU, seeds are trained together only if there are at most `size` networks; more are faster seed by seed. Groups
    of very different sizes are never trained together, since all of them would be filled up to the largest.
    """
    by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        by_seed.setdefault(job.seed, []).append(job)
    joined: list[list[list[Job]]] = []
    for group in sorted(by_seed.values(), key=len, reverse=True):
        fits = joined and (device.type != "cpu" or sum(map(len, joined[-1])) + len(group) <= size)
        if fits and len(group) > MIN_FILLED * len(joined[-1][0]):
            joined[-1].append(group)
        else:
            joined.append([group])
    if len(joined) == len(by_seed):
        return joined
    reason = why_seeds_not_mixed(problem, jobs, device=device)
    if reason is None:
        return joined
    logger.info("training the networks of %s seed by seed: %s", problem.name, reason)
    return [[group] for group in by_seed.values()]


def _split_evenly(groups: list[list[Job]], size: int) -> Iterator[list[Job]]:
    """Splits groups into chunks of at most `size` jobs, each with equally many jobs of each group."""
    if len(groups) > size:  # not even one job of each group fits
        groups = [[job for group in groups for job in group]]
    parts = -(-max(map(len, groups)) // (size // len(groups)))
    for part in range(parts):
        yield [job for group in groups for job in _slice_evenly(group, part, parts)]


def _slice_evenly(group: list[Job], part: int, parts: int) -> list[Job]:
    return group[part * len(group) // parts : (part + 1) * len(group) // parts]


def _train_chunk(
    problem: Problem,
    jobs: list[Job],
    device: torch.device,
    targets: Mapping[Job, Targets],
    report: Callable[[int], None],
) -> list[Trained]:
    """Trains a chunk of networks and returns them, including diverged ones. Halves the chunk if memory runs out."""
    if len(jobs) == 1:
        try:
            return [train(problem, jobs[0], device=device, targets=targets.get(jobs[0]))]
        except Diverged as error:
            return list(error.networks)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return BatchedTraining(problem, jobs, device, targets).run(report)
    except torch.OutOfMemoryError:
        logger.warning("%d networks do not fit in memory at once; trying half as many", len(jobs))
    torch.cuda.empty_cache()
    half = len(jobs) // 2
    first = _train_chunk(problem, jobs[:half], device, targets, report)
    return first + _train_chunk(problem, jobs[half:], device, targets, lambda stopped: report(half + stopped))


class BatchedTraining:
    """Trains multiple networks together. Networks that have stopped are periodically removed from the stack.

    Args:
        problem: the problem.
        jobs: the networks, all of the same kind, with the same width and number of epochs.
        device: the device to train on.
        targets: the training targets that replace those of the problem, for some of the jobs.
    """

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        device: torch.device,
        targets: Mapping[Job, Targets] | None = None,
    ) -> None:
        self.problem = problem = problem.with_network(jobs[0].network)
        self.jobs, self.device, self.recipe = list(jobs), device, problem.recipe
        self.tasks = [task for task in problem.tasks if any(task.name in job.tasks for job in jobs)]
        names = [task.name for task in self.tasks]
        self.trains = np.array([[name in job.tasks for name in names] for job in jobs])
        seeds = list(dict.fromkeys(job.seed for job in jobs))
        networks = [build_network(problem, names, seed, jobs[0].width).to(device) for seed in seeds]
        origins = np.array([seeds.index(job.seed) for job in jobs])
        self.job_of_row = self._arrange(range(len(jobs)))  # the index of the job in each row of the stack
        self.stack, self.best = Stack(networks, origins[self.job_of_row].tolist()), Stack(networks, origins.tolist())
        self._recipes = [job.adapt(self.recipe) for job in jobs]
        self._own_targets = [targets.get(job, {}) for job in jobs] if targets else []
        train, val = require_in_memory(problem.train, OPERATION), require_in_memory(problem.val, OPERATION)
        self.rows, self.val = train.only(names).to(device), val.only(names).to(device)
        inputs, labels = self.val.batch(torch.arange(min(2, len(self.val))))
        with evaluation_mode(networks[0]), torch.no_grad():
            self._example = networks[0](inputs), labels
        self._warm = False
        self._after_rows_changed()
        self.epoch = self.steps = 0
        self.best_epoch, self.best_loss = np.full(len(jobs), -1), np.full(len(jobs), np.inf)
        self.epochs_run = np.zeros(len(jobs), dtype=int)
        self.curve: list[NDArray[np.float64]] = []
        self.half_curve: list[NDArray[np.float64]] = []

    def _arrange(self, jobs: Iterable[int]) -> NDArray[np.intp]:
        """Returns the jobs seed by seed. Repeats jobs of some seeds, so that there are equally many of each seed."""
        by_seed: dict[int, list[int]] = {}
        for job in jobs:
            by_seed.setdefault(self.jobs[job].seed, []).append(job)
        most = max(map(len, by_seed.values()))
        return np.concatenate([np.resize(own, most) for own in by_seed.values()])

    @property
    def running(self) -> NDArray[np.bool_]:
        """Whether each job is still training, i.e. has reached neither the last epoch nor the end of its patience."""
        waited = (self.epoch - 1 - self.best_epoch).tolist()
        stop = [recipe.should_stop(self.epoch, own) for recipe, own in zip(self._recipes, waited, strict=True)]
        running: NDArray[np.bool_] = (self.epochs_run == self.epoch) & ~np.array(stop)
        return running & (self.epoch < self.jobs[0].last_epoch(self.recipe))

    def run(self, report: Callable[[int], None]) -> list[Trained]:
        """Trains all networks and returns them, including diverged ones.

        Args:
            report: called after each epoch with the number of networks that have stopped.
        """
        start = time.perf_counter()
        while (running := self.running).any():
            self._drop_stopped(running)
            self._run_epoch(running)
            report(int((~self.running).sum()))
        return self._make_results(start)

    def _run_epoch(self, running: NDArray[np.bool_]) -> None:
        set_rate(self.optimizer, self._fastest.rate(self.epoch))
        seeds = self.stack.seeds
        reseed(derive_seed(seeds[0], "epoch", self.epoch))  # as in `Training`
        orders = [batches(seed, self.epoch, len(self.rows), self.recipe.batch_size) for seed in seeds]
        rows = torch.stack([torch.cat(parts) for parts in orders]).to(self.device)
        for batch in rows.split([len(part) for part in orders[0]], 1):
            self.stack.network.at_step(self.steps)
            self._step(batch)
            self.steps += 1
        self._validate(running)
        self.epochs_run[running] += 1
        self.epoch += 1

    def _minimize(self, rows: Tensor) -> None:
        """Performs an optimizer step on the rows [seeds, batch size] of each seed."""
        if len(rows) == 1:
            inputs, labels = self._train.batch(rows[0])
        else:
            inputs, labels = self._train.batch(rows, networks_per_seed=len(self.job_of_row) // len(rows))
        self.optimizer.zero_grad()
        with self.recipe.precision(self.device):
            losses, _ = self.losses.means(self.losses.join(self.stack(inputs)), labels)
        (losses * self._weights).sum().backward()
        self._update()

    @torch.no_grad()
    def _update(self) -> None:
        """Lets the optimizer change the weights, and shortens the step of networks with lower learning rates.

        Every optimizer of a `Recipe` changes the weights by the learning rate times a value that does not depend on
        the rate (AdamW's weight decay included), and keeps nothing that depends on it. Interpolating between the
        weights before and after the step is therefore exact. Since the step is taken with the highest rate, rounding
        errors are not amplified.
        """
        if self._relative_rates is None:
            self.optimizer.step()
            return
        before = [parameter.clone() for parameter in self._relative_rates]
        self.optimizer.step()
        for (parameter, relative), old in zip(self._relative_rates.items(), before, strict=True):
            torch.lerp(old, parameter, relative, out=parameter)

    def _validate(self, running: NDArray[np.bool_]) -> None:
        tables = np.full((*self.trains.shape, 3), np.nan)
        size = self.recipe.batch_size
        tables[self.job_of_row] = self._val.mean_losses(
            lambda inputs: self.losses.join(self.stack.outputs_on(inputs, size))
        )
        tables[~self.trains] = np.nan
        table = tables[..., 0]
        self.curve.append(table)
        self.half_curve.append(tables[..., 1:])
        weights = np.array([task.weight for task in self.tasks])
        total = np.where(self.trains, weights * table, 0).sum(1)
        last = np.isfinite(total) & (self.epoch + 1 == self.jobs[0].last_epoch(self.recipe))
        better = np.flatnonzero(running & (last if self.recipe.keep == "last" else total < self.best_loss))
        if len(better):
            self.best_epoch[better], self.best_loss[better] = self.epoch, total[better]
            jobs, rows = np.unique(self.job_of_row, return_index=True)
            chosen = np.isin(jobs, better)
            self.best.copy_from(self.stack, self._to_indices(rows[chosen]), self._to_indices(jobs[chosen]))

    def _drop_stopped(self, running: NDArray[np.bool_]) -> None:
        kept = self._arrange(job for job in dict.fromkeys(self.job_of_row.tolist()) if running[job])
        if len(kept) > (1 - self._drop_fraction) * len(self.job_of_row):
            return
        jobs, rows = np.unique(self.job_of_row, return_index=True)
        chosen, old = self._to_indices(rows[np.searchsorted(jobs, kept)]), self.optimizer
        moved = self.stack.keep_only(chosen)
        self.job_of_row = kept
        self._after_rows_changed()
        for parameter, state in old.state.items():
            self.optimizer.state[moved[parameter]] = {
                name: value.index_select(0, chosen) if value.shape == parameter.shape else value
                for name, value in state.items()
            }

    @property
    def _drop_fraction(self) -> float:
        """The fraction of networks that must have stopped before they are dropped."""
        if self.device.type != "cuda":
            return DROP_FRACTION
        values = self.rows.inputs[:1].numel() * self.recipe.batch_size * len(self.job_of_row)
        return 1.0 if values <= MAX_FREE_VALUES else GPU_DROP_FRACTION

    def _after_rows_changed(self) -> None:
        """Prepares the optimizer, learning rates, losses and targets for the networks that are in the stack."""
        recipes = [self._recipes[job] for job in self.job_of_row]
        self._fastest = max(recipes, key=lambda recipe: recipe.lr)
        relative = [recipe.lr / self._fastest.lr for recipe in recipes]
        self._relative_rates = None  # for each trained parameter, a factor for each network
        if min(relative) < 1:
            self._relative_rates = {
                parameter: parameter.new_tensor(relative).view(-1, *[1] * (parameter.dim() - 1))
                for parameter in self.stack.parameters.values()
                if parameter.requires_grad
            }
        reason = self._why_not_captured()
        self.optimizer = self._fastest.make_optimizer(
            self.stack.parameters.values(), fused=self.device.type in FUSED_DEVICES or None, capturable=reason is None
        )
        self._step: Callable[[Tensor], None] = self._minimize
        if reason is None:
            self._step = CapturedStep(self._minimize, self.stack.seed_masks, 1 if self._warm else WARM_UP_STEPS)
            self._warm = True
        elif self.device.type == "cuda":
            logger.info("training %d networks without CUDA graphs: %s", len(self.job_of_row), reason)
        self.losses = Losses(self.tasks, *self._example, self.trains[self.job_of_row])
        self._weights = self.losses.weights(next(iter(self._example[0].values())))
        own = [self._own_targets[job] for job in self.job_of_row] if self._own_targets else []
        self._train, self._val = LabeledRows(self.rows, self.losses, own), LabeledRows(self.val, self.losses)

    def _why_not_captured(self) -> str | None:
        """Returns why steps cannot be replayed as CUDA graphs, or None if they can."""
        if self.device.type != "cuda":
            return "CUDA graphs need a GPU"
        if any(task.loss is not None for task in self.tasks):
            return "a task has a loss of its own"
        if not self.stack.can_seed_in_advance:
            return "heads draw random numbers"
        return why_not_captured(self.stack.network)

    def _to_indices(self, rows: NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _make_results(self, start: float) -> list[Trained]:
        names = [task.name for task in self.tasks]
        trains = [[name for name in names if name in job.tasks] for job in self.jobs]
        learned = self.trains & (self.best_epoch >= 0)[:, None]
        scores = {part: self._scores(learned, part) for part in ("val", "test")}
        states = self.best.state_dicts(trains)
        curve = np.stack(self.curve, 1)  # [jobs, epochs, tasks]
        steps = self.epochs_run * (self.steps // self.epoch)
        seconds = (time.perf_counter() - start) * steps / steps.sum()
        return [
            Trained(
                job,
                val={task: scores["val"][k].get(task, UNKNOWN_SCORE) for task in trains[k]},
                test={task: scores["test"][k].get(task, UNKNOWN_SCORE) for task in trains[k]},
                curve=curve[k, : self.epochs_run[k]][:, [names.index(task) for task in job.tasks]],
                best_epoch=int(self.best_epoch[k]),
                steps=int(steps[k]),
                seconds=float(seconds[k]),
                parameters=self.stack.count_parameters(trains[k]),
                state=states[k] if self.best_epoch[k] >= 0 else None,
                flattery=self._flattery(k),
            )
            for k, job in enumerate(self.jobs)
        ]

    def _scores(self, learned: NDArray[np.bool_], part: str) -> list[dict[str, Score]]:
        """Returns the scores of each network's tasks on the validation or test rows."""
        split = require_in_memory(self.problem.splits[part], OPERATION).to(self.device)
        outputs = self.best.outputs_on(split.inputs, self.recipe.batch_size)
        scores: list[dict[str, Score]] = [{} for _ in self.jobs]
        for column, task in enumerate(self.tasks):
            networks = np.flatnonzero(learned[:, column])
            if not len(networks):
                continue
            own = outputs.pop(task.name).index_select(0, self._to_indices(networks))
            found = scores_of_outputs(task, own, split.targets[task.name], self.problem.scales.get(task.name))
            for network, score in zip(networks, found, strict=True):
                scores[network][task.name] = score
        return scores

    def _flattery(self, job: int) -> dict[str, float]:
        names = [task.name for task in self.tasks if task.name in self.jobs[job].tasks]
        if self.best_epoch[job] < 0:
            return {}
        if self.recipe.keep == "last":  # validation rows choose nothing
            return dict.fromkeys(names, 0.0)
        own = np.stack([table[job][self.trains[job]] for table in self.half_curve[: self.epochs_run[job]]])
        found = stopping_flattery(own, [task.weight for task in self.tasks if task.name in names])
        return dict(zip(names, found.tolist(), strict=True))
