"""Scores compare by value."""

import math

import numpy as np

from tagalong.score import Score


def test_scores_are_equal_if_their_numbers_are_equal_or_both_unknown() -> None:
    assert Score(1.0, float("nan")) == Score(1.0, math.nan, np.zeros(2, np.float32))
    assert len({Score(1.0, float("nan")), Score(1.0, math.nan)}) == 1
    assert Score(1.0, math.nan) != Score(1.0, 0.0)
    assert Score(1.0, 0.5) != Score(2.0, 0.5)
    assert Score(1.0, 0.5) != (1.0, 0.5)
