"""`theory`: tests Lemma 1 and each printed version of Proposition 1 on random losses."""

from __future__ import annotations

from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import draw_counterexample
from ..theory import (
    BOUNDS,
    CASE_COUNT,
    COUNTEREXAMPLE,
    PANELS,
    SearchResult,
    losses_after_steps,
    search_lemma,
    search_margin,
    search_proposition,
)

TITLE = "Does the task with more affinity make the better partner? The paper's lemma and proposition"
COLUMNS = ("statement", "conditions met", "broken", "share broken, %")


def run(count: int = CASE_COUNT) -> Report:
    """Searches for counterexamples: cases that meet a statement's conditions but contradict its conclusion.

    Args:
        count: the number of random cases per statement.
    """
    lemma, margin = search_lemma(count), search_margin(count)
    versions = {bound.name: search_proposition(bound, count) for bound in BOUNDS}
    return Report(
        "theory",
        TITLE,
        tables=[_search_table(lemma, margin, versions), _bound_table(), _panel_table()],
        claims=_claims(lemma, versions),
        figures={"theory-counterexample": draw_counterexample()},
        notes=[
            f"{count:,} random losses for each statement: quadratics in two dimensions, logistic regressions in four"
        ],
    )


def _search_table(
    lemma: dict[str, SearchResult], margin: dict[str, SearchResult], versions: dict[str, SearchResult]
) -> ReportTable:
    named = {f"Lemma 1, {kind}": found for kind, found in lemma.items()}
    named |= {f"Proposition 1, {version}": found for version, found in versions.items()}
    named |= {f"what holds instead, {kind}": found for kind, found in margin.items()}
    rows = [(name, found.met, found.broken, Value(100 * found.fraction)) for name, found in named.items()]
    note = "what holds instead: b's advantage in L_a after one step is at least βη²‖g_a‖‖g_b − g_c‖"
    return ReportTable("Tested statements", COLUMNS, rows, note)


def _bound_table() -> ReportTable:
    cases, cosine = COUNTEREXAMPLE.cases, COUNTEREXAMPLE.cosine
    rows = []
    for bound in BOUNDS:
        limit = float(bound.value(cases.alpha, cases.beta, cases.eta)[0])
        rows.append((bound.name, bound.formula, Value(limit, digits=4), "yes" if cosine <= limit else "no"))
    broken = not bool(cases.b_is_better_partner[0]) and bool(cases.b_has_more_affinity[0])
    note = f"cos(g_a, g_c) = {cosine:.4f}; b has more affinity and is {'not ' if broken else ''}the better partner"
    return ReportTable(
        "The counterexample against each version of the bound", ("version", "cos ≤", "value", "met"), rows, note
    )


def _panel_table() -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for panel in PANELS:
        found = losses_after_steps(panel)
        ours = [Value(value, digits=4) for value in found]
        rows.append((f"({panel.letter}) {panel.caption}", *ours, *(Value(value) for value in panel.printed)))
    columns = ("panel", "L_a with b", "L_a with c", "printed b", "printed c")
    return ReportTable(
        "The appendix's quadratic example", columns, rows, "gradients of unit length, not that of g_a as stated"
    )


def _claims(lemma: dict[str, SearchResult], versions: dict[str, SearchResult]) -> list[Claim]:
    met, broken = sum(found.met for found in lemma.values()), sum(found.broken for found in lemma.values())
    printed = versions["main text"]
    (b_alone, c_alone), (b_joint, c_joint) = losses_after_steps(PANELS[0]), losses_after_steps(PANELS[1])
    corrected = versions["corrected"]
    return [
        Claim("Lemma 1", "no" if broken else "yes", f"{broken} of {met} cases break it"),
        Claim(
            "a quadratic where the task with more affinity is the worse partner",
            "yes" if b_alone < c_alone and c_joint < b_joint else "no",
            f"{b_alone:.4f} < {c_alone:.4f} alone, {c_joint:.4f} < {b_joint:.4f} together with a",
        ),
        Claim(
            "Proposition 1: under a condition on the cosine it is always the better partner",
            "no" if printed.broken else "yes",
            f"{printed.broken} of {printed.met} cases that meet the main text's condition break it",
        ),
        Claim(
            "the condition is mild",
            "no" if not corrected.met else "yes",
            f"with the lost term it is cos ≤ (ηβ−3)/2 ≤ −1 under η ≤ 1/β: {corrected.met} cases meet it",
        ),
    ]
