"""Whether a claim about two methods appears: means over seeds, beyond their noise or within it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tagalong.study import Verdict, interval_half_width

from .report import Appeared, Claim, Value

Pairs = Mapping[str, tuple[Sequence[float], Sequence[float]]]
CONFIDENCE = Verdict.confidence
TINY = 1e-9  # a spread of zero over seeds does not make rounding clear
WEAKEST_FIRST: tuple[Appeared, ...] = ("no", "not tested", "within noise", "yes")
FEW = 4  # comparisons that are listed one by one; all are in the JSON


def value(found: Sequence[float], *, digits: int = 2, served: bool = True) -> Value:
    """Mean and standard error over seeds; no error with one seed, or where a seed has no finite result."""
    known = len(found) > 1 and bool(np.isfinite(found).all())
    stderr = float(np.std(found, ddof=1) / np.sqrt(len(found))) if known else None
    return Value(float(np.mean(found)), stderr, served, digits)


def lower(mine: Sequence[float], other: Sequence[float], among: int = 1, row: float = 0.0) -> Appeared:
    """Whether one is clearly lower than the other, seed by seed; "no" where it is clearly higher.

    "not tested" where a seed has no number, as after a training that diverged. For `among` and `row` see `negative`.

    Example:
        >>> lower([1.0, 1.1], [2.0, 2.2]), lower([1.0, 2.5], [2.0, 2.8]), lower([3.0, 3.1], [2.0, 2.1])
        ('yes', 'within noise', 'no')
    """
    return negative(np.subtract(mine, other).tolist(), among, row)


def negative(found: Sequence[float], among: int = 1, row: float = 0.0) -> Appeared:
    """Whether numbers, one for each seed, are clearly below zero; with one seed nothing is clear.

    Args:
        found: the numbers.
        among: so many comparisons, of which a single "no" refutes a claim. By chance one of many is soon above zero, so
            that "no" needs more then (Bonferroni); all of them below zero by chance is no likelier than one.
        row: what one test row adds to a number, where errors are counted. Some more rows with every seed are soon met
            by chance, however little seeds differ: a difference of n rows counts with the standard error of √n rows,
            the least there is where every seed has the same rows wrong.

    Example:
        >>> negative([-1.0, -1.1]), negative([-1.0]), negative([-1.0, float("nan")])
        ('yes', 'within noise', 'not tested')
        >>> negative([1.0, 1.1]), negative([1.0, 1.1], among=10)
        ('no', 'within noise')
        >>> negative([-1.0, -1.1], row=0.5), negative([-1.0, -1.1], row=0.1)
        ('within noise', 'yes')
    """
    if not np.isfinite(found).all():
        return "not tested"
    mean = float(np.mean(found))
    confidence = CONFIDENCE if mean < 0 else 1 - (1 - CONFIDENCE) / among
    if len(found) < 2:
        return "within noise"
    half = interval_half_width(found, row_stderr=math.sqrt(abs(mean) * row), confidence=confidence)
    if not abs(mean) > max(half, TINY):
        return "within noise"
    return "yes" if mean < 0 else "no"


def all_lower(text: str, pairs: Pairs, unit: str = "", *, row: float = 0.0) -> Claim:
    """A claim that in every pair the first is lower than the second; as weak as its weakest part.

    Args:
        text: the claim.
        pairs: by name, values of every seed.
        unit: of the values, in the explanation.
        row: what one test row adds to a value, see `negative`.
    """
    if not pairs:
        return Claim(text, "not tested", "nothing to compare")
    found = {name: lower(mine, other, len(pairs), row) for name, (mine, other) in pairs.items()}
    weakest = next(answer for answer in WEAKEST_FIRST if answer in found.values())
    parts = tuple(
        f"{name}: {_mean(mine)} against {_mean(other)}{unit} ({found[name]})" for name, (mine, other) in pairs.items()
    )
    return Claim(text, weakest, _summary(parts, list(found.values())), parts)


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g}" if np.isfinite(values).all() else "no number"


def _summary(parts: tuple[str, ...], answers: Sequence[Appeared]) -> str:
    if len(parts) <= FEW:
        return "; ".join(parts)
    words = {"yes": "clearly", "within noise": "within noise", "not tested": "not tested", "no": "clearly not"}
    listed = [f"{answers.count(answer)} {word}" for answer, word in words.items() if answer in answers]
    return f"of {len(parts)} comparisons {', '.join(listed)}"


def pearson(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """The correlation over pairs that are both finite; NaN where there is none, and of two: it is always 1 or -1.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 7]), 3), pearson([1, 2], [2, 4])
        (0.993, nan)
    """
    x, y = np.asarray(first, float).ravel(), np.asarray(second, float).ravel()
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3 or not (np.ptp(x[known]) and np.ptp(y[known])):
        return float("nan")
    return float(np.corrcoef(x[known], y[known])[0, 1])


def correlated(text: str, found: float, *, yes: float, no: float | None = None, more: str = "") -> Claim:
    """A claim that a correlation is high, with the thresholds told.

    Args:
        text: the claim.
        found: the correlation.
        yes: from here it is.
        no: below this it is not; None: wherever it is not high.
        more: what it was computed from.

    Example:
        >>> [correlated("they agree", found, yes=0.9, no=0.7).appeared for found in (0.95, 0.8, 0.6)]
        ['yes', 'within noise', 'no']
    """
    told = f"Pearson {found:.2f}{more}; {yes:g} or more counts as yes" + ("" if no is None else f", below {no:g} as no")
    if np.isnan(found):
        return Claim(text, "not tested", f"too few different numbers to correlate{more}")
    appeared: Appeared = "within noise"
    if found >= yes or found < (yes if no is None else no):
        appeared = "yes" if found >= yes else "no"
    return Claim(text, appeared, told)
