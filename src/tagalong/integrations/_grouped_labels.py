"""Labels as scikit-learn's users have them: columns by task, classes as numbers, and scores where labels are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets

from tagalong._names import name_problems, refuse
from tagalong.learn._targets import _missing as is_missing

Columns = dict[str, NDArray[Any]]


def columns_of(y: Any, numeric: bool) -> tuple[Columns, bool]:
    """The labels of each task by its name, and whether there was only one dimension.

    Args:
        y: [rows, tasks] or [rows], with NaN where a label is missing.
        numeric: whether labels are numbers.
    """
    wanted = np.float64 if numeric else None
    array = check_array(y, dtype=wanted, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
    if array.ndim == 1:
        return {str(getattr(y, "name", None) or 0): array}, True
    names = [str(name) for name in (y.columns if hasattr(y, "columns") else range(array.shape[1]))]
    refuse(name_problems(tuple(names), "the columns of `y`"))
    return dict(zip(names, array.T, strict=True)), False


def coded_classes(labels: Columns) -> tuple[dict[str, NDArray[Any]], Columns]:
    """The classes of each task, and their numbers with NaN where a label is missing."""
    problems: list[str] = []
    classes, codes = {}, {}
    for name, column in labels.items():
        here = known(column)
        present = np.array(column[here].tolist()) if column.dtype == object else column[here]
        check_classification_targets(present)
        classes[name], numbers = np.unique(present, return_inverse=True)
        codes[name] = np.full(len(column), np.nan)
        codes[name][here] = numbers
        if len(classes[name]) < 2:
            problems.append(f"`y`: {name!r} must have at least two classes, found {len(classes[name])} class")
    refuse(problems)
    return classes, codes


def accuracy(labels: NDArray[Any], found: NDArray[Any]) -> float:
    """The share of equal ones; as objects, since arrays of text would be cut to one length."""
    return float(np.mean(labels.astype(object) == found.astype(object)))


def known(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Where there is a label."""
    return np.array([not is_missing(label) for label in column.tolist()], dtype=bool)


def side_by_side(columns: list[NDArray[Any]], flat: bool) -> NDArray[Any]:
    """One array of all tasks; of objects where their labels are of different kinds."""
    if flat:
        return columns[0]
    alike = len({column.dtype.kind for column in columns}) == 1
    return np.stack(columns if alike else [column.astype(object) for column in columns], axis=1)


def mean_score(score: Callable[..., float], labels: Columns, found: Columns) -> float:
    """The mean over tasks of a score of labels and predictions, each on the rows where it has labels."""
    if len(labels) != len(found):
        raise ValueError(f"`y` must have {len(found)} columns, as in `fit`, found {len(labels)}")
    scores = []
    for column, predicted in zip(labels.values(), found.values(), strict=True):
        here = known(column)
        if here.any():
            scores.append(score(column[here], predicted[here]))
    if not scores:
        raise ValueError("`y` must have labels to score, found all missing")
    return float(np.mean(scores))
