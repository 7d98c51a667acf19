"""The recommended networks: who answers what, which answers are averaged, and which networks were taught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from tagalong.group import Group, Taught
from tagalong.rendering import Html, tag
from tagalong.study import Label, Run, TaskChange, averaged_tasks, label_text

from ..style import percent_text

# Networks of the same size that train and serve the same tasks and learn in the same way, which share a card.
CardKey = tuple[frozenset[str], frozenset[str], Taught | None, int, str | None]


def recommended_section(run: Run) -> Html:
    """Returns the recommended networks, followed by the best grouping if it is not the recommended one."""
    verdict = run.results.verdict()
    title = "The networks to use" if len(verdict.groups) > 1 else "The network to use"
    if verdict.nothing_learnt:
        title = "One network for all tasks"
    other = None
    if verdict.candidate is not None and not verdict.worth_it:
        name = f"The best on validation: {label_text(verdict.candidate)}"
        cards = _cards(run, verdict.candidate, verdict.candidate_groups)
        other = tag("details", tag("summary", name), cards)
    cards = _cards(run, verdict.recommended, verdict.groups)
    lead = f"{'Errors' if _has_errors(run) else 'Losses'} on test data" + (
        ", and the change in loss compared with one network for all tasks." if verdict.worth_it else "."
    )
    if averaged_tasks(verdict.groups):
        lead += " The answers of networks that serve the same task are averaged."
    if any(group.taught for group in verdict.groups):
        lead += " Networks that were taught learned from the answers of other networks, which are no longer needed."
    return tag(
        "section",
        tag("h2", title, id="networks-title"),
        tag("p", lead, class_="lead"),
        cards,
        other,
        id="networks",
        aria_labelledby="networks-title",
    )


def _cards(run: Run, label: Label, groups: Sequence[Group]) -> Html:
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
        _card(run, some, groups[some[0] - 1], None if shared else changes, is_single=is_single)
        for some in cards.values()
    ]
    element = tag("div", *made, class_="cards" if len(cards) > 1 else "cards one")
    return Html(element + _answers_table(run, groups, changes)) if shared else element


def _card(
    run: Run, members: Sequence[int], group: Group, changes: Mapping[str, TaskChange] | None, *, is_single: bool
) -> Html:
    helpers = [tag("span", task, class_="chip helper") for task in sorted(group.helpers)]
    served = [task for task in run.results.problem.tasks if task in group.serves]
    if changes is None:
        chips = [tag("span", task, class_="chip served") for task in served]
        content = tag("p", *_with_spaces(chips), class_="chips")
    else:
        rows = [_task_row(run, changes[task], is_single=is_single) for task in served]
        content = tag("table", _table_head(run, ["serves"], is_single), tag("tbody", *rows), class_="served")
    taught = None if group.taught is None else str(group.taught)
    size = f"{group.size} times the size of a plain network." if group.size > 1 else None
    network = f"{group.network_text}." if group.network else None
    return tag(
        "article",
        tag("h3", tag("span", class_="swatch"), "All tasks" if is_single else _card_title(members, group)),
        content,
        tag("p", "trained only to help: ", *_with_spaces(helpers), class_="helpers") if helpers else None,
        tag("p", size, class_="helpers") if size else None,
        tag("p", network, class_="helpers") if network else None,
        tag("p", f"{taught[0].upper()}{taught[1:]}.", class_="helpers") if taught else None,
        class_=f"card n{(members[0] - 1) % 8}",
    )


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
        name = f"{'networks' if len(answering) > 1 else 'network'} {_listed(answering)}"
        rows.append(_task_row(run, changes[task], name))
    head = _table_head(run, ["task"])
    element = tag("table", tag("caption", "Who answers what"), head, tag("tbody", *rows), class_="served", id="answers")
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
    mark = [" ", tag("span", "not learnt", class_="chip helper")] if unlearnt else []
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


def _with_spaces(children: Sequence[Html]) -> list[object]:
    return [part for child in children for part in (child, " ")]
