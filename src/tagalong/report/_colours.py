"""Colours that people with any kind of colour vision can tell apart."""

from __future__ import annotations

from typing import Any

Scale = list[tuple[float, str]]

# ColorBrewer's red–white–blue: below the centre red, above it blue.
_DIVERGING = (
    "#b2182b",
    "#d6604d",
    "#f4a582",
    "#fddbc7",
    "#f7f7f7",
    "#d1e5f0",
    "#92c5de",
    "#4393c3",
    "#2166ac",
)
# Okabe and Ito (2008), without the yellow that is lost on white.
_DISTINCT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star", "hourglass")

BETTER, WORSE = "#2166ac", "#b2182b"  # the ends of the scale
GREY, INK, BLANK = "#e4e4e4", "#404040", "#ffffff"
FADE = 0.65  # how far a faded colour has gone to white


def diverging(fade: float = 0.0) -> Scale:
    """A colour scale from red over white to blue, `fade` of the way to white."""
    return [(i / (len(_DIVERGING) - 1), _faded(colour, fade)) for i, colour in enumerate(_DIVERGING)]


def plain(colour: str) -> Scale:
    """A scale of one colour."""
    return [(0.0, colour), (1.0, colour)]


def line_style(number: int) -> dict[str, str]:
    """Colour and dashes of the line with this number: eight colours, then the same dashed."""
    dash = _DASHES[number // len(_DISTINCT) % len(_DASHES)]
    return {"color": _DISTINCT[number % len(_DISTINCT)], "dash": dash}


def marker_style(number: int, *, full: bool = True) -> dict[str, Any]:
    """Colour and sign of the marker with this number; no two of the first seventy-two are alike."""
    colour = _DISTINCT[number % len(_DISTINCT)]
    sign = _SYMBOLS[number % len(_SYMBOLS)]
    return {"size": 10, "symbol": sign, "color": colour if full else BLANK, "line": {"width": 1.5, "color": colour}}


def transparent(colour: str, opacity: float) -> str:
    """The colour with an opacity, as plotly reads it.

    >>> transparent("#0072b2", 0.5)
    'rgba(0, 114, 178, 0.5)'
    """
    return f"rgba({', '.join(map(str, _channels(colour)))}, {opacity})"


def _faded(colour: str, fade: float) -> str:
    return "#" + "".join(f"{round(c + fade * (255 - c)):02x}" for c in _channels(colour))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
