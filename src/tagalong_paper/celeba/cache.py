"""Images decoded once, into one file, by one process per core; killed on the way it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import numpy as np

from tagalong.errors import require
from tagalong.files import make_folder, write_atomic
from tagalong.progress import NoProgress, Progress

from .files import Images, some

SCRIPT = Path(__file__).with_name("decode.py")
FORMAT = 1  # of the decoded images; another resizing would be another one
IMAGES_AT_ONCE = 512  # a tenth of a second or so of one core: waiting for the next order hardly counts
DONE = re.compile(r"(\d+) (\d+)\n")
WAIT = 0.2  # seconds between two looks at a lock


class Cache:
    """The decoded images of some files, as uint8 [rows, 3, pixels, pixels].

    Args:
        images: where they are.
        names: which, in the order of the rows.
        pixels: of a side.
        folder: for the file.

    Attributes:
        key: follows from the names and sizes of the files, their order, and how they are decoded.
        path: of the file.
    """

    def __init__(self, images: Images, names: Sequence[str], pixels: int, folder: Path) -> None:
        self._images, self._names, self._pixels = images, names, pixels
        listed = "\n".join(f"{size} {name}" for name, size in zip(names, images.sizes(names), strict=True))
        self.key = hashlib.sha256(f"celeba {FORMAT} {pixels}\n{listed}".encode()).hexdigest()[:16]
        self.path = folder / f"celeba-{pixels}-{self.key}.npy"

    def build(self, progress: Progress | None = None) -> None:
        """Decodes what is not decoded yet; waits where another process is at it.

        Raises:
            ValueError: a folder that cannot be written to, too little room, or images that cannot be read.
            ImportError: without Pillow; says how to install it.
        """
        if self.path.exists():
            return
        require("the problem 'celeba'", "PIL", "tagalong[images]")
        self._check_folder()
        with alone(self.path.with_suffix(".lock")):
            if not self.path.exists():
                self._decode(progress or NoProgress())

    def _check_folder(self) -> None:
        folder = self.path.parent
        make_folder(folder)
        needed, free = len(self._names) * self._bytes, shutil.disk_usage(folder).free
        if needed > free and not self._part.exists():
            found = f"{free / 1e9:.1f} GB free in {folder}"
            raise ValueError(f"`cache` must have room for {needed / 1e9:.1f} GB, found {found}; name another folder")

    def _decode(self, progress: Progress) -> None:
        start = self._begin()
        orders = [
            Order(tuple(self._images.members[name] for name in names), start + first * self._bytes)
            for first in range(0, len(self._names), IMAGES_AT_ONCE)
            if (names := self._names[first : first + IMAGES_AT_ONCE])
        ]
        done = self._done(orders)
        left = [order for order in orders if order.offset not in done]
        damaged: dict[str, str] = {}
        progress.start(len(self._names), "decoding images", "images")
        try:
            progress.advance(len(self._names) - sum(len(order.members) for order in left))
            with self._record.open("a") as record, closing(self._answers(left)) as answers:
                for order, answer in answers:
                    damaged |= answer.damaged
                    if not answer.damaged:
                        record.write(f"{order.offset} {answer.checksum}\n")
                        record.flush()
                    progress.advance(len(order.members))
        except KeyboardInterrupt:
            kept = f"decoded images are kept in {self.path.parent}, the same command goes on from there"
            raise KeyboardInterrupt(f"stopped; {kept}") from None
        finally:
            progress.done()
        self._finish(damaged)

    def _answers(self, orders: Sequence[Order]) -> Generator[tuple[Order, Answer]]:
        return decode_all(orders, self._images.source, self._part, self._pixels)

    def _begin(self) -> int:
        """Makes the file, where no earlier start has left it; says where the rows begin in it."""
        rows = len(self._names)
        if self._part.exists() and self._record.exists():
            with suppress(ValueError, EOFError):  # killed before it had its length
                return int(np.load(self._part, mmap_mode="r").offset)
        self._record.unlink(missing_ok=True)
        shape = (rows, 3, self._pixels, self._pixels)
        offset: int = np.lib.format.open_memmap(self._part, mode="w+", dtype=np.uint8, shape=shape).offset
        return offset

    def _done(self, orders: Sequence[Order]) -> set[int]:
        """Offsets of the pieces that are in the file, whole: what is recorded is checked."""
        text = self._record.read_text() if self._record.exists() else ""
        recorded = {int(offset): int(checksum) for offset, checksum in DONE.findall(text)}
        done = {}
        with self._part.open("rb") as part:
            for order in orders:
                part.seek(order.offset)
                if order.offset in recorded:
                    content = part.read(len(order.members) * self._bytes)
                    if zlib.crc32(content) == recorded[order.offset]:
                        done[order.offset] = recorded[order.offset]
        write_atomic(self._record, "".join(f"{offset} {check}\n" for offset, check in done.items()).encode())
        return set(done)

    def _finish(self, damaged: dict[str, str]) -> None:
        if damaged:
            self._part.unlink()
            self._record.unlink()
            listed = some([f"{member} ({why})" for member, why in sorted(damaged.items())])
            found = f"{len(damaged)} of {self._images.source} damaged: {listed}"
            raise ValueError(f"`data` must hold whole JPEG files of aligned images, found {found}; get them again")
        with self._part.open("rb+") as part:
            os.fsync(part.fileno())
        os.replace(self._part, self.path)
        self._record.unlink()

    @property
    def _part(self) -> Path:
        return self.path.with_suffix(".part")

    @property
    def _record(self) -> Path:
        return self.path.with_suffix(".done")

    @property
    def _bytes(self) -> int:
        """Of one image."""
        return 3 * self._pixels**2


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


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time, the others wait; the lock ends with its process, however that ends.

    A lock of SQLite's, which works on every system.

    Raises:
        ValueError: there can be no lock: the file is none, is another user's, or its disk has no locks.
    """
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise _no_lock(path, error) from error
    try:
        while True:
            try:
                connection.execute("BEGIN EXCLUSIVE")
                break
            except sqlite3.Error as error:
                if "locked" not in str(error):
                    raise _no_lock(path, error) from error
                time.sleep(WAIT)
        yield
    finally:
        connection.close()


def _no_lock(path: Path, error: sqlite3.Error) -> ValueError:
    todo = "delete it or name another folder"
    return ValueError(f"`cache` must be a folder where {path} can be locked ({error}); {todo}")
