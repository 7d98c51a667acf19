"""Executors train networks in this process, in multiple processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
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
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.learn import Diverged, Job, Lesson, Problem, Recipe, Taught, Trained, train, train_many
from tagalong.registry import unknown_name

from .network_result import NetworkResult, pack_result

Advance = Callable[[int], None]
CHECKPOINT_SECONDS = 15.0
CLUSTER_WORKERS = 64  # that rounds of a search are planned for on a cluster, whatever its size
EXECUTOR_NAMES = ("serial", "processes", "ray")
MAX_WORKERS = 1_000  # processes: the names of their devices wait in a pipe, and starting would block when it is full


@dataclass(frozen=True)
class Chunk:
    """Networks that are trained together in a single computation.

    Attributes:
        jobs: the networks to train, either a single network or multiple plain networks of the same kind and width.
        meter: the settings of the `AffinityMeter` to attach, or None. Meters are supported only for single networks.
        checkpoint: the checkpoint file, or None. For several networks, its name gets a suffix (see `train_many`).
        recipe: the recipe to train with, or None for the problem's recipe.
        answers: if all networks are taught, with the same additional rows, the answers of each lesson by task.
    """

    jobs: tuple[Job, ...]
    meter: Mapping[str, Any] | None = None
    checkpoint: Path | None = None
    recipe: Recipe | None = None
    answers: Mapping[Taught, Mapping[str, NDArray[Any]]] = field(default_factory=dict, repr=False, compare=False)


@runtime_checkable
class Executor(Protocol):
    """Trains chunks of networks. Executors do not write to the store. The caller does.

    An executor that trains several chunks at the same time should also have a method `worker_count` (see
    `worker_count`). Otherwise, chunks are as large as for a single worker.
    """

    def start(self, problem: Problem, device: str) -> None:
        """Prepares to train networks on this problem."""

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        """Trains all chunks and yields each one as it finishes, in any order.

        Reports finished networks to `advance`.
        """

    def stop(self) -> None:
        """Releases the resources acquired by `start`. This method can be called more than once."""


def make_executor(executor: str | Executor) -> Executor:
    """Returns the executor with this name, e.g. "processes:4" for four workers.

    An `Executor` is returned unchanged.

    Raises:
        InvalidInput: If no executor has this name. The message suggests the closest name.
        ImportError: If a required package is missing. The message says how to install it.
    """
    if executor == "serial":
        return Serial()
    if isinstance(executor, str) and (found := re.fullmatch(r"processes(?::(\d+))?", executor)):
        return Processes(None if found[1] is None else int(found[1]))
    if executor == "ray":
        return Ray()
    if isinstance(executor, str) or not isinstance(executor, Executor):
        raise unknown_name("executor", "executor", executor, EXECUTOR_NAMES)
    return executor


def worker_count(executor: Executor, device: str) -> int:
    """Returns how many chunks are trained at the same time without sharing a core or a GPU.

    This is the result of the executor's method `worker_count(device)`, or 1 if it has none. Requests are split evenly
    over these workers. The number must not change while the executor is running.
    """
    count: Callable[[str], int] | None = getattr(executor, "worker_count", None)
    return 1 if count is None else max(1, count(device))


def planned_workers(executor: Executor, device: str) -> int:
    """Returns the number of workers that a search plans its rounds for, without starting the executor.

    Unlike `worker_count`, it does not change when nodes join or leave a cluster, so that a study makes the same
    decisions when it is resumed.
    """
    return CLUSTER_WORKERS if isinstance(executor, Ray) else worker_count(executor, device)


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
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        number = torch.cuda.device_count()
        expected = f"must be one of the {number} CUDA devices visible to torch, starting at cuda:0"
        raise InvalidInput("device", expected, repr(str(device)))
    if found.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            reason = re.split(r"\n|\.(?:\s|$)", str(error))[0]  # the first sentence of a long message
            raise InvalidInput(
                "device", "must be available", f"{str(device)!r} ({reason})", "use 'cpu' or 'auto'"
            ) from error
    return str(found)


def train_chunk(problem: Problem, chunk: Chunk, device: str, advance: Advance | None = None) -> list[NetworkResult]:
    """Trains the networks of a chunk and returns their results in order, including those that diverged."""
    advance = advance or (lambda n: None)
    if chunk.recipe is not None:
        problem = replace(problem, recipe=chunk.recipe)
    problem, targets = _prepare_lessons(problem, chunk)
    if len(chunk.jobs) == 1:
        progress = _epoch_callback(problem.with_network(chunk.jobs[0].network), getattr(advance, "steps", None))
        result = _train_one(problem, chunk, device, targets.get(chunk.jobs[0]), progress)
        advance(1)
        return [result]
    report_stopped = _running_total_callback(advance)  # reports networks as they stop early
    found: dict[Job, NetworkResult] = {}
    try:
        for trained in train_many(
            problem,
            chunk.jobs,
            device=device,
            targets=targets,
            checkpoint=chunk.checkpoint,
            checkpoint_every=CHECKPOINT_SECONDS,
            progress=report_stopped,
        ):
            found[trained.job] = pack_result(trained, problem.val.groups)
    except Diverged as error:
        found |= {trained.job: pack_result(trained) for trained in error.networks}
    return [found[job] for job in chunk.jobs]


def _prepare_lessons(problem: Problem, chunk: Chunk) -> tuple[Problem, dict[Job, dict[str, Tensor]]]:
    targets: dict[Job, dict[str, Tensor]] = {}
    extended = problem
    for taught, answers in chunk.answers.items():
        tensors = {name: torch.from_numpy(values) for name, values in answers.items()}
        lesson = Lesson.from_answers(tensors, problem, taught)
        extended = lesson.problem
        students = [job for job in chunk.jobs if job.taught is not None and Lesson.of(job.taught) == taught]
        targets |= {job: lesson.targets(job) for job in students}
    return extended, targets


def _running_total_callback(advance: Advance) -> Callable[[int], None]:
    """Converts `advance` to a callback that takes a running total.

    This way, networks are not counted twice after a restart.
    """
    counted = 0

    def count(number: int) -> None:
        nonlocal counted
        for _ in range(counted, number):
            advance(1)
        counted = max(counted, number)

    return count


def _epoch_callback(problem: Problem, steps: Advance | None) -> Callable[[int], None] | None:
    """Returns a callback that reports the number of steps after each epoch, or None if `steps` is None."""
    steps_per_epoch = -(-len(problem.train) // problem.recipe.batch_size)
    return None if steps is None else lambda epoch: steps(steps_per_epoch)


def _train_one(
    problem: Problem,
    chunk: Chunk,
    device: str,
    targets: Mapping[str, Tensor] | None,
    progress: Callable[[int], None] | None,
) -> NetworkResult:
    (job,) = chunk.jobs
    run = partial(_train_or_diverge, problem, job, device=device, meter=chunk.meter, targets=targets, progress=progress)
    try:
        trained = run(checkpoint=chunk.checkpoint, checkpoint_every=CHECKPOINT_SECONDS)
    except FileNotFoundError:
        if chunk.checkpoint is None:
            raise
        # Another process working in this folder has finished the same network and removed the checkpoint.
        trained = run()
    return pack_result(trained, problem.val.groups)


def _train_or_diverge(problem: Problem, job: Job, **options: Any) -> Trained:
    try:
        return train(problem, job, **options)
    except Diverged as error:
        (diverged,) = error.networks
        return diverged


class Serial:
    """Trains chunks sequentially in this process."""

    def start(self, problem: Problem, device: str) -> None:
        self._problem, self._device = problem, device

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        for chunk in chunks:
            yield chunk, train_chunk(self._problem, chunk, self._device, advance)

    def stop(self) -> None:
        pass


_worker: dict[str, Any] = {}  # the problem and the device of a worker process


class Processes:
    """Trains chunks in multiple processes on this machine.

    The processes are spawned, so a script must guard its main code with `if __name__ == "__main__":`.

    Args:
        workers: the number of processes. Defaults to one per CPU core, or one per GPU if the device is CUDA.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and not is_positive_integer(workers):
            raise InvalidInput("workers", "must be a positive integer", repr(workers))
        if workers is not None and workers > MAX_WORKERS:
            raise InvalidInput("workers", f"must be at most {MAX_WORKERS:,}", f"{workers:,}")
        try:
            import cloudpickle  # noqa: F401 - the problem may contain lambdas
        except ImportError:
            raise ImportError('executor="processes" requires cloudpickle; run pip install cloudpickle') from None
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._under_way: dict[Future[list[NetworkResult]], Chunk] = {}

    def start(self, problem: Problem, device: str) -> None:
        import cloudpickle

        self.stop()
        self._folder = TemporaryDirectory(prefix="tagalong-")
        path = Path(self._folder.name, "problem.pkl")
        path.write_bytes(cloudpickle.dumps(problem))
        devices = _worker_devices(device, self._workers)
        context = multiprocessing.get_context("spawn")
        free = context.SimpleQueue()
        for name in devices:
            free.put(name)
        self._pool = ProcessPoolExecutor(len(devices), context, initializer=_start_worker, initargs=(path, free))

    def worker_count(self, device: str) -> int:
        """Returns the number of processes, or the number of GPUs that they use."""
        devices = _worker_devices(device, self._workers)
        return len(devices) if device == "cpu" else len(set(devices))

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        assert self._pool is not None
        with _interrupts_blocked():  # submitting a chunk starts the processes
            futures = self._under_way = {self._pool.submit(_train_in_process, chunk): chunk for chunk in chunks}
        try:
            for future in as_completed(futures):
                results = future.result()
                advance(len(results))
                yield futures.pop(future), results
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


def _worker_devices(device: str, workers: int | None) -> list[str]:
    if device != "cuda":
        return [device] * (workers or os.cpu_count() or 1)
    number = torch.cuda.device_count()
    return [f"cuda:{i % number}" for i in range(workers or number)]


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
    import cloudpickle

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes; the main process terminates the workers
    parent = multiprocessing.parent_process()
    if parent is not None:  # workers must exit even if the main process is killed
        threading.Thread(target=_exit_with_parent, args=(parent, problem_path.parent), daemon=True).start()
    torch.set_num_threads(1)
    _worker.update(problem=cloudpickle.loads(problem_path.read_bytes()), device=free_devices.get())


def _exit_with_parent(parent: Any, temporary_folder: Path) -> None:
    parent.join()
    shutil.rmtree(temporary_folder, ignore_errors=True)  # left behind if the main process was killed
    os._exit(1)


def _train_in_process(chunk: Chunk) -> list[NetworkResult]:
    return train_chunk(_worker["problem"], chunk, _worker["device"])


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
        self._own = False
        self._train: Any = None
        self._resources: Mapping[str, float] = {}

    def start(self, problem: Problem, device: str) -> None:
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False)
            self._own = True
        gpus = (1 if device.startswith("cuda") else 0) if self._gpus is None else self._gpus
        remote = ray.remote(num_cpus=self._cpus, num_gpus=gpus, max_retries=self._retries)(_train_on_ray)
        dumps: Any = cloudpickle.dumps
        resources: Any = ray.cluster_resources
        self._resources = resources()
        content, run = ray.put(dumps(problem)), uuid.uuid4().hex
        self._train = lambda chunk: remote.remote(content, run, chunk, device, self._cpus)

    def worker_count(self, device: str) -> int:
        """Returns the number of chunks for which the cluster had CPUs or GPUs when the executor was started."""
        if device.startswith("cuda"):
            return int(self._resources.get("GPU", 1) // max(1, self._gpus or 1))
        return int(self._resources.get("CPU", 1) // (self._cpus or 1))

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        import ray

        waiting = {self._train(chunk): chunk for chunk in chunks}
        try:
            while waiting:
                (reference, *_), _ = ray.wait(list(waiting), num_returns=1)
                results = ray.get(reference)
                advance(len(results))
                yield waiting.pop(reference), results
        finally:
            for reference in waiting:
                ray.cancel(reference)

    def stop(self) -> None:
        import ray

        self._train = None
        if self._own:
            ray.shutdown()
            self._own = False


def _train_on_ray(pickled_problem: bytes, run_id: str, chunk: Chunk, device: str, cpus: float) -> list[NetworkResult]:
    import torch
    from ray import cloudpickle

    torch.set_num_threads(max(1, int(cpus)))
    if run_id not in _problems:
        _problems.clear()
        _problems[run_id] = cloudpickle.loads(pickled_problem)
    if chunk.checkpoint is not None and not chunk.checkpoint.parent.parent.exists():
        chunk = replace(chunk, checkpoint=None)  # the run folder is not mounted on this node
    return train_chunk(_problems[run_id], chunk, device)
