"""Writes a few views of a few buildings in the official formats: PNG files of 8 and 16 bits."""

from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = {
    "rgb": "rgb",
    "segment_semantic": "segmentsemantic",
    "depth_zbuffer": "depth_zbuffer",
    "normal": "normal",
    "edge_texture": "edge_texture",
    "keypoints2d": "keypoints2d",
}
LISTS = {"train": ("allen", "birch"), "val": ("cedar",), "test": ("dale",)}
HOLE = 65535


def view_arrays(seed: int, pixels: int = 256) -> dict[str, np.ndarray]:
    """Returns a view by domain: a tilted floor with a box on it, consistent over all domains."""
    random = np.random.default_rng(seed)
    down, across = np.mgrid[0:pixels, 0:pixels] / pixels
    x, y, side = *random.uniform(0.1, 0.5, 2), random.uniform(0.2, 0.4)
    box = (across > x) & (across < x + side) & (down > y) & (down < y + side)
    near = 3000 - 1500 * down * random.uniform(0.5, 1) - 400 * box
    depth = near.astype(np.uint16)
    depth[: pixels // 8, : pixels // 8] = HOLE
    edge = box ^ np.roll(box, 2, 0) | box ^ np.roll(box, 2, 1)
    classes = np.where(box, 2 + seed % 16, 1).astype(np.uint8)
    classes[-pixels // 8 :] = 0
    color = np.stack([160 * across, 160 * down, 80 + 120 * box], -1)
    towards = np.stack([127 + 100 * across - 60 * box, 90 + 60 * down, np.full_like(down, 220)], -1)
    return {
        "rgb": color.astype(np.uint8),
        "segment_semantic": classes,
        "depth_zbuffer": depth,
        "normal": towards.astype(np.uint8),
        "edge_texture": (4000 * edge + 300 * across).astype(np.uint16),
        "keypoints2d": (300 * (edge & (down > y + side / 2)) + 20).astype(np.uint16),
    }


def write_taskonomy(
    data: Path, views: int = 4, pixels: int = 256, layout: str = "{domain}/{building}", lists: bool = True
) -> Path:
    """Writes buildings with this number of views each, and the lists of buildings."""
    names = [name for of_part in LISTS.values() for name in of_part]
    for number, building in enumerate(names):
        for view in range(views):
            write_view(data, building, view, view_arrays(100 * number + view, pixels), layout)
    for part, of_part in LISTS.items() if lists else ():
        lines = ["# buildings, one a line", *(f"{name}  # small" for name in of_part), ""]
        (data / f"{part}_models.txt").write_text("\n".join(lines))
    return data


def write_view(
    data: Path, building: str, view: int, arrays: dict[str, np.ndarray], layout: str = "{domain}/{building}"
) -> None:
    for domain, array in arrays.items():
        path = view_file(data, building, view, domain, layout)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


def view_file(
    data: Path, building: str, view: int, domain: str, layout: str = "{domain}/{building}", point: int = 7
) -> Path:
    folder = data / layout.format(domain=domain, building=building)
    return folder / f"point_{point}_view_{view}_domain_{DOMAINS[domain]}.png"
