"""The losses of Standley et al. 2020, setting 2: cross-entropy for segmentation, absolute errors for the others."""

from __future__ import annotations

import torch
from torch import Tensor

from tagalong.learn import Task

from ._taskonomy_images import CLASSES

SHIFTS = [(down, right) for down in range(3) for right in range(3)]


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every pixel."""
    return (outputs - targets).abs()


def rotated_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every row the mean absolute error at the best of nine places: outputs shifted by a pixel, or not at all.

    This is the published code's "loss rotation": labels made from meshes can lie a pixel beside the image. Unknown
    pixels (the last channel of the targets is 0) count with an error of 0, as there.

    Args:
        outputs: [rows, channels, side, side].
        targets: [rows, channels + 1, side, side].

    Example:
        >>> outputs, targets = torch.zeros(1, 1, 6, 6), torch.zeros(1, 2, 6, 6)
        >>> outputs[:, :, 2:4, 2:4], targets[:, 0, 1:3, 1:3], targets[:, 1] = 1.0, 1.0, 1.0
        >>> rotated_error(outputs, targets)
        tensor([0.])
    """
    inner = targets[:, :, 1:-1, 1:-1]
    values, known = inner[:, :-1], inner[:, -1:]
    high, wide = inner.shape[-2:]
    places = (outputs[:, :, down : down + high, right : right + wide] for down, right in SHIFTS)
    errors = [((place - values).abs() * known).mean((1, 2, 3)) for place in places]
    return torch.stack(errors).min(0).values


TASKS = (
    Task("segmentation", "multiclass", classes=CLASSES, error="loss"),
    Task("depth", "custom", outputs=1, loss=rotated_error),
    Task("normals", "custom", outputs=3, loss=rotated_error),
    Task("edges", "custom", outputs=1, loss=absolute_error),
    Task("keypoints", "custom", outputs=1, loss=absolute_error),
)
