"""A cache file of decoded images, created once using all CPU cores. Interrupted decoding can be resumed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock

from tagalong.errors import InvalidInput, first_few, require_package
from tagalong.files import make_folder, move_into_place, write_atomic
from tagalong.progress import NoProgress, Progress

from .celeba_files import ImageFiles

if TYPE_CHECKING:
    from .decode import DecodedChunk, ImageChunk

CACHE_VERSION = 1  # version of the decoded images; increase it when resizing changes
CHUNK_SIZE = 512  # number of images, which take one core half a second to decode
RECORD_LINE = re.compile(r"(\d+) (\d+)\n")  # offset and checksum of a chunk


class ImageCache:
    """A cache of decoded images, stored as a uint8 array of shape [rows, 3, pixels, pixels].

    Args:
        images: the image files.
        names: the file names, in row order.
        pixels: the width and height of a decoded image.
        folder: the cache folder.

    Attributes:
        key: a hash of the names, sizes and order of the files, and of the decoding settings.
        path: the file that contains the decoded images.
    """

    def __init__(self, images: ImageFiles, names: Sequence[str], pixels: int, folder: Path) -> None:
        self._images, self._names, self._pixels = images, names, pixels
        listed = "\n".join(f"{size} {name}" for name, size in zip(names, images.sizes(names), strict=True))
        self.key = hashlib.sha256(f"celeba {CACHE_VERSION} {pixels}\n{listed}".encode()).hexdigest()[:16]
        self.path = folder / f"celeba-{pixels}-{self.key}.npy"

    def build(self, progress: Progress | None = None) -> None:
        """Decodes all images that are not cached yet. Waits if another process is decoding images.

        Raises:
            InvalidInput: If the folder is not writable, the disk does not have enough space, or images are damaged.
            ImportError: If Pillow is not installed.
        """
        if self.path.exists():
            return
        require_package("the problem 'celeba'", "PIL", "tagalong[images]")
        self._check_folder()
        with hold_lock(self.path.with_suffix(".lock")):
            if not self.path.exists():
                self._decode(progress or NoProgress())

    def _check_folder(self) -> None:
        folder = self.path.parent
        make_folder(folder)
        needed, free = len(self._names) * self._image_bytes, shutil.disk_usage(folder).free
        if needed > free and not self._partial_path.exists():
            found = f"{free / 1e9:.1f} GB free in {folder}"
            raise InvalidInput("cache", f"must have room for {needed / 1e9:.1f} GB", found, "choose another folder")

    def _decode(self, progress: Progress) -> None:
        chunks = self._chunks(self._open_partial_file())
        finished = self._finished_offsets(chunks)
        left = [chunk for chunk in chunks if chunk.offset not in finished]
        kept = f"decoded images are kept in {self.path.parent}, run the same command to continue"
        progress.start(len(self._names), "decoding images", "images")
        try:
            progress.advance(len(self._names) - sum(len(chunk.members) for chunk in left))
            damaged = self._decode_chunks(left, progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {kept}") from None
        except BrokenProcessPool as error:
            raise BrokenExecutor(f"a process that was decoding images died; {kept}") from error
        finally:
            progress.done()
        self._finish(damaged)

    def _chunks(self, start: int) -> list[ImageChunk]:
        from .decode import ImageChunk  # imports Pillow, which is optional

        return [
            ImageChunk(tuple(self._images.members[name] for name in names), start + first * self._image_bytes)
            for first in range(0, len(self._names), CHUNK_SIZE)
            if (names := self._names[first : first + CHUNK_SIZE])
        ]

    def _decode_chunks(self, chunks: Sequence[ImageChunk], progress: Progress) -> dict[str, str]:
        """Decodes and records chunks, and returns the damaged images with the reason for each."""
        damaged: dict[str, str] = {}
        outcomes = decode_all(chunks, self._images.source, self._partial_path, self._pixels)
        with self._record_path.open("a") as record, closing(outcomes):
            for chunk, outcome in outcomes:
                damaged |= outcome.damaged
                if not outcome.damaged:
                    record.write(f"{chunk.offset} {outcome.checksum}\n")
                    record.flush()
                progress.advance(len(chunk.members))
        return damaged

    def _open_partial_file(self) -> int:
        """Creates the file or opens an existing one to resume, and returns the offset of the first row."""
        if self._partial_path.exists() and self._record_path.exists():
            with suppress(ValueError, EOFError):  # the process was killed before the file had its full length
                return int(np.load(self._partial_path, mmap_mode="r").offset)
        self._record_path.unlink(missing_ok=True)
        shape = (len(self._names), 3, self._pixels, self._pixels)
        offset: int = np.lib.format.open_memmap(self._partial_path, mode="w+", dtype=np.uint8, shape=shape).offset
        return offset

    def _finished_offsets(self, chunks: Sequence[ImageChunk]) -> set[int]:
        """Returns the offsets of the recorded chunks whose checksums still match."""
        text = self._record_path.read_text() if self._record_path.exists() else ""
        recorded = {int(offset): int(checksum) for offset, checksum in RECORD_LINE.findall(text)}
        finished = {}
        with self._partial_path.open("rb") as part:
            for chunk in (chunk for chunk in chunks if chunk.offset in recorded):
                part.seek(chunk.offset)
                checksum = zlib.crc32(part.read(len(chunk.members) * self._image_bytes))
                if checksum == recorded[chunk.offset]:
                    finished[chunk.offset] = checksum
        write_atomic(self._record_path, "".join(f"{offset} {checksum}\n" for offset, checksum in finished.items()))
        return set(finished)

    def _finish(self, damaged: dict[str, str]) -> None:
        if damaged:
            self._partial_path.unlink()
            self._record_path.unlink()
            listed = first_few([f"{member} ({reason})" for member, reason in sorted(damaged.items())])
            found = f"{len(damaged)} damaged in {self._images.source}: {listed}"
            raise InvalidInput("data", "must contain intact JPEG files of aligned images", found, "download them again")
        move_into_place(self._partial_path, self.path)
        self._record_path.unlink()

    @property
    def _partial_path(self) -> Path:
        """The path of the incomplete file."""
        return self.path.with_suffix(".part")

    @property
    def _record_path(self) -> Path:
        """The path of the file that lists the decoded chunks."""
        return self.path.with_suffix(".done")

    @property
    def _image_bytes(self) -> int:
        return 3 * self._pixels**2


def decode_all(
    chunks: Sequence[ImageChunk], source: Path, target: Path, pixels: int
) -> Generator[tuple[ImageChunk, DecodedChunk]]:
    """Decodes chunks on all cores, and yields each chunk with its outcome as soon as it is done.

    Args:
        chunks: the chunks to decode.
        source: the folder or archive that contains the images.
        target: the file to write to, which must already have its full length.
        pixels: the width and height of a decoded image.

    Raises:
        BrokenProcessPool: If a worker process dies.
    """
    from .decode import decode_chunk, start_worker  # imports Pillow, which is optional

    if not chunks:
        return
    # "fork" would copy the locks of other threads, such as torch's.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(available_cores(), len(chunks)), context, initializer=start_worker)
    try:
        with _without_main_module():
            futures = {pool.submit(decode_chunk, chunk, source, target, pixels): chunk for chunk in chunks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Prevents new processes from importing the main module, since a script without a main guard would run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def available_cores() -> int:
    """Returns the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Acquires a file lock, waiting while another process holds it.

    If a process dies, its lock is released.

    Raises:
        InvalidInput: If the file cannot be locked because it is a folder, belongs to another user, or is on a file
            system without locking.
    """
    lock = FileLock(path)
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        failed = f"cannot be used, because {path} could not be locked ({error})"
        raise InvalidInput("cache", failed, hint="delete that file, or choose another folder") from error
    try:
        yield
    finally:
        lock.release()
