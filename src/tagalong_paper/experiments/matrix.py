"""`matrix`: heat maps of the published affinities and ours, with their natural groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from tagalong.affinity import Affinity
from tagalong.report import affinity_heatmap

from ..experiment_setup import Array, ExperimentSetup, pool_seeds
from ..printed import PublishedMatrix
from ..report import Cell, Claim, Report, ReportTable, Value, judge_lower

TITLE = "Which groups stand out in the affinities?"
THRESHOLD = 0.3  # fitted so that the published matrices give the groups named in the paper
TABLE_NOTE = f"every two tasks help each other by {THRESHOLD:g} of the usual spread or more, above the worst partner"
PAPER_GROUPS = {
    "celeba": ({"a1", "a7"}, {"a2", "a3", "a4"}, {"a5", "a6", "a7"}),
    "taskonomy": ({"s", "d", "n"}, {"t", "k"}),
}


def run(setup: ExperimentSetup) -> Report:
    """Shows the two published matrices and ours, which is measured every 10 steps (every step at small size)."""
    with setup.open_runner() as runner:
        measured = setup.measure(runner)
    shorts, name = setup.short_names(), setup.problem.name
    ours = replace(pool_seeds(measured), tasks=shorts)
    groups, figures, claims = [], {}, []
    for dataset, named in PAPER_GROUPS.items():
        matrix = PublishedMatrix(f"{dataset}_tag")
        standing_out = _format_groups(natural_groups(matrix.affinity))
        groups.append([f"{dataset} (published)", standing_out, _format_groups(named)])
        heatmap = affinity_heatmap(matrix.affinity, center="target", title=matrix.dataset)
        figures[f"matrix-{dataset}-published"] = heatmap
        text = f"in {matrix.dataset}'s matrix the groups {_format_groups(named)} form, by a rule fitted to them"
        holds = threshold_range(matrix.affinity, named)
        shares = f"; for shares from {holds[0]:.3f} to {holds[1]:.3f}; ours is {THRESHOLD:g}" if holds else ""
        claims.append(Claim(text, "yes" if holds else "no", f"found: {standing_out}{shares}"))
    groups.append([f"{name} (ours)", _format_groups(natural_groups(ours)), _format_groups(PAPER_GROUPS.get(name, ()))])
    figures["matrix-ours"] = affinity_heatmap(ours, center="target", title=f"{name}, measured here")
    rows: list[list[Cell]] = []
    for source, means, errors in zip(shorts, 1000 * ours.mean, 1000 * ours.stderr, strict=True):
        rows.append([source, *map(Value, means.tolist(), errors.tolist())])
    by_seed = [replace(affinity, tasks=shorts) for affinity in measured.values()]
    return Report(
        "matrix",
        TITLE,
        tables=[
            ReportTable("Groups that stand out", ("matrix", "found", "printed"), groups, TABLE_NOTE),
            ReportTable("Our affinities × 1000: the row helps the column", ("", *shorts), rows),
        ],
        claims=[*claims, *judge_own_matrices(PAPER_GROUPS.get(setup.printed_dataset or "", ()), by_seed)],
        figures=figures,
        notes=setup.notes,
        numbers={"affinity": ours.mean},
    )


def natural_groups(affinity: Affinity, threshold: float = THRESHOLD) -> list[frozenset[str]]:
    """Returns the maximal sets of tasks that all clearly help each other, sorted from largest to smallest.

    How much a source helps a target is measured by its affinity minus the lowest affinity for that target, divided by
    the median spread over targets. Two tasks help each other if the mean of both directions is at least `threshold`.
    With a threshold of 0.3, the published matrices yield exactly the groups named in the paper. See `threshold_range`
    for other thresholds that yield the same groups.

    Args:
        affinity: the affinities.
        threshold: the threshold, as a fraction of the median spread.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> sorted(map(sorted, natural_groups(Affinity.from_matrix(matrix, list("abcd")))))
        [['a', 'b'], ['c', 'd']]
    """
    together = mutual_help(affinity) >= threshold
    groups: list[frozenset[str]] = []
    for size in range(len(affinity.tasks), 1, -1):
        for members in combinations(range(len(affinity.tasks)), size):
            names = frozenset(affinity.tasks[i] for i in members)
            maximal = not any(names <= group for group in groups)
            if maximal and all(together[pair] for pair in combinations(members, 2)):
                groups.append(names)
    return groups


def mutual_help(affinity: Affinity) -> Array:
    """Returns how much the tasks of each pair help each other, relative to the median spread (see `natural_groups`)."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    low = np.nanmin(others, axis=0)
    usual = np.median(np.nanmax(others, axis=0) - low)
    above = (others - low) / (usual or 1.0)
    return np.asarray((above + above.T) / 2)


def threshold_range(affinity: Affinity, groups: Iterable[Collection[str]]) -> tuple[float, float] | None:
    """Returns the range of thresholds around `THRESHOLD` that yield exactly these groups, or None if there is none.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> low, high = threshold_range(Affinity.from_matrix(matrix, list("abcd")), ["ab", "cd"])
        >>> round(low, 2), round(high, 2)
        (0.07, 0.93)
    """
    wanted = {frozenset(group) for group in groups}
    help_levels = mutual_help(affinity)
    levels = np.unique([0.0, *help_levels[np.isfinite(help_levels)]]).tolist()
    # Between two levels, the groups stay the same.
    same = [set(natural_groups(affinity, level)) == wanted for level in levels]
    low = high = int(np.searchsorted(levels, THRESHOLD))
    if low == len(levels) or not same[low]:
        return None
    while low > 1 and same[low - 1]:
        low -= 1
    while high + 1 < len(levels) and same[high + 1]:
        high += 1
    return levels[low - 1], levels[high]


def group_margin(affinity: Affinity, group: Collection[str]) -> float:
    """Returns the margin by which a group is natural. A negative margin means that the group is not natural.

    The margin is the smaller of two distances: how far all pairs in the group exceed the threshold, and how far every
    other task falls short of it with at least one member.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]], list("abcd"))
        >>> group_margin(affinity, "ab") > 0, group_margin(affinity, "ac") > 0
        (True, False)
    """
    member = np.isin(affinity.tasks, list(group))
    help_inside = mutual_help(affinity)[:, member]  # [tasks, members], with NaN on the diagonal
    weakest = np.nanmin(help_inside, axis=1)
    return float(min(weakest[member].min() - THRESHOLD, np.min(THRESHOLD - weakest[~member], initial=np.inf)))


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
            claims.append(Claim(text, judge_lower(np.zeros(len(margins)), margins), because))
    return claims


def _format_groups(groups: Iterable[Collection[str]]) -> str:
    return " ".join(sorted(f"{{{', '.join(sorted(group))}}}" for group in groups)) or "-"
