"""Faces out of soft ellipses: what is drawn follows from attributes, how from chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._attributes import Flags
from ._canvas import PIXELS_AT_ONCE, Canvas, Numbers

Colours = NDArray[np.float64]
LIGHT_SKIN, DARK_SKIN = np.array([0.97, 0.82, 0.70]), np.array([0.42, 0.26, 0.17])
BLACK, BLOND, BROWN = (0.07, 0.06, 0.07), (0.86, 0.70, 0.38), (0.40, 0.25, 0.14)
GREY, RED = (0.62, 0.60, 0.58), (0.62, 0.28, 0.12)
IRIS = np.array([[0.25, 0.15, 0.08], [0.2, 0.35, 0.55], [0.25, 0.4, 0.25]])


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
