"""`over-time`: how affinities change during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

from ..affinities import measure_every_step, with_short_names
from ..claims import claim_all_lower, judge_lower, summarize
from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import draw_panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "How do affinities change over training?"
SHOWN_TARGETS = ("5_o_Clock_Shadow", "Goatee", "Mustache")  # the paper's a1, a5 and a6
INITIAL_FRACTION = 0.01  # fraction of training that counts as the "initial steps"
Floats = NDArray[np.float64]


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities at every step.

    Shows the sums per epoch for the first seed, as in the paper, and the first steps of all seeds.
    """
    with setup.open_backend() as backend:
        found = measure_every_step(backend, setup.seeds)
    affinity = found[setup.seeds[0]]
    recipe, rows = setup.chosen.recipe, len(setup.chosen.train)
    steps = -(-rows // recipe.batch_size)
    epochs, split = epoch_sums(affinity, steps), [half_epoch_sums(one, steps) for one in found.values()]
    targets = [task for task in SHOWN_TARGETS if task in affinity.tasks] or list(affinity.tasks[:3])
    first_parts, later_parts = zip(*map(split_first_steps, found.values()), strict=True)
    return Report(
        "over-time",
        TITLE,
        tables=[_epoch_table(setup, epochs, task, affinity) for task in targets]
        + [_initial_table(first_parts, later_parts)],
        claims=[
            claim_positive(first_parts),
            claim_more_alike(first_parts, later_parts),
            claim_order_changes(epochs, split),
        ],
        figures={
            "over-time": _figure(
                with_short_names(setup, affinity), epochs, [setup.short_name(task) for task in targets], setup.seeds[0]
            )
        },
        notes=[
            *setup.notes,
            f"totals and reversals: seed {setup.seeds[0]}, {len(affinity.steps)} steps in {len(epochs)} epochs",
        ],
        numbers={"reversals": count_reversals(epochs), "comparisons": count_comparisons(epochs)},
    )


def epoch_sums(affinity: Affinity, steps: int) -> Floats:
    """Returns sums over the measured steps of each epoch (epochs × n × n)."""
    epochs = affinity.steps // steps
    sums = [np.nansum(affinity.history[epochs == epoch], axis=0) for epoch in np.unique(epochs)]
    return np.stack(sums)


def split_first_steps(affinity: Affinity) -> tuple[Affinity, Affinity | None]:
    """Splits the measured steps into the first 1% of training (at least three steps) and all later steps, if any."""
    count = max(3, round(INITIAL_FRACTION * len(affinity.steps)))
    if count >= len(affinity.steps):
        return affinity, None
    cut, end = int(affinity.steps[count]), int(affinity.steps[-1]) + 1
    return affinity.between(0, cut), affinity.between(cut, end)


def count_reversals(epochs: Floats) -> int:
    """Counts how often two sources of the same target swap ranks from one epoch to the next.

    Example:
        >>> first = [[0.0, 1.0, 5.0], [1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]
        >>> later = [[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [1.0, 2.0, 0.0]]
        >>> count_reversals(np.array([first, later]))
        1
    """
    n, count = epochs.shape[1], 0
    for target in range(n):
        for one, other in combinations([i for i in range(n) if i != target], 2):
            signs = np.sign(epochs[:, one, target] - epochs[:, other, target])
            count += int((signs[1:] * signs[:-1] < 0).sum())
    return count


def count_comparisons(epochs: Floats) -> int:
    """Returns the number of possible reversals."""
    count, n = len(epochs), len(epochs[0])
    return n * (n - 1) * (n - 2) // 2 * (count - 1)


def half_epoch_sums(affinity: Affinity, steps: int) -> Floats:
    """Returns separate sums over the even and the odd steps of each epoch (epochs × 2 × n × n)."""
    epochs, parity = affinity.steps // steps, affinity.steps % 2
    sums = [
        [np.nansum(affinity.history[(epochs == epoch) & (parity == half)], axis=0) for half in (0, 1)]
        for epoch in np.unique(epochs)
    ]
    return np.array(sums)


def _fraction_reversed(pairs: Sequence[Floats]) -> float:
    return sum(map(count_reversals, pairs)) / sum(map(count_comparisons, pairs))


def _relative_spread(affinity: Affinity) -> float:
    """Returns the relative spread of affinities (standard deviation over mean), as the median over targets."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    return float(np.median(np.nanstd(others, axis=0) / np.abs(np.nanmean(others, axis=0))))


def _fraction_positive(affinity: Affinity) -> float:
    off = ~np.eye(len(affinity.tasks), dtype=bool)
    return float((affinity.mean[off] > 0).mean())


def _epoch_table(setup: ExperimentSetup, epochs: Floats, task: str, affinity: Affinity) -> ReportTable:
    target = affinity.tasks.index(task)
    sources = [i for i in range(len(affinity.tasks)) if i != target]
    shown = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), 12)).round().astype(int))
    rows: list[list[Cell]] = [
        [int(epoch) + 1, *(Value(1000 * epochs[epoch, i, target]) for i in sources)] for epoch in shown
    ]
    columns = ("epoch", *(setup.short_name(affinity.tasks[i]) for i in sources))
    return ReportTable(f"Total affinity × 1000 onto {setup.short_name(task)}, by epoch", columns, rows)


def _initial_table(first_parts: Sequence[Affinity], later_parts: Sequence[Affinity | None]) -> ReportTable:
    rows: list[list[Cell]] = []
    for name, parts_of_seeds in (("first steps", first_parts), ("later steps", later_parts)):
        known = [part for part in parts_of_seeds if part is not None]
        if known:
            measures = ([100 * _fraction_positive(part) for part in known], [_relative_spread(part) for part in known])
            rows.append([name, len(known[0].steps), *map(summarize, measures)])
    return ReportTable("The first steps", ("part", "steps", "positive, %", "spread / size"), rows)


def claim_positive(first_parts: Sequence[Affinity]) -> Claim:
    """Judges whether all affinities between different tasks are positive in the first steps."""
    tasks, means = first_parts[0].tasks, np.stack([start.mean for start in first_parts])
    pairs = {
        f"{source} onto {target}": ([0.0] * len(first_parts), means[:, i, j].tolist())
        for i, source in enumerate(tasks)
        for j, target in enumerate(tasks)
        if i != j
    }
    found = claim_all_lower("in the first steps all affinities are positive", pairs)
    fraction = float(np.mean([_fraction_positive(start) for start in first_parts]))
    return replace(found, because=f"{fraction:.0%} are, in {len(first_parts[0].steps)} steps; {found.because}")


def claim_more_alike(first_parts: Sequence[Affinity], later_parts: Sequence[Affinity | None]) -> Claim:
    """Judges whether the relative spread of the affinities for a target is lower in the first steps than later."""
    text = "in the first steps affinities are more alike than later"
    known = [later for later in later_parts if later is not None]
    if len(known) < len(first_parts):
        return Claim(text, "not tested", "no later steps were measured")
    first, then = ([_relative_spread(part) for part in seeds] for seeds in (first_parts, known))
    return claim_all_lower(text, {"spread over size": (first, then)}, " in later steps")


def claim_order_changes(epochs: Floats, half_sums: Sequence[Floats]) -> Claim:
    """Judges whether the ranking of sources changes more often between epochs than noise explains.

    Args:
        epochs: the per-epoch sums for the seed whose reversals are reported.
        half_sums: the `half_epoch_sums` of every seed. The network is nearly the same for both halves of an epoch, so
            the halves differ only by noise.
    """
    text, changed, possible = (
        "the order of sources changes during training",
        count_reversals(epochs),
        count_comparisons(epochs),
    )
    if not possible or min(map(len, half_sums)) < 2:
        return Claim(text, "not tested", "needs two epochs and two sources onto a task")
    noise = [_fraction_reversed(list(both)) for both in half_sums]
    later = [
        _fraction_reversed(
            [np.stack([before[half], after[1 - half]]) for before, after in pairwise(both) for half in (0, 1)]
        )
        for both in half_sums
    ]
    because = (
        f"{changed} reversals from epoch to epoch in {possible} comparisons of two sources: {changed / possible:.0%}; "
        f"with half the steps {np.mean(later):.0%}, and {np.mean(noise):.0%} between the halves of one epoch"
    )
    if not changed:
        return Claim(text, "no", because)
    return Claim(text, "yes" if judge_lower(noise, later) == "yes" else "within noise", because)


def _figure(affinity: Affinity, epochs: Floats, targets: Sequence[str], seed: int) -> Figure:
    tasks = affinity.tasks
    shown = {
        f"onto {target}": {
            source: (1000 * epochs[:, tasks.index(source), tasks.index(target)]).tolist()
            for source in tasks
            if source != target
        }
        for target in targets
    }
    return draw_panels(
        shown, tasks, title=f"{TITLE} Seed {seed}", xlabel="epoch", ylabel="total affinity × 1000 in an epoch"
    )
