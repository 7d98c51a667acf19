"""From image files to inputs and targets of a view (Standley et al. 2020, setting 2); which cannot be decoded."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.files import UNVERSIONED, DocumentError, read_document, write_document
from tagalong.learn import THREADS, Batch
from tagalong.progress import Progress

from .files import DOMAINS, RGB, Views

if TYPE_CHECKING:
    from PIL.Image import Image

CLASSES = 18  # 0: uncertain, 1: background, 2 to 17: objects
FARTHEST = 2**13  # depth in units of 1/512 m: from 16 m on, and where the mesh has holes (65,535), it counts as unknown
CENTRED = {"depth": (1500.0, 1000.0), "edges": (718.0, 1070.0), "keypoints": (50.0, 100.0)}
MASKED = ("depth", "normals")
COLOURS, NUMBERS, ONE = ("RGB", "RGBA"), ("I", "I;16", "I;16B"), ("L", "P")  # modes of images
CHANNELS = {"depth": 2, "normals": 4, "edges": 1, "keypoints": 1}
DAMAGED = (OSError, SyntaxError, ValueError)  # what a damaged PNG makes Pillow raise, and what is wrong in it
FORMAT, VERSION = "tagalong-taskonomy", 1  # of the file that keeps which views can be decoded
INSIDE = "damaged inside"
TRIED = 8  # views, to see whether any can be read
AT_ONCE = 256  # views of which the pool knows: there may be millions, and Ctrl-C waits for these
logger = logging.getLogger(__name__)
_counting = threading.Lock()  # several threads read
Pixels = NDArray[np.float32]


class Unreadable(ValueError):
    """An image that cannot be read, and why; its path comes first."""

    def __init__(self, path: str, error: Exception) -> None:
        said = str(error)
        super().__init__(said if path in said else f"{path}: {said}")
        self.path = path


@dataclass(frozen=True, eq=False)
class ViewReader:
    """Reads views. Those whose images turn out to be damaged come without any label; each is logged once, and counted.

    Attributes:
        views: that are there.
        tasks: whose domains are there.
        pixels: of a side of what comes out; larger images are reduced.
        damaged: paths of images that turned out to be damaged so far.
    """

    views: Views
    tasks: tuple[str, ...]
    pixels: int
    damaged: set[str] = field(default_factory=set, repr=False)

    def __len__(self) -> int:
        return len(self.views)

    def contents(self) -> Iterator[bytes]:
        """Names and sizes of all files, and how they are read."""
        yield self.views.digest
        yield repr((self.pixels, FARTHEST, CENTRED, len(self))).encode()

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """A view: colours from 0 to 255 and the targets of these tasks.

        Args:
            row: which.
            tasks: whose targets.
            draw: the view is mirrored if this is odd; None: never.
        """
        try:
            read = self._images(row, tasks)
        except Unreadable as error:
            self._count(error)
            return self._nothing(tasks)
        if draw is not None and draw % 2:
            read = mirrored(*read)
        return read

    def unreadable(self) -> str | None:
        """What is wrong if none of the first views can be read: then it is with all of them."""
        flaws = [self.flaw(row) for row in range(min(TRIED, len(self)))]
        return flaws[0] if all(flaws) else None

    def flaw(self, row: int) -> str | None:
        """Which image of a view cannot be read, and why; None if all can."""
        try:
            self._images(row, self.tasks)
        except Unreadable as error:
            return str(error)
        return None

    def unlabelled(self) -> list[str]:
        """Tasks without a single label; that is usually known from the first view."""
        left = list(self.tasks)
        for row in range(len(self)):
            if not left:
                break
            with suppress(Unreadable):
                _, targets = self._images(row, left)
                left = [task for task in left if not targets[task].isfinite().any()]
        return left

    def _count(self, error: Unreadable) -> None:
        with _counting:
            if error.path in self.damaged:
                return
            self.damaged.add(error.path)
            count = len(self.damaged)
        logger.warning("%s; its view has no labels; damaged so far: %d, in %d views", error, count, len(self))

    def _images(self, row: int, tasks: Sequence[str]) -> Batch:
        inputs = torch.from_numpy(self._colours(row, RGB).transpose(2, 0, 1).copy())
        depth = self._numbers(row, "depth") if set(MASKED) & set(tasks) else None
        return inputs, {task: self._target(row, task, depth) for task in tasks}

    def _target(self, row: int, task: str, depth: Pixels | None) -> Tensor:
        if task == "segmentation":
            return torch.from_numpy(self._classes(row))
        if task == "normals":
            colours = self._colours(row, DOMAINS[task]).transpose(2, 0, 1).astype(np.float32)
            values = colours / np.float32(127.5) - np.float32(1)
        else:
            numbers = depth if task == "depth" and depth is not None else self._numbers(row, task)
            middle, spread = CENTRED[task]
            values = ((numbers - np.float32(middle)) / np.float32(spread))[None]
        return _masked(values, depth) if task in MASKED and depth is not None else torch.from_numpy(values)

    def _colours(self, row: int, domain: str) -> NDArray[np.uint8]:
        from PIL.Image import Resampling

        with self._open(row, domain, COLOURS, "three channels") as image:
            colours = image.convert("RGB")
            return np.asarray(colours.resize((self.pixels, self.pixels), Resampling.BILINEAR))

    def _numbers(self, row: int, task: str) -> Pixels:
        from PIL.Image import Resampling, fromarray

        with self._open(row, DOMAINS[task], NUMBERS, "16 bits") as image:
            numbers = fromarray(np.asarray(image, dtype=np.float32))
            return np.asarray(numbers.resize((self.pixels, self.pixels), Resampling.BILINEAR))

    def _classes(self, row: int) -> Pixels:
        from PIL.Image import Resampling

        with self._open(row, DOMAINS["segmentation"], ONE, "one channel") as image:
            classes = np.asarray(image.resize((self.pixels, self.pixels), Resampling.NEAREST))
            if classes.max() >= CLASSES:
                raise ValueError(f"expected classes 0 to {CLASSES - 1}, found {classes.max()}")
        return np.where(classes > 0, classes, np.nan).astype(np.float32)

    @contextmanager
    def _open(self, row: int, domain: str, modes: Sequence[str], expected: str) -> Iterator[Image]:
        """An image; whatever is wrong with it, until it is decoded, is said with its path."""
        from PIL import Image

        path = self.views.file(row, domain)
        try:
            with Image.open(path) as image:
                if image.mode not in modes:
                    raise ValueError(f"expected {expected}, found mode {image.mode}")
                yield image
        except DAMAGED as error:
            raise Unreadable(path, error) from error

    def _nothing(self, tasks: Sequence[str]) -> Batch:
        side = (self.pixels, self.pixels)
        shapes = {task: side if task == "segmentation" else (CHANNELS[task], *side) for task in tasks}
        return torch.zeros(3, *side, dtype=torch.uint8), {t: torch.full(shapes[t], torch.nan) for t in tasks}


def mirrored(inputs: Tensor, targets: dict[str, Tensor]) -> Batch:
    """Left and right change places; normals then point the other way across."""
    flipped = {task: target.flip(-1) for task, target in targets.items()}
    if "normals" in flipped:
        flipped["normals"][0] *= -1
    return inputs.flip(-1), flipped


def _masked(values: Pixels, depth: Pixels) -> Tensor:
    """Values, 0 where depth is unknown, and a last channel that says where it is known; NaN if nowhere."""
    known = (depth < FARTHEST).astype(np.float32)
    if not known.any():
        return torch.full((len(values) + 1, *known.shape), torch.nan)
    return torch.from_numpy(np.concatenate([values * known, known[None]]))


def decodable(reader: ViewReader, folder: Path, progress: Progress) -> ViewReader:
    """The same reader without the views that cannot be decoded.

    Decoding is done once, and killed on the way it goes on where it was: what it finds is kept in a file of the folder,
    by view. Later those views alone are decoded again, since their files may have been replaced.

    Args:
        reader: of all views.
        folder: for the file; it must be there.
        progress: is told how far it is.
    """
    file = folder / f"taskonomy-{_key(reader)}.json"
    decoded, flaws = _kept(file)
    rows = [*_rows(reader.views, flaws), *range(decoded, len(reader))]
    if not rows:
        return reader
    progress.start(len(rows), "decoding images", "views")
    try:
        for some, whys in _decode(reader, rows):
            decoded = max(decoded, some[-1] + 1)
            named = {reader.views.name(row): why for row, why in zip(some, whys, strict=True)}
            flaws = {name: why for name, why in (flaws | named).items() if why}
            write_document(file, FORMAT, VERSION, {"decoded": decoded, "flaws": flaws})
            progress.advance(len(some))
    finally:
        progress.done()
    return replace(reader, views=_without(reader.views, _rows(reader.views, flaws))) if flaws else reader


def _key(reader: ViewReader) -> str:
    digest = hashlib.sha256(repr(reader.tasks).encode())
    for content in reader.contents():
        digest.update(content)
    return digest.hexdigest()[:16]


def _kept(file: Path) -> tuple[int, dict[str, str | None]]:
    """How many views were decoded before, and what was wrong with some; of what is not ours or not whole, none."""
    try:
        return read_document(
            file, FORMAT, (UNVERSIONED, VERSION), lambda known: (int(known["decoded"]), dict(known["flaws"]))
        )
    except (OSError, DocumentError):
        return 0, {}


def _rows(views: Views, names: Mapping[str, object]) -> list[int]:
    return [row for row in range(len(views)) if views.name(row) in names] if names else []


def _decode(reader: ViewReader, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], list[str | None]]]:
    """Some rows at a time, with what is wrong with each."""
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            yield some, list(pool.map(reader.flaw, some))


def _without(views: Views, rows: Iterable[int]) -> Views:
    """The other views; buildings of which none is left are filtered."""
    gone = np.array(sorted(rows), dtype=np.int64)
    kept = np.setdiff1d(np.arange(len(views)), gone)
    left, building = np.unique(views.building[kept], return_inverse=True)
    lost = set(range(len(views.buildings))) - set(left.tolist())
    names = [views.name(row) for row in gone.tolist()]
    return Views(
        buildings=tuple(views.buildings[place] for place in left.tolist()),
        building=building.astype(np.int32),
        view=views.view[kept],
        skipped=Counter(views.skipped) + Counter({INSIDE: len(gone)}),
        filtered=(*views.filtered, *(views.buildings[place].name for place in sorted(lost))),
        digest=hashlib.sha256(views.digest + "\n".join(names).encode()).digest(),
    )
