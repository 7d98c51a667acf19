"""Chunks in processes of this machine: every worker has one thread, and reads the problem once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tagalong.learn import Problem

from ._executors import Advance, Chunk, train_chunk
from ._row import Packed

_worker: dict[str, Any] = {}  # what a worker process knows: the problem and its device


class Processes:
    """Trains chunks in processes of this machine.

    They are spawned, so a script must guard its first lines with `if __name__ == "__main__":`.

    Args:
        workers: how many; by default one per core, with CUDA one per GPU.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise ValueError(f"`workers` must be a whole number from 1, found {workers!r}")
        try:
            import cloudpickle  # noqa: F401 - the problem may hold lambdas
        except ImportError:
            raise ImportError('executor="processes" needs cloudpickle: pip install cloudpickle') from None
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._under_way: dict[Future[list[Packed]], Chunk] = {}

    def start(self, problem: Problem, device: str) -> None:
        import cloudpickle

        self.stop()
        self._folder = TemporaryDirectory(prefix="tagalong-")
        path = Path(self._folder.name, "problem.pkl")
        path.write_bytes(cloudpickle.dumps(problem))
        devices = _devices(device, self._workers)
        context = multiprocessing.get_context("spawn")
        free = context.SimpleQueue()
        for name in devices:
            free.put(name)
        self._pool = ProcessPoolExecutor(len(devices), context, initializer=_begin, initargs=(path, free))

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[Packed]]]:
        assert self._pool is not None
        with _interrupts_held():  # this is what starts the processes
            futures = self._under_way = {self._pool.submit(_work, chunk): chunk for chunk in chunks}
        try:
            for future in as_completed(futures):
                packed = future.result()
                advance(len(packed))
                yield futures.pop(future), packed
        except BrokenProcessPool as error:
            raise BrokenExecutor(
                "a worker process died; finished networks are kept, so run the study again (a script that trains in "
                'processes must guard its first lines with `if __name__ == "__main__":`)'
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def stop(self) -> None:
        if self._pool is not None:
            if self._under_way:  # an interrupt or an error: nobody waits for what each worker has before it
                _end(self._pool)
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
            self._folder.cleanup()


def _devices(device: str, workers: int | None) -> list[str]:
    """The device of every worker."""
    if device != "cuda":
        return [device] * (workers or os.cpu_count() or 1)
    number = torch.cuda.device_count()
    return [f"cuda:{i % number}" for i in range(workers or number)]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end; processes started here never hear it, so they cannot complain while they import."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.terminate()


def _begin(path: Path, free: Any) -> None:
    import cloudpickle

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the driver ends these
    parent = multiprocessing.parent_process()
    if parent is not None:  # a killed driver leaves no workers behind
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    _worker.update(problem=cloudpickle.loads(path.read_bytes()), device=free.get())


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(chunk: Chunk) -> list[Packed]:
    return train_chunk(_worker["problem"], chunk, _worker["device"])
