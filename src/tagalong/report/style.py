"""The shared style of figures: colorblind-safe colors, and the formatting of names and numbers."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping
from math import floor, isfinite, log10
from typing import Any

from tagalong.affinity import Affinity

Scale = list[tuple[float, str]]
# ColorBrewer's red–white–blue: red below the center, blue above it.
_DIVERGING_COLORS = (
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
_DISTINCT_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star", "hourglass")
BETTER, WORSE = "#2166ac", "#b2182b"  # the ends of the scale
GRAY, TEXT_COLOR, BACKGROUND_COLOR = "#e4e4e4", "#404040", "#ffffff"
FADED_FRACTION = 0.65  # the fraction of white in a faded color
MAX_LABEL_LENGTH = 24  # of a task's name, in characters; hovering shows the whole name
_TO_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def diverging_scale(fade: float = 0.0) -> Scale:
    """Returns a color scale from red through white to blue, blended with white by the fraction `fade`."""
    return [(i / (len(_DIVERGING_COLORS) - 1), _fade(color, fade)) for i, color in enumerate(_DIVERGING_COLORS)]


def single_color_scale(color: str) -> Scale:
    """Returns a color scale with a single color."""
    return [(0.0, color), (1.0, color)]


def line_style(number: int) -> dict[str, str]:
    """Returns the color and dash style of a line by its number: eight solid colors, then the same colors dashed."""
    dash = _DASHES[number // len(_DISTINCT_COLORS) % len(_DASHES)]
    return {"color": _DISTINCT_COLORS[number % len(_DISTINCT_COLORS)], "dash": dash}


def marker_style(number: int, *, filled: bool = True) -> dict[str, Any]:
    """Returns the color and symbol of a marker by its number; the first 72 markers are all different."""
    color = _DISTINCT_COLORS[number % len(_DISTINCT_COLORS)]
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    return {
        "size": 10,
        "symbol": symbol,
        "color": color if filled else BACKGROUND_COLOR,
        "line": {"width": 1.5, "color": color},
    }


def with_opacity(color: str, opacity: float) -> str:
    """Returns a color with the given opacity, in plotly's format.

    Example:
        >>> with_opacity("#0072b2", 0.5)
        'rgba(0, 114, 178, 0.5)'
    """
    return f"rgba({', '.join(map(str, _rgb_channels(color)))}, {opacity})"


def _fade(color: str, fade: float) -> str:
    return "#" + "".join(f"{round(c + fade * (255 - c)):02x}" for c in _rgb_channels(color))


def _rgb_channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def plotly_text(name: str) -> str:
    """Escapes text for plotly, which interprets tags, entities, and TeX between dollar signs.

    Example:
        >>> plotly_text("<b>R&D</b> $5")
        '&lt;b&gt;R&amp;D&lt;/b&gt; &#36;5'
    """
    return html.escape(name, quote=False).replace("$", "&#36;")


def short_label(name: str) -> str:
    """Escapes a name for plotly, and shortens it in the middle if it is long.

    Example:
        >>> short_label("number_of_days_in_hospital_2019")
        'number_of_da…spital_2019'
    """
    if len(name) > MAX_LABEL_LENGTH:
        name = f"{name[: MAX_LABEL_LENGTH // 2]}…{name[-(MAX_LABEL_LENGTH // 2 - 1) :]}"
    return plotly_text(name)


def unlearnt_mark(task: str, unlearnt: Collection[str]) -> str:
    """Returns the mark after the name of a task that was not learnt, or an empty string if it was.

    Example:
        >>> unlearnt_mark("age", ["noise"]), unlearnt_mark("noise", ["noise"])
        ('', ' †')
    """
    return " †" if task in unlearnt else ""


def power_of_thousand(largest: float) -> int:
    """Returns the power-of-ten exponent, a multiple of three, that suits values up to `largest`.

    Example:
        >>> power_of_thousand(0.0042), power_of_thousand(0.3)
        (-3, 0)
    """
    return 0 if not largest > 0 or 0.1 <= largest < 1000 else 3 * floor(log10(largest) / 3)


def format_power_of_ten(power: int) -> str:
    """Formats a power of ten as the unit of numbers that were divided by it.

    Example:
        >>> format_power_of_ten(-3)
        ' × 10⁻³'
    """
    return f" × 10{str(power).translate(_TO_SUPERSCRIPT)}" if power else ""


def format_with_error(mean: float, error: float) -> str:
    """Formats a value with its standard error, if it is known.

    Example:
        >>> format_with_error(0.01234, 0.0005), format_with_error(0.01234, float("nan"))
        ('0.0123 ± 0.0005', '0.0123')
    """
    return f"{mean:.3g} ± {error:.2g}" if isfinite(error) else f"{mean:.3g}"


def format_percent(value: float, digits: int = 1) -> str:
    """Formats a change in percent with its sign. Negative numbers have a true minus sign, and zero has no sign.

    Example:
        >>> format_percent(-0.0312), format_percent(-0.0001), format_percent(0.1, 2)
        ('−3.1', '0.0', '+10.00')
    """
    rounded = round(100 * value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def percent_text(value: float, error: float | None = None) -> str:
    """Formats a change with its standard error; one from a loss of zero is unknown.

    >>> percent_text(0.1, 0.02), percent_text(0.1, float("inf")), percent_text(float("inf"), 0.1)
    ('+10.0 ± 2.0%', '+10.0%', 'unknown')
    """
    if not isfinite(value):
        return "unknown"
    return f"{format_percent(value)}{'' if error is None or not isfinite(error) else f' ± {100 * error:.1f}'}%"


def figure_heading(title: str, *lines: str) -> dict[str, Any]:
    """Returns a left-aligned title with smaller lines of text below it."""
    small = "".join(f"<br><sup>{line}</sup>" for line in lines if line)
    return {"text": plotly_text(title) + small, "x": 0.02, "y": 0.97, "yanchor": "top"}


def describe_measurement(affinity: Affinity) -> str:
    """Describes what was measured and how it was averaged, for use as a subtitle."""
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
            f"`{name}` must be an Affinity, found {type(value).__name__}; create one with Affinity.from_matrix()"
        )
