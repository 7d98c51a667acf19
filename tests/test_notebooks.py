"""HTML for notebooks: small tables, escaped, without scripts."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tagalong import Affinity, select_groups
from tagalong.group import Group
from tagalong.study import Cost, ProblemInfo, Record, Results, Score

HOSTILE = ("<script>alert(1)</script>", "a&b", "<img src=x onerror=alert(2)>")
MEAN = np.array([[9, 5, -5], [5, 9, 0], [0, -5, 9]])
AFFINITY = Affinity.from_history(MEAN + np.random.default_rng(0).normal(size=(30, 3, 3)), HOSTILE)


def results() -> Results:
    outcomes = {task: Score(1.0, 0.5) for task in HOSTILE}
    mtl = Record("mtl", None, 0, (Group(HOSTILE, HOSTILE),), outcomes, outcomes, training=Cost(1, 10, 1.0))
    alone = replace(mtl, method="<b>own</b>", groups=tuple(Group([task], [task]) for task in HOSTILE))
    return Results([mtl, alone], problem=ProblemInfo("<i>name</i>", HOSTILE))


@pytest.mark.parametrize("shown", [AFFINITY, select_groups(AFFINITY, 2), results()], ids=["A", "G", "R"])
def test_tables_are_escaped_and_need_no_script(shown: object) -> None:
    html = shown._repr_html_()  # type: ignore[attr-defined]
    tags = set(re.findall(r"<(\w+)", html))
    assert tags <= {"pre", "table", "caption", "thead", "tbody", "tr", "th", "td", "small", "div", "p", "br"}
    assert "&lt;script&gt;alert(1)" in html
    assert "a&amp;b" in html
