"""The section about `auto`: what was tried, who teaches whom, and what averaging and teaching brought."""

from __future__ import annotations

from collections.abc import Sequence

from tagalong.rendering import Html, tag
from tagalong.study import LoggedTraining, SearchLog

from ..style import format_percent, percent_text
from .answer import prose

SHRUNK = (
    " The curve shows the change that it expected, on validation data, from the best networks trained so far. "
    "Expectations are shrunk toward zero according to their noise, and count only once they clearly exceed it; zero "
    "means one network for all tasks."
)
CROSS_FITTED = (
    " The curve shows the change that it expected from the best networks trained so far, compared with one plain "
    "network, on validation rows that did not choose them."
)
POOL_HEADINGS = {
    "copies": "copies only",
    "taught": "with taught networks",
    "wide": "wider networks",
    "tabm": "with TabM networks",
    "all": "with all networks",
}
KIND_NAMES = {"copy": "copy", "set": "some tasks", "student": "student", "wide": "wider", "tabm": "TabM"}


def search_section(log: SearchLog) -> Html:
    """Returns the search curve, what averaging and teaching brought, and a table of all training runs."""
    has_pools = any(log.alternatives.values())
    return tag(
        "section",
        tag("h2", "How auto searched", id="search-title"),
        tag("p", log.sentence, CROSS_FITTED if has_pools else SHRUNK, class_="lead"),
        tag("p", *prose(log.restriction), class_="lead") if log.restriction else None,
        tag("p", *prose(log.no_wider), class_="lead") if log.no_wider else None,
        tag("div", id="search-curve", class_="plot", role="img", aria_label="Expected change against effort"),
        _pools_part(log) if has_pools else None,
        _teaching_part(log) if log.teaching else None,
        tag("details", tag("summary", "All training runs of the search"), _search_table(log)),
        id="search",
        aria_labelledby="search-title",
    )


def _pools_part(log: SearchLog) -> Html:
    """Returns a table of what the best networks from each pool were expected to bring, by budget."""
    pools = [name for name in POOL_HEADINGS if any(name in one for one in log.alternatives.values())]
    head = ["networks", *(POOL_HEADINGS[name] for name in pools), "recommended"]
    rows = []
    for budget, expected in log.alternatives.items():
        chosen = log.about["chosen"][str(budget)]
        cells = [tag("th", str(budget), scope="row")]
        for name in pools:
            mark = "best" if name == chosen.get("pool") else None
            cells.append(tag("td", percent_text(expected[name]) if name in expected else "", class_=mark))
        cells.append(tag("td", percent_text(chosen["expected"], chosen["doubt"]) if chosen["expected"] else ""))
        rows.append(tag("tr", *cells))
    lead = (
        "The expected change of the best networks from each pool. With copies only, all that further networks add "
        "comes from averaging; what taught networks and networks for some tasks add to that is in the next columns. "
        "The shaded pool was used: taught networks unless copies are better on rows that did not choose the networks, "
        "and wider networks, TabM networks or networks for some tasks only if they are clearly better. A wider network "
        "counts as many networks as its size, and a TabM network as one. ± is one standard error."
    )
    return Html(
        tag("h3", "What averaging and teaching brought")
        + tag("p", lead, class_="lead")
        + _table("Expected change in loss, compared with one plain network", head, rows, "pools")
    )


def _teaching_part(log: SearchLog) -> Html:
    """Returns who teaches whom, and how good the students of each way of teaching are alone."""
    rows = []
    for (mix, mixtures), students in log.students.items():
        changes = [one.change for one in students if one.change is not None]
        mean = sum(changes) / len(changes) if changes else None
        rows.append(
            tag(
                "tr",
                tag("th", describe_teaching(mix, mixtures), scope="row"),
                tag("td", str(len(students))),
                tag("td", "" if mean is None else percent_text(mean)),
                tag("td", percent_text(min(changes)) if changes else ""),
            )
        )
    head = ["students learn from", "students", "mean change", "best"]
    caption = "Validation losses of single students, compared with the mean of the networks for all tasks"
    return Html(
        tag("h3", "Who teaches whom")
        + tag("p", log.teaching, " Students learn from the average of the teachers' answers.", class_="lead")
        + _table(caption, head, rows, "students")
    )


def describe_teaching(mix: float, mixtures: float) -> str:
    """Describes a way of teaching in a few words.

    Example:
        >>> describe_teaching(1.0, 0), describe_teaching(0.5, 2)
        ('answers', 'answers (50%) and labels, 2 mixtures per row')
    """
    source = "answers" if mix == 1 else f"answers ({mix:.0%}) and labels" if mix else "labels"
    return source + (f", {mixtures:g} mixture{'s' * (mixtures != 1)} per row" if mixtures else "")


def _search_table(log: SearchLog) -> Html:
    budgets = log.budgets
    has_kinds = any(one.kind for one in log.trainings)
    names = ["effort", "tasks", *(["kind"] if has_kinds else []), "seed", "vs. all together"]
    names += [f"best so far, budget {k}" for k in budgets]
    caption = "Changes in validation loss, averaged over the network's tasks"
    return _table(caption, names, [_training_row(one, budgets, has_kinds) for one in log.trainings], "lessons")


def _training_row(training: LoggedTraining, budgets: Sequence[int], has_kinds: bool) -> Html:
    part = "" if training.fraction == 1 else f" (the first {training.fraction:.3g} of a training run)"
    change = (
        "diverged" if training.diverged else "" if training.change is None else f"{format_percent(training.change)}%"
    )
    best = [f"{format_percent(training.best[budget])}%" for budget in budgets]
    kind = [_describe_kind(training)] if has_kinds else []
    cells = (training.spent_text, ", ".join(training.tasks) + part, *kind, str(training.seed), change, *best)
    return tag("tr", *(tag("td", cell) for cell in cells))


def _describe_kind(training: LoggedTraining) -> str:
    name = KIND_NAMES.get(training.kind or "", "") + (f", {training.size} times the size" if training.size > 1 else "")
    return name if training.mix is None else f"{name}: {describe_teaching(training.mix, training.mixtures)}"


def _table(caption: str, head: Sequence[str], rows: Sequence[Html], name: str) -> Html:
    element = tag(
        "table",
        tag("caption", caption, class_="quiet"),
        tag("thead", tag("tr", *(tag("th", text, scope="col") for text in head))),
        tag("tbody", *rows),
        id=name,
    )
    return tag("div", element, class_="scroll", tabindex="0", role="region", aria_label=caption)
