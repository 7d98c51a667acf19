"""Percentages of the abstract and the text, computed again from the tables."""

from __future__ import annotations

import numpy as np

from tagalong.paper._published import Published

from .._printed import PRINTED
from .._speed import PAPER_COST, SCHEDULES, costs_giving, speed_up
from ..printed import BASELINES, CAPACITY, EVERY_STEP_ERROR, OPTIMAL, PARTNER, SPEED, SPREAD
from ._erratum import Erratum


def headlines() -> list[Erratum]:
    """What the text makes of the tables."""
    mtl, stl = (BASELINES["taskonomy"][method].total for method in ("mtl", "stl"))
    tag = {k: printed.total for k, printed in PRINTED["taskonomy_tag"].items()}
    hoa = {k: printed.total for k, printed in PRINTED["taskonomy_hoa"].items()}
    celeba = np.mean([printed.total for printed in PRINTED["celeba_tag"].values()])
    return [
        Erratum(
            "abstract and section 5.1",
            "TAG lowers Taskonomy's test loss by 10.0 % against MTL",
            f"{1 - np.mean(list(tag.values())) / mtl:.1%}",
            f"the mean of TAG's two totals; {1 - stl / mtl:.2%} is what STL gains",
        ),
        Erratum(
            "section 5.1",
            "TAG surpasses HOA by 2.5 % at 2 groups",
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
            "text and appendix print different sets",
        ),
        _accuracy(),
        *_speed(),
        *_spread(),
    ]


def _accuracy() -> Erratum:
    task, (gain, *_) = max(PARTNER.items(), key=lambda line: line[1][0])
    lines = [line.results for line in (*BASELINES["celeba"].values(), *CAPACITY["celeba"].values())]
    tables = [OPTIMAL["celeba"], *(table for key, table in PRINTED.items() if key.startswith("celeba"))]
    groups = [group.results for table in tables for printed in table.values() for group in printed.groups]
    worst = max(results[task] for results in (*lines, *groups) if task in results)
    return Erratum(
        "tables of partners, of schedules and of hyperparameters",
        f"gains in test accuracy, such as {gain:.2f} % for {task}",
        "gains are shares of the error",
        f"{task}'s highest error in any table is {worst:.2f} %: without it accuracy would be higher by "
        f"{worst / (100 - worst):.2%}, no more",
    )


def _speed() -> list[Erratum]:
    ours = {name: speed_up(schedule, PAPER_COST) for name, schedule in SCHEDULES.items()}
    near = sum(abs(ours[name] - printed.speed_up) <= 0.01 for name, printed in SPEED.items())
    same = sum(f"{ours[name]:.2f}" == f"{printed.speed_up:.2f}" for name, printed in SPEED.items())
    low, high = costs_giving({name: printed.speed_up for name, printed in SPEED.items()})
    return [
        Erratum(
            "table of speed-ups",
            "measured speed-ups",
            f"{near} of {len(SPEED)} follow from one number to within 0.01, {same} to the last digit",
            f"a measurement costs {PAPER_COST} plain steps (between {low:.4f} and {high:.4f} all agree to the last "
            "digit); windows measure every step, and training ends with them",
        )
    ]


def _spread() -> list[Erratum]:
    spread = Published("celeba_tag").affinity.spread().values
    factor = float(np.median([spread[task] / printed for task, printed in SPREAD.items()]))
    same = [task for task, printed in SPREAD.items() if abs(spread[task] / factor - printed) <= 0.0051]
    pearson = np.corrcoef([PARTNER[task][:2] for task in PARTNER], rowvar=False)[0, 1]
    return [
        Erratum(
            "table of differences in affinity",
            "normalised, without saying how",
            f"the published differences over {factor:.1f}: {len(same)} of {len(SPREAD)} agree to the last digit",
            f"a8 has {spread['a8'] / spread['a3']:.2f} of the next smallest; Pearson of best and chosen partner "
            f"{pearson:.2f}, as printed",
        )
    ]
