"""The verdict of a study: whether grouping is worth it, how certain that is, and which networks to use."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tagalong.errors import InvalidInput, pluralize
from tagalong.files import json_safe
from tagalong.group import Group
from tagalong.rendering import wrap

from .records import TOGETHER, Label, Record, by_label
from .summary import changes, mean, stderr, summarize
from .text import WIDTH, label_text, networks_list, percent
from .uncertainty import CONFIDENCE, interval_half_width

ENOUGH_SEEDS = 3
RecordsByLabel = Mapping[Label, list[Record]]


@dataclass(frozen=True)
class Verdict:
    """Whether to group the tasks, and the evidence.

    The candidate is the grouping that did best on validation; it is compared with one network for all tasks (`mtl`).

    Attributes:
        worth_it: whether the candidate beats one network on the test rows by more than the noise.
        provisional: reasons why the verdict may change, e.g. too few seeds; empty if it is final.
        recommended: the method and budget whose networks to use; ("mtl", None) if grouping is not worth it.
        groups: the networks to use.
        candidate: the method and budget of the candidate; None if no grouping was tried.
        candidate_groups: the networks of the candidate.
        validation: the relative change in the candidate's validation losses from one network, averaged over tasks and
            seeds; negative is better.
        estimate: the same change in the test losses; None if it cannot be computed.
        low: the lower bound of the confidence interval of `estimate`; None with one seed.
        high: the upper bound of the confidence interval; None with one seed.
        confidence: the confidence level of the interval.
        seeds: the number of seeds in the comparison.
        tried: the number of different groupings from which the candidate was chosen.
        seed_stderr: the standard error of `estimate` over seeds; None with one seed.
        row_stderr: the standard error of `estimate` due to the finite number of test rows; None if unknown.
        at_least: the fraction by which the losses had to improve.
        training_cost: the cost of training the candidate's networks, relative to training one network; None if unknown.
        deciding_cost: the cost of deciding on the candidate's networks, in the same units.
        size: the number of parameters of the candidate's networks, relative to one network; None if unknown.
        searched: whether `auto` searched for groups.
        diverged: the methods and budgets with a diverged network; they cannot be the candidate.
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
        """The recommendation and its reason, in one sentence."""
        advice = "Train them all together in one network"
        if self.candidate is None:
            found = "auto found no groups that validation confirms" if self.searched else "no grouping was tried"
            if self.diverged:
                lost = ", ".join(map(label_text, self.diverged))
                found += f"; {lost} diverged" if self.searched else f", but for {lost}, which diverged"
            return f"{advice}: {found}."
        name = label_text(self.candidate)
        count = f"{len(self.candidate_groups)} networks of {name}"
        if self.estimate is None:
            why = "a test loss of the network for all tasks is zero or too close to it"
            return f"{advice}: the change in the test losses of the {count} cannot be computed, since {why}."
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
        """Formats the recommendation, the reasons why it is provisional, and the networks to use.

        Args:
            width: the maximum line length.
        """
        start = "Provisional verdict: " if self.provisional else "Verdict: "
        text = start + self.sentence
        if self.provisional:
            text += f" ({'; '.join(self.provisional)}.)"
        return "\n".join([*wrap(text, width), *networks_list(self.groups, width)])

    def __str__(self) -> str:
        return self.to_text()

    def to_document(self) -> dict[str, Any]:
        """Converts all fields and the text to a JSON document."""
        document: dict[str, Any] = json_safe(asdict(self))
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
    """Formats the confidence interval and the number of seeds behind it."""
    seeds = pluralize(verdict.seeds, "seed")
    if verdict.low is None or verdict.high is None:
        return f"({seeds})" if verdict.seeds < 2 else f"({seeds}, which differ too much for an interval)"
    return f"({100 * verdict.confidence:g} % interval {percent(verdict.low)} to {percent(verdict.high)}, {seeds})"


def decide(
    records: Sequence[Record],
    noise: Mapping[Label, float],
    *,
    at_least: float = 0.0,
    confirming: Collection[int] = (),
    left_out: Sequence[int] = (),
) -> Verdict:
    """Decides whether grouping is worth it.

    The candidate is the grouping with the best validation losses. Test rows are not used to choose it, so the change
    in its test losses is an unbiased estimate for these networks. The confidence interval accounts for the noise of
    the seeds and of the test rows; see `interval_half_width` and `row_stderr`. Networks may also have been chosen
    because their seeds were lucky. `confirming` seeds, which are trained after the choice, do not have this bias; if
    there are any, the estimate is based on them alone.

    Not every method can be the candidate. Groupings trained with a rule (e.g. "tag+pcgrad") cannot, since the effect of
    grouping could not be separated from that of the rule. The oracle, averages over groupings, and groupings with a
    diverged network cannot either. If `auto` found groups, the candidate is one of them, since `auto` has already
    accounted for luck.

    Args:
        records: the records of a study, including those of `mtl`.
        noise: the standard error due to the test rows, by method and budget.
        at_least: the fraction by which grouping must improve the losses.
        confirming: seeds that were not used for any choice; only `mtl` and the candidate need records with them.
        left_out: seeds without records because `mtl` diverged with them.

    Raises:
        InvalidInput: `at_least` is negative or not finite, or there are no records of `mtl`.
    """
    if not (math.isfinite(at_least) and at_least >= 0):
        raise InvalidInput("at_least", "must be a nonnegative fraction", repr(at_least))
    choosing = by_label([record for record in records if record.seed not in confirming])
    if TOGETHER not in choosing:
        raise InvalidInput("records", "must include results for 'mtl' to compare with", "none", "add it to `methods`")
    diverged = tuple(dict.fromkeys(record.label for record in records if record.diverged))
    candidates = {label: change for label, change in _candidates(choosing).items() if label not in diverged}
    candidates = {label: change for label, change in candidates.items() if label[0] == "auto"} or candidates
    together = choosing[TOGETHER]
    searched = any(label[0] == "auto" and some[0].deciding.networks for label, some in choosing.items())
    left_out_note = tuple(_left_out_note(left_out))
    if not candidates:
        verdict = Verdict(False, left_out_note, TOGETHER, together[0].groups, seeds=len(together), at_least=at_least)
        return replace(verdict, searched=searched, diverged=diverged)
    label = min(candidates, key=lambda label: (candidates[label], len(choosing[label][0].groups), str(label)))
    fresh = by_label([record for record in records if record.seed in confirming])
    confirmed = bool(changes(fresh.get(label, []), fresh.get(TOGETHER, [])))
    different = {choosing[other][0].groups: changes(choosing[other], together) for other in candidates}
    found, tried = (fresh, []) if confirmed else (choosing, list(different.values()))
    rows = noise.get(label)
    judged = _judge(found, label, tried, None if rows is None else _finite(rows), candidates[label], at_least)
    provisional = judged.provisional + left_out_note
    return replace(judged, tried=len(different), searched=searched, provisional=provisional, diverged=diverged)


def _candidates(found: RecordsByLabel) -> dict[Label, float]:
    """Returns the validation change of each honest grouping of plain networks that has records for all seeds."""
    together = found[TOGETHER]
    seeds = {record.seed for record in together}
    chosen = {}
    for label, records in found.items():
        plain = "+" not in label[0] and all(record.honest and len(record.groups) > 1 for record in records)
        change = mean(changes(records, together, "val"))
        if plain and seeds == {record.seed for record in records} and math.isfinite(change):
            chosen[label] = change
    return chosen


def _judge(
    found: RecordsByLabel,
    label: Label,
    tried: Sequence[Sequence[float]],
    row_stderr: float | None,
    validation: float,
    at_least: float,
) -> Verdict:
    mine, together = found[label], found[TOGETHER]
    paired = changes(mine, together)
    average, seeds = mean(paired), len(paired)
    estimate = _finite(average)
    half = None if seeds < 2 or estimate is None else _finite(interval_half_width(paired, tried, row_stderr or 0.0))
    worth_it = validation < 0 and half is not None and average + half < -at_least
    summary = summarize([*mine, *together])[0]
    return Verdict(
        worth_it=worth_it,
        provisional=tuple(_reasons_to_wait(seeds, row_stderr)),
        recommended=label if worth_it else TOGETHER,
        groups=(mine if worth_it else together)[0].groups,
        candidate=label,
        candidate_groups=mine[0].groups,
        validation=validation,
        estimate=estimate,
        low=None if half is None else average - half,
        high=None if half is None else average + half,
        seeds=seeds,
        seed_stderr=None if seeds < 2 else _finite(stderr(paired)),
        row_stderr=row_stderr,
        at_least=at_least,
        training_cost=summary.training_cost,
        deciding_cost=summary.deciding_cost,
        size=summary.relative_parameters,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _left_out_note(left_out: Sequence[int]) -> list[str]:
    seeds = f"seed{'' if len(left_out) == 1 else 's'} {', '.join(map(str, left_out))}"
    return [f"one network for all tasks diverged with {seeds}, excluded here"] if left_out else []


def _reasons_to_wait(seeds: int, row_stderr: float | None) -> list[str]:
    reasons = []
    if seeds < ENOUGH_SEEDS:
        reasons.append(f"only {seeds} seed{'s' if seeds > 1 else ''}, but {ENOUGH_SEEDS} are needed")
    if row_stderr is None:
        reasons.append("the noise of the test rows is unknown")
    return reasons
