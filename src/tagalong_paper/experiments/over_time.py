"""`over-time`: how affinities change during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import pluralize
from tagalong.report import affinity_over_training

from ..experiment_setup import Array, ExperimentSetup, off_diagonal
from ..report import Claim, Report, ReportTable, Value, claim_all_lower, judge_lower, summarize

TITLE = "How do affinities change over training?"
SHOWN_TARGETS = ("a1", "a5", "a6")  # as in the paper
INITIAL_FRACTION = 0.01  # fraction of training that counts as the "initial steps"
MAX_SHOWN_EPOCHS = 12


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities at every step.

    Shows the sums per epoch for the first seed, as in the paper, and the first steps of all seeds.
    """
    with setup.open_runner() as runner:
        by_seed = setup.measure(runner, every=1).values()
    shorts = setup.short_names()
    measured = [replace(affinity, tasks=shorts) for affinity in by_seed]
    steps = -(-len(setup.chosen.train) // setup.chosen.recipe.batch_size)
    halves = [half_epoch_sums(affinity, steps) for affinity in measured]
    epochs = halves[0].sum(1)
    shown = np.linspace(0, len(epochs) - 1, min(len(epochs), MAX_SHOWN_EPOCHS)).round().astype(int)
    targets = [short for short in SHOWN_TARGETS if short in shorts] or shorts[:3]
    tables = []
    for target in targets:
        onto = 1000 * epochs[shown, :, shorts.index(target)]
        sums = {source: map(Value, column) for source, column in zip(shorts, onto.T.tolist(), strict=True)}
        del sums[target]
        title = f"Total affinity × 1000 onto {target}, by epoch"
        tables.append(ReportTable.of_columns(title, {"epoch": (shown + 1).tolist(), **sums}))
    first, later = zip(*map(split_first_steps, measured), strict=True)
    rows = []
    for name, parts in (("first steps", first), ("later steps", later)):
        if None not in parts:
            positive = summarize([100 * (off_diagonal(part) > 0).mean() for part in parts])
            rows.append((name, len(parts[0].steps), positive, summarize(list(map(relative_spread, parts)))))
    seed = setup.seeds[0]
    return Report(
        "over-time",
        TITLE,
        tables=[*tables, ReportTable("The first steps", ("part", "steps", "positive, %", "spread / size"), rows)],
        claims=[claim_positive(first), claim_more_alike(first, later), claim_order_changes(epochs, halves)],
        figures={"over-time": affinity_over_training(measured[0], targets, title=f"{TITLE} Seed {seed}")},
        notes=[
            *setup.notes,
            f"totals and reversals: seed {seed}, {len(measured[0].steps)} steps in {pluralize(len(epochs), 'epoch')}",
        ],
        numbers={"reversals": count_reversals(epochs), "comparisons": count_comparisons(epochs)},
    )


def half_epoch_sums(affinity: Affinity, steps: int) -> Array:
    """Returns separate sums over the even and the odd steps of each epoch, as an array [epochs, 2, source, target]."""
    epochs, n = affinity.steps // steps, len(affinity.tasks)
    sums = np.zeros((epochs[-1] + 1, 2, n, n))
    np.add.at(sums, (epochs, affinity.steps % 2), np.nan_to_num(affinity.history))
    return sums


def split_first_steps(affinity: Affinity) -> tuple[Affinity, Affinity | None]:
    """Splits the measured steps into the first 1% of training (at least three steps) and all later steps, if any."""
    count = max(3, round(INITIAL_FRACTION * len(affinity.steps)))
    if count >= len(affinity.steps):
        return affinity, None
    cut, end = int(affinity.steps[count]), int(affinity.steps[-1]) + 1
    return affinity.between(0, cut), affinity.between(cut, end)


def count_reversals(epochs: Array) -> int:
    """Counts how often two sources of the same target swap ranks from one epoch to the next.

    Example:
        >>> first = [[0.0, 1.0, 5.0], [1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]
        >>> later = [[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [1.0, 2.0, 0.0]]
        >>> count_reversals(np.array([first, later]))
        1
    """
    others = np.where(np.eye(epochs.shape[1], dtype=bool), np.nan, epochs)
    order = np.sign(others[:, :, None] - others[:, None])  # [epochs, source, other source, target]
    return int(np.sum(order[1:] * order[:-1] < 0)) // 2  # each pair of sources appears twice


def count_comparisons(epochs: Array) -> int:
    """Returns the number of possible reversals."""
    n: int = epochs.shape[1]
    return n * (n - 1) * (n - 2) // 2 * (len(epochs) - 1)


def relative_spread(affinity: Affinity) -> float:
    """Returns the relative spread of affinities (standard deviation over mean), as the median over targets."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    return float(np.median(np.nanstd(others, axis=0) / np.abs(np.nanmean(others, axis=0))))


def claim_positive(first: Sequence[Affinity]) -> Claim:
    """Judges whether all affinities between different tasks are positive in the first steps."""
    tasks = first[0].tasks
    names = [f"{source} onto {target}" for source in tasks for target in tasks if source != target]
    by_pair = np.transpose([off_diagonal(affinity) for affinity in first])  # [pairs, seeds]
    pairs = {name: (np.zeros(len(first)), by_seed) for name, by_seed in zip(names, by_pair, strict=True)}
    claim = claim_all_lower("in the first steps all affinities are positive", pairs)
    return replace(claim, because=f"{(by_pair > 0).mean():.0%} are, in {len(first[0].steps)} steps; {claim.because}")


def claim_more_alike(first: Sequence[Affinity], later: Sequence[Affinity | None]) -> Claim:
    """Judges whether the relative spread of the affinities for a target is lower in the first steps than later."""
    text = "in the first steps affinities are more alike than later"
    after = [relative_spread(affinity) for affinity in later if affinity is not None]
    if len(after) < len(first):
        return Claim(text, "not tested", "no later steps were measured")
    return claim_all_lower(text, {"spread over size": (list(map(relative_spread, first)), after)}, " in later steps")


def claim_order_changes(epochs: Array, halves: Sequence[Array]) -> Claim:
    """Judges whether the ranking of sources changes more often between epochs than noise explains.

    Args:
        epochs: the per-epoch sums for the seed whose reversals are reported.
        halves: the `half_epoch_sums` of every seed. The network is nearly the same for both halves of an epoch, so
            the halves differ only by noise.
    """
    text = "the order of sources changes during training"
    changed, possible = count_reversals(epochs), count_comparisons(epochs)
    if not possible or min(map(len, halves)) < 2:
        return Claim(text, "not tested", "needs two epochs and two sources onto a task")
    noise: list[float] = []
    later: list[float] = []
    for sums in halves:
        # One half of each epoch against the other half of the next one, so that no step is in both.
        crossed = [np.stack([before[h], after[1 - h]]) for before, after in pairwise(sums) for h in (0, 1)]
        for fractions, pairs in ((noise, sums), (later, crossed)):
            fractions.append(sum(map(count_reversals, pairs)) / sum(map(count_comparisons, pairs)))
    because = (
        f"{changed} reversals from epoch to epoch in {possible} comparisons of two sources: {changed / possible:.0%}; "
        f"with half the steps {np.mean(later):.0%}, and {np.mean(noise):.0%} between the halves of one epoch"
    )
    if not changed:
        return Claim(text, "no", because)
    return Claim(text, "yes" if judge_lower(noise, later) == "yes" else "within noise", because)
