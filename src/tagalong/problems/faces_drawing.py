"""Draws the faces: attributes that depend on each other, and soft ellipses that follow from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float32]
Colours = NDArray[np.float64]
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
HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")  # else grey, red or none
HAIR_OF_MEN = (0.33, 0.09, 0.23)
HAIR_OF_WOMEN = (0.24, 0.28, 0.28)
HAIR_OF_DARK_SKIN = (0.72, 0.04, 0.14)
LIGHT_SKIN, DARK_SKIN = np.array([0.97, 0.82, 0.70]), np.array([0.42, 0.26, 0.17])
BLACK, BLOND, BROWN = (0.07, 0.06, 0.07), (0.86, 0.70, 0.38), (0.40, 0.25, 0.14)
GREY, RED = (0.62, 0.60, 0.58), (0.62, 0.28, 0.12)
IRIS = np.array([[0.25, 0.15, 0.08], [0.2, 0.35, 0.55], [0.25, 0.4, 0.25]])
PIXELS_AT_ONCE = 2**18  # a megabyte for each channel: fits in the cache
WANDER = 0.3  # how far place, tilt and size can move a part


def draw_attributes(rows: int, random: np.random.Generator) -> tuple[dict[str, Flags], Flags, NDArray[np.float64]]:
    """The attributes of each face, whether it is a man's, and how dark its skin is (0 to 1)."""

    def chance(probability: NDArray[np.float64] | float) -> Flags:
        return random.random(rows) < probability

    man = chance(0.45)
    skin = random.beta(1.2, 2.2, rows)
    shaved = chance(np.where(man, 0.42, 0.995))
    shadow = man & chance(np.where(shaved, 0.2, 0.42))
    goatee = man & ~shaved & chance(0.45)
    mustache = man & ~shaved & chance(np.where(goatee, 0.55, 0.3))
    rosy = chance(np.where(man, 0.02, 0.24) * np.where(skin < 0.5, 1.2, 0.4))
    hat = chance(np.where(man, 0.2, 0.08))
    attributes = {
        "5_o_Clock_Shadow": shadow,
        "Goatee": goatee,
        "Mustache": mustache,
        "No_Beard": ~(goatee | mustache | (shadow & ~shaved)),
        "Rosy_Cheeks": rosy,
        "Wearing_Hat": hat,
    }
    chances = np.where(man[:, None], HAIR_OF_MEN, HAIR_OF_WOMEN)
    chances = np.where((skin > 0.55)[:, None], HAIR_OF_DARK_SKIN, chances)
    place = (random.random(rows)[:, None] > chances.cumsum(1)).sum(1)
    attributes |= {name: place == number for number, name in enumerate(HAIR)}
    return {name: attributes[name] for name in FACE_ATTRIBUTES}, man, skin


def mislabelled(attributes: dict[str, Flags], noise: float, random: np.random.Generator) -> dict[str, Flags]:
    """Labels as annotators give them: each wrong with a chance of `noise`, scaled so that rare ones stay rare."""
    labels = {}
    for name, flags in attributes.items():
        share = flags.mean()
        # As many wrong in either direction: the share of positives stays.
        chance = np.where(flags, noise * 2 * (1 - share), noise * 2 * share)
        labels[name] = flags ^ (random.random(len(flags)) < chance)
    return labels


def draw_faces(
    attributes: dict[str, Flags], man: Flags, skin: NDArray[np.float64], pixels: int, random: np.random.Generator
) -> NDArray[np.uint8]:
    """Images [rows, 3, pixels, pixels] from 0 to 255."""
    images = np.empty((len(man), 3, pixels, pixels), np.uint8)
    step = max(1, PIXELS_AT_ONCE // pixels**2)
    for start in range(0, len(man), step):
        some = slice(start, start + step)
        chosen = {name: flags[some] for name, flags in attributes.items()}
        images[some] = _draw(chosen, man[some], skin[some], Canvas(len(man[some]), pixels, random))
    return images


def _draw(has: dict[str, Flags], man: Flags, skin: NDArray[np.float64], canvas: Canvas) -> NDArray[np.uint8]:
    tone = LIGHT_SKIN + skin[:, None] * (DARK_SKIN - LIGHT_SKIN)
    tone += 0.02 * canvas.random.standard_normal(tone.shape)
    hair = _hair_colours(has, canvas.random)
    wide, tall = canvas.spread(0.46, 0.03), canvas.spread(0.62, 0.03)
    canvas.background(*canvas.random.random((2, canvas.rows, 3)) * 0.9)
    _hair_behind(canvas, hair, man, wide)
    _body(canvas, tone)
    canvas.ellipse(tone, 0, 0.05, wide, tall)
    _hair_in_front(canvas, hair, man, wide, tall)
    canvas.ellipse(
        np.array([0.90, 0.28, 0.33]), wide * 0.58, 0.2, 0.2, 0.15,
        which=has["Rosy_Cheeks"], strength=0.62, mirrored=True, blurred=True,
    )  # fmt: skip
    _beard(canvas, has, hair, wide, tall)
    _features(canvas, tone, hair)
    canvas.ellipse(hair * 0.8, 0, 0.315, canvas.spread(0.19, 0.015), 0.05, which=has["Mustache"], strength=0.95)
    _hat(canvas, has["Wearing_Hat"], wide)
    return canvas.photographed()


def _hair_colours(has: dict[str, Flags], random: np.random.Generator) -> Colours:
    rows = len(has["Black_Hair"])
    kinds = [has["Black_Hair"], has["Blond_Hair"], has["Brown_Hair"], random.random(rows) < 0.6]
    colours = np.array([BLACK, BLOND, BROWN, GREY, RED])[np.select(kinds, list(range(4)), default=4)]
    shade = 1 + 0.18 * random.standard_normal((rows, 1))
    clipped: Colours = np.clip(colours * shade + 0.03 * random.standard_normal((rows, 3)), 0, 1)
    return clipped


def _hair_behind(canvas: Canvas, hair: Colours, man: Flags, wide: Numbers) -> None:
    """Men wear it short, women mostly long."""
    long = ~man & (canvas.random.random(canvas.rows) < 0.85)
    canvas.ellipse(hair, 0, -0.12, wide + 0.1, 0.58)
    canvas.ellipse(hair, 0, 0.2, wide + canvas.spread(0.16, 0.03), canvas.spread(0.78, 0.08), which=long)


def _body(canvas: Canvas, tone: Colours) -> None:
    canvas.ellipse(tone * 0.88, 0, 0.72, 0.2, 0.4)
    canvas.ellipse(canvas.random.random((canvas.rows, 3)) * 0.8, 0, 1.25, 0.85, 0.42)


def _hair_in_front(canvas: Canvas, hair: Colours, man: Flags, wide: Numbers, tall: Numbers) -> None:
    """A hair line: high, or a fringe; some men have hardly any."""
    some = ~man | (canvas.random.random(canvas.rows) > 0.05)
    canvas.ellipse(hair, 0, 0.05, wide + 0.03, tall + 0.03, which=some, above=canvas.spread(-0.33, 0.08))


def _beard(canvas: Canvas, has: dict[str, Flags], hair: Colours, wide: Numbers, tall: Numbers) -> None:
    """A shadow is thin and grainy over the whole jaw, a goatee thick around the chin."""
    jaw = canvas.spread(0.26, 0.02)
    shadow = has["5_o_Clock_Shadow"]
    canvas.ellipse(hair * 0.4 + 0.1, 0, 0.05, wide, tall, which=shadow, below=jaw, grain=0.5, strength=0.45)
    chin = (canvas.spread(0.56, 0.02), canvas.spread(0.17, 0.015), canvas.spread(0.14, 0.015))
    canvas.ellipse(hair * 0.85, 0, *chin, which=has["Goatee"], strength=0.92)
    full = ~has["No_Beard"] & ~has["Goatee"] & ~has["Mustache"]
    canvas.ellipse(hair * 0.85, 0, 0.05, wide, tall, which=full, below=jaw, grain=0.3, strength=0.6)


def _features(canvas: Canvas, tone: Colours, hair: Colours) -> None:
    """Eyes, brows, nose and mouth."""
    apart = canvas.spread(0.19, 0.012)
    iris = IRIS[canvas.random.integers(0, len(IRIS), canvas.rows)]
    canvas.ellipse(np.array([0.95, 0.95, 0.95]), apart, -0.06, 0.095, canvas.spread(0.055, 0.01), mirrored=True)
    canvas.ellipse(iris, apart, -0.06, 0.045, 0.05, mirrored=True)
    canvas.ellipse(hair * 0.7, apart, canvas.spread(-0.18, 0.012), 0.12, 0.028, mirrored=True, strength=0.85)
    canvas.ellipse(tone * 0.85, 0.02, 0.12, 0.045, 0.15, strength=0.6)
    canvas.ellipse(tone * 0.78, 0, 0.22, 0.08, 0.04, strength=0.6)
    lips = np.clip(tone * 0.5 + [0.38, 0.08, 0.1], 0, 1)
    canvas.ellipse(lips, 0, 0.4, canvas.spread(0.16, 0.02), canvas.spread(0.045, 0.01))


def _hat(canvas: Canvas, which: Flags, wide: Numbers) -> None:
    """A crown over the hair, with a brim or a cap's band."""
    colour = canvas.random.random((canvas.rows, 3)) * 0.9
    line = canvas.spread(-0.32, 0.03)
    crown = (-0.35, wide + canvas.spread(0.12, 0.02), canvas.spread(0.48, 0.04))
    canvas.ellipse(colour, 0, *crown, which=which, above=line)
    brimmed = canvas.random.random(canvas.rows) < 0.5
    canvas.ellipse(colour * 0.75, 0, line, wide + 0.3, 0.07, which=which & brimmed)
    canvas.ellipse(colour * 0.6, 0, line, wide + 0.1, 0.05, which=which & ~brimmed)


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
