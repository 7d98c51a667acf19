"""Writes small data in CelebA's official formats: real JPEG files of drawn faces, real lists."""

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


def file_name(number: int) -> str:
    """Returns the name of an image in the official data, from 000001.jpg."""
    return f"{number + 1:06d}.jpg"


def part(number: int) -> int:
    """Returns the part of an image: of every ten, seven are for training, one for validation, two for test."""
    return 0 if number % 10 < 7 else 1 if number % 10 == 7 else 2


def write_celeba(data: Path, images: int, official: bool = False) -> Path:
    """Writes a data set, if `official` in the folders of the official download."""
    pictures, lists, partition = (data / place if official else data for place in ("Img", "Anno", "Eval"))
    for folder in (pictures / "img_align_celeba", lists, partition):
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
    for number, face in enumerate(draw_faces(attributes, man, skin, 64, random)):
        large = Image.fromarray(face.transpose(1, 2, 0)).resize((WIDE, HIGH), Image.Resampling.BICUBIC)
        large.save(pictures / "img_align_celeba" / file_name(number), quality=75)
    return data
