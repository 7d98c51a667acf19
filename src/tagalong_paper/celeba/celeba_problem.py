"""CelebA (Liu et al. 2015): photographs of celebrities with forty attributes, read from a local copy of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, collect, raise_problems, task_name_problems
from tagalong.files import CACHE
from tagalong.learn import MappedTensor, Problem, Recipe, Scaling, Split, Task, check_data, derive_seed
from tagalong.problems import FACE_ATTRIBUTES, FACES_RECIPES, PAPER_RECIPE, CelebANet
from tagalong.progress import Progress

from .cache import ImageCache
from .celeba_files import (
    ATTRIBUTES_LIST,
    PARTITION_LIST,
    ImageFiles,
    check_images,
    find_file,
    find_images,
    read_attributes,
    read_partition,
)

SIZES: dict[str, dict[str, Any]] = {
    "small": {"rows": 400, "pixels": 16, "channels": 4},
    "full": {"rows": None, "pixels": 64, "channels": 64},
}
OFFICIAL_SPLIT_SIZES = (162_770, 19_867, 19_962)
MAX_PIXELS = 178  # the width of the original images
MIN_PAPER_ROWS = 40_000  # with fewer training images, the statistics of the paper's BatchNorm would not converge


def celeba(
    data: str | Path | None = None,
    attributes: Sequence[str] | str | None = None,
    rows: int | None = None,
    pixels: int | None = None,
    channels: int | None = None,
    cache: str | Path | None = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    size: Literal["small", "full"] = "full",
    progress: Progress | None = None,
) -> Problem:
    """Loads CelebA: 202,599 photographs, by default with the nine attributes and the network of the paper.

    Nothing is downloaded. The folder `data` must contain the official files, either all in one place or in the
    subfolders `Img`, `Anno` and `Eval`. The files are the aligned images (`img_align_celeba/` or
    `img_align_celeba.zip`), the attributes (`list_attr_celeba.txt`) and the official split (`list_eval_partition.txt`).

    The images are decoded once, on all cores, into a memory-mapped file. For all images at 64 pixels, this file takes
    up 2.5 GB. As in the published code, each aligned image (178×218) is resized to a square by bilinear interpolation
    without antialiasing. Unlike in the published code, pixel values are rounded down to integers from 0 to 255, and
    then scaled to the range from -1 to 1 instead of 0 to 1.

    Args:
        data: the folder that contains the official files.
        attributes: the attribute names, as a list or a comma-separated string. Defaults to the paper's nine attributes.
        rows: the number of images to sample from the splits, in proportion to their sizes. The default depends on
            `size`.
        pixels: the width and height of an image, from 8 to 178. The default depends on `size`.
        channels: the number of channels in the convolutions. The default depends on `size`.
        cache: the folder for decoded images. Defaults to `tagalong-cache` in the data folder.
        seed: the seed for sampling images.
        recipe: the training recipe. Defaults to the paper's recipe, or to a quick recipe if `size` is "small".
        size: "full" uses all images, 64 pixels and 64 channels. "small" uses 400 images, 16 pixels and 4 channels, to
            check that everything works.
        progress: reports the number of images decoded so far.

    Raises:
        InvalidInput: If options or files are invalid. The message lists all problems.
        ImportError: If images must be decoded but Pillow is not installed.
    """
    if size not in SIZES:
        raise InvalidInput("size", "must be 'small' or 'full'", repr(size))
    given = {"rows": rows, "pixels": pixels, "channels": channels}
    settings = SIZES[size] | {name: value for name, value in given.items() if value is not None}
    wanted = _parse_attributes(attributes)
    _check_options(data, wanted, settings, seed)
    folder = Path(str(data))
    found = _read_lists(folder, wanted).sample(settings["rows"], seed)
    decoded = ImageCache(
        found.images, found.names, settings["pixels"], folder / CACHE if cache is None else Path(str(cache))
    )
    decoded.build(progress)
    train, val, test = (_make_split(split, found, decoded, wanted) for split in range(3))
    problem = Problem(
        "celeba",
        tuple(Task(name, "multiclass", classes=2) for name in wanted),
        train,
        val,
        test,
        encoder=_make_encoder(size, settings["channels"], len(train)),
        recipe=recipe or (PAPER_RECIPE if size == "full" else FACES_RECIPES["small"]),
        table=Scaling((3, settings["pixels"], settings["pixels"]), "uint8"),
        notes=_notes(found, settings["pixels"]),
    )
    check_data(problem)
    return problem


class LabeledImages(NamedTuple):
    """Images with their labels, sorted by split.

    Attributes:
        images: the image files.
        names: the file names.
        labels: whether each image has each attribute [images, attributes].
        splits: the split of each image (0, 1 or 2), in ascending order.
    """

    images: ImageFiles
    names: list[str]
    labels: NDArray[np.bool_]
    splits: NDArray[np.int64]

    def take(self, indices: NDArray[np.int64]) -> LabeledImages:
        """Returns the images at these indices, in the given order."""
        return LabeledImages(
            self.images, [self.names[index] for index in indices], self.labels[indices], self.splits[indices]
        )

    def sample(self, rows: int | None, seed: int) -> LabeledImages:
        """Samples about `rows` images, in proportion to the split sizes. Returns all images if there are fewer."""
        if rows is None or rows >= len(self.names):
            return self
        random = np.random.default_rng(derive_seed(seed, "celeba"))
        kept = []
        for split in range(3):
            indices = np.flatnonzero(self.splits == split)
            count = max(1, round(rows * len(indices) / len(self.names)))
            kept.append(np.sort(random.permutation(indices)[:count]))
        return self.take(np.concatenate(kept))


def _read_lists(folder: Path, wanted: Sequence[str]) -> LabeledImages:
    problems: list[InvalidInput] = []
    lists = [collect(problems, find_file, folder, name) for name in (ATTRIBUTES_LIST, PARTITION_LIST)]
    images = collect(problems, find_images, folder)
    raise_problems(problems)
    names, labels = read_attributes(lists[0], wanted)
    splits = collect(problems, read_partition, lists[1], names)
    collect(problems, check_images, images, names, lists[0].name)
    raise_problems(problems)
    return LabeledImages(images, names, labels, splits).take(np.argsort(splits, kind="stable"))


def _make_split(split: int, images: LabeledImages, decoded: ImageCache, wanted: Sequence[str]) -> Split:
    first, after = np.searchsorted(images.splits, [split, split + 1]).tolist()
    inputs = MappedTensor.open(decoded.path, decoded.key, first, after - first)
    labels = torch.from_numpy(images.labels[first:after].astype(np.float32))
    return Split(inputs, {name: labels[:, column].contiguous() for column, name in enumerate(wanted)})


def _make_encoder(size: str, channels: int, rows: int) -> CelebANet:
    # With few images, there are few steps, so BatchNorm's statistics must adapt quickly.
    return CelebANet(
        channels, uint8=True, momentum=0.01 if rows >= MIN_PAPER_ROWS else 0.1, channels_last=size == "full"
    )


def _parse_attributes(attributes: Sequence[str] | str | None) -> tuple[str, ...]:
    if isinstance(attributes, str):
        return tuple(name.strip() for name in attributes.split(",") if name.strip())
    if attributes is not None and not isinstance(attributes, Iterable):
        raise InvalidInput("attributes", "must be a list of names or a comma-separated string", repr(attributes))
    return FACE_ATTRIBUTES if attributes is None else tuple(attributes)


def _check_options(data: Any, wanted: tuple[str, ...], settings: dict[str, Any], seed: Any) -> None:
    problems = task_name_problems(wanted, "attributes")
    rows, pixels, channels = settings["rows"], settings["pixels"], settings["channels"]
    if data is None:
        expected = "must be the folder with the official CelebA files"
        problems.append(InvalidInput("data", expected, "none", "see docs/paper.md"))
    if rows is not None and (not isinstance(rows, int) or rows < 100):
        problems.append(InvalidInput("rows", "must be an integer ≥ 100", repr(rows)))
    if not isinstance(pixels, int) or not 8 <= pixels <= MAX_PIXELS:
        problems.append(InvalidInput("pixels", f"must be an integer from 8 to {MAX_PIXELS}", repr(pixels)))
    if not isinstance(channels, int) or channels < 1:
        problems.append(InvalidInput("channels", "must be a positive integer", repr(channels)))
    if not isinstance(seed, int):
        problems.append(InvalidInput("seed", "must be an integer", repr(seed)))
    raise_problems(problems)


def _notes(images: LabeledImages, pixels: int) -> tuple[str, ...]:
    counts = tuple(np.bincount(images.splits, minlength=3).tolist())
    listed = " / ".join(f"{count:,}" for count in counts)
    whole = (
        ""
        if counts == OFFICIAL_SPLIT_SIZES
        else f"; all of CelebA has {' / '.join(f'{count:,}' for count in OFFICIAL_SPLIT_SIZES)}"
    )
    return (f"{len(images.names):,} photographs of {pixels} pixels, {listed} by the official split{whole}",)
