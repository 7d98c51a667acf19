"""Columns of plain-text tables line up, whatever script the names are written in."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.cells import cell_len

from tagalong import Affinity, select_groups
from tagalong.rendering import display_width
from tagalong.study import ProblemInfo
from tagalong.study.text import tasks_table

sys.path.append(str(Path(__file__).parent / "report"))
from fake_run import make_run

TASKS = ("age", "年齢", "poids 😀", "वज़न", "ta\N{COMBINING ACUTE ACCENT}lla", "体重と身長と年齢と血圧と血糖値と脂質")


def columns_line_up(rows: list[str]) -> bool:
    """Returns whether the lines that end with a number all end in the same column."""
    return len(rows) > 2 and len({cell_len(row) for row in rows}) == 1


def test_widths_are_those_of_a_terminal() -> None:
    assert [display_width(task) for task in TASKS] == [cell_len(task) for task in TASKS]


def test_columns_of_affinities_and_groupings_line_up() -> None:
    affinity = Affinity.from_matrix(np.arange(36.0).reshape(6, 6), TASKS)
    assert columns_line_up(str(affinity).splitlines()[1:7])
    assert columns_line_up(str(select_groups(affinity, budget=3)).splitlines()[1:4])


def test_columns_of_results_by_task_line_up(tmp_path: Path) -> None:
    results = make_run(tmp_path, TASKS)
    lines = {(line.method, line.budget): line for line in results.table()}
    for width in (60, 80, 100):
        rows = tasks_table(results.problem, lines["mtl", None], lines["tag", 2], width)
        assert columns_line_up(rows[1:])
        assert max(map(cell_len, rows)) <= width


def test_results_of_hundreds_of_tasks_are_cut_after_fifty(tmp_path: Path) -> None:
    problem = ProblemInfo("many", tuple(f"t{i}" for i in range(300)))
    summary = next(iter(make_run(tmp_path, problem.tasks[:3], steps=1).table()))
    losses = dict.fromkeys(problem.tasks, 1.0)
    summary = replace(summary, loss=losses, error=losses)
    rows = tasks_table(problem, summary, summary)
    assert (len(rows), rows[-1]) == (52, "… and 250 more tasks; results.json contains all of them")
