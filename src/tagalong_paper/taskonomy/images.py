"""Reads views from image files (as in setting 2 of Standley et al. 2020) and finds damaged images."""

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

from tagalong.files import DocumentError, read_document, write_document
from tagalong.learn import THREADS, Batch
from tagalong.progress import Progress

from .taskonomy_files import DOMAINS, RGB, Views

if TYPE_CHECKING:
    from PIL.Image import Image

CLASS_COUNT = 18  # 0: uncertain, 1: background, 2 to 17: objects
MAX_DEPTH = 2**13  # in units of 1/512 m; depths of 16 m or more, and holes in the mesh (65,535), count as unknown
NORMALIZATION = {"depth": (1500.0, 1000.0), "edges": (718.0, 1070.0), "keypoints": (50.0, 100.0)}
MASKED_TASKS = ("depth", "normals")
COLOR_MODES, INTEGER_MODES, CLASS_MODES = ("RGB", "RGBA"), ("I", "I;16", "I;16B"), ("L", "P")  # Pillow's modes
TARGET_CHANNELS = {"depth": 2, "normals": 4, "edges": 1, "keypoints": 1}
DECODING_ERRORS = (OSError, SyntaxError, ValueError)  # raised by Pillow and our checks for a damaged PNG
FORMAT, VERSION = "tagalong-taskonomy", 1  # format of the file that records the flaws found by decoding
UNDECODABLE_REASON = "damaged inside"
VIEWS_TO_TRY = 8  # number of views to try when testing whether any can be read
BATCH_SIZE = 256  # number of views to submit at a time; there can be millions, and Ctrl-C waits for submitted views
logger = logging.getLogger(__name__)
_count_lock = threading.Lock()  # multiple threads read images
Pixels = NDArray[np.float32]


class UnreadableImageError(ValueError):
    """Raised when an image cannot be read. The message starts with the path of the image."""

    def __init__(self, path: str, error: Exception) -> None:
        message = str(error)
        super().__init__(message if path in message else f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, eq=False)
class ViewReader:
    """Reads views from image files.

    A view with a damaged image has no labels. Damaged images are counted, and each is logged once.

    Attributes:
        views: the views.
        tasks: the tasks whose images are available.
        pixels: the width and height of the returned images. Larger images are downsampled.
        damaged: the paths of the damaged images found so far.
    """

    views: Views
    tasks: tuple[str, ...]
    pixels: int
    damaged: set[str] = field(default_factory=set, repr=False)

    def __len__(self) -> int:
        return len(self.views)

    def contents(self) -> Iterator[bytes]:
        """Yields the contents to hash: the names and sizes of all files, and the settings for reading them."""
        yield self.views.digest
        yield repr((self.pixels, MAX_DEPTH, NORMALIZATION, len(self))).encode()

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """Reads a view: the colors (0 to 255) and the targets of the given tasks.

        Args:
            row: the index of the view.
            tasks: the tasks.
            draw: a random number, or None. The view is mirrored if the number is odd.
        """
        try:
            read = self._read_images(row, tasks)
        except UnreadableImageError as error:
            self._count_damaged(error)
            return self._unlabeled_view(tasks)
        if draw is not None and draw % 2:
            read = mirror(*read)
        return read

    def find_systematic_flaw(self) -> str | None:
        """Returns a flaw that probably affects all views, or None if any of the first views can be read."""
        flaws = [self.find_flaw(row) for row in range(min(VIEWS_TO_TRY, len(self)))]
        return flaws[0] if all(flaws) else None

    def find_flaw(self, row: int) -> str | None:
        """Returns which image of a view cannot be read and why, or None if all images can be read."""
        try:
            self._read_images(row, self.tasks)
        except UnreadableImageError as error:
            return str(error)
        return None

    def unlabeled_tasks(self) -> list[str]:
        """Returns the tasks that have no labels. Usually, it is enough to read the first view."""
        left = list(self.tasks)
        for row in range(len(self)):
            if not left:
                break
            with suppress(UnreadableImageError):
                _, targets = self._read_images(row, left)
                left = [task for task in left if not targets[task].isfinite().any()]
        return left

    def _count_damaged(self, error: UnreadableImageError) -> None:
        with _count_lock:
            if error.path in self.damaged:
                return
            self.damaged.add(error.path)
            count = len(self.damaged)
        logger.warning(
            "%s; this view will have no labels (%d damaged images in %d views so far)", error, count, len(self)
        )

    def _read_images(self, row: int, tasks: Sequence[str]) -> Batch:
        inputs = torch.from_numpy(self._read_colors(row, RGB).transpose(2, 0, 1).copy())
        depth = self._read_numbers(row, "depth") if set(MASKED_TASKS) & set(tasks) else None
        return inputs, {task: self._read_target(row, task, depth) for task in tasks}

    def _read_target(self, row: int, task: str, depth: Pixels | None) -> Tensor:
        if task == "segmentation":
            return torch.from_numpy(self._read_classes(row))
        if task == "normals":
            colors = self._read_colors(row, DOMAINS[task]).transpose(2, 0, 1).astype(np.float32)
            values = colors / np.float32(127.5) - np.float32(1)
        else:
            numbers = depth if task == "depth" and depth is not None else self._read_numbers(row, task)
            middle, spread = NORMALIZATION[task]
            values = ((numbers - np.float32(middle)) / np.float32(spread))[None]
        return _mask(values, depth) if task in MASKED_TASKS and depth is not None else torch.from_numpy(values)

    def _read_colors(self, row: int, domain: str) -> NDArray[np.uint8]:
        from PIL.Image import Resampling

        with self._open_image(row, domain, COLOR_MODES, "three channels") as image:
            colors = image.convert("RGB")
            return np.asarray(colors.resize((self.pixels, self.pixels), Resampling.BILINEAR))

    def _read_numbers(self, row: int, task: str) -> Pixels:
        from PIL.Image import Resampling, fromarray

        with self._open_image(row, DOMAINS[task], INTEGER_MODES, "16 bits") as image:
            numbers = fromarray(np.asarray(image, dtype=np.float32))
            return np.asarray(numbers.resize((self.pixels, self.pixels), Resampling.BILINEAR))

    def _read_classes(self, row: int) -> Pixels:
        from PIL.Image import Resampling

        with self._open_image(row, DOMAINS["segmentation"], CLASS_MODES, "one channel") as image:
            classes = np.asarray(image.resize((self.pixels, self.pixels), Resampling.NEAREST))
            if classes.max() >= CLASS_COUNT:
                raise ValueError(f"expected classes 0 to {CLASS_COUNT - 1}, found {classes.max()}")
        return np.where(classes > 0, classes, np.nan).astype(np.float32)

    @contextmanager
    def _open_image(self, row: int, domain: str, modes: Sequence[str], expected: str) -> Iterator[Image]:
        """Opens an image. Errors inside the block are raised as `UnreadableImageError`."""
        from PIL import Image

        path = self.views.image_path(row, domain)
        try:
            with Image.open(path) as image:
                if image.mode not in modes:
                    raise ValueError(f"expected {expected}, found mode {image.mode}")
                yield image
        except DECODING_ERRORS as error:
            raise UnreadableImageError(path, error) from error

    def _unlabeled_view(self, tasks: Sequence[str]) -> Batch:
        side = (self.pixels, self.pixels)
        shapes = {task: side if task == "segmentation" else (TARGET_CHANNELS[task], *side) for task in tasks}
        return torch.zeros(3, *side, dtype=torch.uint8), {t: torch.full(shapes[t], torch.nan) for t in tasks}


def mirror(inputs: Tensor, targets: dict[str, Tensor]) -> Batch:
    """Mirrors a view horizontally, including the direction of normals."""
    flipped = {task: target.flip(-1) for task, target in targets.items()}
    if "normals" in flipped:
        flipped["normals"][0] *= -1
    return inputs.flip(-1), flipped


def _mask(values: Pixels, depth: Pixels) -> Tensor:
    """Sets values to 0 where the depth is unknown, and appends a mask. Returns NaN if no depth is known."""
    known = (depth < MAX_DEPTH).astype(np.float32)
    if not known.any():
        return torch.full((len(values) + 1, *known.shape), torch.nan)
    return torch.from_numpy(np.concatenate([values * known, known[None]]))


def drop_undecodable(reader: ViewReader, folder: Path, progress: Progress) -> ViewReader:
    """Returns a copy of the reader without the views that cannot be decoded.

    All views are decoded once. A file in the folder records the flaws found so far, so decoding can be interrupted and
    resumed. Later calls only decode the flawed views again, since their files may have been replaced.

    Args:
        reader: the reader for all views.
        folder: an existing folder for the file that lists the flaws.
        progress: reports progress.
    """
    file = folder / f"taskonomy-{_cache_key(reader)}.json"
    decoded, flaws = _read_flaws(file)
    rows = [*_rows_by_name(reader.views, flaws), *range(decoded, len(reader))]
    if not rows:
        return reader
    progress.start(len(rows), "decoding images", "views")
    try:
        for batch, found in _decode(reader, rows):
            decoded = max(decoded, batch[-1] + 1)
            by_name = {reader.views.name(row): flaw for row, flaw in zip(batch, found, strict=True)}
            flaws = {name: flaw for name, flaw in (flaws | by_name).items() if flaw}
            write_document(file, FORMAT, VERSION, {"decoded": decoded, "flaws": flaws})
            progress.advance(len(batch))
    finally:
        progress.done()
    return replace(reader, views=_drop_rows(reader.views, _rows_by_name(reader.views, flaws))) if flaws else reader


def _cache_key(reader: ViewReader) -> str:
    digest = hashlib.sha256(repr(reader.tasks).encode())
    for content in reader.contents():
        digest.update(content)
    return digest.hexdigest()[:16]


def _read_flaws(file: Path) -> tuple[int, dict[str, str | None]]:
    """Returns the number of decoded views and their flaws, or 0 and no flaws if the file is missing or invalid."""
    try:
        return read_document(file, FORMAT, VERSION, lambda known: (int(known["decoded"]), dict(known["flaws"])))
    except (OSError, DocumentError):
        return 0, {}


def _rows_by_name(views: Views, names: Mapping[str, object]) -> list[int]:
    return [row for row in range(len(views)) if views.name(row) in names] if names else []


def _decode(reader: ViewReader, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], list[str | None]]]:
    """Yields batches of rows with their flaws."""
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(rows), BATCH_SIZE):
            batch = rows[first : first + BATCH_SIZE]
            yield batch, list(pool.map(reader.find_flaw, batch))


def _drop_rows(views: Views, rows: Iterable[int]) -> Views:
    """Returns the views without these rows. Buildings without any remaining views are moved to `filtered`."""
    gone = np.array(sorted(rows), dtype=np.int64)
    kept = np.setdiff1d(np.arange(len(views)), gone)
    left, building = np.unique(views.building[kept], return_inverse=True)
    lost = set(range(len(views.buildings))) - set(left.tolist())
    names = [views.name(row) for row in gone.tolist()]
    return Views(
        buildings=tuple(views.buildings[place] for place in left.tolist()),
        building=building.astype(np.int32),
        view=views.view[kept],
        skipped=Counter(views.skipped) + Counter({UNDECODABLE_REASON: len(gone)}),
        filtered=(*views.filtered, *(views.buildings[place].name for place in sorted(lost))),
        digest=hashlib.sha256(views.digest + "\n".join(names).encode()).digest(),
    )
