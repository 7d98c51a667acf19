"""The shared style of figures: colorblind-safe colors, and the format of names and numbers."""

from __future__ import annotations

import html
from collections.abc import Mapping
from math import floor, isfinite, log10
from typing import Any

from tagalong.affinity import Affinity

Scale = list[tuple[float, str]]
# ColorBrewer's red–white–blue: red below the center, blue above it.
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
# Okabe and Ito (2008), without yellow, which is hard to see on white.
_DISTINCT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star", "hourglass")
BETTER, WORSE = "#2166ac", "#b2182b"  # the ends of the scale
GRAY, TEXT_COLOR, BACKGROUND_COLOR = "#e4e4e4", "#404040", "#ffffff"
FADE = 0.65  # the fraction of white in a faded color
MAX_LABEL_LENGTH = 24  # of a task's name, in characters; hovering shows the whole name
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def diverging(fade: float = 0.0) -> Scale:
    """Returns a color scale from red through white to blue, mixed with a fraction `fade` of white."""
    return [(i / (len(_DIVERGING) - 1), _fade(color, fade)) for i, color in enumerate(_DIVERGING)]


def single_color(color: str) -> Scale:
    """Returns a color scale with a single color."""
    return [(0.0, color), (1.0, color)]


def line_style(number: int) -> dict[str, str]:
    """Returns the color and dash style of the line with this number: eight colors, then the same colors dashed."""
    dash = _DASHES[number // len(_DISTINCT) % len(_DASHES)]
    return {"color": _DISTINCT[number % len(_DISTINCT)], "dash": dash}


def marker_style(number: int, *, filled: bool = True) -> dict[str, Any]:
    """Returns the color and symbol of the marker with this number; the first 72 are all different."""
    color = _DISTINCT[number % len(_DISTINCT)]
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    return {
        "size": 10,
        "symbol": symbol,
        "color": color if filled else BACKGROUND_COLOR,
        "line": {"width": 1.5, "color": color},
    }


def transparent(color: str, opacity: float) -> str:
    """Returns a color with the given opacity, in plotly's format.

    >>> transparent("#0072b2", 0.5)
    'rgba(0, 114, 178, 0.5)'
    """
    return f"rgba({', '.join(map(str, _channels(color)))}, {opacity})"


def _fade(color: str, fade: float) -> str:
    return "#" + "".join(f"{round(c + fade * (255 - c)):02x}" for c in _channels(color))


def _channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def plotly_text(name: str) -> str:
    """Escapes text for plotly, which interprets tags, entities and, between dollar signs, TeX.

    Example:
        >>> plotly_text("<b>R&D</b> $5")
        '&lt;b&gt;R&amp;D&lt;/b&gt; &#36;5'
    """
    return html.escape(name, quote=False).replace("$", "&#36;")


def label(name: str) -> str:
    """Escapes a name for plotly, and shortens long ones in the middle.

    >>> label("number_of_days_in_hospital_2019")
    'number_of_da…spital_2019'
    """
    if len(name) > MAX_LABEL_LENGTH:
        name = f"{name[: MAX_LABEL_LENGTH // 2]}…{name[-(MAX_LABEL_LENGTH // 2 - 1) :]}"
    return plotly_text(name)


def power_of_thousand(largest: float) -> int:
    """Returns the exponent, a multiple of three, of the power of ten in which numbers up to `largest` are short.

    >>> power_of_thousand(0.0042), power_of_thousand(0.3)
    (-3, 0)
    """
    return 0 if not largest > 0 or 0.1 <= largest < 1000 else 3 * floor(log10(largest) / 3)


def times(power: int) -> str:
    """Formats a power of ten as the unit of numbers that were divided by it.

    >>> times(-3)
    ' × 10⁻³'
    """
    return f" × 10{str(power).translate(_SUPERSCRIPT)}" if power else ""


def plus_minus(mean: float, error: float) -> str:
    """Formats a value with its standard error, if it is known.

    >>> plus_minus(0.01234, 0.0005), plus_minus(0.01234, float("nan"))
    ('0.0123 ± 0.0005', '0.0123')
    """
    return f"{mean:.3g} ± {error:.2g}" if isfinite(error) else f"{mean:.3g}"


def signed(value: float, digits: int = 1) -> str:
    """Formats a change in percent with its sign: a true minus sign for negative numbers, and none for zero.

    >>> signed(-0.0312), signed(-0.0001), signed(0.1, 2)
    ('−3.1', '0.0', '+10.00')
    """
    rounded = round(100 * value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def percent_text(value: float, error: float | None = None) -> str:
    """Formats a change with its standard error; one from a loss of zero is unknown.

    >>> percent_text(0.1, 0.02), percent_text(0.1, float("inf")), percent_text(float("inf"), 0.1)
    ('+10.0 ± 2.0 %', '+10.0 %', 'unknown')
    """
    if not isfinite(value):
        return "unknown"
    return f"{signed(value)}{'' if error is None or not isfinite(error) else f' ± {100 * error:.1f}'} %"


def figure_heading(title: str, *lines: str) -> dict[str, Any]:
    """Returns a left-aligned title with small lines below it."""
    small = "".join(f"<br><sup>{line}</sup>" for line in lines if line)
    return {"text": plotly_text(title) + small, "x": 0.02, "y": 0.97, "yanchor": "top"}


def describe_measurement(affinity: Affinity) -> str:
    """Describes what was measured and how it was averaged, for the line below a title."""
    settings: Mapping[str, Any] = affinity.settings
    parts = [str(settings["estimator"])] if settings.get("estimator") else []
    if settings.get("update") == "optimizer":
        parts.append("optimizer step")
    if settings.get("held_out"):
        parts.append("held-out loss")
    if len(affinity.steps):
        parts.append(f"{settings.get('average', 'mean')} over {len(affinity.steps)} measured steps")
    return plotly_text(", ".join(parts))


def check_affinity(value: object, name: str = "affinity") -> None:
    if not isinstance(value, Affinity):
        raise TypeError(
            f"`{name}` must be an Affinity, found {type(value).__name__}; make one with Affinity.from_matrix"
        )
