"""The networks to use: who trains and answers what, which answers are averaged, and which networks were taught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from tagalong.errors import pluralize
from tagalong.group import Group, Taught
from tagalong.rendering import Html, tag
from tagalong.study import BudgetResult, Change, Label, Run, TaskChange, Verdict, averaged_tasks, label_text

from ..style import format_percent, percent_text

NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
AVERAGES = {
    "regression": "the mean of their values",
    "binary": "the mean of their probabilities",
    "multiclass": "the mean of their probabilities",
}
OWN_AVERAGE = "the average that the task defines"
MAX_NETWORKS = 12  # of a budget that is not recommended; the networks of larger budgets are not listed
UNLEARNT = "not learnt"

# Networks of the same kind and size that train and serve the same tasks and learn in the same way, which share a card.
CardKey = tuple[frozenset[str], frozenset[str], Taught | None, int, str | None]


class Choice(NamedTuple):
    """Networks that a reader may choose: those recommended, or the best for a number of networks."""

    name: str
    label: Label
    groups: tuple[Group, ...]
    change: Change | None
    recommended: bool


def recommended_section(run: Run) -> Html:
    """Returns the recommended networks and the best ones for every other number of networks, to choose from."""
    verdict = run.results.verdict()
    choices = network_choices(verdict)
    title = "The networks to use" if len(verdict.groups) > 1 else "The network to use"
    if verdict.nothing_learnt:
        title = "One network for all tasks"
    return tag(
        "section",
        tag("h2", title, id="networks-title"),
        tag("div", id="networks-switches", class_="switches"),
        *(_panel(run, choice, alone=len(choices) == 1) for choice in choices),
        id="networks",
        aria_labelledby="networks-title",
    )


def network_choices(verdict: Verdict) -> list[Choice]:
    """Returns the recommended networks and the best ones for each number of networks, smallest first."""
    found = [
        _budget_choice(budget, one, one.label == verdict.recommended and one.size == budget)
        for budget, one in verdict.by_budget.items()
    ]
    kept = [one for one in found if one.recommended or len(one.groups) <= MAX_NETWORKS]
    if any(one.recommended for one in kept):
        return kept
    # One plain network is recommended, but a single network of another kind is expected to be better.
    name = "1 plain network" if verdict.recommended[0] == "mtl" else pluralize(len(verdict.groups), "network")
    change = None if verdict.recommended[0] == "mtl" else verdict.networks or verdict.recipe
    return [Choice(name, verdict.recommended, verdict.groups, change, recommended=True), *kept]


def _budget_choice(budget: int, one: BudgetResult, recommended: bool) -> Choice:
    change = None if one.kind == "plain" else (one.networks if recommended and one.networks else one.change)
    groups = one.groups
    if one.kind == "larger" and len(groups) == 1:  # methods such as `mtl-big2` do not note the size in the group
        groups = (replace(groups[0], size=one.size),)
    return Choice(pluralize(budget, "network"), one.label, groups, change, recommended)


def _panel(run: Run, choice: Choice, *, alone: bool) -> Html:
    """Returns the cards of some networks, with what to expect of them and how their answers are averaged."""
    name = f"{choice.name}{' (recommended)' if choice.recommended else ''}"
    return tag(
        "div",
        None if alone else tag("h3", name),
        tag("p", " ".join(_lead(run, choice)), class_="lead"),
        _cards(run, choice.label, choice.groups, "h3" if alone else "h4"),
        class_="panel",
        data_choice=name,
        data_recommended=choice.recommended,
    )


def _lead(run: Run, choice: Choice) -> Iterable[str]:
    networks, change = describe_networks(choice.label, choice.groups), choice.change
    is_plain = choice.label[0] == "mtl"
    yield f"{networks[0].upper()}{networks[1:]}{'' if is_plain else f', found by {label_text(choice.label)}'}."
    if change is not None:
        interval = "" if change.low is None or change.high is None else f" ({_interval_text(change)})"
        estimate = percent_text(change.estimate)
        yield f"Compared with one plain network, the test losses change by {estimate}{interval}, averaged over tasks."
    measure = "Errors" if _has_errors(run) else "Losses"
    yield f"{measure} on test data{'' if is_plain else ' and changes in loss'} are listed by task."
    if averaged := averaged_tasks(choice.groups):
        problem = run.results.problem
        kinds = [problem.kinds.get(task, "") for task in problem.tasks if task in averaged]
        kinds = list(dict.fromkeys(AVERAGES.get(kind, OWN_AVERAGE) for kind in kinds))
        yield f"Where several networks answer a task, its answer is {' or '.join(kinds)}."
    if any(group.taught for group in choice.groups):
        yield "Teachers are needed only for training."


def _interval_text(change: Change) -> str:
    return f"{format_percent(change.low or 0.0)} to {format_percent(change.high or 0.0)}%"


def describe_networks(label: Label, groups: Sequence[Group]) -> str:
    """Describes networks in a few words.

    Example:
        >>> describe_networks(("ensemble", 2), [Group("ab", "ab"), Group("ab", "ab", copy=1)])
        'two copies of one network'
        >>> describe_networks(("tag", 2), [Group("a", "a"), Group("b", "b")])
        'two networks, each for some of the tasks'
        >>> describe_networks(("auto", 1), [Group("ab", "ab", taught=Taught(("x", "y")))])
        'one network for all tasks, taught by two others'
        >>> describe_networks(("auto", 1), [Group("ab", "ab", taught=Taught(("x",)))])
        'one network for all tasks, taught by another one'
        >>> describe_networks(("auto", 2), [Group("ab", "ab"), Group("ab", "ab", network="tabm")])
        'two networks, one of them a TabM network'
    """
    if len(groups) == 1:
        return _describe_single(label, groups[0])
    count, everything = number_in_words(len(groups)), frozenset().union(*(group.serves for group in groups))
    if label[0] == "stl":
        return f"{count} networks, one for each task"
    is_special = any(group.taught or group.size > 1 or group.network for group in groups)
    if not is_special and all(group.trains == everything for group in groups):
        return f"{count} copies of one network"
    parts = [f"{count} networks"]
    if all(group.trains != everything for group in groups):
        parts.append("each for some of the tasks")
    parts += _share("taught by others", [group for group in groups if group.taught], groups)
    parts += _share("wider", [group for group in groups if group.size > 1], groups)
    for kind in sorted({group.network_text for group in groups if group.network}):
        some = [group for group in groups if group.network_text == kind]
        parts += _share(f"{'a ' * (len(some) == 1)}{kind}{'s' * (len(some) > 1)}", some, groups)
    return ", ".join(parts)


def _share(what: str, some: Sequence[Group], groups: Sequence[Group]) -> list[str]:
    """Returns how many of the networks something is true of, unless it is true of none."""
    if not some:
        return []
    if len(some) == len(groups):
        return [f"{'both' if len(groups) == 2 else 'all'} {what}"]
    return [f"{number_in_words(len(some))} of them {what}"]


def _describe_single(label: Label, group: Group) -> str:
    if label[0] == "mtl":
        return "one plain network for all tasks"
    wider = "wider " if group.size > 1 or label[0].startswith(("mtl-big", "mtl-wide")) else ""
    network = group.network_text or "network"
    if group.taught:
        teachers = len(group.taught.teachers)
        others = "another one" if teachers == 1 else f"{number_in_words(teachers)} others"
        return f"one {wider}{network} for all tasks, taught by {others}"
    if wider:
        return f"one wider {network} for all tasks"
    if group.network:
        return f"one {network} for all tasks"
    picked = label[0] in ("best-of", "auto")
    return f"one network for all tasks{', the best of several copies' if picked else ''}"


def describe_network(group: Group, tasks: int) -> str:
    """Describes the kind of a network, what it is trained on, and how it learns, for its card.

    Args:
        group: the network.
        tasks: the number of tasks of the problem.

    Example:
        >>> describe_network(Group({"age", "ill"}, {"age"}, size=2), tasks=3)
        'Network with 2 times the parameters, trained on 2 of 3 tasks.'
    """
    kind = group.network_text or ("Plain network" if group.taught is None else "Student")
    if group.size > 1:
        kind = f"{kind.replace('Plain network', 'Network')} with {group.size} times the parameters"
    trained = f"all {tasks} tasks" if len(group.trains) == tasks else f"{len(group.trains)} of {tasks} tasks"
    sentences = [f"{kind}, trained on {trained}."]
    if (taught := group.taught) is not None:
        teachers = pluralize(len(taught.teachers), "teacher")
        labels = "" if taught.mix == 1 else f"{1 - taught.mix:.0%} from labels and {taught.mix:.0%} "
        more = [f"{taught.mixtures:g} {'mixture' if taught.mixtures == 1 else 'mixtures'} of two rows for each row"]
        more = [*(more if taught.mixtures else []), *(["unlabelled rows"] if taught.unlabelled else [])]
        extra = f", also on {' and '.join(more)}" if more else ""
        sentences.append(f"Learns {labels}from the answers of {teachers}{extra}.")
    return " ".join(sentences)


def number_in_words(count: int) -> str:
    """Spells out small numbers.

    Example:
        >>> number_in_words(3), number_in_words(40)
        ('three', '40')
    """
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def unlearnt_chip(task: str) -> Html:
    """Returns the name of a task that was not learnt, with a mark that says so."""
    return tag("span", task, tag("span", UNLEARNT, class_="mark"), class_="chip helper")


def _cards(run: Run, label: Label, groups: Sequence[Group], heading: str) -> Html:
    """Returns a card for each network; copies share one.

    If networks on different cards answer the same task, the losses of the averages are in a table of their own.
    """
    changes = run.results.changes_by_task(*label)
    cards: dict[CardKey, list[int]] = {}
    for number, group in enumerate(groups, 1):
        cards.setdefault((group.trains, group.serves, group.taught, group.size, group.network), []).append(number)
    is_single = label[0] == "mtl"
    shared = {task for task in changes if sum(task in serves for _, serves, *_ in cards) > 1}
    made = [
        _card(run, some, groups[some[0] - 1], None if shared else changes, heading, is_single=is_single)
        for some in cards.values()
    ]
    element = tag("div", *made, class_="cards" if len(cards) > 1 else "cards one")
    return Html(element + _answers_table(run, groups, changes)) if shared else element


def _card(
    run: Run,
    members: Sequence[int],
    group: Group,
    changes: Mapping[str, TaskChange] | None,
    heading: str,
    *,
    is_single: bool,
) -> Html:
    tasks, unlearnt = run.results.problem.tasks, run.results.verdict().unlearnt
    helpers = [_chip(task, "helper", task in unlearnt) for task in tasks if task in group.helpers]
    served = [task for task in tasks if task in group.serves]
    if changes is None:
        chips = [_chip(task, "served", task in unlearnt) for task in served]
        content = tag("p", tag("span", "answers ", class_="does"), *with_spaces(chips), class_="chips")
    else:
        rows = [_task_row(run, changes[task], is_single=is_single) for task in served]
        content = tag("table", _table_head(run, ["answers"], is_single), tag("tbody", *rows), class_="served")
    return tag(
        "article",
        tag(heading, tag("span", class_="swatch"), "All tasks" if is_single else _card_title(members, group)),
        tag("p", describe_network(group, len(tasks)), class_="kind"),
        content,
        tag("p", "trained only to help: ", *with_spaces(helpers), class_="helpers") if helpers else None,
        _teachers_list(run, group.taught) if group.taught else None,
        class_=f"card n{(members[0] - 1) % 8}",
    )


def _chip(task: str, kind: str, unlearnt: bool) -> Html:
    mark = tag("span", UNLEARNT, class_="mark") if unlearnt else None
    return tag("span", task, mark, class_=f"chip {kind}")


def _teachers_list(run: Run, taught: Taught) -> Html | None:
    """Returns the tasks of the teachers, or None if they are not in the log of the search."""
    log = run.results.search_log
    if log is None or len(log.teachers) != len(taught.teachers):
        return None
    tasks = run.results.problem.tasks
    trained = Counter((group.trains, group.size, group.network_text or "network") for group in log.teachers)
    items = []
    for some, size, kind in sorted(trained, key=lambda one: (-len(one[0]), sorted(one[0]), *one[1:])):
        names = "all tasks" if len(some) == len(tasks) else ", ".join(task for task in tasks if task in some)
        wider = f" with {size} times the parameters" if size > 1 else ""
        items.append(tag("li", f"{pluralize(trained[some, size, kind], kind)}{wider} for {names}"))
    title = "The teacher" if len(log.teachers) == 1 else f"The {len(log.teachers)} teachers"
    return tag("details", tag("summary", title), tag("ul", *items), class_="teachers")


def _card_title(numbers: Sequence[int], group: Group) -> str:
    if len(numbers) == 1:
        return f"Network {numbers[0]}"
    kind = "students" if group.taught else f"{group.network_text}s" if group.network else "copies"
    return f"Networks {_listed(numbers)}: {kind}, averaged"


def _listed(numbers: Sequence[int]) -> str:
    """Lists numbers.

    Example:
        >>> _listed([1]), _listed([1, 2, 3])
        ('1', '1, 2 and 3')
    """
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def _answers_table(run: Run, groups: Sequence[Group], changes: Mapping[str, TaskChange]) -> Html:
    """Returns a table of which networks answer each task, and how good their average is."""
    rows = []
    for task in run.results.problem.tasks:
        answering = [number for number, group in enumerate(groups, 1) if task in group.serves]
        name = f"{'mean of networks' if len(answering) > 1 else 'network'} {_listed(answering)}"
        rows.append(_task_row(run, changes[task], name))
    head = _table_head(run, ["task"])
    element = tag("table", tag("caption", "Who answers what"), head, tag("tbody", *rows), class_="served answers")
    return tag("div", element, class_="card committee")


def _table_head(run: Run, columns: Sequence[str], is_single: bool = False) -> Html:
    numbers = ["test error", "loss change"] if _has_errors(run) else ["test loss", "change"]
    names = [*columns, *(numbers[:1] if is_single else numbers)]
    return tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))


def _task_row(run: Run, change: TaskChange, answering: str = "", *, is_single: bool = False) -> Html:
    measure = run.results.problem.errors.get(change.task, "")
    error = "" if change.after != change.after else f"{change.after:.4g} {measure}".strip()
    number = error if _has_errors(run) else f"{change.loss:.4g}"
    unlearnt = change.task in run.results.verdict().unlearnt
    mark = [" ", tag("span", UNLEARNT, class_="mark")] if unlearnt else []
    below = tag("span", answering, class_="answering") if answering else None
    cells = [tag("th", change.task, *mark, below, scope="row"), tag("td", number)]
    if not is_single:
        cells.append(tag("td", percent_text(change.change, change.stderr), class_=_css_class(change)))
    return tag("tr", *cells)


def _has_errors(run: Run) -> bool:
    """Returns whether errors are known in addition to losses. Errors may be missing for networks trained elsewhere."""
    return any(isfinite(found.error) for record in run.results.records for found in record.test.values())


def _css_class(change: TaskChange) -> str:
    return ("better" if change.change < 0 else "worse") if change.sure else "unsure"


def with_spaces(children: Sequence[Html]) -> list[object]:
    """Returns elements with a space after each of them."""
    return [part for child in children for part in (child, " ")]
