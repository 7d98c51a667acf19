"""Is any grouping worth it? Chosen on validation, reported on test, with what seeds and test rows leave open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.special import ndtri, stdtrit

from tagalong.group import Group

from ._change import TOGETHER, Label, by_label, changes, mean, stderr
from ._record import Record
from ._summary import summarise

CONFIDENCE = 0.95
ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """Whether to group, and what is known about it.

    Attributes:
        worth_it: whether the grouping beats one network on test rows by more than the noise.
        provisional: why the answer may change: too few seeds, or test rows whose noise is unknown; empty if settled.
        recommended: method and budget whose networks to use; ("mtl", None) if grouping is not worth it.
        groups: the networks to use.
        candidate: method and budget of the grouping that did best on validation; None if none was tried.
        candidate_groups: its networks.
        validation: its mean relative change against one network on validation; negative is better.
        estimate: the same on test, mean over seeds.
        low: lower end of the interval of `confidence` for it; None with one seed.
        high: upper end.
        confidence: of the interval.
        seeds: how many seeds were compared.
        seed_stderr: the part of the noise that seeds show; None with one seed.
        row_stderr: the part that comes from finitely many test rows; None if not known.
        at_least: how large an improvement had to be, as a share.
        training_cost: of its networks, in trainings of the one network; None if unknown.
        deciding_cost: of deciding on them, likewise.
        size: parameters of its networks against those of the one network; None if unknown.
    """

    worth_it: bool
    provisional: tuple[str, ...]
    recommended: Label
    groups: tuple[Group, ...]
    candidate: Label | None = None
    candidate_groups: tuple[Group, ...] = ()
    validation: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = CONFIDENCE
    seeds: int = 0
    seed_stderr: float | None = None
    row_stderr: float | None = None
    at_least: float = 0.0
    training_cost: float | None = None
    deciding_cost: float | None = None
    size: float | None = None

    def __str__(self) -> str:
        from ._text import verdict_text

        return verdict_text(self)

    def to_document(self) -> dict[str, Any]:
        """Every field, as JSON can hold it."""
        document = {name: _plain(value) for name, value in asdict(self).items()}
        for name in ("groups", "candidate_groups"):
            document[name] = [
                {"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in getattr(self, name)
            ]
        return document | {"text": str(self)}


def decide(records: Sequence[Record], noise: Mapping[Label, float], *, at_least: float = 0.0) -> Verdict:
    """The verdict on these records.

    The candidate is the grouping with the best validation losses; test rows have no say in that, so its test change is
    an honest estimate. Its interval adds two independent doubts: the seeds' (Student's t on the paired differences) and
    the test rows'. Groupings whose networks were trained by another rule than mtl's (such as "tag+pcgrad") are not
    candidates, since a change would not tell grouping and rule apart; nor are the oracle and expected values.

    Args:
        records: of a study, with `mtl` among them.
        noise: row standard errors, see `row_stderr`.
        at_least: grouping must improve the losses by more than this share.
    """
    if not (math.isfinite(at_least) and at_least >= 0):
        raise ValueError(f"`at_least` must be a share from 0, found {at_least!r}")
    found = by_label(records)
    together = found.get(TOGETHER, [])
    if not together:
        raise ValueError("`records` must hold results of 'mtl' to compare with, found none; add it to `methods`")
    candidates = _candidates(found, together)
    if not candidates:
        return Verdict(False, (), TOGETHER, together[0].groups, seeds=len(together), at_least=at_least)
    label = min(candidates, key=lambda label: (candidates[label], len(found[label][0].groups), str(label)))
    return _judged(found, label, noise.get(label), at_least)


def _candidates(found: Mapping[Label, list[Record]], together: Sequence[Record]) -> dict[Label, float]:
    """Honest groupings of plain networks with results for every seed, and their change on validation."""
    seeds = {record.seed for record in together}
    chosen = {}
    for label, records in found.items():
        plain = "+" not in label[0] and all(record.honest and len(record.groups) > 1 for record in records)
        change = mean(changes(records, together, "val"))
        if plain and seeds == {record.seed for record in records} and math.isfinite(change):
            chosen[label] = change
    return chosen


def _judged(found: Mapping[Label, list[Record]], label: Label, row_stderr: float | None, at_least: float) -> Verdict:
    mine, together = found[label], found[TOGETHER]
    paired = changes(mine, together)
    validation, estimate, seeds = mean(changes(mine, together, "val")), mean(paired), len(paired)
    line = summarise([*mine, *together])[0]
    seed_stderr = None if seeds < 2 else stderr(paired)
    half = None if seed_stderr is None else half_width(seed_stderr, seeds, row_stderr or 0.0)
    worth_it = validation < 0 and half is not None and estimate + half < -at_least
    return Verdict(
        worth_it=worth_it,
        provisional=tuple(_doubts(seeds, row_stderr)),
        recommended=label if worth_it else TOGETHER,
        groups=(mine if worth_it else together)[0].groups,
        candidate=label,
        candidate_groups=mine[0].groups,
        validation=validation,
        estimate=estimate,
        low=None if half is None else estimate - half,
        high=None if half is None else estimate + half,
        seeds=seeds,
        seed_stderr=seed_stderr,
        row_stderr=row_stderr,
        at_least=at_least,
        training_cost=line.training_cost,
        deciding_cost=line.deciding_cost,
        size=line.relative_parameters,
    )


def half_width(seed_stderr: float, seeds: int, row_stderr: float, confidence: float = CONFIDENCE) -> float:
    """Half the interval: Student's t for the few seeds, the normal distribution for the many rows.

    Example:
        >>> round(half_width(1.0, 3, 0.0), 2), round(half_width(0.0, 3, 1.0), 2)
        (4.3, 1.96)
    """
    tail = (1 + confidence) / 2
    return math.hypot(stdtrit(seeds - 1, tail) * seed_stderr, ndtri(tail) * row_stderr)


def _doubts(seeds: int, row_stderr: float | None) -> list[str]:
    doubts = []
    if seeds < ENOUGH_SEEDS:
        doubts.append(f"{seeds} seed{'s' if seeds > 1 else ''} only, {ENOUGH_SEEDS} would settle it")
    if row_stderr is None:
        doubts.append("the noise of the test rows is not known")
    return doubts


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
