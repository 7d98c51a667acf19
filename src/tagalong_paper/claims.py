"""Decides whether results reproduce the paper's claims, given the noise across seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tagalong.study import Verdict, interval_half_width

from .experiment_report import Answer, Claim, Value

Pairs = Mapping[str, tuple[Sequence[float], Sequence[float]]]
CONFIDENCE = Verdict.confidence
TOLERANCE = 1e-9  # smaller differences are rounding errors, even if all seeds agree exactly
WEAKEST_FIRST: tuple[Answer, ...] = ("no", "not tested", "within noise", "yes")
# A claim lists at most this many comparisons; more are only counted. The JSON file lists all of them.
MAX_LISTED_COMPARISONS = 4


def summarize(values: Sequence[float], *, digits: int = 2, served: bool = True) -> Value:
    """Returns the mean over seeds, with its standard error if there are at least two seeds and finite results."""
    has_error = len(values) > 1 and bool(np.isfinite(values).all())
    stderr = float(np.std(values, ddof=1) / np.sqrt(len(values))) if has_error else None
    return Value(float(np.mean(values)), stderr, served, digits)


def judge_lower(
    values: Sequence[float], reference: Sequence[float], comparisons: int = 1, per_row: float = 0.0
) -> Answer:
    """Judges whether results are clearly lower than others, seed by seed. "no" means that they are clearly higher.

    The answer is "not tested" if a result is not finite, e.g. because training diverged. For `comparisons` and
    `per_row`, see `judge_negative`.

    Example:
        >>> judge_lower([1.0, 1.1], [2.0, 2.2]), judge_lower([1.0, 2.5], [2.0, 2.8])
        ('yes', 'within noise')
        >>> judge_lower([3.0, 3.1], [2.0, 2.1])
        'no'
    """
    return judge_negative(np.subtract(values, reference).tolist(), comparisons, per_row)


def judge_negative(values: Sequence[float], comparisons: int = 1, per_row: float = 0.0) -> Answer:
    """Judges whether the numbers are clearly below zero. A single seed never gives a clear answer.

    Args:
        values: the numbers, one per seed.
        comparisons: the number of comparisons in the claim. A single "no" refutes the claim, and one of many
            comparisons can easily exceed zero by chance. The answer "no" is therefore subject to a Bonferroni
            correction. The
            answer "yes" needs no correction, since all comparisons must agree.
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
    mean = float(np.mean(values))
    confidence = CONFIDENCE if mean < 0 else 1 - (1 - CONFIDENCE) / comparisons
    if len(values) < 2:
        return "within noise"
    half = interval_half_width(values, row_stderr=math.sqrt(abs(mean) * per_row), confidence=confidence)
    if not abs(mean) > max(half, TOLERANCE):
        return "within noise"
    return "yes" if mean < 0 else "no"


def claim_all_lower(text: str, pairs: Pairs, unit: str = "", *, per_row: float = 0.0) -> Claim:
    """Judges the claim that the first value of every pair is lower than the second. The weakest comparison decides.

    Args:
        text: the claim.
        pairs: the comparisons by name. Each comparison consists of two lists with one value per seed.
        unit: the unit of the values, to include in the explanation.
        per_row: the amount that one misclassified test row adds to a value. See `judge_negative`.
    """
    if not pairs:
        return Claim(text, "not tested", "nothing to compare")
    found = {name: judge_lower(values, reference, len(pairs), per_row) for name, (values, reference) in pairs.items()}
    weakest = next(answer for answer in WEAKEST_FIRST if answer in found.values())
    parts = tuple(
        f"{name}: {_format_mean(values)} against {_format_mean(reference)}{unit} ({found[name]})"
        for name, (values, reference) in pairs.items()
    )
    return Claim(text, weakest, _summarize_comparisons(parts, list(found.values())), parts)


def _format_mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g}" if np.isfinite(values).all() else "no number"


def _summarize_comparisons(descriptions: tuple[str, ...], answers: Sequence[Answer]) -> str:
    if len(descriptions) <= MAX_LISTED_COMPARISONS:
        return "; ".join(descriptions)
    words = {"yes": "clearly", "within noise": "within noise", "not tested": "not tested", "no": "clearly not"}
    counts = [f"{answers.count(answer)} {word}" for answer, word in words.items() if answer in answers]
    return f"of {len(descriptions)} comparisons {', '.join(counts)}"


def pearson(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Returns the correlation over pairs of finite numbers, or NaN if it is undefined.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 7]), 3), pearson([1, 2], [2, 4])
        (0.993, nan)
    """
    x, y = np.asarray(first, float).ravel(), np.asarray(second, float).ravel()
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3 or not (np.ptp(x[known]) and np.ptp(y[known])):
        return float("nan")
    return float(np.corrcoef(x[known], y[known])[0, 1])


def claim_correlation(
    text: str, correlation: float, *, yes_threshold: float, no_threshold: float | None = None, details: str = ""
) -> Claim:
    """Judges the claim that a correlation is high. The explanation states the thresholds.

    Args:
        text: the claim.
        correlation: the correlation.
        yes_threshold: the minimum correlation for the answer "yes".
        no_threshold: the threshold below which the answer is "no". Defaults to `yes_threshold`.
        details: a description of the data, to include in the explanation.

    Example:
        >>> claims = [claim_correlation("high", r, yes_threshold=0.9, no_threshold=0.7) for r in (0.95, 0.8, 0.6)]
        >>> [claim.reproduced for claim in claims]
        ['yes', 'within noise', 'no']
    """
    if np.isnan(correlation):
        return Claim(text, "not tested", f"too few distinct numbers to correlate{details}")
    answer: Answer = "within noise"
    if correlation >= yes_threshold or correlation < (yes_threshold if no_threshold is None else no_threshold):
        answer = "yes" if correlation >= yes_threshold else "no"
    limits = f"{yes_threshold:g} or more counts as yes" + (
        "" if no_threshold is None else f", below {no_threshold:g} as no"
    )
    return Claim(text, answer, f"Pearson {correlation:.2f}{details}; {limits}")
