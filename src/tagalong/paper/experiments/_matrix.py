"""`matrix`: heat maps of the published affinities and of ours, with the groups that stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong.affinity import Affinity
from tagalong.report import affinity_heatmap

from .._affinities import measured, named, pooled
from .._natural import natural_groups
from .._published import Published
from .._report import Cell, Claim, Report, Sheet, Value

if TYPE_CHECKING:
    from .._bench import Bench

TITLE = "Which groups stand out in the affinities?"
NAMED = {
    "celeba_tag": ({"a1", "a7"}, {"a2", "a3", "a4"}, {"a5", "a6", "a7"}),
    "taskonomy_tag": ({"s", "d", "n"}, {"t", "k"}),
}


def run(bench: Bench) -> Report:
    """The two published matrices, and one measured here at every tenth step (at small size, every step)."""
    with bench.lab() as lab:
        ours = named(bench, pooled(measured(lab, bench.seeds, every=1 if bench.small else 10)))
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
    sheet = Sheet(
        "Groups that stand out", ("matrix", "found", "printed"), rows, "every two tasks help each other clearly"
    )
    return Report(
        "matrix", TITLE, [sheet, _numbers(ours)], _claims(), figures, bench.about, {"affinity": ours.mean.tolist()}
    )


def _numbers(affinity: Affinity) -> Sheet:
    rows: list[list[Cell]] = [
        [source, *(Value(1000 * affinity.mean[i, j], 1000 * affinity.stderr[i, j]) for j in range(len(affinity.tasks)))]
        for i, source in enumerate(affinity.tasks)
    ]
    return Sheet("Our affinities × 1000: the row helps the column", ("", *affinity.tasks), rows)


def _claims() -> list[Claim]:
    claims = []
    for key, groups in NAMED.items():
        found = natural_groups(Published(key).affinity)
        same = {frozenset(group) for group in groups} == set(found)
        text = f"in {Published(key).dataset}'s matrix the groups {_listed(groups)} form naturally"
        claims.append(Claim(text, "yes" if same else "no", f"found: {_listed(found)}"))
    return claims


def _listed(groups: object) -> str:
    assert isinstance(groups, (list, tuple))
    return " ".join(sorted(f"{{{', '.join(sorted(group))}}}" for group in groups)) or "-"
