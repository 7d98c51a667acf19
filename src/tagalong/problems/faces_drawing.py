"""Draws random faces: first their attributes, which depend on each other, then an image of soft-edged ellipses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float32]
Colors = NDArray[np.float64]
FACE_ATTRIBUTES = (
    "5_o_Clock_Shadow",
    "Black_Hair",
    "Blond_Hair",
    "Brown_Hair",
    "Goatee",
    "Mustache",
    "No_Beard",
    "Rosy_Cheeks",
    "Wearing_Hat",
)
HAIR_ATTRIBUTES = ("Black_Hair", "Blond_Hair", "Brown_Hair")  # otherwise gray, red or none
MALE_HAIR_PROBABILITIES = (0.33, 0.09, 0.23)
FEMALE_HAIR_PROBABILITIES = (0.24, 0.28, 0.28)
DARK_SKIN_HAIR_PROBABILITIES = (0.72, 0.04, 0.14)
LIGHT_SKIN, DARK_SKIN = np.array([0.97, 0.82, 0.70]), np.array([0.42, 0.26, 0.17])
BLACK, BLOND, BROWN = (0.07, 0.06, 0.07), (0.86, 0.70, 0.38), (0.40, 0.25, 0.14)
GRAY, RED = (0.62, 0.60, 0.58), (0.62, 0.28, 0.12)
CHEEKS, EYES = np.array([0.90, 0.28, 0.33]), np.array([0.95, 0.95, 0.95])
IRIS_COLORS = np.array([[0.25, 0.15, 0.08], [0.2, 0.35, 0.55], [0.25, 0.4, 0.25]])
PIXELS_PER_BATCH = 2**18  # a megabyte per channel, which fits into the CPU cache
MARGIN = 0.3  # the maximum displacement of a facial feature due to the position, tilt and size of the face


def draw_attributes(rows: int, random: np.random.Generator) -> tuple[dict[str, Flags], Flags, NDArray[np.float64]]:
    """Draws the attributes of each face, whether it is a man, and how dark the skin is, from 0 to 1."""

    def draw_flags(probability: NDArray[np.float64] | float) -> Flags:
        return random.random(rows) < probability

    is_man = draw_flags(0.45)
    skin = random.beta(1.2, 2.2, rows)
    shaved = draw_flags(np.where(is_man, 0.42, 0.995))
    shadow = is_man & draw_flags(np.where(shaved, 0.2, 0.42))
    goatee = is_man & ~shaved & draw_flags(0.45)
    mustache = is_man & ~shaved & draw_flags(np.where(goatee, 0.55, 0.3))
    rosy = draw_flags(np.where(is_man, 0.02, 0.24) * np.where(skin < 0.5, 1.2, 0.4))
    hat = draw_flags(np.where(is_man, 0.2, 0.08))
    attributes = {
        "5_o_Clock_Shadow": shadow,
        "Goatee": goatee,
        "Mustache": mustache,
        "No_Beard": ~(goatee | mustache | (shadow & ~shaved)),
        "Rosy_Cheeks": rosy,
        "Wearing_Hat": hat,
    }
    probabilities = np.where(is_man[:, None], MALE_HAIR_PROBABILITIES, FEMALE_HAIR_PROBABILITIES)
    probabilities = np.where((skin > 0.55)[:, None], DARK_SKIN_HAIR_PROBABILITIES, probabilities)
    color = (random.random(rows)[:, None] > probabilities.cumsum(1)).sum(1)
    attributes |= {name: color == number for number, name in enumerate(HAIR_ATTRIBUTES)}
    return {name: attributes[name] for name in FACE_ATTRIBUTES}, is_man, skin


def add_label_noise(attributes: dict[str, Flags], noise: float, random: np.random.Generator) -> dict[str, Flags]:
    """Flips labels at random to simulate annotation errors.

    The error rate is `noise` for an attribute that half of the faces have.
    """
    labels = {}
    for name, flags in attributes.items():
        positive = flags.mean()
        # Equal numbers of errors in both directions preserve the fraction of positive labels.
        flip_probability = np.where(flags, noise * 2 * (1 - positive), noise * 2 * positive)
        labels[name] = flags ^ (random.random(len(flags)) < flip_probability)
    return labels


def draw_faces(
    attributes: dict[str, Flags], is_man: Flags, skin: NDArray[np.float64], pixels: int, random: np.random.Generator
) -> NDArray[np.uint8]:
    """Draws images [rows, 3, pixels, pixels] with values from 0 to 255."""
    images = np.empty((len(is_man), 3, pixels, pixels), np.uint8)
    step = max(1, PIXELS_PER_BATCH // pixels**2)
    for start in range(0, len(is_man), step):
        batch = slice(start, start + step)
        batch_attributes = {name: flags[batch] for name, flags in attributes.items()}
        images[batch] = _draw_batch(
            batch_attributes, is_man[batch], skin[batch], Canvas(len(is_man[batch]), pixels, random)
        )
    return images


def _draw_batch(
    attributes: dict[str, Flags], is_man: Flags, skin: NDArray[np.float64], canvas: Canvas
) -> NDArray[np.uint8]:
    random, rows, ellipse, normal = canvas.random, canvas.rows, canvas.draw_ellipse, canvas.draw_normal
    tone = LIGHT_SKIN + skin[:, None] * (DARK_SKIN - LIGHT_SKIN)
    tone += 0.02 * random.standard_normal(tone.shape)
    hair = _draw_hair_colors(attributes, random)
    width, height = normal(0.46, 0.03), normal(0.62, 0.03)
    canvas.fill_background(*random.random((2, rows, 3)) * 0.9)

    # The hair behind the face is short for men, and mostly long for women.
    long_hair = ~is_man & (random.random(rows) < 0.85)
    ellipse(hair, 0, -0.12, width + 0.1, 0.58)
    ellipse(hair, 0, 0.2, width + normal(0.16, 0.03), normal(0.78, 0.08), which=long_hair)

    # The neck, the clothes and the face
    ellipse(tone * 0.88, 0, 0.72, 0.2, 0.4)
    ellipse(random.random((rows, 3)) * 0.8, 0, 1.25, 0.85, 0.42)
    ellipse(tone, 0, 0.05, width, height)

    # The hair above the forehead starts at a random height. A few men are bald.
    with_hair = ~is_man | (random.random(rows) > 0.05)
    ellipse(hair, 0, 0.05, width + 0.03, height + 0.03, which=with_hair, above=normal(-0.33, 0.08))

    rosy = attributes["Rosy_Cheeks"]
    ellipse(CHEEKS, width * 0.58, 0.2, 0.2, 0.15, which=rosy, strength=0.62, mirrored=True, blurred=True)

    # A shadow is thin and grainy, over the whole jaw; a goatee is thick, around the chin.
    jaw, shadow, goatee = normal(0.26, 0.02), attributes["5_o_Clock_Shadow"], attributes["Goatee"]
    ellipse(hair * 0.4 + 0.1, 0, 0.05, width, height, which=shadow, below=jaw, grain=0.5, strength=0.45)
    chin = (normal(0.56, 0.02), normal(0.17, 0.015), normal(0.14, 0.015))
    ellipse(hair * 0.85, 0, *chin, which=goatee, strength=0.92)
    full_beard = ~attributes["No_Beard"] & ~goatee & ~attributes["Mustache"]
    ellipse(hair * 0.85, 0, 0.05, width, height, which=full_beard, below=jaw, grain=0.3, strength=0.6)

    # Eyes, brows, nose, mouth and mustache
    apart = normal(0.19, 0.012)
    iris = IRIS_COLORS[random.integers(0, len(IRIS_COLORS), rows)]
    ellipse(EYES, apart, -0.06, 0.095, normal(0.055, 0.01), mirrored=True)
    ellipse(iris, apart, -0.06, 0.045, 0.05, mirrored=True)
    ellipse(hair * 0.7, apart, normal(-0.18, 0.012), 0.12, 0.028, mirrored=True, strength=0.85)
    ellipse(tone * 0.85, 0.02, 0.12, 0.045, 0.15, strength=0.6)
    ellipse(tone * 0.78, 0, 0.22, 0.08, 0.04, strength=0.6)
    lips = np.clip(tone * 0.5 + [0.38, 0.08, 0.1], 0, 1)
    ellipse(lips, 0, 0.4, normal(0.16, 0.02), normal(0.045, 0.01))
    ellipse(hair * 0.8, 0, 0.315, normal(0.19, 0.015), 0.05, which=attributes["Mustache"], strength=0.95)

    # The crown of a hat covers the hair, and ends in a brim or a band.
    hat, color, line = attributes["Wearing_Hat"], random.random((rows, 3)) * 0.9, normal(-0.32, 0.03)
    ellipse(color, 0, -0.35, width + normal(0.12, 0.02), normal(0.48, 0.04), which=hat, above=line)
    has_brim = random.random(rows) < 0.5
    ellipse(color * 0.75, 0, line, width + 0.3, 0.07, which=hat & has_brim)
    ellipse(color * 0.6, 0, line, width + 0.1, 0.05, which=hat & ~has_brim)
    return canvas.to_images()


def _draw_hair_colors(attributes: dict[str, Flags], random: np.random.Generator) -> Colors:
    rows = len(attributes["Black_Hair"])
    kinds = [attributes["Black_Hair"], attributes["Blond_Hair"], attributes["Brown_Hair"], random.random(rows) < 0.6]
    colors = np.array([BLACK, BLOND, BROWN, GRAY, RED])[np.select(kinds, list(range(4)), default=4)]
    shade = 1 + 0.18 * random.standard_normal((rows, 1))
    clipped: Colors = np.clip(colors * shade + 0.03 * random.standard_normal((rows, 3)), 0, 1)
    return clipped


class Canvas:
    """A batch of images to draw on.

    Attributes:
        image: the colors [rows, 3, pixels, pixels], from 0 to 1.
        x: the horizontal coordinates [rows, pixels, pixels] relative to the face, from about -1 to 1.
        y: the vertical coordinates, increasing downward.
    """

    def __init__(self, rows: int, pixels: int, random: np.random.Generator) -> None:
        self.rows, self.random = rows, random
        self.grid = ((np.arange(pixels) + 0.5) / pixels * 2 - 1).astype(np.float32)
        size, tilt = self.draw_normal(1.0, 0.06), self.draw_normal(0.0, 0.06)
        x = self.grid[None, None, :] - self.draw_normal(0.0, 0.06)
        y = self.grid[None, :, None] - self.draw_normal(0.05, 0.05)
        self.x, self.y = (x + tilt * y) / size, (y - tilt * x) / size
        self.edge = 2.0 / pixels
        self.image = np.zeros((rows, 3, pixels, pixels), np.float32)

    def draw_normal(self, mean: float, deviation: float) -> Numbers:
        """Draws a normally distributed number for each face, clipped at 2.5 standard deviations.

        The result broadcasts with `x` and `y`.
        """
        drawn = np.clip(self.random.standard_normal((self.rows, 1, 1), dtype=np.float32), -2.5, 2.5)
        return np.float32(mean) + np.float32(deviation) * drawn

    def draw_ellipse(
        self,
        color: NDArray[np.float64],
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
        """Paints an ellipse.

        Args:
            color: one color [3] for all faces, or one for each face [rows, 3].
            x: the horizontal position of the center.
            y: the vertical position of the center, increasing downward.
            width: half the width of the ellipse.
            height: half the height of the ellipse.
            which: the faces to paint the ellipse on. If None, the ellipse is painted on all faces.
            strength: the opacity, from 0 to 1.
            mirrored: whether to paint the ellipse on both sides of the face.
            above: the height above which to paint.
            below: the height below which to paint.
            grain: how much the opacity varies from pixel to pixel.
            blurred: whether the ellipse fades out gradually instead of having a sharp edge.
        """
        faces = slice(None) if which is None else np.flatnonzero(which)
        down, across = self._pixel_range(y, height), slice(None) if mirrored else self._pixel_range(x, width)
        x, y, width, height = (_select_faces(value, faces) for value in (x, y, width, height))
        pixel_x, pixel_y = self.x[faces, down, across], self.y[faces, down, across]
        distance = np.square(((np.abs(pixel_x) if mirrored else pixel_x) - x) / width)
        distance += np.square((pixel_y - y) / height)
        # Near the edge 1 − r² falls twice as fast as 1 − r.
        sharpness = np.minimum(width, height) * np.float32(0.5)
        coverage = np.exp(-2 * distance) if blurred else self._coverage(distance, sharpness)
        if above is not None:
            coverage *= self._coverage(pixel_y, 1.0, _select_faces(above, faces))
        if below is not None:
            coverage *= 1 - self._coverage(pixel_y, 1.0, _select_faces(below, faces))
        if grain:
            coverage *= 1 - np.float32(grain) * self.random.random(coverage.shape, dtype=np.float32)
        coverage *= np.float32(strength)
        tint = np.broadcast_to(color, (self.rows, 3)).astype(np.float32)[faces]
        for channel in range(3):
            where = (faces, channel, down, across)
            self.image[where] += coverage * (tint[:, channel, None, None] - self.image[where])

    def _coverage(self, distance: Numbers, length: float | Numbers, limit: float | Numbers = 1.0) -> Numbers:
        """Returns the fraction of each pixel that lies within the limit, with a soft edge about one pixel wide."""
        coverage = (limit - distance) * (length / self.edge)
        coverage += np.float32(0.5)
        return np.clip(coverage, 0, 1, out=coverage)

    def _pixel_range(self, center: float | Numbers, half_size: float | Numbers) -> slice:
        first, last = np.min(center - half_size) - MARGIN, np.max(center + half_size) + MARGIN
        return slice(*np.searchsorted(self.grid, [first, last]).tolist())

    def fill_background(self, top: NDArray[np.float64], bottom: NDArray[np.float64]) -> None:
        """Fills the image with a vertical gradient between two colors."""
        height = ((self.grid + 1) / 2)[None, None, :, None]
        self.image[:] = top.astype(np.float32)[..., None, None] * (1 - height)
        self.image += bottom.astype(np.float32)[..., None, None] * height

    def to_images(self) -> NDArray[np.uint8]:
        """Applies random lighting, adds camera noise, and returns the images as integers."""
        light = self.draw_normal(1.0, 0.12) * (1 + self.draw_normal(0.0, 0.12) * self.x)
        self.image *= light[:, None]
        self.image += 0.02 * self.random.standard_normal(self.image.shape, dtype=np.float32)
        self.image *= 255
        return np.clip(self.image, 0, 255, out=self.image).astype(np.uint8)


def _select_faces(value: float | Numbers, faces: slice | NDArray[np.int64]) -> Numbers:
    return value[faces] if isinstance(value, np.ndarray) else np.array(value, np.float32)
