"""A process that decodes JPEG files: reads orders, a line of JSON each, and answers each with a line of JSON.

`cache` starts it by its path: so it imports Pillow and nothing else, neither torch nor the user's script.
"""

from __future__ import annotations

import io
import json
import signal
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

ALIGNED = (178, 218)


def main() -> None:
    """The first line says where images come from and go to; then a line for each order, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives orders
    setting = json.loads(sys.stdin.readline())
    read = reader(Path(setting["source"]))
    with open(setting["target"], "r+b") as target:
        for line in sys.stdin:
            answer = obey(json.loads(line), read, setting["pixels"], target)
            print(json.dumps(answer), flush=True)


def reader(source: Path) -> Callable[[str], bytes]:
    """How to read a file of a folder or an archive."""
    if source.is_dir():
        return lambda member: (source / member).read_bytes()
    return zipfile.ZipFile(source).read


def obey(order: dict[str, Any], read: Callable[[str], bytes], pixels: int, target: Any) -> dict[str, Any]:
    """Decodes the images of an order into their place; says what was written, or which could not be read and why."""
    decoded, damaged = [], {}
    for member in order["members"]:
        found = attempt(member, read, pixels)
        if isinstance(found, bytes):
            decoded.append(found)
        else:
            damaged[member] = found
    content = b"".join(decoded)
    if not damaged:
        target.seek(order["offset"])
        target.write(content)
        target.flush()
    return {"checksum": zlib.crc32(content), "damaged": damaged}


def attempt(member: str, read: Callable[[str], bytes], pixels: int) -> bytes | str:
    """The decoded image, or why there is none."""
    try:
        return decode(read(member), pixels)
    except UnidentifiedImageError:
        return "no JPEG file"
    except Exception as error:  # whatever a broken file makes of the decoder
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def decode(data: bytes, pixels: int) -> bytes:
    """The whole image as [3, pixels, pixels] bytes: red, green, blue.

    Each pixel is interpolated between the four that are nearest to its centre, without averaging over what it covers,
    as TensorFlow resizes by default; rounded down.
    """
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        if image.size != ALIGNED:
            raise ValueError(f"{image.width}×{image.height} pixels, not {ALIGNED[0]}×{ALIGNED[1]}")
        scale = (image.width / pixels, 0, 0, 0, image.height / pixels, 0)
        coloured = image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
        small = coloured.transform((pixels, pixels), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)
    return b"".join(band.tobytes() for band in small.split())


if __name__ == "__main__":
    main()
