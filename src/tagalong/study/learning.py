"""Whether networks learned anything: do they beat a constant, and were they trained for long enough?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from .records import Label, label_key
from .uncertainty import CONFIDENCE, Rows

MAX_P_VALUE = 0.99  # of a test that is combined with others
LAST_EPOCHS = 3  # a network that is best in one of these might have improved further


@dataclass(frozen=True)
class LateNetworks:
    """How many networks were best in one of their last three epochs.

    Attributes:
        late: the number of these networks.
        networks: the number of all networks.
    """

    late: int
    networks: int

    def __add__(self, other: LateNetworks) -> LateNetworks:
        return LateNetworks(self.late + other.late, self.networks + other.networks)


@dataclass(frozen=True)
class Learning:
    """What is known about how well networks learned.

    Attributes:
        p_values: for each task, the probability of beating the best constant on the validation rows by as much as the
            networks do, if there were nothing to learn (see `constant_p_values`). Tasks for which this is unknown are
            left out.
        late: for each method and budget, how many of its networks were best in one of their last three epochs. Empty
            if unknown.
    """

    p_values: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[Label, LateNetworks] = field(default_factory=dict)

    @property
    def unlearnt(self) -> tuple[str, ...]:
        """The tasks on which no network beats a constant by more than the noise.

        The procedure of Benjamini and Hochberg corrects for the number of tasks. If nothing can be learned, it is as
        strict as a correction by Bonferroni; but if most tasks are learned, the weakest of them are not dropped merely
        because there are many tasks.

        Example:
            >>> Learning({"age": 0.001, "ill": 0.03, "fit": 0.2}).unlearnt
            ('fit',)
        """
        ordered = sorted(self.p_values.values())
        passed = [p for rank, p in enumerate(ordered, 1) if p <= (1 - CONFIDENCE) * rank / len(ordered)]
        threshold = max(passed, default=-math.inf)
        return tuple(task for task, p in self.p_values.items() if p > threshold)

    def late_networks(self, labels: Iterable[Label]) -> LateNetworks:
        """Returns how many networks of these methods and budgets were best in one of their last three epochs."""
        return sum((self.late[label] for label in labels if label in self.late), LateNetworks(0, 0))

    def to_document(self) -> dict[str, Any]:
        """Converts the fields to a JSON document."""
        late = {label_key(label): networks for label, networks in self.late.items()}
        return {"p_values": dict(self.p_values), "late": late}


def constant_p_values(groupings: Sequence[Sequence[Rows]], constant: Rows, clusters: Any = None) -> dict[str, float]:
    """Returns, for each task, the p-value of the hypothesis that no grouping is better than a constant.

    The losses of a grouping are averaged over seeds and compared row by row. The p-values of the groupings are then
    combined (see `combine_p_values`).

    Args:
        groupings: for each grouping and seed, each task's loss on every row, with NaN for rows without a label.
        constant: the losses of the best constant of each task.
        clusters: one cluster label per row. Rows in the same cluster count as one.

    Example:
        >>> constant = {"age": np.array([1.0, 1.2, 0.9, 1.1])}
        >>> network = {"age": np.array([0.5, 0.4, 0.5, 0.6])}
        >>> constant_p_values([[network]], constant)["age"] < 0.01
        True
    """
    p_values = {}
    for task, losses in constant.items():
        gains = [np.asarray(losses) - np.mean([rows[task] for rows in seeds], axis=0) for seeds in groupings]
        p_values[task] = combine_p_values([gain_p_value(gain, clusters) for gain in gains])
    return p_values


def combine_p_values(p_values: Sequence[float]) -> float:
    """Combines p-values by the Cauchy combination test (Liu and Xie, 2020), which is valid for dependent tests.

    If all p-values are equal, so is the result. If only one is small, it is multiplied by their number, as by
    Bonferroni. No p-value counts as more than 0.99, so that a bad grouping cannot outweigh a good one.

    Example:
        >>> round(combine_p_values([0.01, 0.01]), 4), round(combine_p_values([0.01, 0.5]), 4)
        (0.01, 0.02)
    """
    angles = [math.tan((0.5 - min(p, MAX_P_VALUE)) * math.pi) for p in p_values]
    return 0.5 - math.atan(math.fsum(angles) / len(angles)) / math.pi


def gain_p_value(gains: NDArray[np.float64], clusters: Any = None) -> float:
    """Returns the one-sided p-value of a mean gain over rows, from Student's t-distribution over clusters.

    Args:
        gains: the gain of each row, with NaN for rows that do not count.
        clusters: one cluster label per row, or None if rows are independent.

    Example:
        >>> round(gain_p_value(np.array([-1.0, 0.0, 1.0, 2.0])), 3)
        0.248
    """
    counted = ~np.isnan(gains)
    known = gains[counted].astype(np.float64)
    if not np.isfinite(known).all() or not len(known):
        return 1.0
    average = known.mean()
    deviations = known - average
    if clusters is not None:
        _, cluster = np.unique(np.asarray(clusters)[counted], return_inverse=True)
        deviations = np.bincount(cluster.reshape(-1), weights=deviations)
    count = len(deviations)
    if count < 2:
        return 1.0
    error = math.sqrt(float(np.square(deviations).sum()) * count / (count - 1)) / len(known)
    if error == 0:
        return 0.0 if average > 0 else 1.0
    return float(stdtr(count - 1, -average / error))
