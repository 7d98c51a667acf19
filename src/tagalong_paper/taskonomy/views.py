"""Finds Taskonomy's views (an image in every domain) and reads them, as in setting 2 of Standley et al. 2020."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.errors import InvalidInput
from tagalong.learn import Batch

RGB = "rgb"
DOMAINS = {
    "segmentation": "segment_semantic",
    "depth": "depth_zbuffer",
    "normals": "normal",
    "edges": "edge_texture",
    "keypoints": "keypoints2d",
}
LAYOUTS = ("{domain}/taskonomy/{building}", "{domain}/{building}", "{building}/{domain}")  # of the folders of images
CLASS_COUNT = 18  # 0: uncertain, 1: background, 2 to 17: objects
MAX_DEPTH = 2**13  # in units of 1/512 m; depths of 16 m or more, and holes in the mesh (65,535), count as unknown
NORMALIZATION = {"depth": (1500, 1000), "normals": (127.5, 127.5), "edges": (718, 1070), "keypoints": (50, 100)}
MASKED_TASKS = ("depth", "normals")
TARGET_CHANNELS = {"segmentation": (), "depth": (2,), "normals": (4,), "edges": (1,), "keypoints": (1,)}
COLOR_MODES, INTEGER_MODES, CLASS_MODES = ("RGB", "RGBA"), ("I", "I;16", "I;16B"), ("L", "P")  # Pillow's modes
MODES = {RGB: COLOR_MODES, "normal": COLOR_MODES, "segment_semantic": CLASS_MODES}  # otherwise integers
logger = logging.getLogger(__name__)


def image_path(folder: str, building: str, view: str, domain: str) -> str:
    """Returns the path of an image.

    Example:
        >>> image_path("data/{domain}/{building}", "allen", "point_7_view_0", "segment_semantic")
        'data/segment_semantic/allen/point_7_view_0_domain_segmentsemantic.png'
    """
    suffix = domain.replace("segment_semantic", "segmentsemantic")
    return f"{folder.format(domain=domain, building=building)}/{view}_domain_{suffix}.png"


def find_folders(data: Path, building: str) -> str:
    """Returns the pattern of the folders of images, such as DATA/{domain}/{building}, which must hold this building."""
    for layout in LAYOUTS:
        if (data / layout.format(domain=RGB, building=building)).is_dir():
            return os.path.join(data, layout)
    expected = f"must contain {RGB}/BUILDING/*.png or BUILDING/{RGB}/*.png for every building in `lists`"
    raise InvalidInput("data", expected, f"neither for {building!r} in {data}")


def find_views(folder: str, building: str, domains: Sequence[str]) -> tuple[list[str], int, bytes]:
    """Finds the views of a building that have an image in every domain.

    Returns:
        The sorted names of the views, the number of views that lack an image, and a hash of the names and sizes of all
        files.
    """
    views, files = [], []
    for domain in domains:
        images = os.scandir(folder.format(domain=domain, building=building))
        files.append(sorted((image.name, image.stat().st_size) for image in images))
        views.append({name.partition("_domain_")[0] for name, _ in files[-1] if name.endswith(".png")})
    # Sorted by file name, as in the published code, which uses the first views.
    complete = sorted(set.intersection(*views), key=lambda view: f"{view}_domain_{RGB}.png")
    return complete, len(set.union(*views)) - len(complete), hashlib.sha256(repr((building, files)).encode()).digest()


@dataclass(frozen=True, eq=False)
class ViewReader:
    """Reads views from image files. A view with a damaged image has no labels, and the image is logged once.

    Attributes:
        folder: the pattern of the folders of images.
        views: the building and the name of each view.
        tasks: the tasks whose images are available.
        pixels: the width and height of the returned images. Larger images are downsampled.
        digest: a hash of the names and sizes of all files.
        damaged: Pillow's errors for the damaged images found so far, which start with their paths.
    """

    folder: str
    views: Sequence[tuple[str, str]]
    tasks: tuple[str, ...]
    pixels: int
    digest: bytes
    damaged: set[str] = field(default_factory=set, repr=False)

    def __len__(self) -> int:
        return len(self.views)

    def contents(self) -> Iterator[bytes]:
        """Yields the contents to hash: the names and sizes of all files, and the settings for reading them."""
        yield self.digest
        yield repr((self.pixels, MAX_DEPTH, NORMALIZATION, len(self))).encode()

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """Reads a view: the colors (0 to 255) and the targets of the given tasks.

        Args:
            row: the index of the view.
            tasks: the tasks.
            draw: a random number, or None. The view is mirrored if the number is odd.
        """
        try:
            inputs = torch.from_numpy(self._read_image(row, RGB).transpose(2, 0, 1).copy())
            targets = {task: torch.from_numpy(target) for task, target in self._read_targets(row, tasks).items()}
        except ValueError as error:
            if str(error) not in self.damaged:
                self.damaged.add(str(error))
                logger.warning("%s; this view will have no labels", error)
            shape = (self.pixels, self.pixels)
            blank = {task: torch.full((*TARGET_CHANNELS[task], *shape), torch.nan) for task in tasks}
            return torch.zeros(3, *shape, dtype=torch.uint8), blank
        if draw is not None and draw % 2:
            inputs, targets = inputs.flip(-1), {task: target.flip(-1) for task, target in targets.items()}
            if "normals" in targets:
                targets["normals"][0] *= -1
        return inputs, targets

    def _read_targets(self, row: int, tasks: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        targets = {}
        depth = self._read_image(row, DOMAINS["depth"]) if set(MASKED_TASKS) & set(tasks) else None
        for task in tasks:
            values = depth if depth is not None and task == "depth" else self._read_image(row, DOMAINS[task])
            if task == "segmentation":
                targets[task] = np.where(values > 0, values, np.float32(np.nan)).astype(np.float32)
                continue
            middle, spread = map(np.float32, NORMALIZATION[task])
            values = (values.astype(np.float32) - middle) / spread
            values = values.transpose(2, 0, 1) if task == "normals" else values[None]
            if depth is not None and task in MASKED_TASKS:
                # Where the depth is unknown, values are 0, and so is the mask, which is the last channel.
                mask = (depth < MAX_DEPTH).astype(np.float32)[None]
                values = np.concatenate([values * mask, mask])
                if not mask.any():
                    values = np.full_like(values, np.nan)
            targets[task] = values
        return targets

    def _read_image(self, row: int, domain: str) -> NDArray[Any]:
        """Reads an image and downsamples it, or raises a `ValueError` that starts with its path."""
        from PIL import Image

        path = image_path(self.folder, *self.views[row], domain)
        modes = MODES.get(domain, INTEGER_MODES)
        try:
            with Image.open(path) as image:
                if image.mode not in modes or image.width != image.height or image.width % self.pixels:
                    raise ValueError(f"{image.width}×{image.height}, mode {image.mode}; expected a square, {modes}")
                if domain == DOMAINS["segmentation"]:
                    classes = np.asarray(image.resize((self.pixels, self.pixels), Image.Resampling.NEAREST))
                    if classes.max() >= CLASS_COUNT:
                        raise ValueError(f"class {classes.max()} is above {CLASS_COUNT - 1}")
                    return classes
                numbers = image.convert("RGB") if "RGB" in modes else Image.fromarray(np.asarray(image, np.float32))
                return np.asarray(numbers.resize((self.pixels, self.pixels), Image.Resampling.BILINEAR))
        except (OSError, SyntaxError, ValueError) as error:  # raised by Pillow for a damaged PNG, and by the checks
            raise ValueError(f"{path}: {error}") from error
