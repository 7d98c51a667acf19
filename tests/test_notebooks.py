"""What notebooks show: small tables, escaped, without scripts."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tagalong import Affinity, select_groups
from tagalong.group import Group
from tagalong.study import Cost, ProblemInfo, Record, Results, Score

HOSTILE = ("<script>alert(1)</script>", "a&b", "<img src=x onerror=alert(2)>")


def affinity() -> Affinity:
    mean = np.array([[9, 5, -5], [5, 9, 0], [0, -5, 9]])
    history = mean + np.random.default_rng(0).normal(size=(30, 3, 3))
    return Affinity.from_history(history, HOSTILE)


def results() -> Results:
    outcomes = {task: Score(1.0, 0.5) for task in HOSTILE}
    groups = (Group(HOSTILE, HOSTILE),)
    mtl = Record("mtl", None, 0, groups, outcomes, outcomes, training=Cost(1, 10, 1.0))
    alone = replace(mtl, method="<b>own</b>", groups=tuple(Group([task], [task]) for task in HOSTILE))
    return Results([mtl, alone], problem=ProblemInfo("<i>name</i>", HOSTILE))


@pytest.mark.parametrize("shown", [affinity(), select_groups(affinity(), 2), results()], ids=["A", "G", "R"])
def test_tables_are_escaped_and_need_no_script(shown: object) -> None:
    html = shown._repr_html_()  # type: ignore[attr-defined]
    tags = set(re.findall(r"<(\w+)", html))
    assert tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "small", "div", "p", "br"}
    assert "&lt;script&gt;alert(1)" in html
    assert "a&amp;b" in html
    assert 'scope="col"' in html
    assert 'scope="row"' in html


def test_sure_affinities_have_a_color_and_unsure_ones_none() -> None:
    cells = re.findall(r"<td[^>]*>[^<]*</td>", affinity()._repr_html_())
    assert "33, 102, 172" in cells[1]
    assert "178, 24, 43" in cells[2]
    assert "background" not in cells[5]
    assert "~" in cells[5]


def test_results_show_the_verdict() -> None:
    assert "verdict" in results()._repr_html_().lower()
