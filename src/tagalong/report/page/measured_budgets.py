"""The section about budgets: what each further network was measured to buy."""

from __future__ import annotations

from tagalong.rendering import Html, escape, tag
from tagalong.study import BudgetResult, Change, Results, label_text

from ..result_figures import KIND_LABELS, ways_by_budget
from ..style import format_percent, percent_text

HEADINGS = (
    *("networks", "way", "vs. one plain network", "one more buys", "vs. copies", "very networks vs. very copies"),
    *("latency", "parameters", "training", "deciding"),
)


def has_measured_budgets(results: Results) -> bool:
    """Returns whether a run has results for anything but one plain network."""
    return any(one.kind != "plain" for one in results.verdict().by_budget.values())


def measured_section(results: Results) -> Html:
    """Returns the curve and the table of the best way of using each number of networks."""
    verdict = results.verdict()
    lead = (
        "The change in test loss, averaged over tasks, compared with one plain network: for the best way found of "
        "using each number of networks, chosen on validation data, and for the best of each kind. All values are "
        f"measured. Bars are {100 * verdict.confidence:g}% confidence intervals over seeds and test rows. A wider "
        "network counts as the number of plain networks with about as many parameters."
    )
    return tag(
        "section",
        tag("h2", "How many networks? What each further one buys", id="measured-title"),
        tag("p", lead, class_="lead"),
        tag(
            "div",
            id="measured-curve",
            class_="plot",
            role="img",
            aria_label="Change in test loss for each number of networks; the table below it has the numbers",
        ),
        tag(
            "details",
            tag("summary", "The numbers as a table, with costs"),
            _budgets_table(results),
            tag("p", _notes(results), class_="note"),
        ),
        id="measured",
        aria_labelledby="measured-title",
    )


def _budgets_table(results: Results) -> Html:
    verdict = results.verdict()
    rows: list[tuple[list[object], str]] = []
    for budget, ways in ways_by_budget(results).items():
        for one in ways:
            is_best = one.label == verdict.by_budget[budget].label if budget in verdict.by_budget else False
            recommended = is_best and one.label == verdict.recommended and one.size == budget
            previous = verdict.by_budget.get(budget - 1) if is_best else None
            number = str(budget) if one is ways[0] else ""
            style = "best" if recommended else "first" if is_best else "other"
            rows.append(([number, *_cells(one, budget, previous)], style))
    shown = [place for place in range(len(HEADINGS)) if any(cells[place] for cells, _ in rows)]
    body = [tag("tr", *(_cell(cells[place], place) for place in shown), class_=style) for cells, style in rows]
    element = tag(
        "table",
        tag("caption", "The best way of each kind, by number of networks"),
        tag("thead", tag("tr", *(tag("th", HEADINGS[place], scope="col") for place in shown))),
        tag("tbody", *body),
        id="measured-table",
    )
    name = "Results by number of networks"
    return tag("div", element, class_="scroll", tabindex="0", role="region", aria_label=name)


def _cell(text: object, place: int) -> Html:
    return (
        tag("th", text, scope="row") if place == 0 and text else tag("td", text, class_="name" if place == 1 else None)
    )


def _cells(one: BudgetResult, budget: int, previous: BudgetResult | None) -> list[object]:
    """Returns the texts below all headings but the first."""
    method = one.label[0] if one.label[1] in (None, budget) else label_text(one.label)
    used = "" if one.size == budget else f", {one.size} in use"
    plain = one.kind == "plain"
    return [
        KIND_LABELS[one.kind] + ("" if plain else f" ({method}{used})"),
        "" if plain else _format_change(one.change),
        _format_gain(one, previous),
        _format_change(one.change_from_copies),
        _format_change(one.networks_from_copies),
        "" if one.latency is None else f"{1000 * one.latency:.2g} ms",
        "" if one.parameters is None else f"{one.parameters:,.0f}",
        "" if not one.training_cost else f"{one.training_cost:.3g}×",
        "" if not one.deciding_cost else f"{one.deciding_cost:.3g}×",
    ]


def _format_change(change: Change | None) -> str | Html:
    if change is None:
        return ""
    if change.low is None or change.high is None:
        return percent_text(change.estimate)
    interval = f"{format_percent(change.low)} to {format_percent(change.high)}"
    return Html(escape(percent_text(change.estimate)) + tag("span", interval, class_="interval"))


def _format_gain(one: BudgetResult, previous: BudgetResult | None) -> str:
    """Formats the difference from the change of one network fewer, in percentage points."""
    if previous is None or one.change is None or previous.change is None:
        return ""
    return format_percent(one.change.estimate - previous.change.estimate)


def _notes(results: Results) -> str:
    verdict, found = results.verdict(), results.verdict().by_budget
    notes = ["The shaded row is recommended."] if verdict.worth_it else []
    notes.append("“One more buys” is the difference from the best with one network fewer, in percentage points.")
    if any(one.training_cost for one in found.values()):
        notes.append("Costs are optimizer steps, as a multiple of training one network for all tasks.")
    if any(one.networks_from_copies for best in found.values() for one in (best, *best.others)):
        notes.append(
            "The very networks are those that were picked on validation data, compared with copies that were picked "
            "with about the same effort; all other changes are those of the same plan over several seeds."
        )
    if verdict.flattered:
        notes.append("Results with the seeds that chose the networks are flattered by the choice.")
    return " ".join(notes)
