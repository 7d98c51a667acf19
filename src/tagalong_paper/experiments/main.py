"""`main`: the total error and cost of every method, and the result of each task in each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.study import Method, MethodSummary, ProblemInfo, Record, Results, Runner, compare_methods

from ..experiment_setup import (
    ExperimentSetup,
    Label,
    PaperOptimal,
    all_subset_jobs,
    network_results,
    task_result,
    totals_by_method,
)
from ..figures import draw_error_against_cost
from ..printed import BASELINES, OPTIMAL, PCGRAD_GAIN, PRINTED, PrintedGrouping
from ..report import Claim, Floats, Report, ReportTable, Value, claim_all_lower, summarize, values_of
from .tune import training_rules

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Total error against cost: which way of grouping is best?"
CS_AS_PUBLISHED = {"estimator": "cosine_kernels", "every": 1}
TAG_AS_PUBLISHED = {"estimator": "lookahead", "update": "optimizer", "per_lr": True, "every": 10}
TAG_NOTES = {
    False: "TAG as in equation 1: a plain gradient step (--as-published for that of the published code)",
    True: "TAG as published: the optimizer's step with its momentum, divided by the learning rate",
}
PAPER_TASKS = {"celeba": 9, "taskonomy": 5}
COST_NOTE = "losses: mean relative change against mtl; costs in trainings of mtl; parameters against mtl's"
HELPER_NOTE = "means over seeds; results in brackets are of helpers, which another network serves"
TaskRow = tuple[str, dict[str, Value]]  # a method, and the results of tasks in one of its networks


def run(setup: ExperimentSetup, as_published: bool = False) -> Report:
    """Trains each of the paper's methods with each budget.

    Args:
        setup: the problem, the seeds and the output folder.
        as_published: whether TAG measures affinities as in the published code rather than with equation 1. The
            published code includes momentum in the step, and divides affinities by the learning rate.
    """
    label = f"{setup.label()} of each task"
    name = "main-as-published" if as_published else "main"
    options = {"cs": CS_AS_PUBLISHED, **({"tag": TAG_AS_PUBLISHED} if as_published else {})}
    is_taskonomy = setup.printed_dataset == "taskonomy"
    with setup.open_runner() as runner:
        all_subset_jobs(runner, setup.seeds)  # raises an error if there are too many
        gradnorm = training_rules(setup, runner, ["gradnorm"])["gradnorm"]
        rules = [gradnorm] if is_taskonomy else ["uw", "pcgrad", "pcgrad-uw", gradnorm]
        methods: list[str | Method] = ["mtl", "stl", "random", *rules, "cs", "hoa", "tag", "optimal", PaperOptimal()]
        methods += [] if is_taskonomy else ["tag+pcgrad"]
        records = compare_methods(runner, methods, setup.budgets, setup.seeds, options)
        tables = [
            _task_table(setup, f"{k} groups, {label}", _network_rows(setup, runner, records, k), HELPER_NOTE)
            for k in setup.budgets
        ]
    results = Results(records, problem=ProblemInfo.of(setup.chosen))
    results.save(setup.out / f"{name}-results.json")
    lines, totals = results.table(), totals_by_method(setup.chosen, records)
    tables.insert(0, _task_table(setup, f"Baselines, {label}", _baseline_rows(setup, records)))
    paper = "; the paper uses validation accuracy" if setup.printed_dataset == "celeba" else ""
    return Report(
        name,
        TITLE,
        [
            _total_table(setup, records, lines, totals),
            *tables,
            *_printed_tables(setup),
            *_pcgrad_tables(setup, totals),
        ],
        claims=[*_judge_methods(setup, totals), judge_speed(setup, lines)],
        figures={
            f"{name}-deciding": _draw_costs(setup, lines, totals, with_training=False),
            f"{name}-deciding-and-training": _draw_costs(setup, lines, totals, with_training=True),
        },
        notes=[
            *setup.notes,
            TAG_NOTES[as_published],
            f"hoa and optimal choose groups by validation losses relative to a reference network{paper}. oracle, the "
            "paper's Optimal, chooses the groups with the lowest total on test data",
            "groups are chosen once, from all seeds together; costs are those of one seed",
            "costs are in trainings of the one network for all tasks, by steps; deciding is paid once for all budgets, "
            "and counts as one training for random groups, as in the paper. A step of UW, GradNorm or PCGrad counts as "
            "one, though it takes longer; tuning α is not counted",
        ],
        numbers={"totals": [{"method": m, "budget": k, "by_seed": by_seed} for (m, k), by_seed in totals.items()]},
    )


def _mean_change(records: Sequence[Record], label: Label, part: str) -> float:
    """Returns the relative change in loss from one network of the same seed, averaged over seeds and tasks."""
    together = {record.seed: getattr(record, part) for record in records if record.label == ("mtl", None)}
    changes = []
    for record in records:
        if record.label == label:
            base = together[record.seed]
            changes += [score.loss / base[task].loss - 1 for task, score in getattr(record, part).items()]
    return float(np.mean(changes))


def _total_table(
    setup: ExperimentSetup, records: Sequence[Record], lines: Sequence[MethodSummary], totals: Mapping[Label, Floats]
) -> ReportTable:
    labels = [(line.method, line.budget) for line in lines]
    has_all_tasks = len(setup.chosen.names) == PAPER_TASKS.get(setup.printed_dataset or "")
    printed = printed_groupings(setup) if has_all_tasks else {}

    def numbers(attribute: str, times: float = 1, digits: int = 1) -> list[Value]:
        column = [getattr(line, attribute) for line in lines]
        return [Value(np.nan if number is None else times * number, digits=digits) for number in column]

    return ReportTable.of_columns(
        f"Total {setup.label()}",
        {
            "method": [method for method, _ in labels],
            "groups": ["-" if budget is None else budget for _, budget in labels],
            "total": [setup.summarize(totals[label]) for label in labels],
            "test loss, %": [Value(100 * _mean_change(records, label, "test"), digits=2) for label in labels],
            "validation loss, %": [Value(100 * _mean_change(records, label, "val"), digits=2) for label in labels],
            "deciding": numbers("deciding_cost"),
            "training": numbers("training_cost"),
            "parameters": numbers("relative_parameters"),
            "printed": values_of(
                {label: grouping.total for label, grouping in printed.items()},
                [(method.partition(":")[0], budget) for method, budget in labels],
                digits=setup.digits,
            ),
        },
        f"{COST_NOTE}; no total where a network diverged" if any(line.diverged for line in lines) else COST_NOTE,
    )


def printed_groupings(setup: ExperimentSetup) -> dict[Label, PrintedGrouping]:
    """Returns the paper's results by method and budget, for a data set of the paper."""
    dataset = setup.printed_dataset or ""
    # The published PCGrad run used UW's losses.
    names = {"pcgrad": "pcgrad-uw"}
    printed: dict[Label, PrintedGrouping] = {
        (names.get(method, method), None): line for method, line in BASELINES[dataset].items()
    }
    tables = {**{name: PRINTED[f"{dataset}_{name}"] for name in ("cs", "hoa", "tag")}, "oracle": OPTIMAL[dataset]}
    return printed | {(name, k): grouping for name, table in tables.items() for k, grouping in table.items()}


def _printed_tables(setup: ExperimentSetup) -> list[ReportTable]:
    if setup.printed_dataset != setup.problem.name:
        return []
    names = {"pcgrad-uw": "pcgrad", "oracle": "optimal"}
    titles: dict[int | None, str] = {None: "Baselines", **{k: f"{k} groups" for k in setup.budgets}}
    rows: dict[str, list[TaskRow]] = {title: [] for title in titles.values()}
    for (method, k), printed in printed_groupings(setup).items():
        for group in printed.groups if k in titles else ():
            cells = {}
            for task, result in group.results.items():
                cells[task] = Value(result, group.stderr.get(task), task in group.bold, setup.digits)
            rows[titles[k]].append((names.get(method, method), cells))
    return [_task_table(setup, f"{title}, as printed", rows[title], printed="printed ") for title in rows]


def _task_table(
    setup: ExperimentSetup, title: str, rows: Sequence[TaskRow], note: str = "", printed: str = ""
) -> ReportTable:
    names = setup.short_names()
    columns = ("method", *(f"{printed}{name}" for name in names))
    return ReportTable(title, columns, [[method, *map(cells.get, names)] for method, cells in rows], note)


def _baseline_rows(setup: ExperimentSetup, records: Sequence[Record]) -> Sequence[TaskRow]:
    rows = []
    for method in dict.fromkeys(record.method for record in records if record.budget is None):
        scores = [record.test for record in records if record.method == method]
        results = [[task_result(setup.chosen, by_task[task]) for by_task in scores] for task in setup.chosen.names]
        rows.append((method, dict(zip(setup.short_names(), map(setup.summarize, results), strict=True))))
    return rows


def _network_rows(setup: ExperimentSetup, runner: Runner, records: Sequence[Record], budget: int) -> Sequence[TaskRow]:
    rows = []
    for record in records:
        if (record.budget, record.seed) == (budget, setup.seeds[0]) and "+" not in record.method:
            for group in record.groups:
                results = network_results(runner, group.trains, setup.seeds)
                values = [setup.summarize(by_seed, served=task in group.serves) for task, by_seed in results.items()]
                rows.append((record.method, dict(zip(setup.short_names(results), values, strict=True))))
    return rows


def _pcgrad_tables(setup: ExperimentSetup, totals: Mapping[Label, Floats]) -> list[ReportTable]:
    gains = {}
    for budget in setup.budgets:
        if ("tag+pcgrad", budget) in totals:
            plain = np.array(totals["tag", budget])
            gains[budget] = 100 * (plain - totals["tag+pcgrad", budget]) / np.where(plain > 0, plain, np.nan)
    printed = PCGRAD_GAIN if setup.printed_dataset == "celeba" else {}
    if not gains:
        return []
    rows = list(zip(gains, map(summarize, gains.values()), values_of(printed, gains), strict=True))
    return [ReportTable("What PCGrad adds to TAG's groups, %", ("groups", "ours", "printed"), rows)]


def _judge_methods(setup: ExperimentSetup, totals: Mapping[Label, Floats]) -> list[Claim]:
    rules = [method for method, budget in totals if budget is None and method not in ("mtl", "stl")]
    do = "UW, GradNorm and PCGrad do" if len(rules) > 1 else "GradNorm does"
    claims = {
        "TAG does better than MTL": ("tag", ["mtl"]),
        "TAG does better than STL": ("tag", ["stl"]),
        "TAG does better than random groups": ("tag", ["random"]),
        "TAG does better than CS": ("tag", ["cs"]),
        "TAG does better than HOA": ("tag", ["hoa"]),
        f"{do} worse than TAG's groups": ("tag", rules),
        f"{do} worse than HOA's groups": ("hoa", rules),
    }
    if setup.printed_dataset == "taskonomy":  # there, the paper's TAG has the same groups as CS, and HOA is better
        del claims["TAG does better than CS"], claims["TAG does better than HOA"]
    judged = []
    for text, (method, others) in claims.items():
        pairs = {}
        for k in setup.budgets:
            for other in others:
                reference = totals[other, None] if (other, None) in totals else totals[other, k]
                pairs[f"{other}, {k} groups"] = totals[method, k], reference
        judged.append(claim_all_lower(text, pairs, per_row=setup.per_row))
    return judged


def judge_speed(setup: ExperimentSetup, lines: Sequence[MethodSummary]) -> Claim:
    """Judges whether TAG decides much faster than HOA, which trains every pair."""
    costs = {line.method: line.deciding_cost or 0.0 for line in lines}  # the same for all budgets
    times, count = costs["hoa"] / costs["tag"], len(setup.chosen.names)
    paper = PAPER_TASKS[setup.printed_dataset or "celeba"]
    text = "TAG decides an order of magnitude faster than HOA (22× on CelebA, 11.6× on Taskonomy)"
    because = f"{times:.1f}× fewer steps, with {count} tasks"
    if count < paper:
        return Claim(text, "not tested", f"{because}; HOA trains every pair, of the paper's {paper} tasks far more")
    return Claim(text, "yes" if times >= 10 else "no", because)


def _draw_costs(
    setup: ExperimentSetup, lines: Sequence[MethodSummary], totals: Mapping[Label, Floats], *, with_training: bool
) -> Figure:
    rows = []
    for line in lines:
        deciding, training = line.deciding_cost or 0.0, line.training_cost or 0.0
        cost = deciding if deciding and not with_training else deciding + training
        total = setup.summarize(totals[line.method, line.budget])
        rows.append((line.method, line.budget or "", Value(cost), total))
    cost_label = "cost of deciding; of training where nothing is decided"
    return draw_error_against_cost(
        rows,
        title="Deciding and training" if with_training else "Deciding",
        cost_label=f"{'cost of deciding and training' if with_training else cost_label}, in trainings of MTL",
        error_label=f"total {setup.label()}",
        note=f"{setup.problem.name}, {setup.size}; labels are groups",
    )
