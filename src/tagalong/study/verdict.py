"""The verdict of a study: are several networks worth it, do groups matter, and which networks should be used?"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tagalong.errors import InvalidInput
from tagalong.files import json_safe
from tagalong.group import Group
from tagalong.rendering import wrap

from .candidates import (
    Candidate,
    distinct_candidates,
    find_candidates,
    matching_copies,
    mean_record,
    picked_record,
    without_tasks,
)
from .learning import LAST_EPOCHS, LateNetworks, Learning
from .records import TOGETHER, Label, Record, by_label
from .summary import MethodSummary, changes, mean, stderr, summarize
from .text import WIDTH, networks_list
from .uncertainty import CONFIDENCE, RowNoise, interval_half_width, paired_records, row_half_width
from .verdict_text import (
    Answer,
    answer_questions,
    kind_of_networks,
    recommendation,
    supporting_sentences,
)

MIN_SEEDS = 3
AT_LEAST = 0.005  # by default, every additional network must reduce the losses by half a percent
RecordsByLabel = Mapping[Label, list[Record]]


@dataclass(frozen=True)
class Change:
    """A relative change in test loss, averaged over tasks (negative is better), with its confidence interval.

    Attributes:
        estimate: the change.
        low: the lower end of the interval, or None if unknown.
        high: the upper end of the interval, or None if unknown.
    """

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def better(self) -> bool:
        """Whether the loss is lower by more than the noise."""
        return self.high is not None and self.high < 0

    @property
    def worse(self) -> bool:
        """Whether the loss is higher by more than the noise."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True)
class BudgetResult:
    """The best way of using a number of networks, chosen on validation.

    Attributes:
        label: the method and budget. ("mtl", None) is one plain network.
        groups: the networks, as picked on validation.
        size: the number of networks in use. It can be less than the budget. A larger network counts as the number of
            plain networks with about as many parameters.
        expected: the expected change in loss from one plain network, from validation (see `Candidate`).
        change: the change in test loss from one plain network: the recipe, paired by seed, with the noise of seeds and
            rows. None if it cannot be computed.
        copies: the method and budget of copies with the same number of networks and about the same effort, or None if
            there are none, or these are copies themselves. ("mtl", None) is one plain network.
        change_from_copies: like `change`, but from these copies, trained with the same seeds.
        networks: the change in test loss for the very networks that were picked, from the mean over all plain networks,
            with the noise of rows. None if it cannot be computed.
        networks_from_copies: like `networks`, but from the very copies that were picked.
        seeds: the number of seeds in `change`.
        latency: the duration in seconds of a forward pass through all networks, or None if not measured.
        parameters: the total number of parameters in all networks, or None if unknown.
        training_cost: the cost of training the networks, relative to training one plain network, or None if unknown.
        deciding_cost: the cost of deciding on the networks, in the same units.
        others: the best ways of other kinds with the same number of networks, e.g. copies and a larger network if these
            are groups, in the order of their expected changes.
    """

    label: Label
    groups: tuple[Group, ...]
    size: int
    expected: float
    change: Change | None
    copies: Label | None
    change_from_copies: Change | None
    seeds: int
    latency: float | None
    parameters: float | None
    training_cost: float | None
    deciding_cost: float | None
    others: tuple[BudgetResult, ...] = ()
    networks: Change | None = None
    networks_from_copies: Change | None = None

    @property
    def kind(self) -> str:
        """The kind of networks: "plain", "copies", "larger", "taught", "groups" or "tabm"."""
        return kind_of_networks(self.label, self.groups)

    def to_document(self) -> dict[str, Any]:
        """Converts the fields to a JSON document."""
        document: dict[str, Any] = asdict(self)
        groups = [group.to_document(cost=False) for group in self.groups]
        return document | {"groups": groups, "others": [one.to_document() for one in self.others]}


@dataclass(frozen=True)
class Verdict:
    """A recommendation on which networks to use, with the evidence.

    The candidate is the way of using several networks (groups, averaged copies, or one larger network) with the lowest
    expected loss on validation, plus `at_least` for every additional network. It is compared with one plain network for
    all tasks (`mtl`) in two statements. The first is about *the networks you get*: those of the seed that is best on
    validation, which `best()` returns. They are compared with the mean over all plain networks, and the interval
    accounts for the noise of the test rows. The second is about *the recipe*: the same plan, trained with several
    seeds, paired with plain networks of the same seeds. Its interval accounts for the noise of seeds and rows. Networks
    that were picked may be better than the recipe by luck, so only the recipe can show that groups matter. Tasks on
    which nothing was learnt do not count.

    Attributes:
        worth_it: whether the recommended networks beat one plain network by more than the noise. This is the first
            statement. If the noise of the test rows is unknown, the second one decides. One seed is never enough, and
            the change of the recipe must be finite.
        provisional: reasons why the verdict may change, e.g. too few seeds or epochs. The tuple is empty if the verdict
            is final.
        recommended: the method and budget of the candidate if it is worth it, otherwise ("mtl", None).
        groups: the networks to use.
        candidate: the method and budget of the candidate, or None if only plain networks were tried.
        candidate_groups: the networks of the candidate, as picked on validation.
        validation: the relative change in validation loss from one network to the candidate, averaged over tasks and
            seeds (negative is better).
        expected: `validation` without what may be due to the luck of picking (see `luck_of_picking`).
        networks: the change in test loss for the networks you get, or None if it cannot be computed.
        networks_seed: the seed of these networks.
        estimate: the change in test loss for the recipe, or None if it cannot be computed.
        low: the lower end of the confidence interval of `estimate`, or None if there is only one seed.
        high: the upper end of the confidence interval, or None if there is only one seed. If the same seeds picked the
            networks, it includes the luck of picking.
        confidence: the confidence level of all intervals.
        seeds: the number of seeds in `estimate`.
        confirmed: whether these seeds are fresh, i.e. they were not used to choose the candidate.
        flattered: whether `estimate` may look better than it is, because the candidate was picked with the same seeds.
        tried: the number of distinct ways of using networks from which the candidate was chosen.
        seed_stderr: the standard error of `estimate` over seeds, or None if there is only one seed.
        row_stderr: the standard error of `estimate` due to the finite number of test rows, or None if unknown.
        copies: the method and budget of copies with as many networks as the candidate and about the same effort, or
            None if no copies were trained, or the candidate is made of copies. ("mtl", None) is one plain network.
        change_from_copies: the change in test loss from the recipe of these copies to that of the candidate, or None if
            unknown. With confirming seeds, neither was picked.
        networks_from_copies: the change in test loss from the very copies that were picked to the networks you get, or
            None if unknown.
        better_than_copies: whether the candidate's recipe beats that of these copies by more than the noise, so that
            groups matter. False if the candidate is made of several copies. None if no copies were trained, the
            candidate is a single copy, or the answer would depend on teachers that all seeds share.
        same_teachers: whether the candidate's networks of different seeds were taught by the same networks. The
            intervals of the recipe do not account for the luck of these teachers.
        at_least: the fraction by which every additional network must reduce the losses.
        training_cost: the cost of training the candidate's networks, relative to training one network, or None if
            unknown.
        deciding_cost: the cost of deciding on the candidate's networks, in the same units as `training_cost`.
        size: the number of parameters in the candidate's networks, relative to one network, or None if unknown.
        searched: whether `auto` searched for groups.
        diverged: the methods and budgets with a diverged network, which cannot be the candidate.
        unlearnt: the tasks that do not count, because no network beats a constant on validation by more than the noise
            (see `Learning`).
        learning_checked: whether networks were compared with a constant on at least one task.
        late: how many networks of `mtl` and the candidate were best in one of their last three epochs, or None if
            unknown.
        by_budget: the best way of using each number of networks, or an empty mapping if nothing was learnt. 1 is one
            plain network, unless `best-of` or a slightly larger network is expected to be better.
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
    at_least: float = AT_LEAST
    training_cost: float | None = None
    deciding_cost: float | None = None
    size: float | None = None
    searched: bool = False
    diverged: tuple[Label, ...] = ()
    unlearnt: tuple[str, ...] = ()
    expected: float | None = None
    networks: Change | None = None
    networks_seed: int | None = None
    confirmed: bool = False
    flattered: bool = False
    copies: Label | None = None
    change_from_copies: Change | None = None
    better_than_copies: bool | None = None
    networks_from_copies: Change | None = None
    same_teachers: bool = False
    learning_checked: bool = False
    late: LateNetworks | None = None
    by_budget: Mapping[int, BudgetResult] = field(default_factory=dict)

    @property
    def recipe(self) -> Change | None:
        """The change in test loss for the recipe, or None if it cannot be computed."""
        return None if self.estimate is None else Change(self.estimate, self.low, self.high)

    @property
    def nothing_learnt(self) -> bool:
        """Whether no task counts, because no network beats a constant on any of them."""
        return bool(self.unlearnt) and all(group.serves <= set(self.unlearnt) for group in self.groups)

    @property
    def sentence(self) -> str:
        """The recommendation and its reason, in one sentence."""
        return recommendation(self)

    def answers(self) -> tuple[Answer, ...]:
        """Answers four questions: was anything learnt, long enough, is it worth it, and do groups matter?

        Example:
            >>> verdict = Verdict(False, (), ("mtl", None), (Group(["age", "ill"], ["age", "ill"]),))
            >>> for question, answer, detail in verdict.answers():
            ...     print(question, answer)
            Was anything learnt? Not checked.
            Were the networks trained for long enough? Not known.
            Is more than one plain network worth it? No.
            Do groups matter, or would copies do? Not known.
        """
        return answer_questions(self)

    def to_text(self, width: int = WIDTH) -> str:
        """Formats the recommendation, the evidence, the reasons why it is provisional, and the networks to use.

        Args:
            width: the maximum line length.
        """
        start = "Provisional verdict: " if self.provisional else "Verdict: "
        text = " ".join([start + self.sentence, *supporting_sentences(self)])
        if self.provisional:
            text += f" ({'; '.join(self.provisional)}.)"
        return "\n".join([*wrap(text, width), *([] if self.nothing_learnt else networks_list(self.groups, width))])

    def __str__(self) -> str:
        return self.to_text()

    def to_document(self) -> dict[str, Any]:
        """Converts all fields, the answers and the text to a JSON document."""
        document = asdict(self)
        for name in ("groups", "candidate_groups"):
            document[name] = [group.to_document(cost=False) for group in getattr(self, name)]
        document["by_budget"] = {str(budget): one.to_document() for budget, one in self.by_budget.items()}
        document["answers"] = [answer._asdict() for answer in self.answers()]
        finite: dict[str, Any] = json_safe(document | {"text": str(self)})
        return finite


def decide(
    records: Sequence[Record],
    noise: Mapping[Label, float] | RowNoise,
    *,
    at_least: float = AT_LEAST,
    confirming: Collection[int] = (),
    excluded_seeds: Sequence[int] = (),
    learning: Learning | None = None,
) -> Verdict:
    """Decides which networks to use, and whether they are worth it.

    The candidate has the lowest expected loss plus `at_least` for every additional network. Expected losses come from
    the validation rows and the seeds that are not confirming (see `find_candidates` and `luck_of_picking`). Test rows
    are not used to choose the candidate, so the change in its test losses is an unbiased estimate for these networks.

    The interval of the recipe accounts for the noise due to the seeds and the test rows, and for the number of
    candidates (see `interval_half_width` and `row_stderr`). Confirming seeds, which are trained after the choice, need
    no such correction. If there are any, the recipe is judged by those alone.

    Args:
        records: the records of a study, including those of `mtl`.
        noise: the standard errors due to the test rows.
        at_least: the fraction by which every additional network must reduce the losses, as expected from validation.
        confirming: seeds that were not used to choose groups. Only `mtl`, the candidate and copies of as many networks
            need records for these seeds.
        excluded_seeds: seeds without records because `mtl` diverged.
        learning: what is known about how well networks learned. Unlearnt tasks do not count. If None, all tasks count.

    Raises:
        InvalidInput: If `at_least` is negative or not finite, or there are no records of `mtl`.
    """
    if not (math.isfinite(at_least) and at_least >= 0):
        raise InvalidInput("at_least", "must be a non-negative fraction", repr(at_least))
    learning = learning or Learning()
    diverged = tuple(dict.fromkeys(record.label for record in records if record.diverged))
    comparison = _Comparison(without_tasks(records, learning.unlearnt), diverged, RowNoise.of(noise), confirming)
    verdict = _judge(comparison, at_least)
    late = learning.late_networks(filter(None, (TOGETHER, verdict.candidate)))
    notes = (*verdict.provisional, *_late_networks_note(late), *_excluded_seeds_note(excluded_seeds))
    return replace(
        verdict,
        provisional=notes,
        searched=any(label[0] == "auto" and some[0].deciding.networks for label, some in comparison.choosing.items()),
        diverged=diverged,
        unlearnt=learning.unlearnt,
        learning_checked=bool(learning.p_values),
        late=late if late.networks else None,
        by_budget=dict(_results_by_budget(comparison)),
    )


class _Comparison:
    """The records that a verdict compares, and the changes between them."""

    def __init__(
        self, records: Sequence[Record], diverged: Collection[Label], noise: RowNoise, confirming: Collection[int]
    ) -> None:
        self.all = by_label(records)
        self.choosing = by_label([record for record in records if record.seed not in confirming])
        if TOGETHER not in self.choosing:
            hint = "add 'mtl' to `methods`"
            raise InvalidInput("records", "must include results for 'mtl' as a baseline", "none", hint)
        self.noise, self.confirming = noise, confirming
        counted = bool(self.choosing[TOGETHER][0].val)
        self.candidates: dict[Label, Candidate] = find_candidates(self.choosing, diverged) if counted else {}
        self.distinct = distinct_candidates(self.candidates)
        self._tried: dict[Label, list[list[float]]] = {}

    def best_candidate(self, at_least: float) -> Candidate | None:
        return min(self.candidates.values(), key=lambda one: one.rank(at_least), default=None)

    def networks(self, candidate: Candidate) -> tuple[Record, Change | None]:
        """Returns the record whose networks a user gets, and its change from the mean over all plain networks."""
        picked, plain = picked_record(self.all[candidate.label]), self.all[TOGETHER]
        rows = self.noise.of_networks(candidate.label, len(self.all[candidate.label]))
        # One plain network says nothing about others.
        return picked, _change_with_rows(picked.change(mean_record(plain)), None if len(plain) < 2 else rows)

    def pairs(self, candidate: Candidate, reference: Label = TOGETHER) -> list[tuple[Record, Record]]:
        return paired_records(self.all[candidate.label], self.all[reference], self.confirming)

    def summary(self, candidate: Candidate) -> MethodSummary:
        """Returns the costs of a candidate, for the seeds with which it is judged."""
        pairs = self.pairs(candidate)
        return summarize([mine for mine, _ in pairs] + [theirs for _, theirs in pairs])[0]

    def recipe(self, candidate: Candidate, reference: Label = TOGETHER) -> _Recipe:
        """Returns the change of a candidate from a reference over paired seeds."""
        label, pairs = candidate.label, self.pairs(candidate, reference)
        paired = changes([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
        confirmed = bool(pairs) and pairs[0][0].seed in self.confirming
        row_stderr = (
            _finite(self.noise.recipe.get(label, math.nan))
            if reference == TOGETHER
            else self.noise.of_copies(label, reference)
        )
        estimate = _finite(mean(paired))
        if len(paired) < 2 or estimate is None:
            change = None if estimate is None else Change(estimate)
            return _Recipe(change, len(paired), confirmed, None, row_stderr)
        tried = [] if confirmed else self._tried_changes(reference)
        half = _finite(interval_half_width(paired, tried, row_stderr or 0.0))
        luck = 0.0 if confirmed else candidate.luck
        change = Change(estimate) if half is None else Change(estimate, estimate - half, estimate + half + luck)
        return _Recipe(change, len(paired), confirmed, _finite(stderr(paired)), row_stderr)

    def _tried_changes(self, reference: Label) -> list[list[float]]:
        if reference not in self._tried:
            theirs = self.choosing[reference]
            self._tried[reference] = [changes(self.choosing[one], theirs) for one in self.distinct if one != reference]
        return self._tried[reference]

    def copies(self, candidate: Candidate) -> _FromCopies:
        """Compares a candidate with copies: recipe with recipe, and the very networks with the very copies."""
        copies = matching_copies(self.candidates, candidate)
        if copies is None:
            return _FromCopies()
        picked, theirs = picked_record(self.all[candidate.label]), picked_record(self.all[copies])
        networks = _change_with_rows(picked.change(theirs), self.noise.networks_from_copies.get(candidate.label))
        return _FromCopies(copies, self.recipe(candidate, copies).change, networks)

    def same_teachers(self, candidate: Candidate) -> bool:
        """Returns whether the networks of different seeds with which a candidate is judged share teachers."""
        known: set[str] = set()
        for record, _ in self.pairs(candidate):
            teachers = {key for group in record.groups if group.taught for key in group.taught.teachers}
            if teachers & known:
                return True
            known |= teachers
        return False


@dataclass(frozen=True)
class _FromCopies:
    copies: Label | None = None
    recipe: Change | None = None
    networks: Change | None = None


@dataclass(frozen=True)
class _Recipe:
    change: Change | None
    seeds: int
    confirmed: bool
    seed_stderr: float | None
    row_stderr: float | None


def _judge(comparison: _Comparison, at_least: float) -> Verdict:
    together = comparison.all[TOGETHER]
    plain = picked_record(together).groups
    candidate = comparison.best_candidate(at_least)
    if candidate is None:
        return Verdict(False, (), TOGETHER, plain, seeds=len(comparison.choosing[TOGETHER]), at_least=at_least)
    picked, networks = comparison.networks(candidate)
    recipe = comparison.recipe(candidate)
    from_copies, same_teachers = comparison.copies(candidate), comparison.same_teachers(candidate)
    claim = recipe.change if networks is None or networks.high is None else networks
    expected_better = candidate.rank(at_least)[0] < 0
    worth_it = expected_better and recipe.change is not None and claim is not None and claim.better
    matters = None if from_copies.recipe is None else expected_better and from_copies.recipe.better
    summary, change = comparison.summary(candidate), recipe.change
    return Verdict(
        worth_it=worth_it,
        provisional=tuple(_provisional_reasons(recipe)),
        recommended=candidate.label if worth_it else TOGETHER,
        groups=picked.groups if worth_it else plain,
        candidate=candidate.label,
        candidate_groups=picked.groups,
        validation=candidate.validation,
        expected=candidate.expected,
        networks=networks,
        networks_seed=picked.seed,
        estimate=None if change is None else change.estimate,
        low=None if change is None else change.low,
        high=None if change is None else change.high,
        seeds=recipe.seeds,
        confirmed=recipe.confirmed,
        flattered=not recipe.confirmed and (candidate.luck > 0 or len(comparison.distinct) > 1),
        tried=len(comparison.distinct),
        seed_stderr=recipe.seed_stderr,
        row_stderr=recipe.row_stderr,
        copies=from_copies.copies,
        change_from_copies=from_copies.recipe,
        networks_from_copies=from_copies.networks,
        better_than_copies=_better_than_copies(candidate, matters, same_teachers),
        same_teachers=same_teachers,
        at_least=at_least,
        training_cost=summary.training_cost,
        deciding_cost=summary.deciding_cost,
        size=summary.relative_parameters,
    )


def _better_than_copies(candidate: Candidate, matters: bool | None, same_teachers: bool) -> bool | None:
    if candidate.is_copies:
        return False if candidate.size > 1 else None
    return None if matters and same_teachers else matters


def _results_by_budget(comparison: _Comparison) -> Iterator[tuple[int, BudgetResult]]:
    """Returns the best way of using each number of networks, chosen on validation, starting with one plain network.

    A method that uses fewer networks than its budget competes for both numbers.
    """
    together, candidates = comparison.all[TOGETHER], comparison.candidates.values()
    if not together[0].val:  # nothing was learnt
        return
    sizes = {size for one in candidates for size in (one.size, one.label[1]) if size is not None}
    for size in sorted(sizes | {1}):
        some = [one for one in candidates if size in (one.size, one.label[1])]
        best = min(some, key=Candidate.rank, default=None)
        if size == 1:
            plain = Candidate(TOGETHER, picked_record(together).groups, 1, 0.0, 0.0)
            best = plain if best is None or best.expected >= 0 else best
            some.append(plain)
        if best is not None:
            found = _budget_result(comparison, best)
            yield size, replace(found, others=tuple(_other_kinds(comparison, some, found.kind)))


def _other_kinds(comparison: _Comparison, candidates: Sequence[Candidate], kind: str) -> Iterator[BudgetResult]:
    """Returns the candidates with the lowest expected losses of each kind other than the given one."""
    known = {kind}
    for one in sorted(candidates, key=Candidate.rank):
        found = _budget_result(comparison, one)
        if found.kind not in known:
            known.add(found.kind)
            yield found


def _budget_result(comparison: _Comparison, candidate: Candidate) -> BudgetResult:
    summary, from_copies = comparison.summary(candidate), comparison.copies(candidate)
    picked, networks = comparison.networks(candidate)
    if candidate.label == TOGETHER:
        recipe = _Recipe(Change(0.0, 0.0, 0.0), summary.seeds, False, None, None)
    else:
        recipe = comparison.recipe(candidate)
    return BudgetResult(
        candidate.label,
        picked.groups,
        candidate.size,
        candidate.expected,
        recipe.change,
        from_copies.copies,
        from_copies.recipe,
        recipe.seeds,
        summary.latency,
        summary.parameters or None,
        summary.training_cost,
        summary.deciding_cost,
        networks=networks,
        networks_from_copies=from_copies.networks,
    )


def _change_with_rows(estimate: float, row_stderr: float | None) -> Change | None:
    """Returns a change of single networks, whose interval accounts for the noise of the test rows if it is known."""
    if not math.isfinite(estimate):
        return None
    if row_stderr is None or not math.isfinite(row_stderr):
        return Change(estimate)
    half = row_half_width(row_stderr)
    return Change(estimate, estimate - half, estimate + half)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _excluded_seeds_note(excluded_seeds: Sequence[int]) -> list[str]:
    seeds = f"seed{'' if len(excluded_seeds) == 1 else 's'} {', '.join(map(str, excluded_seeds))}"
    return [f"one network for all tasks diverged with {seeds}, excluded here"] if excluded_seeds else []


def _late_networks_note(found: LateNetworks) -> list[str]:
    were = "was" if found.late == 1 else "were"
    best = f"{found.late} of {found.networks} networks {were} best in the last {LAST_EPOCHS} epochs"
    return [f"{best}, so raise `epochs`"] if found.late else []


def _provisional_reasons(recipe: _Recipe) -> list[str]:
    seeds, reasons = recipe.seeds, []
    if seeds < MIN_SEEDS:
        reasons.append(f"only {seeds} seed{'s' if seeds > 1 else ''}, but {MIN_SEEDS} are needed")
    if recipe.row_stderr is None:
        reasons.append("the noise of the test rows is unknown")
    return reasons
