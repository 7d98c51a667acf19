"""The verdict of a study: whether grouping is worth it, how certain this is, and which networks to use."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tagalong.errors import InvalidInput, first_few, pluralize
from tagalong.files import json_safe
from tagalong.group import Group
from tagalong.rendering import wrap

from .learning import LAST_EPOCHS, Learning
from .records import TOGETHER, Label, Record, by_label
from .summary import changes, mean, stderr, summarize
from .text import WIDTH, label_text, networks_list, percent
from .uncertainty import CONFIDENCE, interval_half_width

MIN_SEEDS = 3
NOT_BETTER = "on validation data, no network beats a constant (the mean or base rate) by more than the noise"
RecordsByLabel = Mapping[Label, list[Record]]


@dataclass(frozen=True)
class Verdict:
    """A recommendation on whether to group the tasks, with the evidence.

    The candidate is the grouping that performed best on validation. The candidate is compared with one network for all
    tasks (`mtl`). Tasks on which nothing was learnt do not count.

    Attributes:
        worth_it: whether the candidate beats one network on the test rows by more than the noise.
        provisional: reasons why the verdict may change, e.g. too few seeds or epochs. The tuple is empty if the verdict
            is final.
        recommended: the method and budget of the networks to use, or ("mtl", None) if grouping is not worth it.
        groups: the networks to use.
        candidate: the method and budget of the candidate, or None if no grouping was tried.
        candidate_groups: the networks of the candidate.
        validation: the relative change in validation loss from one network to the candidate, averaged over tasks and
            seeds (negative is better).
        estimate: the relative change in test loss from one network to the candidate (negative is better),
            or None if it cannot be computed.
        low: the lower bound of the confidence interval of `estimate`, or None if there is only one seed.
        high: the upper bound of the confidence interval, or None if there is only one seed.
        confidence: the confidence level of the interval.
        seeds: the number of seeds in the comparison.
        tried: the number of distinct groupings from which the candidate was chosen.
        seed_stderr: the standard error of `estimate` over seeds, or None if there is only one seed.
        row_stderr: the standard error of `estimate` due to the finite number of test rows, or None if unknown.
        at_least: the fraction by which grouping had to reduce the losses to be worth it.
        training_cost: the cost of training the candidate's networks, relative to training one network, or None if
            unknown.
        deciding_cost: the cost of deciding on the candidate's networks, in the same units as `training_cost`.
        size: the number of parameters in the candidate's networks, relative to one network, or None if unknown.
        searched: whether `auto` searched for groups.
        diverged: the methods and budgets with a diverged network, which cannot be the candidate.
        unlearnt: the tasks that do not count, because no network beats a constant on validation by more than the noise
            (see `Learning`).
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
    unlearnt: tuple[str, ...] = ()

    @property
    def nothing_learnt(self) -> bool:
        """Whether no task counts, because no network beats a constant on any of them."""
        return bool(self.unlearnt) and all(group.serves <= set(self.unlearnt) for group in self.groups)

    @property
    def not_counted(self) -> str:
        """A sentence that names the tasks that do not count, or an empty string if all tasks or no tasks count."""
        if not self.unlearnt or self.nothing_learnt:
            return ""
        are = "is" if len(self.unlearnt) == 1 else "are"
        return f"{first_few(self.unlearnt)} {are} not counted: {NOT_BETTER} there."

    @property
    def sentence(self) -> str:
        """The recommendation and its reason, in one sentence."""
        if self.nothing_learnt:
            return f"Nothing was learnt: {NOT_BETTER}."
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
        change, interval = percent(self.estimate), _format_interval(self)
        if self.worth_it:
            what = "Training each task alone" if self.candidate[0] == "stl" else "Grouping"
            return (
                f"{what} is worth it: the {count} change the test losses by {change} {interval}{_format_costs(self)}."
            )
        if self.validation is not None and self.validation >= 0:
            best = f"the best being the {count} with {change} on test {interval}"
            return f"{advice}: no grouping did better on validation, {best}."
        why = "which is not better by more than the noise" if self.seeds > 1 else "and one seed cannot tell luck apart"
        if self.high is not None and -self.at_least <= self.high < 0:
            why = f"which is less than the {100 * self.at_least:g}% asked for"
        return f"{advice}: the {count}, best on validation, change the test losses by {change} {interval}, {why}."

    def to_text(self, width: int = WIDTH) -> str:
        """Formats the recommendation, the reasons why it is provisional, and the networks to use.

        Args:
            width: the maximum line length.
        """
        start = "Provisional verdict: " if self.provisional else "Verdict: "
        text = " ".join(filter(None, (start + self.sentence, self.not_counted)))
        if self.provisional:
            text += f" ({'; '.join(self.provisional)}.)"
        return "\n".join([*wrap(text, width), *([] if self.nothing_learnt else networks_list(self.groups, width))])

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


def _format_costs(verdict: Verdict) -> str:
    known = {"the training": verdict.training_cost, "the parameters": verdict.size}
    costs = [f"{value:.3g} times {what}" for what, value in known.items() if value is not None]
    return f", for {' and '.join(costs)}" if costs else ""


def _format_interval(verdict: Verdict) -> str:
    """Formats the confidence interval and the number of seeds on which it is based."""
    seeds = pluralize(verdict.seeds, "seed")
    if verdict.low is None or verdict.high is None:
        return f"({seeds})" if verdict.seeds < 2 else f"({seeds}, which differ too much for an interval)"
    return f"({100 * verdict.confidence:g}% interval {percent(verdict.low)} to {percent(verdict.high)}, {seeds})"


def decide(
    records: Sequence[Record],
    noise: Mapping[Label, float],
    *,
    at_least: float = 0.0,
    confirming: Collection[int] = (),
    excluded_seeds: Sequence[int] = (),
    learning: Learning | None = None,
) -> Verdict:
    """Decides whether grouping is worth it.

    The candidate is the grouping with the best validation losses. Test rows are not used to choose the candidate, so
    the change in its test losses is an unbiased estimate for these networks. The confidence interval accounts for noise
    due to the seeds and the test rows (see `interval_half_width` and `row_stderr`). However, networks may have been
    chosen because of lucky seeds. Confirming seeds, which are trained after the choice, do not have this bias. If there
    are any confirming seeds, only those are used for the estimate.

    Not every method can be the candidate. Groupings trained with a rule (e.g. "tag+pcgrad") are excluded, since the
    effect of grouping could not be separated from the effect of the rule. The oracle, averages over groupings, and
    groupings with a diverged network are also excluded. If `auto` found groups, the candidate is one of its groupings,
    since `auto` has already accounted for luck.

    Args:
        records: the records of a study, including those of `mtl`.
        noise: the standard error due to the test rows, by method and budget.
        at_least: the fraction by which grouping must reduce the losses to be worth it.
        confirming: seeds that were not used to choose groups. Only `mtl` and the candidate need records for these
            seeds.
        excluded_seeds: seeds without records because `mtl` diverged.
        learning: what is known about how well networks learned. Unlearnt tasks do not count. If None, all tasks count.

    Raises:
        InvalidInput: If `at_least` is negative or not finite, or there are no records of `mtl`.
    """
    if not (math.isfinite(at_least) and at_least >= 0):
        raise InvalidInput("at_least", "must be a non-negative fraction", repr(at_least))
    learning = learning or Learning()
    diverged = tuple(dict.fromkeys(record.label for record in records if record.diverged))
    records = _without_tasks(records, learning.unlearnt)
    choosing = by_label([record for record in records if record.seed not in confirming])
    if TOGETHER not in choosing:
        raise InvalidInput("records", "must include results for 'mtl' as a baseline", "none", "add 'mtl' to `methods`")
    together = choosing[TOGETHER]
    candidates = _find_candidates(choosing, diverged) if together[0].val else {}
    searched = any(label[0] == "auto" and some[0].deciding.networks for label, some in choosing.items())
    left_out_note = tuple(_excluded_seeds_note(excluded_seeds))
    if not candidates:
        notes = (*_late_networks_note(learning, [TOGETHER]), *left_out_note)
        verdict = Verdict(False, notes, TOGETHER, together[0].groups, seeds=len(together), at_least=at_least)
        return replace(verdict, searched=searched, diverged=diverged, unlearnt=learning.unlearnt)
    label = min(candidates, key=lambda label: (candidates[label], len(choosing[label][0].groups), str(label)))
    fresh = by_label([record for record in records if record.seed in confirming])
    confirmed = bool(changes(fresh.get(label, []), fresh.get(TOGETHER, [])))
    different = {choosing[other][0].groups: changes(choosing[other], together) for other in candidates}
    found, tried = (fresh, []) if confirmed else (choosing, list(different.values()))
    rows = noise.get(label)
    judged = _make_verdict(found, label, tried, None if rows is None else _finite(rows), candidates[label], at_least)
    provisional = (*judged.provisional, *_late_networks_note(learning, [TOGETHER, label]), *left_out_note)
    judged = replace(judged, tried=len(different), searched=searched, provisional=provisional, diverged=diverged)
    return replace(judged, unlearnt=learning.unlearnt)


def _without_tasks(records: Sequence[Record], tasks: Collection[str]) -> list[Record]:
    return [
        replace(
            record,
            val={task: score for task, score in record.val.items() if task not in tasks},
            test={task: score for task, score in record.test.items() if task not in tasks},
        )
        for record in records
    ]


def comparable_records(records: Sequence[Record]) -> list[list[Record]]:
    """Returns the records of `mtl` and of each distinct grouping that the verdict may recommend."""
    found = by_label(records)
    diverged = [record.label for record in records if record.diverged]
    labels = [TOGETHER, *_find_candidates(found, diverged)]
    return list({found[label][0].groups: found[label] for label in labels}.values())


def _find_candidates(records_by_label: RecordsByLabel, diverged: Collection[Label]) -> dict[Label, float]:
    """Returns the validation change of each grouping that can be recommended, only those of `auto` if it found any."""
    found = {label: change for label, change in _candidate_changes(records_by_label).items() if label not in diverged}
    return {label: change for label, change in found.items() if label[0] == "auto"} or found


def _candidate_changes(records_by_label: RecordsByLabel) -> dict[Label, float]:
    """Returns the validation change of each grouping that can be the candidate and has records for all seeds."""
    together = records_by_label[TOGETHER]
    seeds = {record.seed for record in together}
    chosen = {}
    for label, records in records_by_label.items():
        plain = "+" not in label[0] and all(record.honest and len(record.groups) > 1 for record in records)
        change = mean(changes(records, together, "val"))
        if plain and seeds == {record.seed for record in records} and math.isfinite(change):
            chosen[label] = change
    return chosen


def _make_verdict(
    records_by_label: RecordsByLabel,
    label: Label,
    tried_changes: Sequence[Sequence[float]],
    row_stderr: float | None,
    validation: float,
    at_least: float,
) -> Verdict:
    mine, together = records_by_label[label], records_by_label[TOGETHER]
    paired = changes(mine, together)
    average, seeds = mean(paired), len(paired)
    estimate = _finite(average)
    half = (
        None
        if seeds < 2 or estimate is None
        else _finite(interval_half_width(paired, tried_changes, row_stderr or 0.0))
    )
    worth_it = validation < 0 and half is not None and average + half < -at_least
    summary = summarize([*mine, *together])[0]
    return Verdict(
        worth_it=worth_it,
        provisional=tuple(_provisional_reasons(seeds, row_stderr)),
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


def _excluded_seeds_note(excluded_seeds: Sequence[int]) -> list[str]:
    seeds = f"seed{'' if len(excluded_seeds) == 1 else 's'} {', '.join(map(str, excluded_seeds))}"
    return [f"one network for all tasks diverged with {seeds}, excluded here"] if excluded_seeds else []


def _late_networks_note(learning: Learning, labels: Sequence[Label]) -> list[str]:
    found = learning.late_networks(labels)
    were = "was" if found.late == 1 else "were"
    best = f"{found.late} of {found.networks} networks {were} best in the last {LAST_EPOCHS} epochs"
    return [f"{best}, so raise `epochs`"] if found.late else []


def _provisional_reasons(seeds: int, row_stderr: float | None) -> list[str]:
    reasons = []
    if seeds < MIN_SEEDS:
        reasons.append(f"only {seeds} seed{'s' if seeds > 1 else ''}, but {MIN_SEEDS} are needed")
    if row_stderr is None:
        reasons.append("the noise of the test rows is unknown")
    return reasons
