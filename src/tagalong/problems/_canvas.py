"""Soft ellipses on many images at once: only the window where a part can be, only the images that have it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._attributes import Flags

Numbers = NDArray[np.float32]
PIXELS_AT_ONCE = 2**18  # a megabyte for each channel: fits in the cache
WANDER = 0.3  # how far place, tilt and size can move a part


class Canvas:
    """Some images under way.

    Attributes:
        image: colours [rows, 3, pixels, pixels] from 0 to 1.
        x: of each pixel in the frame of the face, from about -1 to 1 [rows, pixels, pixels].
        y: likewise, downwards.
    """

    def __init__(self, rows: int, pixels: int, random: np.random.Generator) -> None:
        self.rows, self.pixels, self.random = rows, pixels, random
        self.grid = ((np.arange(pixels) + 0.5) / pixels * 2 - 1).astype(np.float32)
        size, tilt = self.spread(1.0, 0.06), self.spread(0.0, 0.06)
        x = self.grid[None, None, :] - self.spread(0.0, 0.06)
        y = self.grid[None, :, None] - self.spread(0.05, 0.05)
        self.x, self.y = (x + tilt * y) / size, (y - tilt * x) / size
        self.edge = 2.0 / pixels
        self.image = np.zeros((rows, 3, pixels, pixels), np.float32)

    def spread(self, mean: float, deviation: float) -> Numbers:
        """One number per face, to be used beside coordinates; never far out."""
        drawn = np.clip(self.random.standard_normal((self.rows, 1, 1), dtype=np.float32), -2.5, 2.5)
        return np.float32(mean) + np.float32(deviation) * drawn

    def ellipse(
        self,
        colour: NDArray[np.float64],
        x: float | Numbers,
        y: float | Numbers,
        width: float | Numbers,
        height: float | Numbers,
        *,
        which: Flags | None = None,
        strength: float = 1.0,
        mirrored: bool = False,
        above: float | Numbers | None = None,
        below: float | Numbers | None = None,
        grain: float = 0.0,
        blurred: bool = False,
    ) -> None:
        """Lays a colour over an ellipse.

        Args:
            colour: [3], or of each face [rows, 3].
            x: of the middle.
            y: of the middle, downwards.
            width: half of it.
            height: half of it.
            which: the faces that have it; None: all.
            strength: 1 covers what was there.
            mirrored: once more on the other side.
            above: only what is above this line.
            below: only what is below this line.
            grain: how much single pixels differ in strength.
            blurred: fades from the middle, without an edge.
        """
        chosen = slice(None) if which is None else np.flatnonzero(which)
        down, across = self._window(y, height), slice(None) if mirrored else self._window(x, width)
        ours = (chosen, down, across)
        x, y, wide, high = (_of(value, chosen) for value in (x, y, width, height))
        place_x, place_y = self.x[ours], self.y[ours]
        away = np.square(((np.abs(place_x) if mirrored else place_x) - x) / wide)
        away += np.square((place_y - y) / high)
        radius: Numbers = np.minimum(wide, high)
        # Near the edge 1 − r² falls twice as fast as 1 − r.
        cover = np.exp(-2 * away) if blurred else self._inside(away, radius * np.float32(0.5))
        if above is not None:
            cover *= self._inside(place_y, 1.0, _of(above, chosen))
        if below is not None:
            cover *= 1 - self._inside(place_y, 1.0, _of(below, chosen))
        if grain:
            cover *= 1 - np.float32(grain) * self.random.random(cover.shape, dtype=np.float32)
        self._paint(ours, cover * np.float32(strength), colour)

    def _inside(self, away: Numbers, length: float | Numbers, limit: float | Numbers = 1.0) -> Numbers:
        """How much of each pixel lies within the limit, with an edge of about a pixel."""
        cover = (limit - away) * (length / self.edge)
        cover += np.float32(0.5)
        return np.clip(cover, 0, 1, out=cover)

    def _window(self, middle: float | Numbers, half: float | Numbers) -> slice:
        first, last = np.min(middle - half) - WANDER, np.max(middle + half) + WANDER
        return slice(*np.searchsorted(self.grid, [first, last]).tolist())

    def _paint(
        self, ours: tuple[slice | NDArray[np.int64], slice, slice], cover: Numbers, colour: NDArray[np.float64]
    ) -> None:
        chosen, down, across = ours
        tint = np.broadcast_to(colour, (self.rows, 3)).astype(np.float32)[chosen]
        for channel in range(3):
            where = (chosen, channel, down, across)
            change = tint[:, channel, None, None] - self.image[where]
            change *= cover
            self.image[where] += change

    def background(self, top: NDArray[np.float64], bottom: NDArray[np.float64]) -> None:
        """From one colour above to another below."""
        share = ((self.grid + 1) / 2)[None, None, :, None]
        self.image[:] = top.astype(np.float32)[..., None, None] * (1 - share)
        self.image += bottom.astype(np.float32)[..., None, None] * share

    def photographed(self) -> NDArray[np.uint8]:
        """Under a light from some side, of some strength, with the camera's noise."""
        light = self.spread(1.0, 0.12) * (1 + self.spread(0.0, 0.12) * self.x)
        self.image *= light[:, None]
        self.image += 0.02 * self.random.standard_normal(self.image.shape, dtype=np.float32)
        self.image *= 255
        return np.clip(self.image, 0, 255, out=self.image).astype(np.uint8)


def _of(value: float | Numbers, chosen: slice | NDArray[np.int64]) -> Numbers:
    return value[chosen] if isinstance(value, np.ndarray) else np.array(value, np.float32)
