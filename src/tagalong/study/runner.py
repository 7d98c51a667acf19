"""The runner gives methods the results of networks.

A method asks for jobs and never cares who trains them:

- `Runner.job` and `Runner.group_job` make the jobs, `Runner.networks(jobs)` returns their results by job.
- The runner looks the jobs up in its store. Those that the store lacks are trained by its executor: here, in worker
  processes or on a cluster. Each becomes a row of the store when it is finished.
- With the executor `Elsewhere`, networks are trained by somebody else's script: `networks` raises `Pending`, and the
  method is asked again once their results were added to the store.
- `outputs`, `row_losses` and `average_scores` answer later questions from the store. `measure_affinity` and
  `latency` store what else takes long to compute.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, reduce
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few
from tagalong.group import Group
from tagalong.learn import (
    FITTED,
    Diverged,
    Job,
    Network,
    Problem,
    Rows,
    Split,
    Task,
    Taught,
    Trained,
    average_answers,
    average_scores_on,
    build_network,
    count_multiplications,
    outputs_on_rows,
    relative_step_cost,
    score_outputs,
    teacher_answers,
    why_not_batched,
    width_of_size,
)
from tagalong.progress import NoProgress, Progress, ProgressReporter
from tagalong.score import Score

from .executors import Chunk, Executor, Pending, device_name, make_executor
from .keys import Keys
from .members import member_seed, serving_network
from .records import Cost, Record, averaged_tasks
from .relative_losses import Subset
from .run_folder import check_store, log_to_file
from .store import Losses, Store

logger = logging.getLogger(__name__)
Keep = Literal["all", "recommended"]
CHUNK_SIZES = {"cpu": 64}  # networks per chunk, by device; larger chunks are no faster, and lose more when killed
DEFAULT_CHUNK_SIZE = 4096
MAX_SEPARATE_SEEDS = 3  # the most seeds whose single networks are trained separately
CHECKPOINT_KEY_DIGITS = 32  # of a key in the name of a file
NETWORKS_PER_PASS = 16  # networks that answer the same rows at a time, which limits memory
TIMED_PASSES = 20


@contextmanager
def open_runner(
    problem: Problem,
    out: str | os.PathLike[str],
    *,
    executor: str | Executor = "serial",
    device: str = "auto",
    progress: Progress | None = None,
    keep: Keep = "all",
) -> Iterator[Runner]:
    """Opens a runner that stores networks in `run.sqlite` in the given folder and logs to `run.log`.

    On exit, the executor is stopped.

    Args:
        problem: the problem to train on. The same folder can also store networks for other problems.
        out: the folder, which is created if it does not exist.
        executor: see `Study`.
        device: see `Study`.
        progress: an object that receives the number of networks to train and an update whenever one finishes.
        keep: "all" or, to save space, "recommended", which drops the weights of networks not marked with `Store.keep`
            at the end.

    Example:
        >>> import numpy as np, tempfile
        >>> from tagalong.learn import Recipe, Task
        >>> X, Y = np.random.default_rng(0).normal(size=(2, 100, 2))
        >>> tasks = [Task(name, kind="regression") for name in ("age", "height")]
        >>> problem = Problem.from_arrays(X, Y, tasks, recipe=Recipe(epochs=1))
        >>> with tempfile.TemporaryDirectory() as out, open_runner(problem, out, device="cpu") as runner:
        ...     jobs = [runner.job(["age"], seed=0), runner.job(["age", "height"], seed=0)]
        ...     results = runner.networks(jobs)
        >>> [sorted(result.test) for result in results.values()]
        [['age'], ['age', 'height']]
    """
    made_executor, checked_device, folder = make_executor(executor), device_name(device), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial"
    with log_to_file(folder / "run.log") as unwritten, Store(folder / "run.sqlite") as store:
        runner = Runner(problem, store, made_executor, device=checked_device, progress=progress, partial=partial)
        with runner:
            runner.unwritten = unwritten
            yield runner
            if keep == "recommended":
                for one in runner.family:
                    one.drop_weights()
            runner.tidy()


def check_runner(out: str | os.PathLike[str], *, executor: str | Executor = "serial", device: str = "auto") -> None:
    """Raises the errors that `open_runner` would raise, without loading a problem.

    Args:
        out: see `open_runner`.
        executor: see `open_runner`.
        device: see `open_runner`.

    Raises:
        ValueError: If the executor or device is unknown, or the networks in the folder cannot be used.
    """
    make_executor(executor)
    device_name(device)
    check_store(Path(out))


def without_rows(tasks: Iterable[str], name: str = "unknown") -> Problem:
    """Returns a problem of which only the names of the tasks are known, for runners that train nothing."""
    names = tuple(tasks)
    empty = Split(torch.zeros(0, 0), {task: torch.zeros(0) for task in names})
    return Problem(name, tuple(Task(task, "regression") for task in names), empty, empty, empty, nn.Identity)


class Runner:
    """Provides the results of the networks for one problem: from its store, or from its executor.

    Networks that are requested together are split evenly over the executor's workers, in chunks that are trained as one
    computation. A network's results can differ in the last bits depending on the other networks in its chunk. Chunks
    therefore do not depend on which networks are already finished, and each chunk is stored in one transaction.

    A subclass may look up results elsewhere: `find_results` and `measure_affinity` are all that most methods need.

    Args:
        problem: the problem.
        store: the store of finished networks. Defaults to a store in memory.
        executor: the executor that trains chunks of networks (see `make_executor`). Defaults to training in this
            process.
        device: the device to train on.
        progress: an object that receives the number of networks to train and an update whenever one finishes.
        partial: the folder for checkpoints, or None to disable them.

    Attributes:
        problem: the problem.
        tasks: the names of all tasks.
        trains: whether networks are trained here. If not, only plain networks can be requested.
        store: the store of finished networks.
        keys: the keys of the networks in the store.
        executor: the executor.
        device: the device to train on.
        unwritten: sentences about files that could not be written, e.g. on a full disk.
    """

    def __init__(
        self,
        problem: Problem,
        store: Store | None = None,
        executor: Executor | None = None,
        *,
        device: str = "cpu",
        progress: Progress | None = None,
        partial: Path | None = None,
    ) -> None:
        self.problem, self.tasks, self.device = problem, problem.names, device
        self.store = Store() if store is None else store
        self.executor = executor or make_executor("serial")
        self.trains: bool = getattr(self.executor, "trains", True)
        self.keys = Keys(problem, device)
        self.unwritten: list[str] = []
        self._progress, self._partial = progress or NoProgress(), partial
        self._workers: int | None = None  # once the executor has started
        self._known: dict[Job, Trained] = {}
        self._requested: set[Job] = set()
        self._diverged: set[Job] = set()
        self._lessons: dict[Taught, Mapping[str, Tensor]] = {}
        self.family = [self]  # with the runners of folds, which have the same executor
        self._place = ""  # of this fold among all folds, for progress updates

    def folds(self, count: int) -> list[Runner]:
        """Returns a runner for each of so many folds of the problem, with the same store, or this one for one split."""
        if count == 1:
            return [self]
        if len(self.family) == 1:
            for number, problem in enumerate(self.problem.folds(count), 1):
                fold = Runner(problem, self.store, self.executor, device=self.device, partial=self._partial)
                fold.family, fold._progress, fold._place = self.family, self._progress, f"fold {number} of {count}: "
                self.family.append(fold)
        return self.family[1:]

    def close(self) -> None:
        """Stops the executor."""
        for runner in self.family:
            if runner._workers is not None:
                runner._workers = None
                self.executor.stop()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Jobs -------------------------------------------------------------------------------------------------------------

    def job(self, tasks: Iterable[str], seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        """Returns the job for a network with these tasks, sorted in the runner's order.

        Raises:
            InvalidInput: If the network is not plain, but networks are trained elsewhere.
        """
        wanted = set(tasks)
        return self._allowed(Job(tuple(name for name in self.tasks if name in wanted), seed, rule, float(width)))

    def group_job(self, group: Group, seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        """Returns the job for the network of a group in the record of a seed; copies have seeds of their own.

        Args:
            group: the group.
            seed: the seed of the record.
            rule: the rule that combines the task losses, unless the group has a rule of its own.
            width: the width of a group of size 1.

        Raises:
            InvalidInput: If the network must be wider than others and cannot be, or the problem has no such network.
        """
        rule = rule if group.rule == "plain" else group.rule
        if group.size > 1 and not self.trains:
            width = group.size  # which is not allowed
        elif group.size > 1:
            tasks = tuple(name for name in self.tasks if name in group.trains)
            width = width_of_size(self.problem.with_network(group.network), tasks, group.size, width)
        job = self.job(group.trains, member_seed(seed, group.copy), rule, width)
        return self._allowed(replace(job, taught=group.taught, network=group.network))

    def _allowed(self, job: Job) -> Job:
        if not self.trains and job != Job(job.tasks, job.seed):
            expected = "must need plain networks only if networks are trained elsewhere"
            raise InvalidInput("methods", expected, f"a network with other settings for {', '.join(job.tasks)}")
        return job

    def subsets(self, largest: int | None = None, smallest: int = 1) -> list[Subset]:
        """Returns all sets of tasks of these sizes, smallest first."""
        most = len(self.tasks) if largest is None else min(largest, len(self.tasks))
        return [frozenset(chosen) for size in range(smallest, most + 1) for chosen in combinations(self.tasks, size)]

    def step_cost(self, network: str | None) -> float:
        """Returns what a training step of a network costs, as a multiple of a step of a plain network.

        Args:
            network: the name of another network than the problem's own, or None.
        """
        return relative_step_cost(self.problem, network) if self.trains else 1.0

    # Results ----------------------------------------------------------------------------------------------------------

    def networks(self, jobs: Iterable[Job], what: str = "networks", *, diverged: bool = False) -> dict[Job, Trained]:
        """Returns the results of these networks.

        Args:
            jobs: the networks.
            what: a description of the networks, used in progress updates and messages.
            diverged: whether to include networks that diverged (see `Trained.diverged`).

        Raises:
            Diverged: If a network diverges and `diverged` is False.
            Pending: If a network that is trained elsewhere has no result yet.
        """
        wanted = [self._allowed(job) for job in dict.fromkeys(jobs)]
        self._requested.update(wanted)
        results = self.find_results(wanted, what)
        lost = [job for job in wanted if results[job].diverged]
        if lost and not diverged:
            raise Diverged(f"{what}: {describe_jobs(lost)} diverged; lower `recipe.lr`")
        if new := [job for job in lost if job not in self._diverged]:
            logger.warning("%s: %s diverged and will rank below all other results", what, describe_jobs(new))
            self._diverged.update(new)
        return {job: results[job] for job in wanted}

    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, Trained]:
        """Returns a mapping with the results of these networks, including those that diverged."""
        missing = self.missing(jobs)
        if missing and not self.trains:
            raise Pending(missing)
        waiting = {self.keys.of(job): job for job in jobs} if missing else {}
        while waiting:
            # Networks come after those that teach them.
            ready = {
                key: job
                for key, job in waiting.items()
                if job.taught is None or not waiting.keys() & set(job.taught.teachers)
            }
            waiting = {key: job for key, job in waiting.items() if key not in ready}
            requested = list(ready.values())
            self._train(self._plain_chunks(requested, self.missing(requested)), what, len(requested))
            self.missing(requested)  # reads their results
        return self._known

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Returns the networks that are not in the store yet."""
        unseen = {self.keys.of(job): job for job in jobs if job not in self._known}
        self._known |= {unseen[key]: row for key, row in self.store.results(unseen).items()}
        return [job for job in unseen.values() if job not in self._known]

    def prepare(
        self, jobs: Iterable[Job], seeds: Sequence[int] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        """Trains networks and measures affinities that will be requested later, all at the same time.

        If networks are trained elsewhere, this does nothing.

        Args:
            jobs: the networks to train without a meter.
            seeds: the seeds for which to measure the affinity between all tasks.
            settings: the settings of the `AffinityMeter`.
        """
        if not self.trains:
            return
        settings, wanted = settings or {}, list(dict.fromkeys(jobs))
        metered = self._metered_chunks([self.job(self.tasks, seed) for seed in seeds], settings)
        measured = {job for chunk in metered for job in chunk.jobs}
        missing = [job for job in self.missing(wanted) if job not in measured]
        plain = self._plain_chunks(wanted, missing, others=len(seeds))
        what = "networks needed first"
        if metered:
            what = f"measuring affinities ({settings.get('estimator', 'lookahead')})"
        self._train([*metered, *plain], what, len(wanted) + len(seeds))

    def requested(self, jobs: Iterable[Job]) -> bool:
        """Whether all of these networks were requested from this runner.

        Requests made by earlier runs do not count.
        """
        return self._requested.issuperset(jobs)

    def cost(self, jobs: Iterable[Job]) -> Cost:
        """Returns the total cost of these networks, counting each network once."""
        results = self.networks(jobs, diverged=True).values()
        return sum((Cost(1, result.steps, result.seconds) for result in results), Cost())

    def converged_seeds(self, seeds: Iterable[int]) -> tuple[int, ...]:
        """Returns the seeds for which the network for all tasks (the baseline of every comparison) converged.

        Raises:
            Diverged: If the network diverges for every seed.
        """
        jobs = {seed: self.job(self.tasks, seed) for seed in seeds}
        results = self.networks(jobs.values(), "all tasks together", diverged=True)
        converged = tuple(seed for seed, job in jobs.items() if not results[job].diverged)
        if not converged:
            raise Diverged(
                f"one network for all tasks diverged with every seed ({', '.join(map(str, jobs))}), and everything is "
                "compared with it; lower `recipe.lr`"
            )
        return converged

    # Later questions --------------------------------------------------------------------------------------------------

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinity between tasks trained in one network, pooled over seeds, and its cost for each seed.

        Args:
            seeds: the seeds of the networks.
            settings: the settings of the `AffinityMeter`.
            method: the method that uses the affinity. This is needed only if networks are trained elsewhere.

        Raises:
            Diverged: If the network diverges for every seed.
        """
        measured = self.affinities(seeds, settings)
        merged: Affinity = reduce(Affinity.merge, (affinity for affinity, _ in measured.values()))
        return merged, {seed: cost for seed, (_, cost) in measured.items()}

    def affinities(self, seeds: Sequence[int], settings: Mapping[str, Any]) -> dict[int, tuple[Affinity, Cost]]:
        """Returns the affinity and training cost for each seed.

        Measures affinities that are not in the store. The meter does not affect training, so networks trained with it
        are also added to the store. Seeds for which training diverged are omitted.

        Raises:
            Diverged: If training diverges for every seed.
        """
        jobs = {seed: self.job(self.tasks, seed) for seed in seeds}
        self.prepare((), seeds, settings)
        measured = {}
        for seed, job in jobs.items():
            if (entry := self.store.affinity(self.keys.of_affinity(job, settings))) is not None:
                measured[seed] = entry
        if not measured:
            raise Diverged(f"affinities: {describe_jobs(list(jobs.values()))} diverged; lower `recipe.lr`")
        return measured

    def latency(self, tasks: Iterable[str], width: float = 1.0, network: str | None = None) -> float | None:
        """Returns the inference time per row, in seconds, of the network for these tasks, or None if unknown."""
        if not self.trains:
            return None
        job = replace(self.job(tasks, 0, width=width), network=network)
        key = f"latency of {self.keys.of(job)}"
        if self.store.computed(key) is None:
            built = build_network(self.problem.with_network(network), job.tasks, seed=0, width=width)
            row, _ = self.problem.test.only(()).to(self.device).batch(torch.tensor([0]))
            names = {"network": built.to(self.device).eval(), "row": row}
            with torch.inference_mode():
                timer = Timer("network(row)", globals=names, num_threads=torch.get_num_threads())
                self.store.add_computed(key, timer.timeit(TIMED_PASSES).median)
        return float(self.store.computed(key))

    def operations(self, record: Record) -> float | None:
        """Returns the multiplications and visited tree nodes of an answer for one row, or None if they are unknown."""
        if not self.trains:
            return None
        results = self.store.results(record.networks)
        row, _ = self.problem.test.only(()).batch(torch.tensor([0]))
        total = 0.0
        for group, key in zip(record.groups, record.networks, strict=True):
            job = results[key].job
            if job.network in FITTED:  # the number of nodes depends on the trees
                network = self._rebuild(results[key], group).cpu()
            else:
                served = [task for task in self.tasks if task in group.serves]
                network = build_network(self.problem.with_network(job.network), served, seed=0, width=job.width)
            total += count_multiplications(network, row.cpu())
        return total

    def task(self, name: str) -> Task | None:
        """Returns the task with this name, or None if only its name and the losses of networks are known."""
        return self.problem.task(name) if len(self.problem.val) else None

    def targets(self, part: str) -> dict[str, Tensor]:
        """Returns the targets of each task, on the CPU, with NaN for missing labels, for the rows of `outputs`."""
        chunks = [targets for _, targets in self.problem.splits[part].chunks()]
        return {task: torch.cat([targets[task] for targets in chunks]).cpu() for task in self.tasks}

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of these networks for each of their tasks, on the CPU, with the rows in order.

        They are computed from the weights. Either the outputs or the weights are kept in the store, whichever are
        smaller, so that a resumed study trains no network again.

        Args:
            jobs: the networks.
            part: "val" or "test".

        Raises:
            Diverged: If a network diverges.
            InvalidInput: If networks are trained elsewhere, and only their losses are known.
        """
        results = self.networks(jobs)
        outputs = {job: self.store.answers(result.key, part) for job, result in results.items()}
        missing = [job for job, answers in outputs.items() if answers is None]
        if missing and not self.trains:
            raise InvalidInput("methods", "must not need the predictions of networks if only their losses are known")
        self.restore(results[job].key for job in missing)
        rows: Rows = self.problem.splits[part].only(()).to(self.device)
        for start in range(0, len(missing), NETWORKS_PER_PASS):
            some = missing[start : start + NETWORKS_PER_PASS]
            networks = [self._rebuild(results[job], Group(job.tasks, job.tasks)) for job in some]
            for job, answers in zip(some, outputs_on_rows(networks, rows), strict=True):
                self.store.add_answers(results[job].key, part, answers)
                outputs[job] = answers
        return {job: {task: answers[task] for task in job.tasks} for job, answers in outputs.items() if answers}

    def row_losses(self, record: Record, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row from the networks that serve it, or None if unknown.

        The losses of rows without a label are NaN.
        """
        averaged = self.average_scores(record.groups, record.networks, part)
        losses: Losses = {task: score.rows for task, score in averaged.items() if score.rows is not None}
        for group, key in zip(record.groups, record.networks, strict=True):
            by_task = self.store.losses(key, part)
            if by_task is None:
                return None
            losses |= {task: by_task[task] for task in group.serves if task not in averaged}
        return {task: losses[task] for task in self.tasks if task in losses}

    def average_scores(self, groups: Sequence[Group], networks: Sequence[str], part: str) -> dict[str, Score]:
        """Returns the scores of the tasks that several networks serve, from the average of their answers.

        Args:
            groups: the tasks that each network is trained on and serves.
            networks: the store keys of the networks, one per group.
            part: "val" or "test".

        Raises:
            InvalidInput: If networks are trained elsewhere, and only their losses are known.
        """
        tasks = averaged_tasks(groups)
        members = [(group, key) for group, key in zip(groups, networks, strict=True) if group.serves & tasks]
        if not members:
            return {}
        results = self.store.results({key for _, key in members})
        if any(result.diverged for result in results.values()):
            return dict.fromkeys(tasks, Score(math.nan, math.nan))
        if not self.store.without_weights(results):
            served = [Group(group.trains, group.serves & tasks) for group, _ in members]
            rebuilt = [self._rebuild(results[key], group) for group, (_, key) in zip(served, members, strict=True)]
            rows: Rows = self.problem.splits[part]
            return average_scores_on(self.problem, rebuilt, rows.only(tasks).to(self.device))
        outputs = self.outputs([results[key].job for _, key in members], part)
        answers = [{task: outputs[results[key].job][task] for task in group.serves & tasks} for group, key in members]
        averages = {task.name: task.averaging for task in self.problem.tasks}
        targets, scores, weights = self.targets(part), {}, self.problem.splits[part].weights
        for name, average in average_answers(answers, averages).items():
            scale = self.problem.answer_scales.get(name)
            scores[name] = score_outputs(self.problem.task(name), average, targets[name], scale, weights)
        return scores

    def _rebuild(self, result: Trained, group: Group) -> Network:
        job, problem = result.job, self.problem.with_network(result.job.network)
        return serving_network(problem, group, self.weights(result.key), job.seed, job.width).to(self.device)

    # Weights ----------------------------------------------------------------------------------------------------------

    def weights(self, key: str) -> dict[str, Tensor]:
        """Returns the weights of a network. Retrains the network if its weights were not kept."""
        self.restore([key])
        state = self.store.weights(key)
        assert state is not None
        return state

    def restore(self, keys: Iterable[str]) -> None:
        """Trains networks whose weights were dropped again, with the batches that they were trained in."""
        dropped = self.store.without_weights(keys)
        batches = dict.fromkeys(tuple(self.store.batch(key)) for key in dropped)
        chunks = [self._make_chunk(batch) for batch in batches]
        for _, networks in self._run_chunks(chunks, "networks whose weights were not kept"):
            self.store.add_weights({self.keys.of(trained.job): trained for trained in networks})

    def drop_weights(self) -> None:
        """Drops the weights of networks that are not marked with `Store.keep`, but keeps their answers."""
        trained = {result.key: job for job, result in self._known.items() if not result.diverged}
        for job in trained.values():
            for part in ("val", "test"):
                self.outputs([job], part)
        cost = self.store.drop_weights(trained)
        if cost.networks:
            logger.info(
                "dropped the weights of %d networks; if a later run needs them, e.g. to teach other networks, training "
                "them again takes about %.0f seconds",
                cost.networks,
                cost.seconds,
            )

    def tidy(self) -> None:
        """Removes what killed processes left of the checkpoints of networks that are finished now."""
        if self._partial is None:
            return
        for path in list(self._partial.glob("*")):
            if self.store.has_key_starting_with(path.name.lstrip(".")[:CHECKPOINT_KEY_DIGITS]):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it does not exist, or contains checkpoints of other networks
            self._partial.rmdir()

    # Training ---------------------------------------------------------------------------------------------------------

    def _train(self, chunks: Sequence[Chunk], what: str, requested: int) -> None:
        """Trains the networks of these chunks. Stores them and the affinities that were measured."""
        if chunks:
            count = sum(len(chunk.jobs) for chunk in chunks)
            logger.info("%s: training %d of %d networks", what, count, requested)
        for chunk, networks in self._run_chunks(chunks, what):
            if chunk.meter is not None:
                (trained,) = networks
                networks = [self._store_affinity(trained, chunk.meter)]
            self.store.add({self.keys.of(one.job): (self.keys.definition(one.job), one) for one in networks})

    def _store_affinity(self, trained: Trained, settings: Mapping[str, Any]) -> Trained:
        """Stores the affinity that was measured, and returns the network with its training time without a meter."""
        if trained.affinity is None:  # training diverged
            return trained
        share = trained.affinity.settings.get("overhead", 0.0)
        overhead = trained.seconds * share / (1 + share)
        cost = Cost(1, plain_steps(trained.affinity, trained.steps), trained.seconds)
        # The network is counted by its own row, unless it was there before.
        spent = Cost(0, 0, overhead) if self.missing([trained.job]) else Cost(1, trained.steps, trained.seconds)
        self.store.add_affinity(self.keys.of_affinity(trained.job, settings), trained.affinity, cost, spent)
        return replace(trained, seconds=trained.seconds - overhead)

    def _run_chunks(self, chunks: Sequence[Chunk], what: str) -> Iterator[tuple[Chunk, list[Trained]]]:
        if not chunks:
            return
        self._start()
        self._progress.start(sum(len(chunk.jobs) for chunk in chunks), f"{self._place}{what}")
        report = ProgressReporter(self._progress)
        try:
            for chunk, networks in self.executor.map(chunks, report):
                report.finished(len(networks), sum(trained.steps for trained in networks))
                yield chunk, networks
        finally:
            self._progress.done()

    def _start(self) -> int:
        if self._workers is None:
            self.close()  # an executor trains the networks of one fold at a time
            self._workers = self.executor.start(self.problem, self.device) or 1
        return self._workers

    def _metered_chunks(self, jobs: Iterable[Job], settings: Mapping[str, Any]) -> list[Chunk]:
        """Returns a chunk for each network whose affinity is missing, except for those that are known to diverge."""
        keys = {job: self.keys.of_affinity(job, settings) for job in jobs}
        unmeasured = [job for job, key in keys.items() if self.store.computed(key) is None]
        self.missing(unmeasured)  # reads the results of the others
        wanted = [job for job in unmeasured if job not in self._known or not self._known[job].diverged]
        return [Chunk((job,), dict(settings), self._checkpoint_path(keys[job])) for job in wanted]

    def _plain_chunks(self, jobs: Sequence[Job], missing: Sequence[Job], others: int = 0) -> list[Chunk]:
        """Splits all requested networks into chunks, and returns the chunks with only the missing networks.

        If the missing networks were split instead, a resumed study would split them differently.

        Args:
            jobs: the requested networks.
            missing: the networks among them that are not in the store yet.
            others: the number of networks that are trained at the same time in chunks of their own.
        """
        if not missing:
            return []
        workers = self._start()  # a cluster must be connected before its workers can be counted
        size = 1
        if self._batched:
            # All workers get equal shares.
            size = CHUNK_SIZES.get(self.keys.device, DEFAULT_CHUNK_SIZE)
            if workers > 1:
                chunks_per_worker = math.ceil((len(jobs) + others) / (workers * size))
                size = math.ceil((len(jobs) + others) / (workers * chunks_per_worker))
        wanted = set(missing)
        kept = ([job for job in some if job in wanted] for some in split_into_chunks(jobs, size))
        return [self._make_chunk(some) for some in kept if some]

    @cached_property
    def _batched(self) -> bool:
        reason = why_not_batched(self.problem, device=self.device)
        if reason is not None:
            logger.warning("training the networks of %s one at a time: %s", self.problem.name, reason)
        return reason is None

    def _make_chunk(self, jobs: Sequence[Job]) -> Chunk:
        lessons = dict.fromkeys(job.taught.lesson for job in jobs if job.taught is not None)
        answers = {taught: self._answers(taught) for taught in lessons}
        return Chunk(tuple(jobs), checkpoint=self._checkpoint_path(self.keys.of(jobs[0])), answers=answers)

    def _answers(self, taught: Taught) -> Mapping[str, Tensor]:
        """Returns the answers of a lesson, which are computed only once."""
        if taught not in self._lessons:
            results = self.store.results(taught.teachers)
            if missing := [key for key in taught.teachers if key not in results or results[key].diverged]:
                expected = "must be networks in the store that did not diverge"
                raise InvalidInput("teachers", expected, first_few(missing), "train them first: `runner.networks`")
            self.restore(taught.teachers)
            jobs = {key: results[key].job for key in taught.teachers}
            teachers = {key: self._rebuild(results[key], Group(job.tasks, job.tasks)) for key, job in jobs.items()}
            self._lessons[taught] = teacher_answers(self.problem, taught, teachers, self.device)
        return self._lessons[taught]

    def _checkpoint_path(self, key: str) -> Path | None:
        return None if self._partial is None else self._partial / f"{key[:CHECKPOINT_KEY_DIGITS]}.pt"


def split_into_chunks(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Splits jobs into chunks of up to `size` plain networks of the same kind and width, seed by seed.

    Networks that others teach are in chunks of their own, which have the same additional rows. Each network whose rule
    is not plain gets its own chunk. So do the networks of a few seeds with one network each, such as
    those for all tasks, which gain little from being trained together.

    Example:
        >>> jobs = [Job((task,), seed) for task in "abc" for seed in (0, 1)]
        >>> [[(job.tasks[0], job.seed) for job in some] for some in split_into_chunks(jobs, 4)]
        [[('a', 0), ('b', 0), ('c', 0), ('a', 1)], [('b', 1), ('c', 1)]]
    """
    together: dict[tuple[Any, ...], list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.seed):
        rows = None if job.taught is None else (job.taught.mixtures, job.taught.unlabelled)
        kind = job.width, job.network, rows, None if job.rule == "plain" else job
        together.setdefault(kind, []).append(job)
    chunks = []
    for same in together.values():
        has_few_seeds = len({job.seed for job in same}) == len(same) <= MAX_SEPARATE_SEEDS
        step = 1 if has_few_seeds else size
        chunks += [same[start : start + step] for start in range(0, len(same), step)]
    return chunks


def plain_steps(affinity: Affinity, steps: int, runs: int = 1) -> int:
    """Converts the number of steps in a training run with a meter to the equivalent number of plain steps.

    A plain step costs as much as three forward passes, since the backward pass counts as two. Measuring n tasks takes n
    backward passes. Lookahead takes n additional forward passes.

    Args:
        affinity: the measured affinity.
        steps: the number of steps in the training run.
        runs: the number of training runs over which the measured steps are distributed equally.

    Example:
        >>> import numpy as np
        >>> affinity = Affinity.from_history(np.zeros((10, 3, 3)), ["age", "ill", "fit"])
        >>> plain_steps(affinity, 100)
        123
    """
    n = len(affinity.tasks)
    passes = 1 + (3 if affinity.settings.get("estimator", "lookahead") == "lookahead" else 2) * n
    return round(steps + len(affinity.steps) * (passes - 3) / 3 / runs)


def describe_jobs(jobs: Sequence[Job]) -> str:
    """Formats the tasks and seeds of these networks for messages."""
    return first_few([f"{'+'.join(job.tasks)} with seed {job.seed}" for job in jobs])
