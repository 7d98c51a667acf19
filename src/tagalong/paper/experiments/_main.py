"""`main`: total error against cost for every method, and what each task gets in each network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong.study import Lab, ProblemInfo, Results
from tagalong.study._summary import Line
from tagalong.study.methods import Combined, Method, Tag

from .._affinities import AS_PUBLISHED
from .._judge import all_lower, value
from .._report import Claim, Report
from .._totals import PaperOptimal, compared, measure_of, one_row, refuse_many, totals
from ..figures import Point, error_against_cost
from ._main_tables import group_sheets, pcgrad_sheet, printed_sheets, total_sheet
from ._tune import tuned_gradnorm

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .._bench import Bench
    from .._totals import Label

TITLE = "Total error against cost: which way of grouping is best?"
GROUPING = ("cs", "hoa", "tag", "optimal")
ALONE = {"celeba": ("uw", "pcgrad", "pcgrad-uw"), "taskonomy": ()}
CS_AS_PUBLISHED = {"cs": {"estimator": "cosine_kernels", "every": 1}}


def run(bench: Bench, as_published: bool = False) -> Report:
    """Trains every method of the paper, at every budget.

    Args:
        bench: where.
        as_published: TAG with the optimiser's momentum in the step and affinities per learning rate, as the published
            code has it, instead of equation 1.
    """
    refuse_many(bench.chosen)
    with bench.lab() as lab:
        records = compared(lab, _methods(bench, lab, as_published), bench.budgets, bench.seeds, CS_AS_PUBLISHED)
        sheets = [
            total_sheet(bench, records),
            *group_sheets(bench, lab, records),
            *printed_sheets(bench),
            *pcgrad_sheet(bench, totals(bench.chosen, records)),
        ]
    results = Results(records, problem=ProblemInfo.of(bench.chosen))
    name = "main-as-published" if as_published else "main"
    results.save(bench.out / f"{name}-results.json")
    found = totals(bench.chosen, records)
    return Report(
        name,
        TITLE,
        sheets=sheets,
        claims=_claims(bench, found, results),
        figures={
            f"{name}-deciding": _figure(bench, results, found, training=False),
            f"{name}-deciding-and-training": _figure(bench, results, found, training=True),
        },
        notes=[*bench.about, _step(as_published), *_choices(bench)],
        numbers={"totals": [{"method": m, "budget": k, "by_seed": values} for (m, k), values in found.items()]},
    )


def _methods(bench: Bench, lab: Lab, as_published: bool) -> list[str | Method]:
    tag = Tag(**AS_PUBLISHED, every=10) if as_published else Tag()
    few = bench.printed == "taskonomy"
    grouping = [*(tag if name == "tag" else name for name in GROUPING), PaperOptimal()]
    rules = ALONE["taskonomy" if few else "celeba"]
    combined = [] if few else [Combined(tag, "pcgrad")]
    return ["mtl", "stl", "random", *rules, tuned_gradnorm(bench, lab), *grouping, *combined]


def _step(as_published: bool) -> str:
    if as_published:
        return "TAG as published: the optimiser's step with its momentum, per learning rate"
    return "TAG as in equation 1: a plain gradient step (--as-published for the published code's)"


def _choices(bench: Bench) -> list[str]:
    theirs = "; the paper chooses on validation accuracy" if bench.printed == "celeba" else ""
    return [
        f"groups are chosen on validation losses relative to a reference network (hoa, optimal){theirs}. oracle, the "
        "paper's Optimal, has the lowest total on test data",
        "groups are chosen from all seeds together, as one choice for all of them; costs are those of one seed",
        "costs are in trainings of the one network for all tasks, by steps; deciding is paid once for all budgets, "
        "and counts as one training for random groups, as in the paper. A step of UW, GradNorm or PCGrad counts as "
        "one, though it takes longer; tuning α is not counted",
    ]


def _figure(bench: Bench, results: Results, found: dict[Label, list[float]], *, training: bool) -> Figure:
    points = [_point(line, found, training) for line in results.table()]
    cost = "cost of deciding and training" if training else "cost of deciding; of training where nothing is decided"
    return error_against_cost(
        points,
        title="Deciding and training" if training else "Deciding",
        cost=f"{cost}, in trainings of MTL",
        error=f"total {measure_of(bench.chosen)}",
        note=f"{bench.problem.name}, {bench.size}; beside each point its groups; equal costs stand side by side",
    )


def _point(line: Line, found: dict[Label, list[float]], training: bool) -> Point:
    deciding, trained = line.deciding_cost or 0.0, line.training_cost or 0.0
    cost = deciding + trained if training or not deciding else deciding
    mean = value(found[line.method, line.budget])
    return Point(line.method, "" if line.budget is None else str(line.budget), cost, mean.mean, mean.stderr)


def _claims(bench: Bench, found: dict[Label, list[float]], results: Results) -> list[Claim]:
    def better(text: str, mine: str, others: list[Label | str]) -> Claim:
        pairs = {}
        for budget in bench.budgets:
            for other in others:
                label = (other, budget) if isinstance(other, str) else other
                pairs[f"{label[0]}, {budget} groups"] = found[mine, budget], found[label]
        return all_lower(text, pairs, row=one_row(bench.chosen))

    single: list[Label | str] = [label for label in found if label[1] is None and label[0] not in ("mtl", "stl")]
    rules = "UW, GradNorm and PCGrad do" if len(single) > 1 else "GradNorm does"
    claims = [
        better("TAG does better than MTL", "tag", [("mtl", None)]),
        better("TAG does better than STL", "tag", [("stl", None)]),
        better("TAG does better than random groups", "tag", ["random"]),
    ]
    if bench.printed != "taskonomy":  # there the paper has TAG's groups equal to those of CS, and HOA ahead of them
        claims += [better(f"TAG does better than {name.upper()}", "tag", [name]) for name in ("cs", "hoa")]
    return [
        *claims,
        better(f"{rules} worse than TAG's groups", "tag", single),
        better(f"{rules} worse than HOA's groups", "hoa", single),
        _faster(bench, results),
    ]


def _faster(bench: Bench, results: Results) -> Claim:
    costs = {(line.method, line.budget): line.deciding_cost or 0.0 for line in results.table()}
    budget, count = bench.budgets[0], len(bench.chosen.names)
    times = costs["hoa", budget] / costs["tag", budget]
    paper = 5 if bench.printed == "taskonomy" else 9
    text = "TAG decides an order of magnitude faster than HOA (22× on CelebA, 11.6× on Taskonomy)"
    because = f"{times:.1f}× fewer steps, with {count} tasks"
    if count < paper:
        return Claim(text, "not tested", f"{because}; HOA trains every pair, of the paper's {paper} tasks far more")
    return Claim(text, "yes" if times >= 10 else "no", because)
