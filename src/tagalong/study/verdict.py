"""The answer of a study: is any grouping worth it, how surely, and which networks to use."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tagalong.errors import counted
from tagalong.files import holdable
from tagalong.group import Group
from tagalong.rendering import wrap

from .records import TOGETHER, Label, Record, by_label
from .summary import changes, mean, stderr, summarise
from .text import WIDTH, label_text, networks_list, percent
from .uncertainty import CONFIDENCE, interval_half_width

ENOUGH_SEEDS = 3
Found = Mapping[Label, list[Record]]


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
        tried: how many different groupings it was the best of.
        seed_stderr: the part of the noise that seeds show; None with one seed.
        row_stderr: the part that comes from finitely many test rows; None if not known.
        at_least: how large an improvement had to be, as a share.
        training_cost: of its networks, in trainings of the one network; None if unknown.
        deciding_cost: of deciding on them, likewise.
        size: parameters of its networks against those of the one network; None if unknown.
        searched: whether `auto` looked for groups.
        diverged: methods and budgets with a network that diverged, which are no candidates.
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
    tried: int = 0
    seed_stderr: float | None = None
    row_stderr: float | None = None
    at_least: float = 0.0
    training_cost: float | None = None
    deciding_cost: float | None = None
    size: float | None = None
    searched: bool = False
    diverged: tuple[Label, ...] = ()

    @property
    def sentence(self) -> str:
        """What to do and why, in one sentence."""
        advice = "Train them all together in one network"
        if self.candidate is None or self.estimate is None:
            found = "auto found no groups that validation confirms" if self.searched else "no grouping was tried"
            if self.diverged:
                lost = ", ".join(map(label_text, self.diverged))
                found += f"; {lost} diverged" if self.searched else f", but for {lost}, which diverged"
            return f"{advice}: {found}."
        name = label_text(self.candidate)
        count = f"{len(self.candidate_groups)} networks of {name}"
        change, interval = percent(self.estimate), _interval(self)
        if self.worth_it:
            what = "Training each task alone" if self.candidate[0] == "stl" else "Grouping"
            return f"{what} is worth it: the {count} change the test losses by {change} {interval}{_costs(self)}."
        if self.validation is not None and self.validation >= 0:
            best = f"the best being the {count} with {change} on test {interval}"
            return f"{advice}: no grouping did better on validation, {best}."
        why = "which is not better by more than the noise" if self.seeds > 1 else "and one seed cannot tell luck apart"
        if self.high is not None and -self.at_least <= self.high < 0:
            why = f"which is less than the {100 * self.at_least:g} % asked for"
        return f"{advice}: the {count}, best on validation, change the test losses by {change} {interval}, {why}."

    def to_text(self, width: int = WIDTH) -> str:
        """The sentence and what is doubtful about it, then the networks to use.

        Args:
            width: columns of the screen.
        """
        start = "Provisional verdict: " if self.provisional else "Verdict: "
        text = start + self.sentence
        if self.provisional:
            text += f" ({'; '.join(self.provisional)}.)"
        return "\n".join([*wrap(text, width), *networks_list(self.groups, width)])

    def __str__(self) -> str:
        return self.to_text()

    def to_document(self) -> dict[str, Any]:
        """Every field, as JSON can hold it."""
        document: dict[str, Any] = holdable(asdict(self))
        for name in ("groups", "candidate_groups"):
            document[name] = [
                {"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in getattr(self, name)
            ]
        return document | {"text": str(self)}


def _costs(verdict: Verdict) -> str:
    known = {"the training": verdict.training_cost, "the parameters": verdict.size}
    costs = [f"{value:.3g} times {what}" for what, value in known.items() if value is not None]
    return f", for {' and '.join(costs)}" if costs else ""


def _interval(verdict: Verdict) -> str:
    """The interval and how many seeds it rests on."""
    seeds = counted(verdict.seeds, "seed")
    if verdict.low is None or verdict.high is None:
        return f"({seeds})"
    return f"({100 * verdict.confidence:g} % interval {percent(verdict.low)} to {percent(verdict.high)}, {seeds})"


def decide(
    records: Sequence[Record],
    noise: Mapping[Label, float],
    *,
    at_least: float = 0.0,
    confirming: Collection[int] = (),
    left_out: Sequence[int] = (),
) -> Verdict:
    """The verdict on these records.

    The candidate is the grouping with the best validation losses; test rows have no say in that, so its test change is
    an honest estimate for these networks. Its interval adds the doubts of the seeds and of the test rows, see
    `interval_half_width` and `row_stderr`. Networks can also be chosen for the luck of their seeds; seeds that were not
    there when groups were decided and chosen (`confirming`) have no part in that, and are then the only ones reported.
    Groupings whose networks were trained by another rule than mtl's (such as "tag+pcgrad") are not candidates, since a
    change would not tell grouping and rule apart; nor are the oracle and expected values. Where `auto` found groups,
    these alone are candidates: it has weighed the luck of the best of many already. What diverged with any seed is no
    candidate.

    Args:
        records: of a study, with `mtl` among them.
        noise: row standard errors.
        at_least: grouping must improve the losses by more than this share.
        confirming: seeds of records that only `mtl` and the candidate need to have, and that no choice has seen.
        left_out: seeds without records, since `mtl` diverged with them.
    """
    if not (math.isfinite(at_least) and at_least >= 0):
        raise ValueError(f"`at_least` must be a share from 0, found {at_least!r}")
    choosing = by_label([record for record in records if record.seed not in confirming])
    if TOGETHER not in choosing:
        raise ValueError("`records` must hold results of 'mtl' to compare with, found none; add it to `methods`")
    diverged = tuple(dict.fromkeys(record.label for record in records if record.diverged))
    candidates = {label: change for label, change in _candidates(choosing).items() if label not in diverged}
    candidates = {label: change for label, change in candidates.items() if label[0] == "auto"} or candidates
    together = choosing[TOGETHER]
    searched = any(label[0] == "auto" and some[0].deciding.networks for label, some in choosing.items())
    unstable = tuple(_unstable(left_out))
    if not candidates:
        whole = Verdict(False, unstable, TOGETHER, together[0].groups, seeds=len(together), at_least=at_least)
        return replace(whole, searched=searched, diverged=diverged)
    label = min(candidates, key=lambda label: (candidates[label], len(choosing[label][0].groups), str(label)))
    fresh = by_label([record for record in records if record.seed in confirming])
    confirmed = bool(changes(fresh.get(label, []), fresh.get(TOGETHER, [])))
    different = {choosing[other][0].groups: changes(choosing[other], together) for other in candidates}
    found, tried = (fresh, []) if confirmed else (choosing, list(different.values()))
    judged = _judged(found, label, tried, noise.get(label), candidates[label], at_least)
    doubts = judged.provisional + unstable
    return replace(judged, tried=len(different), searched=searched, provisional=doubts, diverged=diverged)


def _candidates(found: Found) -> dict[Label, float]:
    """Honest groupings of plain networks with results for every seed, and their change on validation."""
    together = found[TOGETHER]
    seeds = {record.seed for record in together}
    chosen = {}
    for label, records in found.items():
        plain = "+" not in label[0] and all(record.honest and len(record.groups) > 1 for record in records)
        change = mean(changes(records, together, "val"))
        if plain and seeds == {record.seed for record in records} and math.isfinite(change):
            chosen[label] = change
    return chosen


def _judged(
    found: Found,
    label: Label,
    tried: Sequence[Sequence[float]],
    row_stderr: float | None,
    validation: float,
    at_least: float,
) -> Verdict:
    mine, together = found[label], found[TOGETHER]
    paired = changes(mine, together)
    estimate, seeds = mean(paired), len(paired)
    half = None if seeds < 2 else interval_half_width(paired, tried, row_stderr or 0.0)
    worth_it = validation < 0 and half is not None and estimate + half < -at_least
    line = summarise([*mine, *together])[0]
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
        seed_stderr=None if seeds < 2 else stderr(paired),
        row_stderr=row_stderr,
        at_least=at_least,
        training_cost=line.training_cost,
        deciding_cost=line.deciding_cost,
        size=line.relative_parameters,
    )


def _unstable(left_out: Sequence[int]) -> list[str]:
    listed = f"seed{'' if len(left_out) == 1 else 's'} {', '.join(map(str, left_out))}"
    return [f"one network for all tasks diverged with {listed}, left out here"] if left_out else []


def _doubts(seeds: int, row_stderr: float | None) -> list[str]:
    doubts = []
    if seeds < ENOUGH_SEEDS:
        doubts.append(f"{seeds} seed{'s' if seeds > 1 else ''} only, {ENOUGH_SEEDS} would settle it")
    if row_stderr is None:
        doubts.append("the noise of the test rows is not known")
    return doubts
