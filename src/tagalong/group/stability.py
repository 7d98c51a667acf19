"""Are groups stable and gains real (resamples)? Are there groups at all (`group_evidence`)?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from tagalong.affinity import Affinity

from .completion import Floats
from .grouping import Group, Grouping, Stability
from .problem import Constraints, Limits, build_problem, to_group
from .scores import Scores
from .solvers import solve

Served = frozenset[frozenset[str]]
MAX_EXACT_TASKS = 12  # with more tasks, resamples use the local search
MAX_RESAMPLED_TASKS = 40  # with more tasks, there are no resamples by default
MANY_SEARCHES = 200  # tasks times budgets; half of the resamples are enough then


def default_resamples(tasks: int, budgets: int) -> int:
    # Returns the number of resamples that take a few seconds. It does not depend on the machine.
    if tasks <= MAX_EXACT_TASKS:
        return 100
    if tasks > MAX_RESAMPLED_TASKS:
        return 0
    return 20 if tasks * budgets <= MANY_SEARCHES else 10


def resampled_matrices(scores: Scores, affinity: Affinity | None, number: int, seed: int) -> Iterator[Floats]:
    # Yields scores that could have been measured. Predictions are drawn from their distribution.
    assert scores.matrix is not None
    assert scores.stderr is not None
    random = np.random.default_rng([1, seed])  # independent of the bootstrap
    matrices: Iterable[Floats] = repeat(scores.matrix, number)
    if affinity is not None:
        matrices = affinity.only(scores.tasks).bootstrap(number, seed)
    for matrix in matrices:
        matrix = np.where(np.isfinite(matrix), matrix, scores.matrix)  # pairs without values keep their average
        if scores.unmeasured:
            matrix = np.where(scores.stderr > 0, random.normal(scores.matrix, scores.stderr), matrix)
        yield matrix


def assess_stability(
    groupings: dict[int, Grouping],
    gains: dict[int, float],
    scores: Scores,
    matrices: Iterable[Floats],
    constraints: Constraints,
    limits: Limits,
) -> tuple[dict[int, Grouping], dict[int, float], dict[int, float]]:
    """Repeats a selection on resampled scores.

    The number of resamples is fixed, so that a machine under load gives the same answer; only where the time is up,
    fewer are used.

    Returns:
        The groupings with their stability, the gain of each further network, and its standard error.
    """
    assert scores.matrix is not None
    budgets = list(groupings)
    served: list[list[Served]] = []  # [resamples, budgets]
    resampled_totals, mirrored_totals = [], []  # [resamples, budgets]
    for matrix in matrices:
        resampled = replace(scores, matrix=matrix)
        quick = replace(limits, kicks=3, list_ties=False, reported=np.inf)
        problem = build_problem(resampled, constraints)
        is_quick = problem.can_be_exact and len(scores.tasks) <= MAX_EXACT_TASKS
        _, solutions = solve(problem, budgets, "exact" if is_quick else "search", quick)
        if limits.should_stop:
            break

        # Groups fit the errors of the scores from which they were chosen. So those chosen with errors in one direction
        # are scored with the same errors in the opposite direction.
        with np.errstate(over="ignore"):  # of self-affinities, which may be huge but are not used
            mirrored = replace(scores, matrix=2 * scores.matrix - matrix)
        choices = [() if solution is None else solution.choices for solution in solutions]
        groups = [[to_group(resampled, problem, choice) for choice in chosen] for chosen in choices]
        served.append([frozenset(group.serves for group in chosen) for chosen in groups])
        mirrored_totals.append([_total(mirrored, chosen) for chosen in groups])
        resampled_totals.append([_total(resampled, groupings[k].groups) for k in budgets])
        limits.report(f"stability of the groups, {len(served)} resamples", groupings[budgets[-1]].value)

    if served:
        for (k, grouping), sets in zip(groupings.items(), zip(*served, strict=True), strict=True):
            chosen_sets = frozenset(group.serves for group in grouping.groups)
            groupings = groupings | {k: replace(grouping, resampled=stability(chosen_sets, sets))}
    if len(served) < 2:
        return groupings, gains, {}
    corrected = scores.sign * np.diff(np.mean(mirrored_totals, axis=0))
    errors = np.std(np.diff(resampled_totals, axis=1), axis=0, ddof=1)
    further = budgets[1:]
    return (
        groupings,
        dict(zip(further, corrected.tolist(), strict=True)),
        dict(zip(further, errors.tolist(), strict=True)),
    )


def stability(served: Served, resampled: Sequence[Served]) -> Stability:
    """Compares the groups of a grouping with those selected from resamples.

    Example:
        >>> one, two = [{"a", "b"}, {"c"}], [{"a"}, {"b", "c"}]
        >>> served = [frozenset(map(frozenset, sets)) for sets in (one, one, one, two)]
        >>> print(stability(served[0], served))
        the same groups in 75% of 4 resamples; not settled: a, b, c
    """
    tasks = tuple(sorted(task for tasks in served for task in tasks))
    number = len(resampled)
    served_with = [{task: tasks for tasks in other for task in tasks} for other in resampled]
    chosen_with = {task: tasks for tasks in served for task in tasks}
    together = tuple(tuple(sum(b in p[a] for p in served_with) / number for b in tasks) for a in tasks)
    same = tuple(sum(p[task] == chosen_with[task] for p in served_with) / number for task in tasks)
    return Stability(number, sum(other == served for other in resampled) / number, tasks, together, same)


def _total(scores: Scores, groups: Iterable[Group]) -> float:
    return scores.total({task: scores.score_of(task, group.trains) for group in groups for task in group.serves})


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
    # Returns the mean affinity of each task with the others of its group, averaged over tasks.
    tree = linkage(squareform(cosines.max() - cosines, checks=False), "average")
    groups = fcluster(tree, budget, "maxclust")
    together = (groups[:, None] == groups) & ~np.eye(len(groups), dtype=bool)
    return float(((cosines * together).sum(axis=1) / np.maximum(together.sum(axis=1), 1)).mean())
