"""Decodes images in one process per core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

SCRIPT = Path(__file__).with_name("_celeba_decode.py")


class Order(NamedTuple):
    """Images that are decoded one after the other into one place.

    Attributes:
        members: paths below the folder, or names in the archive.
        offset: of their place, in bytes from the start of the file.
    """

    members: tuple[str, ...]
    offset: int


class Answer(NamedTuple):
    """What became of an order.

    Attributes:
        checksum: of the bytes written.
        damaged: members that could not be read, and why; nothing was written then.
    """

    checksum: int
    damaged: dict[str, str]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_all(orders: Sequence[Order], source: Path, target: Path, pixels: int) -> Generator[tuple[Order, Answer]]:
    """Carries out orders on all cores; gives each with its answer when it is done, in any order.

    Not with `multiprocessing`: that would import the user's script again, and torch, in each process.

    Args:
        orders: what to decode.
        source: the folder or archive of the images.
        target: the file to write to, of its full length.
        pixels: of a side.

    Raises:
        BrokenExecutor: a process died.
    """
    setting = {"source": str(source), "target": str(target), "pixels": pixels}
    with tempfile.TemporaryFile() as said, _processes(min(cores(), len(orders)), setting, said) as free:

        def ask(order: Order) -> Answer:
            process = free.get()
            try:
                return _ask(process, order)
            except (OSError, ValueError) as error:
                said.seek(0)
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise BrokenExecutor(f"a process that decodes images died: {last or 'it was killed'}") from error
            finally:
                free.put(process)

        threads = ThreadPoolExecutor(max(1, free.qsize()))
        try:
            futures = {threads.submit(ask, order): order for order in orders}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _ask(process: subprocess.Popen[str], order: Order) -> Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order._asdict()) + "\n")
    process.stdin.flush()
    return Answer(**json.loads(process.stdout.readline()))


@contextmanager
def _processes(count: int, setting: dict[str, Any], said: IO[bytes]) -> Iterator[SimpleQueue[subprocess.Popen[str]]]:
    """Processes that wait for orders; they end with this one, however it ends, since then no orders can come."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONIOENCODING": "utf-8"}
    started: list[subprocess.Popen[str]] = []
    free: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
    try:
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                encoding="utf-8",
            )
            started.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(setting) + "\n")
            free.put(process)
        yield free
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):  # what was yet to be sent cannot be any more
                    pipe.close()
