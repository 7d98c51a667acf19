"""Images decoded once, into one file: killed on the way it goes on where it was; of two processes one waits.

Beside the file `NAME.npy`, which appears whole, there is `NAME.lock`, and while it is written `NAME.part` with
`NAME.done`, a line for each piece that is in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np

from tagalong._progress import Progress, Silent
from tagalong.affinity._atomic import write_atomic

from ._cache_folder import make_folder
from ._celeba_images import Images, some
from ._celeba_workers import Answer, Order, decode_all
from ._needs import require

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
        require("celeba", "PIL", "tagalong[images]")
        self._check_folder()
        with alone(self.path.with_suffix(".lock")):
            if not self.path.exists():
                self._decode(progress or Silent())

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
