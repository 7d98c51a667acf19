"""`matrix`: heat maps of the published affinities and of ours, with the groups that stand out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.report import affinity_heatmap

from ..affinities import measured, named, pooled
from ..claims import lower
from ..printed import Published
from ..report import Cell, Claim, Report, Sheet, Value

if TYPE_CHECKING:
    from ..bench import Bench

TITLE = "Which groups stand out in the affinities?"
SHARE = 0.3  # fitted: with it the published matrices give the groups that the paper names
NOTE = f"every two tasks help each other by {SHARE:g} of the usual spread or more, above the worst partner"
NAMED = {
    "celeba_tag": ({"a1", "a7"}, {"a2", "a3", "a4"}, {"a5", "a6", "a7"}),
    "taskonomy_tag": ({"s", "d", "n"}, {"t", "k"}),
}


def run(bench: Bench) -> Report:
    """The two published matrices, and one measured here at every tenth step (at small size, every step)."""
    with bench.lab() as lab:
        measured_by_seed = measured(lab, bench.seeds, every=1 if bench.small else 10)
    each = [named(bench, affinity) for affinity in measured_by_seed.values()]
    ours = named(bench, pooled(measured_by_seed))
    matrices = {f"{key.partition('_')[0]} (published)": Published(key).affinity for key in NAMED}
    titles = {"celeba (published)": "CelebA", "taskonomy (published)": "Taskonomy"}
    figures = {
        f"matrix-{name.partition(' ')[0]}-published": affinity_heatmap(affinity, centre="target", title=titles[name])
        for name, affinity in matrices.items()
    }
    matrices[f"{bench.problem.name} (ours)"] = ours
    figures["matrix-ours"] = affinity_heatmap(ours, centre="target", title=f"{bench.problem.name}, measured here")
    rows = [
        (name, _listed(natural_groups(affinity)), _listed(NAMED.get(f"{name.partition(' ')[0]}_tag", ())))
        for name, affinity in matrices.items()
    ]
    sheet = Sheet("Groups that stand out", ("matrix", "found", "printed"), rows, NOTE)
    claims = [*_published_claims(), *own_claims(NAMED.get(f"{bench.printed}_tag", ()), each)]
    return Report(
        "matrix", TITLE, [sheet, _numbers(ours)], claims, figures, bench.about, {"affinity": ours.mean.tolist()}
    )


def natural_groups(affinity: Affinity, share: float = SHARE) -> list[frozenset[str]]:
    """Largest sets of tasks in which every two help each other clearly, larger ones first.

    How much a source helps is read above the lowest affinity onto its target, so that levels of targets do not matter,
    and measured by the usual spread onto a target. A pair is together if both directions average above `share` of it.
    With 0.3 the published matrices give exactly the groups that the paper names; `shares_giving` tells how exact that
    number must be.

    Args:
        affinity: who helps whom.
        share: of the median spread.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> sorted(map(sorted, natural_groups(Affinity.from_matrix(matrix, list("abcd")))))
        [['a', 'b'], ['c', 'd']]
    """
    together = mutual(affinity) >= share
    found: list[frozenset[str]] = []
    for size in range(len(affinity.tasks), 1, -1):
        for members in combinations(range(len(affinity.tasks)), size):
            names = frozenset(affinity.tasks[i] for i in members)
            if all(together[i, j] for i, j in combinations(members, 2)) and not any(names <= other for other in found):
                found.append(names)
    return found


def mutual(affinity: Affinity) -> NDArray[np.float64]:
    """How much every two tasks help each other, above the lowest affinity onto each, in shares of the usual spread."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    low = np.nanmin(others, axis=0)
    usual = float(np.median(np.nanmax(others, axis=0) - low))
    above: NDArray[np.float64] = (others - low) / (usual or 1.0)
    return (above + above.T) / 2


def shares_giving(affinity: Affinity, groups: Iterable[Collection[str]]) -> tuple[float, float] | None:
    """The lowest and the highest share around `SHARE` for which exactly these groups are natural; None: not even there.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> low, high = shares_giving(Affinity.from_matrix(matrix, list("abcd")), ["ab", "cd"])
        >>> round(low, 2), round(high, 2)
        (0.07, 0.93)
    """
    wanted = {frozenset(group) for group in groups}
    found = mutual(affinity)
    levels = np.unique([0.0, *found[np.isfinite(found)]])  # between two levels the groups stay the same
    same = [(low, high) for low, high in pairwise(levels) if set(natural_groups(affinity, high)) == wanted]
    around = next((place for place, (low, high) in enumerate(same) if low < SHARE <= high), None)
    if around is None:
        return None
    first = last = around
    while first > 0 and same[first - 1][1] == same[first][0]:
        first -= 1
    while last + 1 < len(same) and same[last + 1][0] == same[last][1]:
        last += 1
    return float(same[first][0]), float(same[last][1])


def margin(affinity: Affinity, group: Collection[str], share: float = SHARE) -> float:
    """How far a group is from not being natural: above zero exactly if it is one.

    The least of how much any two of its tasks are above the share, and how much any other task misses it with one.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]], list("abcd"))
        >>> margin(affinity, "ab") > 0, margin(affinity, "ac") > 0
        (True, False)
    """
    found, inside = mutual(affinity), [affinity.tasks.index(task) for task in group]
    outside = [i for i in range(len(affinity.tasks)) if i not in inside]
    together = min(found[i, j] for i, j in combinations(inside, 2)) - share
    apart = [share - min(found[i, j] for j in inside) for i in outside]
    return float(min([together, *apart]))


def _numbers(affinity: Affinity) -> Sheet:
    rows: list[list[Cell]] = [
        [source, *(Value(1000 * affinity.mean[i, j], 1000 * affinity.stderr[i, j]) for j in range(len(affinity.tasks)))]
        for i, source in enumerate(affinity.tasks)
    ]
    return Sheet("Our affinities × 1000: the row helps the column", ("", *affinity.tasks), rows)


def _published_claims() -> list[Claim]:
    claims = []
    for key, groups in NAMED.items():
        affinity = Published(key).affinity
        holds = shares_giving(affinity, groups)
        text = f"in {Published(key).dataset}'s matrix the groups {_listed(groups)} form, by a rule fitted to them"
        shares = "" if holds is None else f"; for shares from {holds[0]:.3f} to {holds[1]:.3f}, {SHARE:g} was taken"
        found = f"found: {_listed(natural_groups(affinity))}{shares}"
        claims.append(Claim(text, "no" if holds is None else "yes", found))
    return claims


def own_claims(groups: Iterable[set[str]], each: Sequence[Affinity]) -> list[Claim]:
    """Whether the paper's groups stand out by the same rule in our matrices, one for each seed.

    Args:
        groups: as the paper names them; those with a task that is not in the matrices are left out.
        each: a matrix for each seed.
    """
    claims = []
    for group in groups:
        if group <= set(each[0].tasks):
            margins = [margin(affinity, group) for affinity in each]
            text = f"in our matrix the group {_listed([group])} forms by the same rule"
            because = (
                f"{np.mean(margins):.2f} of the usual spread from the rule's limit, mean over seeds; above zero: forms"
            )
            claims.append(Claim(text, lower([0.0] * len(margins), margins), because))
    return claims


def _listed(groups: object) -> str:
    assert isinstance(groups, (list, tuple))
    return " ".join(sorted(f"{{{', '.join(sorted(group))}}}" for group in groups)) or "-"
