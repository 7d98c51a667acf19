"""Finds where the paper contradicts itself, its published matrices and code, or what can be proven."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tagalong.group import select_groups
from tagalong.learn import Capacity, count_parameters
from tagalong.problems import load_problem

from .measurement_cost import PAPER_COST, SCHEDULES, cost_range, speed_up
from .printed import (
    BASELINES,
    CAPACITY,
    DATASETS,
    EVERY_STEP_ERROR,
    OPTIMAL,
    PARTNER,
    PRINTED,
    SPEED,
    SPREAD,
    PrintedGroup,
    PrintedGrouping,
    PublishedMatrix,
    published_matrices,
)
from .selection import selections
from .theory import BOUNDS, COUNTEREXAMPLE, PANELS, losses_after_steps

ROUNDING_UNIT = {"celeba": 0.01, "taskonomy": 0.0001}


class Erratum(NamedTuple):
    """A mistake in the paper.

    Attributes:
        where: the location in the paper.
        printed: the statement in the paper.
        found: the correct statement.
        why: an explanation of how the mistake was found.
    """

    where: str
    printed: str
    found: str
    why: str


def errata() -> list[Erratum]:
    """Returns all errata, recomputed from the printed numbers wherever possible.

    Example:
        >>> len(errata()) > 20
        True
    """
    tables = [*wrong_totals(), *wrong_groupings(), *conflicting_results(), *misprints()]
    return [*wrong_headlines(), *tables, *wrong_settings(), *redundant_groups(), *wrong_theory()]


def wrong_headlines() -> list[Erratum]:
    """Returns numbers in the text that do not follow from the tables."""
    mtl, stl = (BASELINES["taskonomy"][method].total for method in ("mtl", "stl"))
    tag = {k: printed.total for k, printed in PRINTED["taskonomy_tag"].items()}
    hoa = {k: printed.total for k, printed in PRINTED["taskonomy_hoa"].items()}
    celeba = np.mean([printed.total for printed in PRINTED["celeba_tag"].values()])
    return [
        Erratum(
            "abstract and section 5.1",
            "TAG lowers Taskonomy's test loss by 10.0% compared with MTL",
            f"{1 - np.mean(list(tag.values())) / mtl:.1%}",
            f"the mean of TAG's two totals; {1 - stl / mtl:.2%} is what STL gains",
        ),
        Erratum(
            "section 5.1",
            "TAG surpasses HOA by 2.5% at 2 groups",
            f"{1 - tag[2] / hoa[2]:.1%}",
            f"the printed totals, {tag[2]} against {hoa[2]}",
        ),
        Erratum(
            "section 5.2",
            f"average total error {EVERY_STEP_ERROR} over 2, 3 and 4 groups",
            f"{celeba:.3f}",
            "the mean of TAG's three printed totals",
        ),
        Erratum(
            "section 5.1 and the appendix",
            "GradNorm's α from {0.1, 0.5, 1, 1.5, 2, 3, 5}",
            "{0.01, 0.1, 0.5, 1, 1.5, 2, 3, 5}",
            "the text and the appendix print different sets",
        ),
        _accuracy_erratum(),
        _speed_up_erratum(),
        _spread_erratum(),
    ]


def _accuracy_erratum() -> Erratum:
    task, (gain, *_) = max(PARTNER.items(), key=lambda line: line[1][0])
    lines = [line.results for line in (*BASELINES["celeba"].values(), *CAPACITY["celeba"].values())]
    tables = [OPTIMAL["celeba"], *(table for key, table in PRINTED.items() if key.startswith("celeba"))]
    groups = [group.results for table in tables for printed in table.values() for group in printed.groups]
    worst = max(results[task] for results in (*lines, *groups) if task in results)
    return Erratum(
        "tables of partners, schedules and hyperparameters",
        f"gains in test accuracy, such as {gain:.2f}% for {task}",
        "the gains are reductions of the error",
        f"{task}'s highest error in any table is {worst:.2f}%; with no errors, accuracy would be higher by only "
        f"{worst / (100 - worst):.2%}",
    )


def _speed_up_erratum() -> Erratum:
    ours = {name: speed_up(schedule, PAPER_COST) for name, schedule in SCHEDULES.items()}
    near = sum(abs(ours[name] - printed.speed_up) <= 0.01 for name, printed in SPEED.items())
    same = sum(f"{ours[name]:.2f}" == f"{printed.speed_up:.2f}" for name, printed in SPEED.items())
    low, high = cost_range({name: printed.speed_up for name, printed in SPEED.items()})
    return Erratum(
        "table of speed-ups",
        "measured speed-ups",
        f"{near} of {len(SPEED)} follow from one number to within 0.01, {same} to the last digit",
        f"a measurement costs {PAPER_COST} plain steps (between {low:.4f} and {high:.4f} all agree to the last "
        "digit); windows measure every step, and training ends with them",
    )


def _spread_erratum() -> Erratum:
    spread = PublishedMatrix("celeba_tag").affinity.spread().values
    factor = float(np.median([spread[task] / printed for task, printed in SPREAD.items()]))
    same = [task for task, printed in SPREAD.items() if abs(spread[task] / factor - printed) <= 0.0051]
    pearson = np.corrcoef([PARTNER[task][:2] for task in PARTNER], rowvar=False)[0, 1]
    return Erratum(
        "table of differences in affinity",
        "normalized, without saying how",
        f"the published differences divided by {factor:.1f}: {len(same)} of {len(SPREAD)} agree to the last digit",
        f"a8 has {spread['a8'] / spread['a3']:.2f} of the next smallest; Pearson of best and chosen partner "
        f"{pearson:.2f}, as printed",
    )


def wrong_totals() -> list[Erratum]:
    """Returns totals that differ from the sum of their columns by more than rounding explains."""
    found = []
    for dataset, where, columns, total in _table_rows():
        digits = 2 if dataset == "celeba" else 4
        noise = ROUNDING_UNIT[dataset] / math.sqrt(12) * math.sqrt(len(columns) + 1)
        if abs(sum(columns) - total) > 3 * noise:
            found.append(
                Erratum(
                    f"{DATASETS[dataset]}, {where}",
                    f"total {total:.{digits}f}",
                    f"{sum(columns):.{digits}f}",
                    "the sum of the printed columns",
                )
            )
    return found


def _table_rows() -> Iterator[tuple[str, str, list[float], float]]:
    for dataset in BASELINES:
        for method, line in BASELINES[dataset].items():
            yield dataset, method.upper(), list(line.results.values()), line.total
        for (method, times), line in CAPACITY[dataset].items():
            yield dataset, f"{method.upper()} ({times}×)", list(line.results.values()), line.total
    for dataset, method, budget, printed in _printed_groupings():
        yield dataset, f"{method} {budget} groups", list(served_results(printed).values()), printed.total


def _printed_groupings() -> Iterator[tuple[str, str, int, PrintedGrouping]]:
    for key, by_budget in PRINTED.items():
        dataset, _, method = key.partition("_")
        for budget, printed in by_budget.items():
            yield dataset, method.upper(), budget, printed
    for dataset, by_budget in OPTIMAL.items():
        for budget, printed in by_budget.items():
            yield dataset, "Optimal", budget, printed


def served_results(printed: PrintedGrouping) -> dict[str, float]:
    """Returns each task's result in bold, choosing the best result if several or none are in bold."""
    tasks = dict.fromkeys(task for group in printed.groups for task in group.results)
    found = {}
    for task in tasks:
        bold = [group.results[task] for group in printed.groups if task in group.bold]
        found[task] = min(bold or [group.results[task] for group in printed.groups if task in group.results])
    return found


def wrong_groupings() -> list[Erratum]:
    """Returns tasks that are not in bold exactly once, and groupings that are not optimal for their matrices."""
    found = []
    for dataset, method, budget, printed in _printed_groupings():
        for task in served_results(printed):
            times = sum(task in group.bold for group in printed.groups)
            if times != 1:
                found.append(
                    Erratum(
                        f"{DATASETS[dataset]}, {method} {budget} groups",
                        f"{task} in bold {'twice' if times else 'nowhere'}",
                        "once",
                        "every task is served by exactly one network",
                    )
                )
    for one in selections():
        where = f"{one.matrix.dataset}, {one.matrix.method} {one.budget} groups"
        why = "the published matrix, solved exactly"
        found += [Erratum(where, "as in its table", remark, why) for remark in one.remarks]
    return found


def conflicting_results() -> list[Erratum]:
    """Returns networks with the same tasks that are printed with different results."""
    networks: dict[tuple[str, frozenset[str]], list[tuple[str, PrintedGroup]]] = {}
    for dataset, method, budget, printed in _printed_groupings():
        for group in printed.groups:
            networks.setdefault((dataset, frozenset(group.results)), []).append((f"{method} {budget} groups", group))
    repeated = {network: places for network, places in networks.items() if len(places) > 1}
    conflicting = {
        network: places
        for network, places in repeated.items()
        if any(group.results != places[0][1].results for _, group in places)
    }
    why = f"the {len(repeated) - len(conflicting)} other networks in multiple tables have the same results in each"
    return [
        Erratum(
            f"{DATASETS[dataset]}, {' and '.join(where for where, _ in places)}",
            f"for {{{', '.join(sorted(tasks))}}} " + "; and ".join(_format_results(group) for _, group in places),
            "one network has one result",
            why,
        )
        for (dataset, tasks), places in conflicting.items()
    ]


def _format_results(group: PrintedGroup) -> str:
    return ", ".join(f"{task} {found:.2f}" for task, found in group.results.items())


def misprints() -> list[Erratum]:
    """Returns obvious misprints."""
    wrong = (
        ("CelebA tables", "± 0.0.003, 0.0.021, 0.0.015, 0.0.013, 0.0.000", "± 0.003, …", "two decimal points"),
        ("Taskonomy, CS and TAG", "s 0.532 and 0.528", "0.0532 and 0.0528", "as in Optimal's row; totals require it"),
        ("Taskonomy, MTL (2×)", "s 0.00536, k 0.11.73", "0.0536 and 0.1173", "as the total 0.5892 requires"),
        ("section 5.2", "Pearson's correlation of 0.93%", "0.93", "a correlation is not a percentage"),
        ("section 5.2", "efficiency increased by 319%", "3.19×, an increase of 219%", "the table's speed-up"),
    )  # fmt: skip
    return [Erratum(*entry) for entry in wrong]


def wrong_settings() -> list[Erratum]:
    """Returns descriptions of networks and training that do not match the published code."""
    channels = ", ".join(f"{found.times:g}× channels: {found.reached:.1f}×" for found in paper_capacities())
    return [
        Erratum(
            "appendix, larger networks",
            "n× the channels equal the parameters of n networks",
            channels,
            "parameters of the paper's CelebA network with nine heads, counted",
        ),
        Erratum("appendix, CelebA", "an encoder loosely like ResNet 18", "one residual block", "the published code"),
        Erratum(
            "appendix, CelebA",
            "train until validation increases for 10 consecutive epochs",
            "train until it has not improved for 10",
            "the published code",
        ),
        Erratum("section 5.1", "PCGrad", "PCGrad on Uncertainty Weights' losses", "the published code"),
        Erratum(
            "equation 1",
            "a plain gradient step on one task",
            "the step includes momentum, and Z is divided by the learning rate",
            "the published code; to first order, momentum adds the same to every source, so no group changes",
        ),
    ]


def paper_capacities() -> list[Capacity]:
    """Returns the sizes of the paper's CelebA network with 2×, 3× and 4× the channels and all nine heads."""
    problem = load_problem("faces", rows=100, size="full")
    sizes = {times: count_parameters(problem, problem.names, times) for times in (1.0, 2.0, 3.0, 4.0)}
    return [Capacity("channels", times, times, size, size / sizes[1.0]) for times, size in sizes.items() if times > 1]


def redundant_groups() -> list[Erratum]:
    """Returns published matrices for which every task can be served optimally with fewer networks than tasks."""
    enough = []
    for matrix in published_matrices():
        tasks = len(matrix.affinity.tasks)
        best = select_groups(matrix.affinity, tasks, **matrix.options)
        if len(best.groups) < tasks:
            enough.append(f"{matrix.dataset}, {matrix.method}: {len(best.groups)} of {tasks}")
    return [
        Erratum(
            "published code that selects groups",
            "as many groups as the budget allows",
            f"enough groups to serve every task at its best: {'; '.join(enough)}",
            "additional groups gain nothing, yet the published code keeps them; ours returns the fewest groups and, "
            "among those, the smallest",
        )
    ]


def wrong_theory() -> list[Erratum]:
    """Returns the errors in the quadratic example, Proposition 1 and the proofs."""
    return [_example_erratum(), _proposition_erratum(), *_formula_errata()]


def _example_erratum() -> Erratum:
    found = {panel.letter: losses_after_steps(panel) for panel in PANELS}
    as_stated = {panel.letter: losses_after_steps(panel, unit=False) for panel in PANELS}
    return Erratum(
        "appendix, quadratic counterexample",
        "; ".join(f"{panel.printed[0]} and {panel.printed[1]}" for panel in PANELS),
        "; ".join(f"{found[letter][0]:.4f} and {found[letter][1]:.4f}" for letter in found),
        "with gradients of unit length; with the length of g_a, as stated: "
        + "; ".join(f"{b:.2f} and {c:.2f}" for b, c in as_stated.values()),
    )


def _proposition_erratum() -> Erratum:
    cases = COUNTEREXAMPLE.cases
    alone = [float(cases.loss_after(gradient)[0]) for gradient in (cases.g_b, cases.g_c)]
    joint = [float(cases.loss_after(cases.g_a + gradient)[0]) for gradient in (cases.g_b, cases.g_c)]
    bound, corrected = float(BOUNDS[0].value(cases.alpha, cases.beta, cases.eta)[0]), BOUNDS[-1]
    return Erratum(
        "Proposition 1",
        "the task with more affinity is the better partner",
        f"b has more affinity ({alone[0]:.4f} < {alone[1]:.4f}), cos(g_a, g_c) = {COUNTEREXAMPLE.cosine:.4f} ≤ "
        f"{bound:.4f}, yet c is the better partner ({joint[1]:.4f} < {joint[0]:.4f})",
        f"the proof drops the term −(η/2)·β‖g_b‖²; with it, the bound is {corrected.formula} ≤ −1, so the "
        "proposition is vacuous; see `tagalong paper theory`",
    )


def _formula_errata() -> list[Erratum]:
    main, proof, example, *_ = BOUNDS
    return [
        Erratum(
            "Proposition 1",
            f"{main.formula} ({main.where}), {proof.formula} ({proof.where}), {example.formula} ({example.where})",
            "three different bounds",
            "the proof's own last inequality gives a fourth, ηβ/2 + α/(2(β−α)) − 1",
        ),
        Erratum("proof of Lemma 1", "L·η²/2 · ‖g_c‖²", "β·η²/2 · ‖g_c‖²", "strong smoothness; the lemma itself holds"),
        Erratum("proof of Proposition 1", "L_a(a), a_a + g_c", "L_a(θ), g_a + g_c", "misprints"),
    ]
