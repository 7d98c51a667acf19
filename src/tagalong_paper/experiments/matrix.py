"""`matrix`: heat maps of the published affinities and ours, with their natural groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.report import affinity_heatmap

from ..affinities import measure_affinities, pool_seeds, with_short_names
from ..claims import judge_lower
from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..printed import PublishedMatrix

if TYPE_CHECKING:
    from ..experiment_setup import ExperimentSetup

TITLE = "Which groups stand out in the affinities?"
THRESHOLD = 0.3  # fitted so that the published matrices give the groups named in the paper
TABLE_NOTE = f"every two tasks help each other by {THRESHOLD:g} of the usual spread or more, above the worst partner"
PAPER_GROUPS = {
    "celeba_tag": ({"a1", "a7"}, {"a2", "a3", "a4"}, {"a5", "a6", "a7"}),
    "taskonomy_tag": ({"s", "d", "n"}, {"t", "k"}),
}


def run(setup: ExperimentSetup) -> Report:
    """Shows the two published matrices and ours, which is measured every 10 steps (every step at small size)."""
    with setup.open_backend() as backend:
        measured_by_seed = measure_affinities(backend, setup.seeds, every=1 if setup.is_small else 10)
    by_seed = [with_short_names(setup, affinity) for affinity in measured_by_seed.values()]
    ours = with_short_names(setup, pool_seeds(measured_by_seed))
    matrices = {f"{key.partition('_')[0]} (published)": PublishedMatrix(key).affinity for key in PAPER_GROUPS}
    titles = {"celeba (published)": "CelebA", "taskonomy (published)": "Taskonomy"}
    figures = {
        f"matrix-{name.partition(' ')[0]}-published": affinity_heatmap(affinity, center="target", title=titles[name])
        for name, affinity in matrices.items()
    }
    matrices[f"{setup.problem.name} (ours)"] = ours
    figures["matrix-ours"] = affinity_heatmap(ours, center="target", title=f"{setup.problem.name}, measured here")
    rows = [
        (
            name,
            _format_groups(natural_groups(affinity)),
            _format_groups(PAPER_GROUPS.get(f"{name.partition(' ')[0]}_tag", ())),
        )
        for name, affinity in matrices.items()
    ]
    table = ReportTable("Groups that stand out", ("matrix", "found", "printed"), rows, TABLE_NOTE)
    claims = [*_published_claims(), *judge_own_matrices(PAPER_GROUPS.get(f"{setup.printed_dataset}_tag", ()), by_seed)]
    return Report(
        "matrix", TITLE, [table, _affinity_table(ours)], claims, figures, setup.notes, {"affinity": ours.mean.tolist()}
    )


def natural_groups(affinity: Affinity, threshold: float = THRESHOLD) -> list[frozenset[str]]:
    """Returns the maximal sets of tasks that all clearly help each other, sorted from largest to smallest.

    How much a source helps a target is measured by its affinity minus the lowest affinity for that target, divided by
    the median spread over targets. Two tasks help each other if the mean of both directions is at least `threshold`.
    With a
    threshold of 0.3, the published matrices yield exactly the groups named in the paper. See `threshold_range` for
    other thresholds that yield the same groups.

    Args:
        affinity: the affinities.
        threshold: the threshold, as a fraction of the median spread.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> sorted(map(sorted, natural_groups(Affinity.from_matrix(matrix, list("abcd")))))
        [['a', 'b'], ['c', 'd']]
    """
    together = mutual_help(affinity) >= threshold
    found: list[frozenset[str]] = []
    for size in range(len(affinity.tasks), 1, -1):
        for members in combinations(range(len(affinity.tasks)), size):
            names = frozenset(affinity.tasks[i] for i in members)
            if all(together[i, j] for i, j in combinations(members, 2)) and not any(names <= other for other in found):
                found.append(names)
    return found


def mutual_help(affinity: Affinity) -> NDArray[np.float64]:
    """Returns how much the tasks of each pair help each other, relative to the median spread (see `natural_groups`)."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    low = np.nanmin(others, axis=0)
    usual = float(np.median(np.nanmax(others, axis=0) - low))
    above: NDArray[np.float64] = (others - low) / (usual or 1.0)
    return (above + above.T) / 2


def threshold_range(affinity: Affinity, groups: Iterable[Collection[str]]) -> tuple[float, float] | None:
    """Returns the range of thresholds around `THRESHOLD` that yield exactly these groups, or None if there is none.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> low, high = threshold_range(Affinity.from_matrix(matrix, list("abcd")), ["ab", "cd"])
        >>> round(low, 2), round(high, 2)
        (0.07, 0.93)
    """
    wanted = {frozenset(group) for group in groups}
    found = mutual_help(affinity)
    levels = np.unique([0.0, *found[np.isfinite(found)]])  # between two levels, the groups stay the same
    same = [(low, high) for low, high in pairwise(levels) if set(natural_groups(affinity, high)) == wanted]
    around = next((place for place, (low, high) in enumerate(same) if low < THRESHOLD <= high), None)
    if around is None:
        return None
    first = last = around
    while first > 0 and same[first - 1][1] == same[first][0]:
        first -= 1
    while last + 1 < len(same) and same[last + 1][0] == same[last][1]:
        last += 1
    return float(same[first][0]), float(same[last][1])


def group_margin(affinity: Affinity, group: Collection[str], threshold: float = THRESHOLD) -> float:
    """Returns the margin by which a group is natural. A negative margin means that the group is not natural.

    The margin is the smaller of two distances: how far all pairs in the group exceed the threshold, and how far every
    other task falls short of it with at least one member.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]], list("abcd"))
        >>> group_margin(affinity, "ab") > 0, group_margin(affinity, "ac") > 0
        (True, False)
    """
    found, inside = mutual_help(affinity), [affinity.tasks.index(task) for task in group]
    outside = [i for i in range(len(affinity.tasks)) if i not in inside]
    together = min(found[i, j] for i, j in combinations(inside, 2)) - threshold
    apart = [threshold - min(found[i, j] for j in inside) for i in outside]
    return float(min([together, *apart]))


def _affinity_table(affinity: Affinity) -> ReportTable:
    rows: list[list[Cell]] = [
        [source, *(Value(1000 * affinity.mean[i, j], 1000 * affinity.stderr[i, j]) for j in range(len(affinity.tasks)))]
        for i, source in enumerate(affinity.tasks)
    ]
    return ReportTable("Our affinities × 1000: the row helps the column", ("", *affinity.tasks), rows)


def _published_claims() -> list[Claim]:
    claims = []
    for key, groups in PAPER_GROUPS.items():
        matrix = PublishedMatrix(key)
        affinity = matrix.affinity
        holds = threshold_range(affinity, groups)
        text = f"in {matrix.dataset}'s matrix the groups {_format_groups(groups)} form, by a rule fitted to them"
        shares = "" if holds is None else f"; for shares from {holds[0]:.3f} to {holds[1]:.3f}; ours is {THRESHOLD:g}"
        found = f"found: {_format_groups(natural_groups(affinity))}{shares}"
        claims.append(Claim(text, "no" if holds is None else "yes", found))
    return claims


def judge_own_matrices(groups: Iterable[set[str]], by_seed: Sequence[Affinity]) -> list[Claim]:
    """Judges whether the paper's groups are also natural groups in our matrices.

    Args:
        groups: the groups named in the paper. Groups with tasks that are missing from the matrices are skipped.
        by_seed: the affinity matrix of each seed.
    """
    claims = []
    for group in groups:
        if group <= set(by_seed[0].tasks):
            margins = [group_margin(affinity, group) for affinity in by_seed]
            text = f"in our matrix the group {_format_groups([group])} forms by the same rule"
            because = (
                f"{np.mean(margins):.2f} of the usual spread from the rule's limit, mean over seeds; above zero: forms"
            )
            claims.append(Claim(text, judge_lower([0.0] * len(margins), margins), because))
    return claims


def _format_groups(groups: object) -> str:
    assert isinstance(groups, (list, tuple))
    return " ".join(sorted(f"{{{', '.join(sorted(group))}}}" for group in groups)) or "-"
