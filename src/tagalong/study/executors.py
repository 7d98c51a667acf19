"""Executors train networks in this process, in several processes, on a Ray cluster, or not at all.

To add one, write a class with the three methods of `Executor` and pass an instance of it to `Study(executor=…)`. All
that it has to do is to call `chunk.train(problem, device)` wherever it likes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.learn import Diverged, Job, Problem, Taught, Trained, prepare_students, train, train_many
from tagalong.progress import NoProgress, ProgressReporter
from tagalong.registry import unknown_name

CHECKPOINT_SECONDS = 15.0
EXECUTOR_NAMES = ("serial", "processes", "ray")
MAX_WORKERS = 1000  # processes on one machine; the queue of their devices fits into the buffer of a pipe


@dataclass(frozen=True)
class Chunk:
    """Networks that are trained together in a single computation.

    Attributes:
        jobs: the networks to train, either a single network or several plain networks of the same kind and width.
        meter: the settings of the `AffinityMeter` to attach, or None. Meters are supported only for single networks.
        checkpoint: the checkpoint file, or None. For several networks, its name gets a suffix (see `train_many`).
        answers: if the networks are taught, with the same additional rows, the answers of each lesson by task.
    """

    jobs: tuple[Job, ...]
    meter: Mapping[str, Any] | None = None
    checkpoint: Path | None = None
    answers: Mapping[Taught, Mapping[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def train(self, problem: Problem, device: str, report: ProgressReporter | None = None) -> list[Trained]:
        """Trains the networks and returns them in order, including those that diverged.

        Args:
            problem: the problem that the executor was started with.
            device: the device to train on.
            report: receives progress, if the networks are trained in the study's own process.
        """
        report = report or ProgressReporter(NoProgress())
        taught_on, targets = prepare_students(problem, self.jobs, self.answers)
        where: dict[str, Any] = {"device": device, "checkpoint": self.checkpoint}
        networks: list[Trained] = []
        try:
            if len(self.jobs) == 1:
                (job,) = self.jobs
                own = taught_on.with_network(job.network)
                steps = -(-len(own.train) // own.recipe.batch_size)
                where |= {"progress": lambda epoch: report.steps(steps), "meter": self.meter}
                networks.append(
                    train(taught_on, job, targets=targets.get(job), checkpoint_every=CHECKPOINT_SECONDS, **where)
                )
            else:
                where |= {"progress": report.networks, "targets": targets}
                for trained in train_many(taught_on, self.jobs, checkpoint_every=CHECKPOINT_SECONDS, **where):
                    networks.append(trained)  # noqa: PERF402 - which stay if others diverge
        except Diverged as error:
            networks += error.networks
        by_job = {trained.job: trained for trained in networks}
        return [by_job[job] for job in self.jobs]


@runtime_checkable
class Executor(Protocol):
    """Trains chunks of networks."""

    def start(self, problem: Problem, device: str) -> int | None:
        """Prepares to train networks on this problem.

        Returns:
            How many chunks can be trained at the same time without sharing a core or a GPU, if more than one. Requests
            are split evenly over so many workers.
        """

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        """Trains all chunks with `chunk.train(problem, device)` and yields each one as it finishes, in any order.

        Results are stored and progress is reported by the caller. An executor that trains in this process passes
        `report` to `train`, for progress within a chunk.
        """

    def stop(self) -> None:
        """Releases the resources acquired by `start`. This method can be called more than once."""


class Pending(Exception):
    """Raised when networks are needed that are trained elsewhere and have no results yet.

    Args:
        jobs: these networks.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(f"{len(jobs)} networks are to be trained elsewhere")
        self.jobs = tuple(jobs)


class Serial:
    """Trains chunks sequentially in this process."""

    def start(self, problem: Problem, device: str) -> int:
        self._problem, self._device = problem, device
        return 1

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        for chunk in chunks:
            yield chunk, chunk.train(self._problem, self._device, report)

    def stop(self) -> None:
        pass


class Elsewhere(Serial):
    """Trains nothing: networks that are not in the store are pending.

    Run the decisions of a study until `Pending` is raised, train its jobs, add them to the store, and run them again.
    """

    trains = False

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        raise Pending([job for chunk in chunks for job in chunk.jobs])


_worker: dict[str, Any] = {}  # the problem and the device of a worker process


class Processes:
    """Trains chunks in multiple processes on this machine.

    The processes are spawned, so a script must guard its main code with `if __name__ == "__main__":`.

    Args:
        workers: the number of processes. Defaults to one per CPU core, or one per GPU if the device is CUDA.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and not (is_positive_integer(workers) and workers <= MAX_WORKERS):
            raise InvalidInput("workers", f"must be a positive integer up to {MAX_WORKERS:,}", repr(workers))
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._under_way: dict[Future[bytes], Chunk] = {}

    def start(self, problem: Problem, device: str) -> int:
        import cloudpickle  # the problem may contain lambdas

        self.stop()
        self._folder = TemporaryDirectory(prefix="tagalong-")
        path = Path(self._folder.name, "problem.pkl")
        path.write_bytes(cloudpickle.dumps(replace(problem, source=None)))
        devices = self._devices(device)
        context = multiprocessing.get_context("spawn")
        free = context.SimpleQueue()
        for name in devices:
            free.put(name)
        self._pool = ProcessPoolExecutor(len(devices), context, initializer=_start_worker, initargs=(path, free))
        return len(devices) if device == "cpu" else len(set(devices))  # processes may share a GPU

    def _devices(self, device: str) -> list[str]:
        if device != "cuda":
            return [device] * (self._workers or os.cpu_count() or 1)
        number = torch.cuda.device_count()
        return [f"cuda:{i % number}" for i in range(self._workers or number)]

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        import cloudpickle

        assert self._pool is not None
        # Plain bytes, since torch would otherwise send each tensor as an open file.
        with _interrupts_blocked():  # submitting a chunk starts the processes
            futures = {self._pool.submit(_train_in_process, cloudpickle.dumps(chunk)): chunk for chunk in chunks}
        self._under_way = futures
        try:
            for future in as_completed(futures):
                networks = pickle.loads(future.result())
                yield futures.pop(future), networks
        except BrokenProcessPool as error:
            raise BrokenExecutor(
                "a worker process died; finished networks are kept, so run the study again (a script that uses "
                'executor="processes" must guard its main code with `if __name__ == "__main__":`)'
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def stop(self) -> None:
        if self._pool is not None:
            if self._under_way:  # after an interrupt or an error, do not wait for unfinished results
                for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                    process.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
            self._folder.cleanup()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delays Ctrl-C.

    Processes started in the meantime inherit the signal mask, so Ctrl-C cannot interrupt their imports.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows has no signal masks
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(problem_path: Path, free_devices: Any) -> None:
    # Ctrl-C reaches all processes; the main process terminates the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:  # workers must exit even if the main process is killed
        threading.Thread(target=_exit_with_parent, args=(parent, problem_path.parent), daemon=True).start()
    torch.set_num_threads(1)
    _worker.update(problem=pickle.loads(problem_path.read_bytes()), device=free_devices.get())


def _exit_with_parent(parent: Any, temporary_folder: Path) -> None:
    parent.join()
    shutil.rmtree(temporary_folder, ignore_errors=True)  # left behind if the main process was killed
    os._exit(1)


def _train_in_process(chunk: bytes) -> bytes:
    return pickle.dumps(pickle.loads(chunk).train(_worker["problem"], _worker["device"]))


_problems: dict[str, Problem] = {}  # the problem that this worker has unpickled, by run ID; one at a time


class Ray:
    """Trains chunks using Ray.

    An existing connection is reused. To train on a cluster, call `ray.init(address="auto")` first. Every node needs
    tagalong and all packages that the problem imports. If there is no connection, `ray.init()` is called, which joins a
    cluster running on this machine or starts a local one. The connection is closed after the study.

    Args:
        retries: the number of times to retry a chunk if its worker is lost.
        cpus: the number of CPUs per chunk.
        gpus: the number of GPUs per chunk. Defaults to 1 if the device is CUDA. With a fraction, multiple chunks share
            a GPU.
    """

    def __init__(self, retries: int = 3, cpus: float = 1, gpus: float | None = None) -> None:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise ImportError('executor="ray" requires Ray; run pip install "tagalong[ray]"') from None
        self._retries, self._cpus, self._gpus = retries, cpus, gpus
        self._is_own_connection = False
        self._train: Callable[[Chunk], Any] | None = None

    def start(self, problem: Problem, device: str) -> int:
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False)
            self._is_own_connection = True
        gpus = (1 if device.startswith("cuda") else 0) if self._gpus is None else self._gpus
        remote = ray.remote(num_cpus=self._cpus, num_gpus=gpus, max_retries=self._retries)(_train_on_ray)
        dumps: Any = cloudpickle.dumps
        content, run = ray.put(dumps(replace(problem, source=None))), uuid.uuid4().hex
        self._train = lambda chunk: remote.remote(content, run, chunk, device, self._cpus)
        resources: Any = ray.cluster_resources
        available = resources()
        if device.startswith("cuda"):
            return max(1, int(available.get("GPU", 1) // max(1, self._gpus or 1)))
        return max(1, int(available.get("CPU", 1) // (self._cpus or 1)))

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        import ray

        assert self._train is not None
        waiting = {self._train(chunk): chunk for chunk in chunks}
        try:
            while waiting:
                (reference, *_), _ = ray.wait(list(waiting), num_returns=1)
                networks = ray.get(reference)
                yield waiting.pop(reference), networks
        finally:
            for reference in waiting:
                ray.cancel(reference)

    def stop(self) -> None:
        import ray

        self._train = None
        if self._is_own_connection:
            ray.shutdown()
            self._is_own_connection = False


def _train_on_ray(pickled_problem: bytes, run_id: str, chunk: Chunk, device: str, cpus: float) -> list[Trained]:
    torch.set_num_threads(max(1, int(cpus)))
    if run_id not in _problems:
        _problems.clear()
        _problems[run_id] = pickle.loads(pickled_problem)
    if chunk.checkpoint is not None and not chunk.checkpoint.parent.parent.exists():
        chunk = replace(chunk, checkpoint=None)  # the run folder is not mounted on this node
    return chunk.train(_problems[run_id], device)


def make_executor(executor: str | Executor) -> Executor:
    """Returns the executor with this name, e.g. "processes:4" for four workers.

    An `Executor` is returned unchanged.

    Raises:
        InvalidInput: If no executor has this name. The message suggests the closest name.
        ImportError: If a required package is missing. The message says how to install it.
    """
    if executor == "serial":
        return Serial()
    if isinstance(executor, str) and (match := re.fullmatch(r"processes(?::(\d+))?", executor)):
        return Processes(None if match[1] is None else int(match[1]))
    if executor == "ray":
        return Ray()
    if isinstance(executor, str) or not isinstance(executor, Executor):
        raise unknown_name("executor", "executor", executor, EXECUTOR_NAMES)
    return executor


def device_name(device: str | torch.device) -> str:
    """Returns the name of the device to train on. "auto" selects CUDA if it is available."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidInput("device", "must be a valid device, e.g. 'auto', 'cpu' or 'cuda'", repr(device)) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("", "CUDA is not available", hint="use `device='cpu'`")
    try:
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError) as error:
        reason = re.split(r"\n|\.(?:\s|$)", str(error))[0]  # the first sentence of a long message
        raise InvalidInput(
            "device", "must be available", f"{str(device)!r} ({reason})", "use 'cpu' or 'auto'"
        ) from error
    return str(found)
