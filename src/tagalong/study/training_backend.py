"""The runner that trains networks which are missing from its store."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few
from tagalong.group import Group
from tagalong.learn import (
    Diverged,
    Job,
    Lesson,
    Network,
    Problem,
    Recipe,
    Rows,
    Taught,
    average_answers,
    average_scores_on,
    build_network,
    networks_at_once,
    outputs_on_rows,
    score_outputs,
    why_not_batched,
)
from tagalong.progress import NoProgress, Progress, ProgressReporter
from tagalong.score import Score

from .executors import Advance, Chunk, Executor, device_name, make_executor, planned_workers, worker_count
from .keys import Keys
from .latency import measure_latency
from .members import serving_network
from .network_result import Losses, NetworkResult
from .records import Cost, Record, averaged_tasks
from .run_folder import check_store, log_to_file
from .runner import Runner, describe_jobs
from .store import Store

logger = logging.getLogger(__name__)
Keep = Literal["all", "recommended"]
CHUNK_SIZES = {"cpu": 64}  # networks per chunk, by device; larger chunks are no faster, and lose more when killed
DEFAULT_CHUNK_SIZE = 4096
MAX_SEPARATE_SEEDS = 3  # the most seeds whose single networks are trained separately
# The memory of networks that take about twice as long together as one of them alone, by device.
FREE_BYTES = {"cpu": 2 * 2**20}
DEFAULT_FREE_BYTES = 512 * 2**20
CHECKPOINT_KEY_DIGITS = 32  # digits of a key in file names
NETWORKS_PER_PASS = 16  # networks that answer the same rows at a time, which limits memory


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


@contextmanager
def open_runner(
    problem: Problem,
    out: str | os.PathLike[str],
    *,
    executor: str | Executor = "serial",
    device: str = "auto",
    progress: Progress | None = None,
    keep: Keep = "all",
) -> Iterator[TrainingRunner]:
    """Opens a runner that stores networks in `run.sqlite` in the given folder and logs to `run.log`.

    On exit, the executor is stopped. If no error was raised, checkpoints of finished networks are removed.

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
    with (
        log_to_file(folder / "run.log") as unwritten,
        Store(folder / "run.sqlite") as store,
        TrainingRunner(
            problem,
            store,
            executor=made_executor,
            device=checked_device,
            progress=progress,
            partial=folder / "partial",
        ) as runner,
    ):
        runner.unwritten = unwritten
        yield runner
        if keep == "recommended":
            runner.drop_weights()
        runner.tidy()


class TrainingRunner(Runner):
    """Trains the networks for one problem unless they are already in the store.

    Networks that are requested together are split evenly over the executor's workers, in chunks that are trained as one
    computation. A network's results can differ in the last bits depending on the other networks in its chunk. Chunks
    therefore do not depend on which networks are already finished, and each chunk is stored in one transaction.

    Args:
        problem: the problem to train on.
        store: the store of finished networks.
        executor: the executor that trains chunks of networks (see `make_executor`).
        device: the device to train on.
        progress: an object that receives the number of networks to train and an update whenever one finishes.
        partial: the folder for checkpoints, or None to disable them.

    Attributes:
        problem: the problem to train on.
        store: the store of finished networks.
        keys: the keys of the networks in the store.
        device: the device to train on.
        unwritten: sentences about files that could not be written, e.g. on a full disk.
    """

    problem: Problem
    can_teach = True

    def __init__(
        self,
        problem: Problem,
        store: Store,
        *,
        executor: Executor,
        device: str = "cpu",
        progress: Progress | None = None,
        partial: Path | None = None,
    ) -> None:
        super().__init__(problem.names)
        self.problem, self.store, self.device = problem, store, device
        self.keys = Keys(problem, device)
        self._executor, self._started = executor, False
        self._progress, self._partial = progress or NoProgress(), partial
        self._known: dict[Job, NetworkResult] = {}
        self._recipe: Recipe | None = None  # of a variant
        self._lessons: dict[Taught, Mapping[str, NDArray[Any]]] = {}
        self.unwritten: list[str] = []

    def variant(self, **recipe: Any) -> TrainingRunner:
        """Returns a runner for the same data with a different recipe, which shares this runner's store and executor.

        Use `train_side_by_side` to train the networks of several variants at the same time. A variant must not be used
        after this runner is closed.

        Args:
            **recipe: the recipe settings to change.
        """
        problem = replace(self.problem, recipe=replace(self.problem.recipe, **recipe))
        vars(problem)["fingerprint"] = self.problem.fingerprint  # the data are the same, and reading them takes long
        shared = _SharedExecutor(self)
        found = TrainingRunner(
            problem, self.store, executor=shared, device=self.device, progress=self._progress, partial=self._partial
        )
        found._recipe = problem.recipe
        return found

    def close(self) -> None:
        """Stops the executor."""
        if self._started:
            self._executor.stop()
            self._started = False

    def __enter__(self) -> TrainingRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, NetworkResult]:
        for some in self._generations(jobs):
            missing = self.missing(some)
            if missing:
                logger.info("%s: training %d of %d networks", what, len(missing), len(some))
                self._train(self._plain_chunks(some, missing), what)
                self.missing(missing)  # reads their results
        return self._known

    def _generations(self, jobs: Sequence[Job]) -> list[Sequence[Job]]:
        """Splits a request so that networks come after those that teach them."""
        if not any(job.taught for job in jobs):
            return [jobs]
        by_key = {self.keys.of(job): job for job in jobs}

        def age(job: Job) -> int:
            teachers = () if job.taught is None else job.taught.teachers
            return max((1 + age(by_key[key]) for key in teachers if key in by_key), default=0)

        ages = {job: age(job) for job in jobs}
        return [[job for job in jobs if ages[job] == wanted] for wanted in sorted(set(ages.values()))]

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Returns the networks that are not in the store yet."""
        unseen = {self.keys.of(job): job for job in jobs if job not in self._known}
        self._known |= {unseen[key]: row for key, row in self.store.results(unseen).items()}
        return [job for job in unseen.values() if job not in self._known]

    def affinities(self, seeds: Sequence[int], settings: Mapping[str, Any]) -> dict[int, tuple[Affinity, Cost]]:
        """Returns the affinity and training cost for each seed.

        Measures affinities that are not in the store. The meter does not affect training, so networks trained with it
        are also added to the store. Seeds for which training diverged are omitted.

        Raises:
            Diverged: If training diverges for every seed.
        """
        jobs = {seed: self.job(self.problem.names, seed) for seed in seeds}
        keys = {seed: self.keys.of_affinity(job, settings) for seed, job in jobs.items()}
        self._train(self._metered_chunks(jobs.values(), settings), _measuring(settings))
        found = {seed: self.store.affinity(key) for seed, key in keys.items()}
        known = {seed: measured for seed, measured in found.items() if measured is not None}
        if not known:
            raise Diverged(f"affinities: {describe_jobs(list(jobs.values()))} diverged; lower `recipe.lr`")
        return known

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        measured = self.affinities(seeds, settings)
        merged: Affinity = reduce(Affinity.merge, (affinity for affinity, _ in measured.values()))
        return merged, {seed: cost for seed, (_, cost) in measured.items()}

    @cached_property
    def free_width(self) -> int | None:
        return self._free_width_per_worker * planned_workers(self._executor, self.device)

    @property
    def _free_width_per_worker(self) -> int:
        if not self._batched:
            return 1
        device = torch.device(self.device)
        network = build_network(self.problem, self.problem.names, seed=0).to(device)
        return networks_at_once(self.problem, network, device, FREE_BYTES.get(device.type, DEFAULT_FREE_BYTES))

    def prepare(
        self, jobs: Iterable[Job], seeds: Sequence[int] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        settings, wanted = settings or {}, list(dict.fromkeys(jobs))
        metered = self._metered_chunks([self.job(self.problem.names, seed) for seed in seeds], settings)
        pending = {job for chunk in metered for job in chunk.jobs}
        missing = [job for job in self.missing(wanted) if job not in pending]
        plain = self._plain_chunks(wanted, missing, others=len(seeds))
        what = _measuring(settings) if metered else "networks needed first"
        if count := sum(len(chunk.jobs) for chunk in (*metered, *plain)):
            logger.info("%s: training %d of %d networks", what, count, len(wanted) + len(seeds))
        self._train([*metered, *plain], what)

    def early_job(self, job: Job, steps: float) -> Job:
        steps_per_epoch = -(-len(self.problem.train) // self.problem.recipe.batch_size)
        return replace(job, epochs=max(1, round(steps / steps_per_epoch)))

    def latency(self, tasks: Iterable[str], width: float = 1.0, network: str | None = None) -> float:
        """Returns the inference time per row in seconds, measuring it only once."""
        served = replace(self.job(tasks, 0, width=width), network=network)
        key = self.keys.of(served)
        seconds = self.store.latency(key)
        if seconds is None:
            problem = self.problem.with_network(network)
            built = build_network(problem, served.tasks, seed=0, width=width).to(self.device)
            row, _ = self.problem.test.only(()).to(self.device).batch(torch.tensor([0]))
            seconds = measure_latency(built, row)
            self.store.add_latency(key, seconds)
        return seconds

    def row_losses(self, record: Record, part: str = "test") -> Losses:
        """Returns each task's loss on every row from the networks that serve it, with NaN for rows without a label."""
        averaged = self.average_scores(record.groups, record.networks, part)
        found: Losses = {task: score.rows for task, score in averaged.items() if score.rows is not None}
        for group, key in zip(record.groups, record.networks, strict=True):
            losses = self.store.losses(key, part)
            assert losses is not None
            found |= {task: losses[task] for task in group.serves if task not in averaged}
        return {task: found[task] for task in self.problem.names if task in found}

    def average_scores(self, groups: Sequence[Group], networks: Sequence[str], part: str) -> dict[str, Score]:
        """Returns the scores of the tasks that several networks serve, from their weights or stored answers."""
        tasks = averaged_tasks(groups)
        members = [(group, key) for group, key in zip(groups, networks, strict=True) if group.serves & tasks]
        if not members:
            return {}
        results = self.store.results({key for _, key in members})
        if any(result.diverged for result in results.values()):
            return dict.fromkeys(tasks, Score(math.nan, math.nan))
        served = [Group(group.trains, group.serves & tasks) for group, _ in members]
        if self.store.without_weights(results):
            outputs = self.outputs([results[key].job for _, key in members], part)
            answers = [
                {task: outputs[results[key].job][task] for task in group.serves & tasks} for group, key in members
            ]
            return self._score_averages(answers, part)
        rebuilt = [self._rebuild(results[key], group) for group, (_, key) in zip(served, members, strict=True)]
        rows: Rows = getattr(self.problem, part)
        return average_scores_on(self.problem, rebuilt, rows.only(tasks).to(self.device))

    def _score_averages(self, answers: Sequence[Mapping[str, Tensor]], part: str) -> dict[str, Score]:
        averages = {task.name: task.averaging for task in self.problem.tasks}
        targets, scores, weights = self.targets(part), {}, self.problem.splits[part].weights
        for name, outputs in average_answers(answers, averages).items():
            scale = self.problem.scales.get(name)
            score = score_outputs(self.problem.task(name), outputs, targets[name], scale, weights)
            assert score.rows is not None
            scores[name] = replace(score, rows=score.rows.astype(np.float32))
        return scores

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of these networks for each of their tasks, on the CPU, with the rows in order.

        They are computed from the weights. Either the outputs or the weights are kept in the store, whichever are
        smaller, so that a resumed study trains no network again.
        """
        results = self.networks(jobs)
        found = {job: self.store.outputs(result.key, part) for job, result in results.items()}
        missing = [job for job, outputs in found.items() if outputs is None]
        self.restore(results[job].key for job in missing)
        rows: Rows = getattr(self.problem, part).only(()).to(self.device)
        for start in range(0, len(missing), NETWORKS_PER_PASS):
            some = missing[start : start + NETWORKS_PER_PASS]
            networks = [self._rebuild(results[job], Group(job.tasks, job.tasks)) for job in some]
            for job, outputs in zip(some, outputs_on_rows(networks, rows), strict=True):
                self.store.add_outputs(results[job].key, part, outputs)
                found[job] = outputs
        return {job: outputs for job, outputs in found.items() if outputs is not None}

    def targets(self, part: str) -> dict[str, Tensor]:
        """Returns the targets of each task, on the CPU, with NaN for missing labels."""
        chunks = [targets for _, targets in getattr(self.problem, part).chunks()]
        return {task: torch.cat([targets[task] for targets in chunks]).cpu() for task in self.tasks}

    def remember(self, definition: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Returns what `compute` returned when it was called for this problem and definition for the first time."""
        key = self.keys.of_computation(definition)
        content = self.store.computed(key)
        if content is None:
            content = json.dumps(compute()).encode()
            self.store.add_computed(key, content)
        return json.loads(content)

    def _rebuild(self, result: NetworkResult, group: Group) -> Network:
        job, problem = result.job, self.problem.with_network(result.job.network)
        return serving_network(problem, group, self.weights(result.key), job.seed, job.width).to(self.device)

    def weights(self, key: str) -> dict[str, Tensor]:
        """Returns the weights of a network. Retrains the network if its weights were not kept."""
        self.restore([key])
        state = self.store.weights(key)
        assert state is not None
        return state

    def width(self, key: str) -> float:
        """Returns the width of a network."""
        return self.store.results([key])[key].job.width

    def restore(self, keys: Iterable[str]) -> None:
        """Trains networks whose weights were dropped again, with the batches that they were trained in."""
        dropped = sorted(self.store.without_weights(keys))
        batches = dict.fromkeys(tuple(self.store.batch(key)) for key in dropped)
        chunks = [self._make_chunk(batch) for batch in batches]
        for _, packed in self._run_chunks(chunks, "networks whose weights were not kept"):
            self.store.add_weights({self.keys.of(network.job): network for network in packed})

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
        """Removes the checkpoints of finished networks, and their folder if it is empty."""
        if self._partial is None:
            return
        for path in list(self._partial.glob("*")):
            if self.store.has_key_starting_with(path.name.lstrip(".")[:CHECKPOINT_KEY_DIGITS]):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it does not exist, or contains checkpoints of other networks
            self._partial.rmdir()

    def _train(self, chunks: Sequence[Chunk], what: str) -> None:
        """Trains the networks of these chunks. Stores them and the affinities that were measured."""
        for chunk, packed in self._run_chunks(chunks, what):
            if chunk.meter is None:
                self._store_results(packed)
            else:
                self._store_affinity(chunk, packed[0])

    def _store_affinity(self, chunk: Chunk, network: NetworkResult) -> None:
        (job,), settings = chunk.jobs, chunk.meter
        assert settings is not None
        if network.affinity is not None:  # None if training diverged
            self.store.add_affinity(self.keys.of_affinity(job, settings), self.keys.of(job), settings, network)
        plain_seconds = network.seconds / (1 + (network.overhead or 0.0))
        self._store_results([replace(network, seconds=plain_seconds)])

    def _metered_chunks(self, jobs: Iterable[Job], settings: Mapping[str, Any]) -> list[Chunk]:
        """Returns a chunk for each network whose affinity is missing, except for those that are known to diverge."""
        keys = {job: self.keys.of_affinity(job, settings) for job in jobs}
        missing = [job for job, key in keys.items() if self.store.affinity(key) is None]
        untrained = self.missing(missing)
        missing = [job for job in missing if job in untrained or not self._known[job].diverged]
        return [Chunk((job,), dict(settings), self._checkpoint_path(keys[job]), self._recipe) for job in missing]

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
        self._start()  # a cluster must be connected before its workers can be counted
        wanted = set(missing)
        chunks = split_into_chunks(jobs, self._chunk_size(len(jobs) + others))
        kept = ([job for job in some if job in wanted] for some in chunks)
        return [self._make_chunk(some) for some in kept if some]

    def _chunk_size(self, networks: int) -> int:
        """Returns the number of networks per chunk that gives all workers equal shares of a request."""
        if not self._batched:
            return 1
        most = CHUNK_SIZES.get(self.keys.device, DEFAULT_CHUNK_SIZE)
        workers = worker_count(self._executor, self.device)
        if workers == 1:
            return most
        chunks_per_worker = math.ceil(networks / (workers * most))
        return math.ceil(networks / (workers * chunks_per_worker))

    @cached_property
    def _batched(self) -> bool:
        reason = why_not_batched(self.problem, device=self.device)
        if reason is not None:
            logger.warning("training the networks of %s one at a time: %s", self.problem.name, reason)
        return reason is None

    def _make_chunk(self, jobs: Sequence[Job]) -> Chunk:
        checkpoint = self._checkpoint_path(self.keys.of(jobs[0]))
        return Chunk(tuple(jobs), checkpoint=checkpoint, recipe=self._recipe, answers=self._answers(jobs))

    def _answers(self, jobs: Iterable[Job]) -> dict[Taught, Mapping[str, NDArray[Any]]]:
        lessons = dict.fromkeys(Lesson.of(job.taught) for job in jobs if job.taught is not None)
        return {taught: self._known_answers(taught) for taught in lessons}

    def _known_answers(self, taught: Taught) -> Mapping[str, NDArray[Any]]:
        """Returns the answers of a lesson, which are computed only once."""
        if taught not in self._lessons:
            results = self.store.results(taught.teachers)
            if missing := [key for key in taught.teachers if key not in results or results[key].diverged]:
                expected = "must be networks in the store that did not diverge"
                raise InvalidInput("teachers", expected, first_few(missing), "train them first: `runner.networks`")
            self.restore(taught.teachers)
            jobs = {key: results[key].job for key in taught.teachers}
            teachers = {key: self._rebuild(results[key], Group(job.tasks, job.tasks)) for key, job in jobs.items()}
            lesson = Lesson.described_by(taught, teachers, self.problem, device=self.device)
            self._lessons[taught] = {name: answers.numpy() for name, answers in lesson.answers.items()}
        return self._lessons[taught]

    def _checkpoint_path(self, key: str) -> Path | None:
        return None if self._partial is None else self._partial / f"{key[:CHECKPOINT_KEY_DIGITS]}.pt"

    def _store_results(self, results: Iterable[NetworkResult]) -> None:
        self.store.add({self.keys.of(n.job): (self.keys.definition(n.job), n) for n in results})

    def _start(self) -> None:
        if not self._started:
            self._executor.start(self.problem, self.device)
            self._started = True

    def _run_chunks(self, chunks: Sequence[Chunk], what: str) -> Iterable[tuple[Chunk, list[NetworkResult]]]:
        if not chunks:
            return
        self._start()
        self._progress.start(sum(len(chunk.jobs) for chunk in chunks), what)
        reporter = ProgressReporter(self._progress)
        try:
            for chunk, packed in self._executor.map(chunks, reporter):
                reporter.finished(sum(network.steps for network in packed))
                yield chunk, packed
        finally:
            self._progress.done()


class _SharedExecutor:
    """Trains the chunks of a variant with the executor of the runner that it was made from."""

    def __init__(self, runner: TrainingRunner) -> None:
        self._runner = runner

    def start(self, problem: Problem, device: str) -> None:
        self._runner._start()

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        return self._runner._executor.map(chunks, advance)

    def stop(self) -> None:
        pass

    def worker_count(self, device: str) -> int:
        return worker_count(self._runner._executor, device)


def train_side_by_side(requests: Mapping[TrainingRunner, Sequence[Job]], what: str = "networks") -> None:
    """Trains the missing networks of a runner and its variants at the same time.

    The executor receives the chunks of all runners at once, so that no worker waits for a runner to finish. The
    networks are the same as if each runner had trained its own. To get their results, call `Runner.networks`.

    Args:
        requests: the networks to train with each runner. All runners must be variants of the same runner, which may
            be one of them.
        what: a description of the networks, used in progress updates.

    Example:
        >>> import numpy as np, tempfile
        >>> from tagalong.learn import Recipe, Task
        >>> X, Y = np.random.default_rng(0).normal(size=(2, 100, 2))
        >>> tasks = [Task(name, kind="regression") for name in ("age", "height")]
        >>> problem = Problem.from_arrays(X, Y, tasks, recipe=Recipe(epochs=1))
        >>> with tempfile.TemporaryDirectory() as out, open_runner(problem, out, device="cpu") as runner:
        ...     runners = [runner, runner.variant(batch_size=10)]
        ...     jobs = [runner.job(problem.names, seed=0)]
        ...     train_side_by_side({one: jobs for one in runners})
        ...     [one.networks(jobs)[jobs[0]].steps for one in runners]
        [1, 7]
    """
    owners = {
        (chunk.recipe, chunk.jobs): (runner, chunk)
        for runner, jobs in requests.items()
        for chunk in runner._plain_chunks(jobs, runner.missing(jobs))
    }
    if not owners:
        return
    first, _ = next(iter(owners.values()))
    count = sum(len(jobs) for _, jobs in owners)
    logger.info("%s: training %d of %d networks", what, count, sum(len(jobs) for jobs in requests.values()))
    for chunk, packed in first._run_chunks([chunk for _, chunk in owners.values()], what):
        owners[chunk.recipe, chunk.jobs][0]._store_results(packed)


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
        kind = job.width, job.epochs, job.network, rows, None if job.rule == "plain" else job
        together.setdefault(kind, []).append(job)
    sizes = {key: 1 if _has_few_seeds(same) else size for key, same in together.items()}
    return [same[at : at + sizes[key]] for key, same in together.items() for at in range(0, len(same), sizes[key])]


def _has_few_seeds(jobs: Sequence[Job]) -> bool:
    return len(jobs) <= MAX_SEPARATE_SEEDS and len({job.seed for job in jobs}) == len(jobs)


def _measuring(settings: Mapping[str, Any]) -> str:
    return f"measuring affinities ({settings.get('estimator', 'lookahead')})"
