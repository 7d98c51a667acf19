"""Puts a verdict into words: the recommendation, the evidence, and the answers to four questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tagalong.errors import first_few, pluralize
from tagalong.group import Group

from .candidates import COPIES, is_larger
from .learning import LAST_EPOCHS
from .records import TOGETHER, Label, averaged_tasks
from .text import label_text, percent

if TYPE_CHECKING:
    from .verdict import Change, Verdict

NOT_BETTER = "on validation data, no network beats a constant (the mean or base rate) by more than the noise"
ONE_NETWORK = "Train them all together in one network"
NAMES_OF_KINDS = {
    "larger": "larger network",
    "taught": "taught network",
    "groups": "grouping",
    "copies": "copies",
    "tabm": "TabM network",
}


class Answer(NamedTuple):
    """A question about a study, with a short answer and the evidence for it."""

    question: str
    answer: str
    detail: str


def recommendation(verdict: Verdict) -> str:
    """Returns the recommendation and its reason, in one sentence."""
    if verdict.nothing_learnt:
        return f"Nothing was learnt: {NOT_BETTER}."
    if verdict.candidate is None:
        return f"{ONE_NETWORK}: {_what_was_found(verdict)}."
    networks, claim = _name_networks(verdict), _claim(verdict)
    if claim is None:
        why = "a test loss of the network for all tasks is zero or too close to it"
        return f"{ONE_NETWORK}: the change in the test losses of {networks} cannot be computed, since {why}."
    verb = "changes" if len(verdict.candidate_groups) == 1 else "change"
    change, interval = percent(claim.estimate), _claim_interval(verdict)
    if verdict.worth_it:
        start = f"{_name_idea(verdict)} is worth it: {networks} {verb} the test losses by {change} {interval}"
        return f"{start}{_format_costs(verdict)}."
    if verdict.validation is not None and verdict.validation >= 0:
        kind = NAMES_OF_KINDS[kind_of_networks(verdict.candidate, verdict.candidate_groups)]
        best = f"the best being {networks} with {change} on test {interval}"
        return f"{ONE_NETWORK}: no {kind} did better on validation, {best}."
    what = f"{networks}, best on validation, {verb} the test losses by {change} {interval}"
    return f"{ONE_NETWORK}: {what}, {_why_not(verdict)}."


def supporting_sentences(verdict: Verdict) -> list[str]:
    """Returns sentences about the recipe, about copies, and about tasks that do not count, as far as they apply."""
    recipe = _recipe_sentence(verdict) if verdict.worth_it or verdict.confirmed else ""
    copies = _copies_sentence(verdict) if verdict.worth_it else ""
    return [sentence for sentence in (recipe, copies, not_counted_sentence(verdict)) if sentence]


def not_counted_sentence(verdict: Verdict) -> str:
    """Returns a sentence that names the tasks that do not count, or an empty string if all tasks or no tasks count."""
    if not verdict.unlearnt or verdict.nothing_learnt:
        return ""
    are = "is" if len(verdict.unlearnt) == 1 else "are"
    return f"{first_few(verdict.unlearnt)} {are} not counted: {NOT_BETTER} there."


def answer_questions(verdict: Verdict) -> tuple[Answer, ...]:
    """Answers the questions that a study is about, in the order in which they arise."""
    return (
        Answer("Was anything learnt?", *_was_learnt(verdict)),
        Answer("Were the networks trained for long enough?", *_was_long_enough(verdict)),
        Answer("Is more than one plain network worth it?", *_is_worth_it(verdict)),
        Answer("Do groups matter, or would copies do?", *_do_groups_matter(verdict)),
    )


def _was_learnt(verdict: Verdict) -> tuple[str, str]:
    if verdict.nothing_learnt:
        return "No.", f"{NOT_BETTER[0].upper()}{NOT_BETTER[1:]}."
    if verdict.unlearnt:
        return "Partly.", not_counted_sentence(verdict)
    if verdict.learning_checked:
        return "Yes.", "On validation data, a network beats a constant by more than the noise on every task checked."
    return "Not checked.", "The best constants are not known here, so every task counts."


def _was_long_enough(verdict: Verdict) -> tuple[str, str]:
    late = verdict.late
    if late is None:
        return "Not known.", "The epochs in which networks were best are not known."
    which = f"best in one of the last {LAST_EPOCHS} epochs"
    if not late.late:
        return "Yes.", f"None of the {late.networks} networks was {which}."
    were = "was" if late.late == 1 else "were"
    return "No.", f"{late.late} of {late.networks} networks {were} {which} and might improve; raise `epochs`."


def _is_worth_it(verdict: Verdict) -> tuple[str, str]:
    if verdict.nothing_learnt:
        return "No.", recommendation(verdict)
    detail = " ".join(filter(None, (recommendation(verdict), _recipe_sentence(verdict))))
    if verdict.candidate is not None and not verdict.worth_it and _is_single_seed(verdict):
        return "Not known.", detail
    return ("Yes." if verdict.worth_it else "No."), detail


def _do_groups_matter(verdict: Verdict) -> tuple[str, str]:
    if verdict.candidate is None or verdict.nothing_learnt:
        return "Not known.", "There are no groups to compare with copies."
    if verdict.candidate[0] in COPIES:
        name = label_text(verdict.candidate)
        return "Copies do." if verdict.worth_it else "No.", f"No groups are expected to do better than {name}."
    if not _extra_networks(verdict):
        why = f"{label_text(verdict.candidate)} is one network for all tasks, so there are no groups."
        return "No.", " ".join(filter(None, (why, _compare_with_copies(verdict))))
    if verdict.better_than_copies is None and verdict.change_from_copies is not None:
        return "Not known.", f"{_compare_with_copies(verdict)} {_teachers_sentence(verdict)}"
    if verdict.better_than_copies is None:
        count = pluralize(len(verdict.candidate_groups), "network")
        hint = "add `ensemble` or `best-of` to the methods"
        return "Not known.", f"No copies were trained to compare the {count} with; {hint}."
    answer = f"{_what_matters(verdict)}." if verdict.better_than_copies else "Copies would do."
    return answer, _copies_sentence(verdict)


def _what_matters(verdict: Verdict) -> str:
    assert verdict.candidate is not None
    if _is_larger(verdict):
        return "A larger network matters"
    if has_groups(verdict.candidate_groups):
        return "Groups matter"
    if _has_tabm(verdict):
        return "Groups do not matter, but TabM networks do"
    taught = any(group.taught for group in verdict.candidate_groups)
    return f"Groups do not matter, but {'teaching' if taught else 'the choice of copies'} does"


def has_groups(groups: Sequence[Group]) -> bool:
    """Returns whether some of the networks are not trained on all tasks.

    Example:
        >>> has_groups([Group({"age", "ill"}, {"age", "ill"}), Group({"age"}, {"age"})])
        True
    """
    everything = frozenset(task for group in groups for task in group.serves)
    return any(group.trains != everything for group in groups)


def kind_of_networks(label: Label, groups: Sequence[Group]) -> str:
    """Returns the kind of networks: "plain", "copies", "larger", "taught", "groups" or "tabm" if there is any TabM.

    Example:
        >>> kind_of_networks(("auto", 2), [Group("ab", "ab"), Group("ab", "ab", copy=1)])
        'copies'
        >>> kind_of_networks(("tag", 2), [Group("a", "a"), Group("b", "b")])
        'groups'
        >>> kind_of_networks(("auto", 2), [Group("ab", "ab", size=2)])
        'larger'
        >>> kind_of_networks(("auto", 2), [Group("ab", "ab"), Group("ab", "ab", network="tabm")])
        'tabm'
    """
    if label == TOGETHER:
        return "plain"
    if is_larger(label):
        return "larger"
    if any(group.network == "tabm" for group in groups):
        return "tabm"
    if any(group.taught for group in groups):
        return "taught"
    if any(group.size > 1 for group in groups):
        return "larger"
    return "groups" if has_groups(groups) else "copies"


def _is_larger(verdict: Verdict) -> bool:
    assert verdict.candidate is not None
    return kind_of_networks(verdict.candidate, verdict.candidate_groups) == "larger"


def _has_tabm(verdict: Verdict) -> bool:
    assert verdict.candidate is not None
    return kind_of_networks(verdict.candidate, verdict.candidate_groups) == "tabm"


def _what_was_found(verdict: Verdict) -> str:
    found = "auto found no groups that validation confirms" if verdict.searched else "no grouping was tried"
    if not verdict.diverged:
        return found
    lost = ", ".join(map(label_text, verdict.diverged))
    return found + (f"; {lost} diverged" if verdict.searched else f", but for {lost}, which diverged")


def _name_networks(verdict: Verdict) -> str:
    assert verdict.candidate is not None
    count, name = len(verdict.candidate_groups), label_text(verdict.candidate)
    return f"the network of {name}" if count == 1 else f"the {count} networks of {name}"


def _name_idea(verdict: Verdict) -> str:
    assert verdict.candidate is not None
    if verdict.candidate[0] == "stl":
        return "Training each task alone"
    if _is_larger(verdict):
        return "A larger network" if len(verdict.candidate_groups) == 1 else "Averaging larger networks"
    if _has_tabm(verdict) and not has_groups(verdict.candidate_groups):
        if len(verdict.candidate_groups) == 1:
            return "A TabM network"
        averaged = averaged_tasks(verdict.candidate_groups)
        return "Averaging with TabM networks" if averaged else "Picking TabM networks for some tasks"
    if any(group.taught for group in verdict.candidate_groups):
        return "Teaching networks"
    if averaged_tasks(verdict.candidate_groups):
        return "Averaging networks"
    if has_groups(verdict.candidate_groups):
        return "Grouping"
    return "Picking the best copy" + (" for each task" if len(verdict.candidate_groups) > 1 else "")


def _claim(verdict: Verdict) -> Change | None:
    """Returns the statement about the networks you get, or about the recipe if the noise of rows is unknown."""
    known = verdict.networks is not None and verdict.networks.high is not None
    return verdict.networks if known else verdict.recipe


def _is_single_seed(verdict: Verdict) -> bool:
    claim = _claim(verdict)
    return verdict.seeds < 2 and (claim is None or claim.high is None)


def _why_not(verdict: Verdict) -> str:
    expected, price = verdict.expected or 0.0, verdict.at_least * _extra_networks(verdict)
    if _is_single_seed(verdict):
        return "and one seed cannot tell luck apart"
    claim = _claim(verdict)
    if claim is not None and claim.better:
        if expected >= 0:
            return "but on validation they are not better than the luck of picking explains"
        return f"but on validation they gain less than the {100 * price:g}% asked for"
    return "which is not better by more than the noise"


def _extra_networks(verdict: Verdict) -> int:
    """Returns the number of networks in addition to the first, counting a larger network by its parameters."""
    assert verdict.candidate is not None
    if is_larger(verdict.candidate) and verdict.size is not None:
        return max(1, round(verdict.size)) - 1
    return sum(group.size for group in verdict.candidate_groups) - 1


def _recipe_sentence(verdict: Verdict) -> str:
    """Returns sentences about the recipe, or an empty string if the recommendation is already about it."""
    recipe = verdict.recipe
    if recipe is None or _claim(verdict) is recipe or _claim(verdict) == recipe:
        return ""
    change, interval = percent(recipe.estimate), _format_interval(verdict, recipe)
    if verdict.confirmed:
        seeds = pluralize(verdict.seeds, "fresh seed")
        sentence = f"Trained anew with {seeds}, the same plan changes them by {change} {interval}"
        lucky = verdict.worth_it and recipe.high is not None and not recipe.better
        doubt = ", so the gain may be the luck of these networks" if lucky else ""
    else:
        sentence = f"Over {pluralize(verdict.seeds, 'seed')}, the same plan changes them by {change} {interval}"
        flattery = ", which picking flatters, as the same seeds chose it; `confirm` trains it anew"
        doubt = flattery if verdict.flattered else ""
    return " ".join(filter(None, (f"{sentence}{doubt}.", _teachers_sentence(verdict))))


def _teachers_sentence(verdict: Verdict) -> str:
    """Returns a warning if all seeds share teachers, else an empty string."""
    if not verdict.same_teachers:
        return ""
    advice = "" if verdict.confirmed else "; `confirm` trains teachers anew"
    return f"All seeds have the same teachers, so the interval does not account for the luck of these{advice}."


def _copies_sentence(verdict: Verdict) -> str:
    """Returns what is better than copies, or that copies would do, or an empty string if this is not known."""
    compared, change = _compare_with_copies(verdict), verdict.change_from_copies
    if not compared or change is None or verdict.better_than_copies is None or not _extra_networks(verdict):
        return compared
    copies = "Copies would do better" if change.worse else "Copies would do"
    return f"{_what_matters(verdict) if verdict.better_than_copies else copies}: {compared[0].lower()}{compared[1:]}"


def _compare_with_copies(verdict: Verdict) -> str:
    """Returns a sentence about the changes from copies: of the recipe, and of the networks you get."""
    change, networks = verdict.change_from_copies, verdict.networks_from_copies
    if change is None or verdict.copies is None or (verdict.copies == TOGETHER and networks is None):
        return ""
    name = "the best plain network on validation" if verdict.copies == TOGETHER else label_text(verdict.copies)
    parts = []
    if verdict.copies != TOGETHER:  # the recipe sentence compares the plan with one plain network
        parts.append(f"{percent(change.estimate)} {_format_interval(verdict, change)} for the same plan")
    if networks is not None:
        interval = "" if networks.low is None else f" {_format_interval(verdict, networks)}"
        parts.append(f"{percent(networks.estimate)}{interval} for the networks you get")
    return f"Compared with {name}, the change is {' and '.join(parts)}."


def _claim_interval(verdict: Verdict) -> str:
    claim = _claim(verdict)
    if claim is verdict.networks and claim is not None:
        return _format_interval(verdict, claim, " over test rows")
    seeds = pluralize(verdict.seeds, "seed")
    if claim is None or claim.high is None:
        return f"({seeds})" if verdict.seeds < 2 else f"({seeds}, which differ too much for an interval)"
    return _format_interval(verdict, claim, f", {seeds}")


def _format_interval(verdict: Verdict, change: Change, end: str = "") -> str:
    if change.low is None or change.high is None:
        return f"({pluralize(verdict.seeds, 'seed')})"
    return f"({100 * verdict.confidence:g}% interval {percent(change.low)} to {percent(change.high)}{end})"


def _format_costs(verdict: Verdict) -> str:
    known = {("training", "as much"): verdict.training_cost, ("parameters", "as many"): verdict.size}
    costs = [
        f"{same} {what}" if f"{value:.3g}" == "1" else f"{value:.3g} times the {what}"
        for (what, same), value in known.items()
        if value is not None
    ]
    return f", for {' and '.join(costs)}" if costs else ""
