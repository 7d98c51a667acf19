"""`over-time`: affinities while the network learns."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.report import affinity_over_training

from .._affinities import every_step, named
from .._report import Cell, Claim, Report, Sheet, Value

if TYPE_CHECKING:
    from .._bench import Bench

TITLE = "How do affinities change over training?"
ONTO = ("5_o_Clock_Shadow", "Goatee", "Mustache")  # the paper's a1, a5 and a6
FIRST = 0.01  # of the training: its "initial steps"
Floats = NDArray[np.float64]


def run(bench: Bench) -> Report:
    """Measures at every step of the first seed, and sums by epoch as the paper's figure does."""
    with bench.lab() as lab:
        affinity = every_step(lab, bench.seeds[:1])[bench.seeds[0]]
    recipe, rows = bench.chosen.recipe, len(bench.chosen.train)
    epochs = per_epoch(affinity, -(-rows // recipe.batch_size))
    onto = [task for task in ONTO if task in affinity.tasks] or list(affinity.tasks[:3])
    start = first_steps(affinity)
    shown = named(bench, affinity)
    return Report(
        "over-time",
        TITLE,
        sheets=[_epochs(bench, epochs, task, affinity) for task in onto] + [_start(bench, affinity, start)],
        claims=_claims(affinity, epochs, start),
        figures={"over-time": affinity_over_training(shown, [bench.short(task) for task in onto], title=TITLE)},
        notes=[*bench.about, f"seed {bench.seeds[0]}, {len(affinity.steps)} measured steps in {len(epochs)} epochs"],
        numbers={"reversals": reversals(epochs), "pairs": _comparisons(len(affinity.tasks))},
    )


def per_epoch(affinity: Affinity, steps: int) -> Floats:
    """Sums over the measured steps of each epoch (epochs × n × n)."""
    epochs = affinity.steps // steps
    sums = [np.nansum(affinity.history[epochs == epoch], axis=0) for epoch in np.unique(epochs)]
    return np.stack(sums)


def first_steps(affinity: Affinity) -> Affinity:
    """The first hundredth of the training, at least three steps."""
    count = max(3, round(FIRST * len(affinity.steps)))
    return affinity.between(0, int(affinity.steps[min(count, len(affinity.steps)) - 1]) + 1)


def reversals(epochs: Floats) -> int:
    """How often, over all targets and pairs of sources, the order of two sources changes from an epoch to the next.

    Example:
        >>> first = [[0.0, 1.0, 5.0], [1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]
        >>> later = [[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [1.0, 2.0, 0.0]]
        >>> reversals(np.array([first, later]))
        1
    """
    n, count = epochs.shape[1], 0
    for target in range(n):
        for one, other in combinations([i for i in range(n) if i != target], 2):
            signs = np.sign(epochs[:, one, target] - epochs[:, other, target])
            count += int((signs[1:] * signs[:-1] < 0).sum())
    return count


def _comparisons(n: int) -> int:
    return n * (n - 1) * (n - 2) // 2


def _spread_over_size(affinity: Affinity) -> float:
    """How unlike affinities onto a task are, against how large they are; the median over targets."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    return float(np.median(np.nanstd(others, axis=0) / np.abs(np.nanmean(others, axis=0))))


def _share_positive(affinity: Affinity) -> float:
    off = ~np.eye(len(affinity.tasks), dtype=bool)
    return float((affinity.mean[off] > 0).mean())


def _epochs(bench: Bench, epochs: Floats, task: str, affinity: Affinity) -> Sheet:
    target = affinity.tasks.index(task)
    sources = [i for i in range(len(affinity.tasks)) if i != target]
    shown = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), 12)).round().astype(int))
    rows: list[list[Cell]] = [
        [int(epoch) + 1, *(Value(1000 * epochs[epoch, i, target]) for i in sources)] for epoch in shown
    ]
    columns = ("epoch", *(bench.short(affinity.tasks[i]) for i in sources))
    return Sheet(f"Total affinity × 1000 onto {bench.short(task)}, by epoch", columns, rows)


def _start(bench: Bench, affinity: Affinity, start: Affinity) -> Sheet:
    rows: list[list[Cell]] = [
        [name, len(found.steps), Value(100 * _share_positive(found)), Value(_spread_over_size(found))]
        for name, found in (("first steps", start), ("all steps", affinity))
    ]
    return Sheet("The first steps", ("part", "steps", "positive, %", "spread / size"), rows)


def _claims(affinity: Affinity, epochs: Floats, start: Affinity) -> list[Claim]:
    positive, alike = _share_positive(start), _spread_over_size(start) < _spread_over_size(affinity)
    changed, pairs = reversals(epochs), _comparisons(len(affinity.tasks))
    return [
        Claim(
            "in the first steps all affinities are positive",
            "yes" if positive == 1 else "no",
            f"{positive:.0%} of them, in {len(start.steps)} steps",
        ),
        Claim(
            "in the first steps affinities are more alike than later",
            "yes" if alike else "no",
            f"spread over size {_spread_over_size(start):.2f}, over all steps {_spread_over_size(affinity):.2f}",
        ),
        Claim(
            "the order of sources changes during training",
            "yes" if changed else "no",
            f"{changed} reversals from epoch to epoch, among {pairs} pairs of sources",
        ),
    ]
