"""The ways of using several networks that the verdict compares, and how well each is expected to do."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tagalong.group import Group
from tagalong.score import Score

from .records import TOGETHER, Label, Record, by_label
from .relative_losses import relative_change
from .summary import changes, mean, stderr

COPIES = ("ensemble", "best-of")  # methods that average copies of the network for all tasks
PICKING = ("hoa", "optimal", "chosen", "best-of")  # methods that pick the networks with the best validation losses
LARGER = ("mtl-big", "mtl-wide")
RecordsByLabel = Mapping[Label, Sequence[Record]]


@dataclass(frozen=True)
class Candidate:
    """A way of using several networks, which may be recommended.

    Attributes:
        label: the method and budget.
        groups: the networks of the first seed.
        size: the number of networks in use. A larger network counts as the number of plain networks with about as many
            parameters, so `mtl-big3` and a network of size 3 found by `auto` are ways of using a budget of 3.
        validation: the relative change in validation loss from one network, averaged over tasks and seeds.
        luck: how much of `validation` may be due to picking (see `luck_of_picking`).
        effort: the number of networks that were trained for each seed to decide on these.
    """

    label: Label
    groups: tuple[Group, ...]
    size: int
    validation: float
    luck: float
    effort: float = 0.0

    @property
    def expected(self) -> float:
        """The expected change in loss: the change on validation, less what may be due to the luck of picking."""
        return self.validation + self.luck

    @property
    def is_copies(self) -> bool:
        """Whether all networks are copies of the network for all tasks."""
        return self.label[0] in COPIES

    @property
    def is_larger(self) -> bool:
        """Whether this is one larger network."""
        return is_larger(self.label)

    def price(self, at_least: float) -> float:
        """Returns the fraction by which the networks must reduce the losses: `at_least` for each additional network."""
        return at_least * (self.size - 1)

    def rank(self, at_least: float = 0.0) -> tuple[float, int, str]:
        """Returns a key that sorts candidates by expected loss and price; smaller ones come first among equals."""
        return self.expected + self.price(at_least), self.size, str(self.label)


def is_larger(label: Label) -> bool:
    """Returns whether a method trains one larger network for all tasks.

    Example:
        >>> is_larger(("mtl-big2", None)), is_larger(("mtl", None))
        (True, False)
    """
    return label[0].startswith(LARGER)


def find_candidates(records_by_label: RecordsByLabel, diverged: Collection[Label] = ()) -> dict[Label, Candidate]:
    """Returns the ways of using several networks that can be recommended.

    They have records for all seeds of `mtl`, and no network diverged. Networks trained with a rule (e.g. "tag+pcgrad")
    are excluded, since the effect of grouping could not be separated from the effect of the rule. The oracle and
    averages over groupings are excluded, too. If `auto` found groups, they stand for all groupings: `auto` searches the
    same groupings, but accounts for luck. Copies and larger networks are always included.
    """
    together = records_by_label[TOGETHER]
    seeds = {record.seed for record in together}
    found = {}
    for label, records in records_by_label.items():
        usable = "+" not in label[0] and label not in diverged and all(record.honest for record in records)
        size = _size(label, records, together) if usable and seeds == {record.seed for record in records} else None
        change = mean(changes(records, together, "val"))
        if size is not None and math.isfinite(change):
            luck, effort = luck_of_picking(records, together), mean([record.deciding.networks for record in records])
            found[label] = Candidate(label, records[0].groups, size, change, luck, effort)
    if any(label[0] == "auto" for label in found):
        return {label: one for label, one in found.items() if label[0] == "auto" or one.is_copies or one.is_larger}
    return found


def _size(label: Label, records: Sequence[Record], together: Sequence[Record]) -> int | None:
    """Returns the number of networks, or None if this is just one plain network, or no networks are known."""
    if is_larger(label):
        parameters = mean([record.parameters for record in records])
        plain = mean([record.parameters for record in together])
        return max(1, round(parameters / plain)) if parameters and plain else None
    if not all(record.groups for record in records) or all(r.groups == together[0].groups for r in records):
        return None
    return max(sum(group.size for group in record.groups) for record in records)


def luck_of_picking(records: Sequence[Record], together: Sequence[Record]) -> float:
    """Returns how much of a validation change may be due to the luck of the networks that a method picked.

    Methods such as `hoa`, `optimal` and `best-of` train more networks than they use, and pick those with the best
    validation losses. Some of these losses are low by chance. The best of two to five equally good networks is expected
    to be 0.6 to 1.2 standard errors better than the average, so one standard error is taken off, as in the
    one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984). Standard errors are those of
    each task over seeds. They are averaged over tasks, since a method picks a network for each task, so that luck adds
    up.

    Methods that pick no networks by their losses have no such luck. Neither has `auto`, which shrinks its estimates.
    With a single seed, the luck is unknown and taken as zero.
    """
    method, picked = records[0].method, records[0].deciding.networks > 1
    if method == "auto" or not (picked or method in PICKING):
        return 0.0
    same_seed = {record.seed: record for record in together}
    pairs = [(record.val, same_seed[record.seed].val) for record in records if record.seed in same_seed]
    if len(pairs) < 2:
        return 0.0
    errors = [
        stderr([relative_change(mine[task].loss, theirs[task].loss) for mine, theirs in pairs]) for task in pairs[0][0]
    ]
    return mean(errors)


def matching_copies(candidates: Mapping[Label, Candidate], candidate: Candidate) -> Label | None:
    """Returns the copies with which a candidate is compared, or None if there are none.

    They have as many networks, and their effort is closest to that of the candidate, so that networks which were picked
    from many are compared with copies which were picked from many. One plain network is a copy, too. Copies are not
    compared with other copies.
    """
    if candidate.is_copies or candidate.label == TOGETHER:
        return None
    found = [one for one in candidates.values() if one.is_copies and one.size == candidate.size]
    best = min(found, key=lambda one: (abs(one.effort - candidate.effort), one.rank()), default=None)
    if best is not None:
        return best.label
    return TOGETHER if candidate.size == 1 else None


def distinct_candidates(candidates: Mapping[Label, Candidate]) -> dict[Label, Candidate]:
    """Returns the candidates without those that use the same networks as another one."""
    kept: dict[tuple[object, ...], Candidate] = {}
    for label, one in candidates.items():
        kept.setdefault((one.groups, label[0] if one.is_larger else None), one)
    return {one.label: one for one in kept.values()}


def comparable_records(records: Sequence[Record]) -> list[list[Record]]:
    """Returns the records of `mtl` and of each distinct way of using networks that the verdict may recommend."""
    found = by_label(records)
    diverged = [record.label for record in records if record.diverged]
    return [found[label] for label in (TOGETHER, *distinct_candidates(find_candidates(found, diverged)))]


def without_tasks(records: Sequence[Record], tasks: Collection[str]) -> list[Record]:
    """Returns the records without the scores of these tasks."""
    return [
        replace(
            record,
            val={task: score for task, score in record.val.items() if task not in tasks},
            test={task: score for task, score in record.test.items() if task not in tasks},
        )
        for record in records
    ]


def picked_record(records: Sequence[Record]) -> Record:
    """Returns the record of a method with the best validation loss: its networks are the ones that a user gets.

    Losses are relative to the mean over the records, and averaged over tasks. Records in which a network diverged are
    left out, unless all of them are.
    """
    usable = [record for record in records if not record.diverged] or list(records)
    average = mean_record(usable)
    return min(usable, key=lambda record: (record.change(average, "val") if record.val else 0.0, record.seed))


def mean_record(records: Sequence[Record]) -> Record:
    """Returns a record with the mean validation and test loss of each task."""
    return replace(records[0], val=_mean_scores(records, "val"), test=_mean_scores(records, "test"))


def _mean_scores(records: Sequence[Record], part: str) -> dict[str, Score]:
    scores: list[Mapping[str, Score]] = [getattr(record, part) for record in records]
    return {task: Score(mean([one[task].loss for one in scores]), math.nan) for task in scores[0]}
