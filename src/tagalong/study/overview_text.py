"""An overview of a study on one screen: the best networks for each budget, whether groups matter, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tagalong.errors import pluralize
from tagalong.rendering import TextTable, format_duration, wrap

from .records import TOGETHER
from .summary import mean
from .text import percent
from .verdict_text import Answer, has_groups, recommendation

if TYPE_CHECKING:
    from .results import Results
    from .verdict import BudgetResult, Change, Verdict

HEADINGS = ("networks", "best way found", "from one plain", "from copies")
NUMBERS = ("networks", "from one plain", "from copies")
RECOMMENDED = "*"
NAME_WIDTH = len("Worth it?") + 2  # of the longest name of an answer, and a gap


def overview_text(results: Results, width: int) -> str:
    """Formats the best way found for each number of networks, and answers what a newcomer asks, in about 20 lines."""
    verdict = results.verdict()
    parts = [_title(results)]
    if verdict.by_budget:
        parts += [*_budgets_table(verdict, width), *_legend(verdict, width)]
    answers = TextTable("", "")
    for name, sentences in _answers(results):
        answers.add_row(name, sentences)
    return "\n".join([*parts, "", *answers.lines(width), *_page_line(results)])


def _page_line(results: Results) -> list[str]:
    """Returns where the report is. The line is never wrapped, so that the path can be copied."""
    page = None if results.out is None else results.out / "report.html"
    return [f"{'Page':{NAME_WIDTH}}{page}"] if page is not None and page.exists() else []


def _title(results: Results) -> str:
    fresh = set(results.settings.get("confirming_seeds", ()))
    seeds = {record.seed for record in results.records} - fresh
    confirmed = f" and {len(fresh)} fresh ones to confirm" if fresh else ""
    tasks = pluralize(len(results.problem.tasks), "task")
    return f"{results.problem.name}: {tasks}, {pluralize(len(seeds), 'seed')}{confirmed}"


def _budgets_table(verdict: Verdict, width: int) -> list[str]:
    compared = _has_copies(verdict)
    table = TextTable(*(HEADINGS if compared else HEADINGS[:-1]), numbers=NUMBERS, wrap_headings=False)
    for budget, found in verdict.by_budget.items():
        number = f"{RECOMMENDED} {budget}" if _is_recommended(verdict, budget) else str(budget)
        cells = [number, describe_networks(found), "" if found.kind == "plain" else _change_text(found.change)]
        table.add_row(*cells, *([_change_text(_change_from_copies(found))] if compared else []))
    return table.lines(width)


def _has_copies(verdict: Verdict) -> bool:
    return any(_change_from_copies(found) for found in verdict.by_budget.values())


def _change_from_copies(found: BudgetResult) -> Change | None:
    """Returns the change from copies, or None if these are copies, which other methods may pick differently."""
    return None if found.kind == "copies" else found.change_from_copies


def _is_recommended(verdict: Verdict, budget: int) -> bool:
    found = verdict.by_budget[budget]
    return found.label == verdict.recommended and found.size == budget


def describe_networks(found: BudgetResult) -> str:
    """Describes the networks of a budget by how they are trained, e.g. "2 copies" or "1 taught by 8 others".

    Args:
        found: the best way of using a number of networks.
    """
    if found.kind == "plain":
        return "1 plain network"
    if found.kind == "copies":
        return "1 picked from copies" if len(found.groups) == 1 else f"{len(found.groups)} copies"
    everything = frozenset(task for group in found.groups for task in group.serves)
    taught = [group.taught for group in found.groups if group.taught]
    size = max(found.size if found.kind == "larger" and len(found.groups) == 1 else 1, *(g.size for g in found.groups))
    teachers = max((len(one.teachers) for one in taught), default=0)
    counts = {
        f"taught by {teachers}": len(taught),
        "for some tasks": sum(group.trains != everything for group in found.groups),
        f"of {size} times the size": len(found.groups) if size > 1 else 0,
    }
    kinds = Counter(group.network_text for group in found.groups if group.network)
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    parts += [pluralize(count, kind) for kind, count in kinds.items()]
    return f"{parts[0]} other{'s' * (teachers > 1)}" if taught and len(parts) == 1 else ", ".join(parts)


def _change_text(change: Change | None) -> str:
    if change is None:
        return ""
    if change.low is None or change.high is None:
        return percent(change.estimate)
    low, high = (percent(end).removesuffix("%") for end in (change.low, change.high))
    return f"{percent(change.estimate)} ({low} to {high})"


def _legend(verdict: Verdict, width: int) -> list[str]:
    recommended = any(_is_recommended(verdict, budget) for budget in verdict.by_budget)
    text = f"{RECOMMENDED} recommended. " if recommended else ""
    level = f"{100 * verdict.confidence:g}% intervals"
    text += f"Change in test loss, mean over tasks and seeds, with {level}; negative is better."
    if _has_copies(verdict):
        text += " Copies are picked with as much effort."
    return wrap(text, width)


def _answers(results: Results) -> Iterator[tuple[str, str]]:
    verdict = results.verdict()
    learnt, long_enough, worth_it, groups = verdict.answers()
    yield "Worth it?", f"{worth_it.answer} {recommendation(verdict)}"
    yield "Groups?", _groups_matter(verdict, groups)
    yield "Learnt?", f"{learnt.answer} {learnt.detail}"
    if long_enough.answer == "No.":
        yield "Epochs?", f"Too few. {long_enough.detail}"
    if cost := _cost_sentence(results):
        yield "Cost", cost


def _groups_matter(verdict: Verdict, answer: Answer) -> str:
    """Returns whether groups matter for the recommended networks or, if that is a single one, for any other number."""
    several = {budget: found for budget, found in verdict.by_budget.items() if budget > 1}
    if not several or len(verdict.candidate_groups) != 1 or verdict.nothing_learnt:
        repeated = answer.detail.startswith(answer.answer.rstrip("."))
        return answer.detail if repeated else f"{answer.answer} {answer.detail}"
    grouped = {budget: found for budget, found in several.items() if has_groups(found.groups)}
    if not grouped:
        return _without_groups(several)
    compared = {budget: found.change_from_copies for budget, found in grouped.items() if found.change_from_copies}
    if not compared:
        return "Not known. No copies were trained to compare the groups with."
    better = [budget for budget, change in compared.items() if change.better]
    if not better:
        return f"Copies would do. With {_either(compared)} networks, groups are not better by more than the noise."
    if all(any(group.taught for group in grouped[budget].groups) for budget in better):
        return f"Not known. With {_either(better)} networks, groups beat copies, but all seeds share their teachers."
    return f"Not for one network. With {_either(better)} networks, groups beat copies by more than the noise."


def _without_groups(several: Mapping[int, BudgetResult]) -> str:
    if all(found.kind == "copies" for found in several.values()):
        return f"No. With {_either(several)} networks, copies are the best way found."
    changes = [change for found in several.values() if (change := _change_from_copies(found))]
    copies_do = ", and copies would do" if changes and not any(change.better for change in changes) else ""
    return f"No. With {_either(several)} networks, the best way found trains each of them on all tasks{copies_do}."


def _either(budgets: Iterable[int]) -> str:
    *first, last = map(str, budgets)
    return f"{', '.join(first)} or {last}" if first else last


def _cost_sentence(results: Results) -> str:
    spent = results.settings.get("spent") or {}
    networks, steps, seconds = (spent.get(name) or 0 for name in ("networks", "steps", "seconds"))
    if not networks:
        return ""
    sentence = f"{pluralize(networks, 'network')} trained in {format_duration(seconds)}"
    plain = mean([record.training.steps for record in results.records_of(TOGETHER)])
    return f"{sentence}, as many steps as {steps / plain:.0f} plain ones." if plain > 0 and steps else f"{sentence}."
