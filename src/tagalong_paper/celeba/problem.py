"""CelebA (Liu et al. 2015): faces of well-known people with forty attributes, from the user's own copy of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.errors import name_problems, noted, refuse
from tagalong.files import CACHE
from tagalong.learn import Mapped, Problem, Recipe, Scaling, Split, Task, data_problems, derived
from tagalong.problems import FACE_ATTRIBUTES, FACES_RECIPES, PAPER_RECIPE, CelebANet
from tagalong.progress import Progress

from .cache import Cache
from .files import (
    ATTRIBUTES_LIST,
    PARTITION_LIST,
    Images,
    find_file,
    find_images,
    missing_images,
    read_attributes,
    read_partition,
)

SIZES: dict[str, dict[str, Any]] = {
    "small": {"rows": 400, "pixels": 16, "channels": 4},
    "full": {"rows": None, "pixels": 64, "channels": 64},
}
OFFICIAL = (162_770, 19_867, 19_962)
LARGEST = 178  # pixels of a side, which is what the images have
MANY = 40_000  # images to train on; below, the paper's BatchNorm would not settle


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
    """Attributes of 202,599 photographs: the paper's nine by default, with its network, recipe and heads.

    Nothing is downloaded: `data` is a folder with the official files, side by side or in the folders `Img`, `Anno` and
    `Eval`: the aligned images, `img_align_celeba/` or `img_align_celeba.zip`, `list_attr_celeba.txt`, and
    `list_eval_partition.txt`, which gives the official split.

    The images are decoded once, on all cores, into a file that is mapped into memory from then on; it needs 2.5 GB of
    disk for all of them at 64 pixels. As in the published code the whole aligned image, 178×218, is squeezed into a
    square, each pixel interpolated between the four nearest, without averaging. Unlike there, values are rounded down
    to whole numbers of 0 to 255, and the network sees them from -1 to 1 instead of 0 to 1.

    Args:
        data: the folder.
        attributes: which, in this order; None: the paper's nine. A text is read as names between commas.
        rows: how many images, drawn at random from each part alike; None: what `size` says.
        pixels: of a side, 8 to 178; None: what `size` says.
        channels: of the convolutions; None: what `size` says.
        cache: the folder of the decoded images; None: `tagalong-cache` in the folder of the data.
        seed: of the draw of rows.
        recipe: how to train; None: the paper's, or at small size a quick one.
        size: "full": all images, 64 pixels, 64 channels; "small": 400 images, 16 pixels, 4 channels, to see that
            everything works.
        progress: is told how many images are decoded.

    Raises:
        ValueError: lists what is wrong with the options or the files; images that are missing or damaged are named.
        ImportError: images are yet to be decoded and Pillow is not there; says how to install it.
    """
    if size not in SIZES:
        raise ValueError(f"`size` must be 'small' or 'full', found {size!r}")
    given = {"rows": rows, "pixels": pixels, "channels": channels}
    chosen = SIZES[size] | {name: value for name, value in given.items() if value is not None}
    wanted = _wanted(attributes)
    refuse(_problems(data, wanted, chosen, seed))
    folder = Path(str(data))
    found = _read(folder, wanted).drawn(chosen["rows"], seed)
    decoded = Cache(found.images, found.names, chosen["pixels"], folder / CACHE if cache is None else Path(str(cache)))
    decoded.build(progress)
    train, val, test = (_split(part, found, decoded, wanted) for part in range(3))
    problem = Problem(
        "celeba",
        tuple(Task(name, "multiclass", classes=2) for name in wanted),
        train,
        val,
        test,
        encoder=_encoder(size, chosen["channels"], len(train)),
        recipe=recipe or (PAPER_RECIPE if size == "full" else FACES_RECIPES["small"]),
        table=Scaling((3, chosen["pixels"], chosen["pixels"]), "uint8"),
        notes=_notes(found, chosen["pixels"]),
    )
    refuse(data_problems(problem))
    return problem


class Listed(NamedTuple):
    """Images as the lists have them, or some of them: those to train on first, then validation, then test.

    Attributes:
        images: where they are.
        names: of the files.
        labels: [image, attribute].
        parts: 0, 1 or 2 for each image, in rising order.
    """

    images: Images
    names: list[str]
    labels: NDArray[np.bool_]
    parts: NDArray[np.int64]

    def take(self, places: NDArray[np.int64]) -> Listed:
        """These images, in this order."""
        return Listed(self.images, [self.names[place] for place in places], self.labels[places], self.parts[places])

    def drawn(self, rows: int | None, seed: int) -> Listed:
        """About so many, from each part alike; all if there are no more."""
        if rows is None or rows >= len(self.names):
            return self
        random = np.random.default_rng(derived(seed, "celeba"))
        kept = []
        for part in range(3):
            there = np.flatnonzero(self.parts == part)
            share = max(1, round(rows * len(there) / len(self.names)))
            kept.append(np.sort(random.permutation(there)[:share]))
        return self.take(np.concatenate(kept))


def _read(folder: Path, wanted: Sequence[str]) -> Listed:
    problems: list[str] = []
    lists = [noted(problems, find_file, folder, name) for name in (ATTRIBUTES_LIST, PARTITION_LIST)]
    images = noted(problems, find_images, folder)
    refuse(problems)
    names, labels = read_attributes(lists[0], wanted)
    parts = noted(problems, read_partition, lists[1], names)
    refuse(problems + missing_images(images, names, lists[0].name))
    return Listed(images, names, labels, parts).take(np.argsort(parts, kind="stable"))


def _split(part: int, found: Listed, decoded: Cache, wanted: Sequence[str]) -> Split:
    first, after = np.searchsorted(found.parts, [part, part + 1]).tolist()
    inputs = Mapped.open(decoded.path, decoded.key, first, after - first)
    labels = torch.from_numpy(found.labels[first:after].astype(np.float32))
    return Split(inputs, {name: labels[:, column].contiguous() for column, name in enumerate(wanted)})


def _encoder(size: str, channels: int, rows: int) -> CelebANet:
    # few steps must be enough for BatchNorm to know its inputs where there are few
    return CelebANet(channels, uint8=True, momentum=0.01 if rows >= MANY else 0.1, channels_last=size == "full")


def _wanted(attributes: Sequence[str] | str | None) -> tuple[str, ...]:
    if isinstance(attributes, str):
        return tuple(name.strip() for name in attributes.split(",") if name.strip())
    if attributes is not None and not isinstance(attributes, Iterable):
        raise ValueError(f"`attributes` must be names between commas or a list of them, found {attributes!r}")
    return FACE_ATTRIBUTES if attributes is None else tuple(attributes)


def _problems(data: Any, wanted: tuple[str, ...], chosen: dict[str, Any], seed: Any) -> list[str]:
    problems = name_problems(wanted, "`attributes`")
    rows, pixels, channels = chosen["rows"], chosen["pixels"], chosen["channels"]
    if data is None:
        problems.append("`data` must be the folder of CelebA's official files, found none; see docs/paper.md")
    if rows is not None and (not isinstance(rows, int) or rows < 100):
        problems.append(f"`rows` must be a whole number from 100, found {rows!r}")
    if not isinstance(pixels, int) or not 8 <= pixels <= LARGEST:
        problems.append(f"`pixels` must be a whole number from 8 to {LARGEST}, found {pixels!r}")
    if not isinstance(channels, int) or channels < 1:
        problems.append(f"`channels` must be a whole number from 1, found {channels!r}")
    if not isinstance(seed, int):
        problems.append(f"`seed` must be a whole number, found {seed!r}")
    return problems


def _notes(found: Listed, pixels: int) -> tuple[str, ...]:
    counts = tuple(np.bincount(found.parts, minlength=3).tolist())
    listed = " / ".join(f"{count:,}" for count in counts)
    whole = "" if counts == OFFICIAL else f"; the whole of CelebA has {' / '.join(f'{count:,}' for count in OFFICIAL)}"
    return (f"{len(found.names):,} photographs of {pixels} pixels, {listed} by the official split{whole}",)
