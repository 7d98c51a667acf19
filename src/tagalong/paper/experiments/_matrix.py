"""`matrix`: heat maps of the published affinities and of ours, with the groups that stand out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.report import affinity_heatmap

from .._affinities import measured, named, pooled
from .._judge import lower
from .._natural import SHARE, margin, natural_groups, shares_giving
from .._published import Published
from .._report import Cell, Claim, Report, Sheet, Value

if TYPE_CHECKING:
    from .._bench import Bench

TITLE = "Which groups stand out in the affinities?"
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
