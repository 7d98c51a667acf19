"""Decides whether results reproduce the paper's claims, given the noise across seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tagalong.study import Verdict, interval_half_width

from .report import Answer, Claim

Floats = Sequence[float] | NDArray[np.float64]
CONFIDENCE = Verdict.confidence
TOLERANCE = 1e-9  # smaller differences are rounding errors, even if all seeds agree exactly
WEAKEST_FIRST: tuple[Answer, ...] = ("no", "not tested", "within noise", "yes")
COUNTED = {"yes": "clearly", "within noise": "within noise", "not tested": "not tested", "no": "clearly not"}
# A claim lists at most this many comparisons; more are only counted. The JSON file lists all of them.
MAX_LISTED_COMPARISONS = 4


def judge_lower(values: Floats, reference: Floats, comparisons: int = 1, per_row: float = 0.0) -> Answer:
    """Judges whether results are clearly lower than others, seed by seed. "no" means that they are clearly higher.

    The answer is "not tested" if a result is not finite, e.g. because training diverged. For `comparisons` and
    `per_row`, see `judge_negative`.

    Example:
        >>> judge_lower([1.0, 1.1], [2.0, 2.2]), judge_lower([1.0, 2.5], [2.0, 2.8])
        ('yes', 'within noise')
        >>> judge_lower([3.0, 3.1], [2.0, 2.1])
        'no'
    """
    return judge_negative(np.subtract(values, reference), comparisons, per_row)


def judge_negative(values: Floats, comparisons: int = 1, per_row: float = 0.0) -> Answer:
    """Judges whether the numbers are clearly below zero. A single seed never gives a clear answer.

    Args:
        values: the numbers, one per seed.
        comparisons: the number of comparisons in the claim. A single "no" refutes the claim, and one of many
            comparisons can easily exceed zero by chance. The answer "no" is therefore subject to a Bonferroni
            correction. The answer "yes" needs no correction, since all comparisons must agree.
        per_row: the amount that one misclassified test row adds to a number, if errors are counted. All seeds share the
            test rows, so a difference of a few rows may be due to chance even if all seeds agree. The standard error of
            a difference of n rows is therefore at least √n rows.

    Example:
        >>> judge_negative([-1.0, -1.1]), judge_negative([-1.0]), judge_negative([-1.0, float("nan")])
        ('yes', 'within noise', 'not tested')
        >>> judge_negative([1.0, 1.1]), judge_negative([1.0, 1.1], comparisons=10)
        ('no', 'within noise')
        >>> judge_negative([-1.0, -1.1], per_row=0.5), judge_negative([-1.0, -1.1], per_row=0.1)
        ('within noise', 'yes')
    """
    if not np.isfinite(values).all():
        return "not tested"
    if np.size(values) < 2:
        return "within noise"
    mean = float(np.mean(values))
    confidence = CONFIDENCE if mean < 0 else 1 - (1 - CONFIDENCE) / comparisons
    half = interval_half_width(list(values), row_stderr=math.sqrt(abs(mean) * per_row), confidence=confidence)
    if abs(mean) <= max(half, TOLERANCE):
        return "within noise"
    return "yes" if mean < 0 else "no"


def claim_all_lower(
    text: str, pairs: Mapping[str, tuple[Floats, Floats]], unit: str = "", *, per_row: float = 0.0
) -> Claim:
    """Judges the claim that the first value of every pair is lower than the second. The weakest comparison decides.

    Args:
        text: the claim.
        pairs: the comparisons by name. Each comparison consists of two lists with one value per seed.
        unit: the unit of the values, to include in the explanation.
        per_row: the amount that one misclassified test row adds to a value. See `judge_negative`.
    """
    if not pairs:
        return Claim(text, "not tested", "nothing to compare")
    answers, parts = [], []
    for name, sides in pairs.items():
        answers.append(judge_lower(*sides, len(pairs), per_row))
        ours, theirs = (f"{np.mean(side):.4g}" if np.isfinite(side).all() else "no number" for side in sides)
        parts.append(f"{name}: {ours} against {theirs}{unit} ({answers[-1]})")
    because = "; ".join(parts)
    if len(parts) > MAX_LISTED_COMPARISONS:
        counts = [f"{answers.count(answer)} {word}" for answer, word in COUNTED.items() if answer in answers]
        because = f"of {len(parts)} comparisons {', '.join(counts)}"
    return Claim(text, min(answers, key=WEAKEST_FIRST.index), because, parts)


def pearson(first: Floats, second: Floats) -> float:
    """Returns the correlation over pairs of finite numbers, or NaN if it is undefined.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 7]), 3), pearson([1, 2], [2, 4])
        (0.993, nan)
    """
    x, y = np.asarray(first, float), np.asarray(second, float)
    finite = np.isfinite(x) & np.isfinite(y)
    if finite.sum() < 3 or not (np.ptp(x[finite]) and np.ptp(y[finite])):
        return float("nan")
    return float(np.corrcoef(x[finite], y[finite])[0, 1])


def claim_correlation(text: str, correlation: float, *, yes: float, no: float | None = None, over: str = "") -> Claim:
    """Judges the claim that a correlation is high. The explanation states the thresholds.

    Args:
        text: the claim.
        correlation: the correlation.
        yes: the minimum correlation for the answer "yes".
        no: the threshold below which the answer is "no". Defaults to `yes`.
        over: a description of the data, to include in the explanation.

    Example:
        >>> claims = [claim_correlation("high", r, yes=0.9, no=0.7) for r in (0.95, 0.8, 0.6)]
        >>> [claim.reproduced for claim in claims]
        ['yes', 'within noise', 'no']
    """
    if np.isnan(correlation):
        return Claim(text, "not tested", f"too few distinct numbers to correlate{over}")
    because = f"Pearson {correlation:.2f}{over}; {yes:g} or more counts as yes"
    if no is not None:
        because += f", below {no:g} as no"
    if correlation >= yes:
        return Claim(text, "yes", because)
    return Claim(text, "no" if no is None or correlation < no else "within noise", because)
