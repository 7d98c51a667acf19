"""Tests whether the groups in a symmetric affinity are families, or what random directions would show as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from tagalong.affinity import Affinity

from .problem import Floats


@dataclass(frozen=True)
class GroupEvidence:
    """Whether tasks form groups. Its truth value says whether the test shows them at the 5% level.

    Attributes:
        score: the mean affinity of tasks within a group.
        random_scores: the same for each draw of tasks without groups.
    """

    score: float
    random_scores: tuple[float, ...]

    @property
    def p_value(self) -> float:
        """The share of draws without groups that score as high, where the measured affinity counts as one draw."""
        as_high = sum(score >= self.score for score in self.random_scores)
        return (1 + as_high) / (1 + len(self.random_scores))

    def __bool__(self) -> bool:
        return self.p_value <= 0.05

    def __str__(self) -> str:
        verdict = "groups" if self else "no groups shown"
        scores = f"{self.score:.2f}, {np.median(self.random_scores):.2f} without groups"
        return f"{verdict}: affinity within groups {scores} (p = {self.p_value:.2f})"


def group_evidence(affinity: Affinity, budget: int, draws: int = 199, seed: int = 0) -> GroupEvidence:
    """Tests whether the tasks of a symmetric affinity form groups.

    Stable groups need not be real. The gradients of unrelated datasets have cosines other than zero, which many steps
    measure precisely, so that resamples agree on the same groups. Here, groups are compared with those of tasks whose
    directions are random but fill the same dimensions equally: the eigenvalues of the affinity, noise included, are
    kept, and its eigenvectors are drawn at random. Groups come from average linkage, for any number of tasks.

    Args:
        affinity: a symmetric affinity, such as that of `estimator="streaming"`.
        budget: the number of groups.
        draws: the number of affinities without groups.
        seed: the random seed.

    Example:
        >>> family = np.arange(12) % 3
        >>> planted = Affinity.from_matrix(np.where(family[:, None] == family, 0.6, -0.3) + 0.4 * np.eye(12))
        >>> print(group_evidence(planted, budget=3))
        groups: affinity within groups 0.60, 0.37 without groups (p = 0.01)
    """
    n = len(affinity.tasks)
    if not 1 < budget < n or not np.array_equal(affinity.mean, affinity.mean.T, equal_nan=True):
        raise ValueError(f"`affinity` must be symmetric, and `budget` between 2 and {n - 1}, found {budget}")
    cosines = np.nan_to_num(affinity.mean)
    np.fill_diagonal(cosines, 1.0)
    pairs = np.triu_indices(n, 1)
    spectrum, strength = np.linalg.eigvalsh(cosines), np.linalg.norm(cosines[pairs])
    rng = np.random.default_rng(seed)
    random_scores = []
    for _ in range(draws):
        directions = np.linalg.qr(rng.standard_normal((n, n)))[0]
        unrelated = (directions * spectrum) @ directions.T
        unrelated *= strength / np.linalg.norm(unrelated[pairs])
        random_scores.append(_score_within_groups(unrelated, budget))
    return GroupEvidence(_score_within_groups(cosines, budget), tuple(random_scores))


def _score_within_groups(cosines: Floats, budget: int) -> float:
    """Returns the mean affinity of each task with the others of its group, averaged over tasks."""
    tree = linkage(squareform(cosines.max() - cosines, checks=False), "average")
    groups = fcluster(tree, budget, "maxclust")
    together = (groups[:, None] == groups) & ~np.eye(len(groups), dtype=bool)
    return float(((cosines * together).sum(axis=1) / np.maximum(together.sum(axis=1), 1)).mean())
