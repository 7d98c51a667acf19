"""Skill: the share of a constant's loss that a network avoids.

The skill of a task on some rows is (C − L) / U, where L is the loss of the network, C the loss of the best constant for
the training labels on the same rows (see `constant_losses`), and U that constant's loss on all labelled rows (see
`skill_units`). A constant has a skill of 0, and worse answers are below 0. On all rows, the skill of a regression task
is R², and that of a classification task the share of the entropy that is explained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOWEST_SKILL = -1.0  # in means, so that one task that went wrong does not hide all others


def row_skills(
    losses: Mapping[str, ArrayLike], constants: Mapping[str, ArrayLike], units: Mapping[str, float]
) -> dict[str, NDArray[np.float64]]:
    """Returns the skill of each task on every row, whose mean over the labelled rows is the skill of the task.

    Args:
        losses: the loss of each row for each task, with NaN for missing labels, as in `Score.rows`. Mean losses are
            also possible; they give the skills of the tasks.
        constants: the same losses of the best constant. Tasks without a constant are left out.
        units: the unit of each task.

    Example:
        >>> row_skills({"age": [1.0, 0.5, np.nan]}, {"age": [1.0, 2.0, np.nan]}, {"age": 2.0})
        {'age': array([0.  , 0.75,  nan])}
    """
    rows = {}
    for task, unit in units.items():
        loss, constant = (np.asarray(values[task], dtype=np.float64) for values in (losses, constants))
        rows[task] = (constant - loss) / unit
    return rows


def task_skills(rows: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Returns the skill of each task, or NaN if none of the rows has a label, given the skill on every row.

    Example:
        >>> task_skills({"age": np.array([0.0, 0.75, np.nan])})
        {'age': 0.375}
    """
    return {task: float(np.nanmean(own)) if np.isfinite(own).any() else np.nan for task, own in rows.items()}


def mean_skill(skills: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """Returns the mean over tasks of their skills, each of which counts as at least −1.

    Args:
        skills: the skill of each task. Tasks whose skill is NaN, since they have no labels, are left out.
        weights: the weight of each task (`Task.weight`). If None, all tasks count the same.

    Example:
        >>> mean_skill({"age": 0.5, "ill": -7.0}), mean_skill({"age": 0.5, "ill": -7.0}, {"age": 2, "ill": 1})
        (-0.25, 0.0)
    """
    shares = _shares(skills, weights)
    return float(sum(share * max(skills[task], LOWEST_SKILL) for task, share in shares.items()))


def row_influences(
    rows: Mapping[str, NDArray[np.float64]], weights: Mapping[str, float] | None = None
) -> NDArray[np.float64]:
    """Returns a value for every row [rows] whose mean is the mean skill, and whose variance is that of the rows.

    The difference of two ways' influences, row by row, therefore has the difference of their mean skills as its mean,
    and its spread over the rows (or over clusters of them) gives the standard error of that difference. A row without
    a label for a task says nothing about the task. This is the linearization of a mean over labelled rows (Cochran,
    Sampling Techniques, section 6.4).

    Args:
        rows: the skill of each task on every row, with NaN for missing labels (see `row_skills`).
        weights: the weight of each task. If None, all tasks count the same.

    Example:
        >>> row_influences({"age": np.array([0.0, 1.0]), "ill": np.array([np.nan, 0.5])})
        array([0.25, 0.75])
    """
    skills = task_skills(rows)
    influences: Any = mean_skill(skills, weights)
    for task, share in _shares(skills, weights).items():
        labelled = np.isfinite(rows[task])
        if skills[task] > LOWEST_SKILL:  # otherwise, the task counts as a constant, whatever its rows say
            deviations = np.where(labelled, rows[task] - skills[task], 0.0)
            influences = influences + share * deviations / labelled.mean()
    return np.broadcast_to(influences, next(iter(rows.values())).shape)


def _shares(skills: Mapping[str, float], weights: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the share of each task in means, apart from tasks without labels."""
    shares = {task: 1.0 if weights is None else weights[task] for task in skills if not np.isnan(skills[task])}
    total = sum(shares.values())
    return {task: share / total for task, share in shares.items()}
