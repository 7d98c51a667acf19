"""Writes small data in CelebA's official formats: real JPEG files of drawn faces, real lists."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from tagalong.problems import FACE_ATTRIBUTES
from tagalong.problems.faces_drawing import draw_attributes, draw_faces

OTHERS = (
    *("Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose", "Blurry"),
    *("Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male"),
    *("Mouth_Slightly_Open", "Narrow_Eyes", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Sideburns"),
    *("Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Lipstick", "Wearing_Necklace"),
    *("Wearing_Necktie", "Young"),
)
FORTY = sorted((*FACE_ATTRIBUTES, *OTHERS))
WIDE, HIGH = 178, 218
FACES_AT_ONCE = 500


def file_name(number: int) -> str:
    """Returns the name of an image in the official data, from 000001.jpg."""
    return f"{number + 1:06d}.jpg"


def part(number: int) -> int:
    """Returns the part of an image: of every ten, seven are for training, one for validation, two for test."""
    return 0 if number % 10 < 7 else 1 if number % 10 == 7 else 2


def write_celeba(
    data: Path, images: int, *, zipped: str | None = None, official: bool = False, quality: int = 75
) -> None:
    """Writes a data set.

    Args:
        data: the folder.
        images: the number of images.
        zipped: None for a folder of images; otherwise an archive, with this prefix before each name.
        official: whether to use the folders of the official download.
        quality: of the JPEG files.
    """
    pictures, lists, partition = (data / place if official else data for place in ("Img", "Anno", "Eval"))
    for folder in (pictures, lists, partition):
        folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    attributes, man, skin = draw_attributes(images, random)
    labels = {name: random.random(images) < 0.5 for name in OTHERS} | attributes
    lines = [str(images), " ".join(FORTY) + " "]
    for number in range(images):
        values = " ".join(f"{1 if labels[name][number] else -1:2d}" for name in FORTY)
        lines.append(f"{file_name(number)} {values}")
    (lists / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    parts = "".join(f"{file_name(number)} {part(number)}\n" for number in range(images))
    (partition / "list_eval_partition.txt").write_text(parts)
    drawn = _jpegs(attributes, man, skin, quality, random)
    if zipped is None:
        (pictures / "img_align_celeba").mkdir()
        for number, content in enumerate(drawn):
            (pictures / "img_align_celeba" / file_name(number)).write_bytes(content)
        return
    with zipfile.ZipFile(pictures / "img_align_celeba.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(drawn):
            archive.writestr(f"{zipped}{file_name(number)}", content)


def jpeg(image: np.ndarray, quality: int = 75) -> bytes:
    """Encodes an array [height, width, 3] as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return file.getvalue()


def _jpegs(
    attributes: dict[str, np.ndarray], man: np.ndarray, skin: np.ndarray, quality: int, random: np.random.Generator
) -> Iterator[bytes]:
    for first in range(0, len(man), FACES_AT_ONCE):
        rows = slice(first, first + FACES_AT_ONCE)
        some = {name: flags[rows] for name, flags in attributes.items()}
        for face in draw_faces(some, man[rows], skin[rows], 64, random):
            large = Image.fromarray(face.transpose(1, 2, 0)).resize((WIDE, HIGH), Image.Resampling.BICUBIC)
            grain = random.normal(0, 6, (HIGH, WIDE, 1))
            yield jpeg((np.asarray(large) + grain).clip(0, 255).astype(np.uint8), quality)
