"""CelebA (Liu et al. 2015): photographs of celebrities with forty attributes, read from a local copy of the data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tagalong.errors import (
    InvalidInput,
    did_you_mean,
    first_few,
    is_integer,
    raise_problems,
    require_package,
    task_name_problems,
)
from tagalong.files import CACHE, open_atomic
from tagalong.learn import THREADS, Problem, Recipe, Scaling, Split, Task, check_data, derive_seed
from tagalong.problems import FACE_ATTRIBUTES, FACES_RECIPES, PAPER_RECIPE, CelebANet
from tagalong.progress import NoProgress, Progress

from .mapped_tensor import MappedTensor

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTES_LIST, PARTITION_LIST = "list_attr_celeba.txt", "list_eval_partition.txt"
OFFICIAL_FOLDERS = ("", "Img", "Anno", "Eval")
ALIGNED_SIZE = (178, 218)  # width and height of CelebA's aligned images
SIZES: dict[str, dict[str, Any]] = {
    "small": {"rows": 400, "pixels": 16, "channels": 4},
    "full": {"rows": None, "pixels": 64, "channels": 64},
}
MIN_PAPER_ROWS = 40_000  # with fewer training images, the statistics of the paper's BatchNorm would not converge
CACHE_VERSION = 1  # version of the decoded images; increase it when resizing changes
CHUNK_SIZE = 512  # images to decode before writing them


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
    subfolders `Img`, `Anno` and `Eval`. They are the unpacked folder of aligned images (`img_align_celeba`), the
    attributes (`list_attr_celeba.txt`) and the official split (`list_eval_partition.txt`).

    The images are decoded once into a memory-mapped file, which takes a minute or two and 2.5 GB for all images at 64
    pixels. As in the published code, each aligned image (178×218) is resized to a square by bilinear interpolation
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
        InvalidInput: If options, lists or images are invalid.
        ImportError: If images must be decoded but Pillow is not installed.
    """
    if size not in SIZES:
        raise InvalidInput("size", "must be 'small' or 'full'", repr(size))
    rows = SIZES[size]["rows"] if rows is None else rows
    pixels = SIZES[size]["pixels"] if pixels is None else pixels
    if isinstance(attributes, str):
        attributes = [name.strip() for name in attributes.split(",") if name.strip()]
    wanted = list(FACE_ATTRIBUTES if attributes is None else attributes)
    raise_problems(task_name_problems(tuple(wanted), "attributes"))
    if data is None:
        raise InvalidInput("data", "must be the folder with the official CelebA files", "none", "see docs/paper.md")
    if not (rows is None or is_integer(rows, 100)):
        raise InvalidInput("rows", "must be an integer ≥ 100", repr(rows))
    if not (is_integer(pixels, 8) and pixels <= ALIGNED_SIZE[0]):
        raise InvalidInput("pixels", f"must be an integer from 8 to {ALIGNED_SIZE[0]}", repr(pixels))
    folder = Path(str(data))
    labels, images = read_lists(folder, wanted), find_file(folder, "img_align_celeba")
    sizes = {file.name: file.stat().st_size for file in os.scandir(images)}
    if absent := [name for name in labels.index if name not in sizes]:
        found = f"{len(absent)} missing of {len(labels)}, such as {first_few(absent)}"
        raise InvalidInput(images, f"must contain every image in {ATTRIBUTES_LIST}", found)
    if rows is not None and rows < len(labels):
        labels = labels.groupby("part").sample(
            frac=rows / len(labels), random_state=derive_seed(seed, "celeba") % 2**32
        )

    # Decode the images into one file, unless an earlier call did.
    listed = "\n".join(f"{sizes[name]} {name}" for name in labels.index)
    key = hashlib.sha256(f"celeba {CACHE_VERSION} {pixels}\n{listed}".encode()).hexdigest()[:16]
    decoded = (folder / CACHE if cache is None else Path(str(cache))) / f"celeba-{pixels}-{key}.npy"
    if not decoded.exists():
        decode_images([images / name for name in labels.index], pixels, decoded, progress or NoProgress())

    splits, first = [], 0
    for _, part in labels.groupby("part"):
        targets = torch.tensor(part[wanted].T.to_numpy() > 0).float()  # [attributes, images]
        inputs = MappedTensor.open(decoded, key, first, len(part))
        splits.append(Split(inputs, dict(zip(wanted, targets, strict=True))))
        first += len(part)
    train, val, test = splits
    counts = " / ".join(f"{len(split):,}" for split in splits)
    # With few images, there are few steps, so BatchNorm's statistics must adapt quickly.
    momentum = 0.01 if len(train) >= MIN_PAPER_ROWS else 0.1
    problem = Problem(
        "celeba",
        tuple(Task(name, "multiclass", classes=2) for name in wanted),
        train,
        val,
        test,
        encoder=CelebANet(
            channels or SIZES[size]["channels"], uint8=True, momentum=momentum, channels_last=size == "full"
        ),
        recipe=recipe or (PAPER_RECIPE if size == "full" else FACES_RECIPES["small"]),
        table=Scaling((3, pixels, pixels), "uint8"),
        notes=(f"{len(labels):,} photographs of {pixels} pixels, {counts} by the official split",),
    )
    check_data(problem)
    return problem


def find_file(data: Path, name: str) -> Path:
    """Returns the path of a list or of the image folder, which may be in a subfolder as in the official download."""
    for folder in OFFICIAL_FOLDERS:
        if (data / folder / name).exists():
            return data / folder / name
    raise InvalidInput("data", f"must contain {name}", f"none in {data}")


def read_lists(data: Path, wanted: Sequence[str]) -> pd.DataFrame:
    """Returns the wanted attributes of each image (1 or -1) and its part (0, 1 or 2), sorted by part.

    Raises:
        ValueError: If a list is missing or invalid, or the two lists do not name the same images.
    """
    import pandas as pd

    path, partition = find_file(data, ATTRIBUTES_LIST), find_file(data, PARTITION_LIST)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        count = file.readline().strip()
        header = file.readline().split()
    unknown = [name for name in wanted if name not in header]
    expected = f"must be listed in {path}"
    raise_problems([InvalidInput("attributes", expected, repr(name), did_you_mean(name, header)) for name in unknown])
    labels = pd.read_csv(path, sep=r"\s+", skiprows=1, index_col=0, names=["image", *header], header=0)
    if count != str(len(labels)):
        expected = f"must list {count[:40]} images, as its first line says"
        raise InvalidInput(path, expected, str(len(labels)), "is it truncated?")
    valid = labels.isin([1, -1]).all(axis=1) & ~labels.index.duplicated()
    labels["part"] = pd.read_csv(partition, sep=r"\s+", names=["image", "part"], index_col="image")["part"]
    invalid = labels.index[~(valid & labels["part"].isin(range(3)))]
    if len(invalid):
        expected = f"must list each image once, with a 1 or -1 for each attribute, and {partition} with a 0, 1 or 2"
        raise InvalidInput(path, expected, f"an invalid line for {first_few(list(invalid))}")
    if labels["part"].nunique() < 3:
        raise InvalidInput(partition, "must have images of every split")
    return labels.sort_values("part", kind="stable")


def decode_images(paths: Sequence[Path], pixels: int, target: Path, progress: Progress) -> None:
    """Decodes images into an npy file of shape [images, 3, pixels, pixels], which exists only once it is complete."""
    require_package("the problem 'celeba'", "PIL", "tagalong[images]")
    target.parent.mkdir(parents=True, exist_ok=True)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, pixels, pixels)}
    progress.start(len(paths), "decoding images", "images")
    # Threads are enough, since Pillow releases Python's lock while it decodes.
    with open_atomic(target) as file, ThreadPoolExecutor(THREADS) as pool:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(paths), CHUNK_SIZE):
            chunk = paths[first : first + CHUNK_SIZE]
            file.writelines(pool.map(decode_image, chunk, repeat(pixels)))
            progress.advance(len(chunk))
    progress.done()


def decode_image(path: Path, pixels: int) -> bytes:
    """Decodes a JPEG file, and resizes it to RGB bytes of shape [3, pixels, pixels].

    Uses bilinear interpolation without antialiasing, which is TensorFlow's default. Pixel values are rounded down.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=("JPEG",)) as image:
            if image.size != ALIGNED_SIZE:
                raise ValueError(f"expected 178×218 pixels, found {image.width}×{image.height}")
            scale = (image.width / pixels, 0, 0, 0, image.height / pixels, 0)
            affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
            small = image.convert("RGB").transform((pixels, pixels), affine, scale, bilinear)
    except Exception as error:  # a damaged file can make the decoder raise anything
        expected = "must contain intact JPEG files of aligned images"
        raise InvalidInput("data", expected, f"{path.name}: {error}", "download it again") from error
    return b"".join(band.tobytes() for band in small.split())
