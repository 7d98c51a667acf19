"""Decodes JPEG files in worker processes. Does not import torch, so that workers start quickly."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

ALIGNED = (178, 218)  # width and height of CelebA's aligned images


class ImageChunk(NamedTuple):
    """A batch of images that one worker decodes into adjacent rows of a file.

    Attributes:
        members: the paths of the images within the folder or the archive.
        offset: the byte offset of the first row in the file.
    """

    members: tuple[str, ...]
    offset: int


class DecodedChunk(NamedTuple):
    """The result of decoding a chunk.

    Attributes:
        checksum: the checksum of the decoded images.
        damaged: the members that could not be decoded, with the reason for each. If an image is damaged, nothing is
            written.
    """

    checksum: int
    damaged: dict[str, str]


def start_worker() -> None:
    """Prepares a worker process to ignore Ctrl-C and to exit when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def decode_chunk(chunk: ImageChunk, source: Path, target: Path, pixels: int) -> DecodedChunk:
    """Decodes the images of a chunk and writes them to a file.

    Args:
        chunk: the images to decode.
        source: the folder or archive that contains the images.
        target: the file to write to, which must already have its full length.
        pixels: the width and height of a decoded image.
    """
    read = _open_source(source)
    outcomes = {member: _try_decode(member, read, pixels) for member in chunk.members}
    damaged = {member: reason for member, reason in outcomes.items() if isinstance(reason, str)}
    content = b"".join(image for image in outcomes.values() if isinstance(image, bytes))
    if not damaged:
        with open(target, "r+b") as file:
            file.seek(chunk.offset)
            file.write(content)
    return DecodedChunk(zlib.crc32(content), damaged)


@lru_cache(maxsize=1)  # opening an archive reads the list of its 202,599 members
def _open_source(source: Path) -> Callable[[str], bytes]:
    """Returns a function that reads a file from a folder or an archive."""
    if source.is_dir():
        return lambda member: (source / member).read_bytes()
    return zipfile.ZipFile(source).read


def _try_decode(member: str, read: Callable[[str], bytes], pixels: int) -> bytes | str:
    """Returns the decoded image, or the reason why it cannot be decoded."""
    try:
        return decode(read(member), pixels)
    except UnidentifiedImageError:
        return "not a JPEG file"
    except Exception as error:  # a damaged file can make the decoder raise anything
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def decode(data: bytes, pixels: int) -> bytes:
    """Decodes a JPEG file, and resizes it to RGB bytes of shape [3, pixels, pixels].

    Uses bilinear interpolation without antialiasing, which is TensorFlow's default. Pixel values are rounded down.
    """
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        if image.size != ALIGNED:
            raise ValueError(f"expected {ALIGNED[0]}×{ALIGNED[1]} pixels, found {image.width}×{image.height}")
        scale = (image.width / pixels, 0, 0, 0, image.height / pixels, 0)
        rgb = image if image.mode == "RGB" else image.convert("RGB")  # convert always copies
        small = rgb.transform((pixels, pixels), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)
    return b"".join(band.tobytes() for band in small.split())
