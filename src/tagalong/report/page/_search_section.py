"""How `auto` searched: what effort brought, and what each training taught."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tagalong._html import Html, tag
from tagalong.study._search_text import Lesson, effort_sentence, lessons, trainings

from .._labels import signed
from .._run import Run


def auto_told(run: Run) -> Mapping[str, Any] | None:
    """What `auto` told of its decision; None where it was not asked, or had nothing to decide."""
    told: Mapping[str, Any] | None = run.results.settings.get("decisions", {}).get("auto")
    return told if told and told.get("steps") else None


def how_it_searched(told: Mapping[str, Any]) -> Html:
    """The curve, then every training."""
    return tag(
        "section",
        tag("h2", "How auto searched", id="search-title"),
        tag(
            "p",
            effort_sentence(told) + " The curve shows what it expected, on validation data, of the best networks it "
            "had trained by then. Expectations are shrunk by how much luck there is, and count only once they stand "
            "out from their doubt: zero means one network for all tasks.",
            class_="lead",
        ),
        tag("div", id="search-curve", class_="plot", role="img", aria_label="Expected change against effort"),
        tag("details", tag("summary", "What each training taught"), _table(told)),
        id="search",
        aria_labelledby="search-title",
    )


def _table(told: Mapping[str, Any]) -> Html:
    budgets = [int(budget) for budget in told["chosen"]]
    names = ["effort", "tasks", "seed", "against all together", *(f"best after, budget {k}" for k in budgets)]
    made = tag(
        "table",
        tag("caption", "Changes are of validation losses, a mean over the network's tasks", class_="quiet"),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names))),
        tag("tbody", *(_row(one, budgets) for one in lessons(told))),
        id="lessons",
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Table of all trainings")


def _row(one: Lesson, budgets: list[int]) -> Html:
    part = "" if one.fraction == 1 else f" (the first {one.fraction:.3g} of a training)"
    change = "diverged" if one.diverged else "" if one.change is None else f"{signed(one.change)} %"
    best = [f"{signed(one.best[budget])} %" for budget in budgets]
    cells = (trainings(one.spent), ", ".join(one.tasks) + part, str(one.seed), change, *best)
    return tag("tr", *(tag("td", cell) for cell in cells))
