"""`tagalong paper`."""

import json

import pytest
from terminal import Terminal


def test_it_lists_what_there_is(tagalong: Terminal) -> None:
    ran = tagalong("paper")
    assert ran.status == 0
    assert ran.out.startswith("tagalong paper selection")


def test_the_printed_groupings_stand_beside_the_best(tagalong: Terminal) -> None:
    out = tagalong("paper", "selection").out
    assert (
        "CelebA, TAG\n"
        "budget  printed                    total  best                         total\n"
        "   * 2  a1 a7                   -903.081  a1 a7                     -894.976\n"
        "        a2 a3 a4 a5 a6 a8 a9              a2 a3 a4 a5 a6 a8 a9 +a7\n"
    ) in out
    assert "the printed networks score -903.081, the best -894.976: a7 also helps a2, a3, a4, a5, a6, a8, a9." in out
    assert "by its score d is served from {d, s} (0.4136; 0.2914 in {d, n})" in out
    assert "the total test result of 0.5246 becomes 0.5331." in out
    assert "14 of 15 printed groupings are the optimum, proven and unique." in out
    assert out.count("\n* ") == 2


@pytest.mark.parametrize("width", ["80", "120"])
def test_its_tables_fit(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = tagalong("paper", "selection").out.splitlines()
    tables = [line for line in lines if line.startswith((" ", "budget"))]
    assert max(map(len, tables)) <= 80
    assert not any(line.endswith(" ") for line in lines)


def test_scripts_get_json(tagalong: Terminal) -> None:
    found = json.loads(tagalong("paper", "selection", "--json").out)["selections"]
    assert len(found) == 15
    assert [(one["dataset"], one["method"], one["budget"]) for one in found if not one["same"]] == [
        ("CelebA", "TAG", 2)
    ]
    assert all(one["best"]["status"] == "optimal" and one["best"]["unique"] for one in found)
