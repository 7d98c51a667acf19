"""The overview of a study on records with given changes."""

from itertools import takewhile
from typing import Any

import pytest
from verdict_records import APART, TASKS, records, results, together

from tagalong.errors import InvalidInput
from tagalong.group import Group, Taught
from tagalong.study import Learning, Record, RowNoise

COPIES = (Group("ab", "ab"), Group("ab", "ab", copy=1))
TAUGHT = (Group("ab", "ab", copy=1, taught=Taught(("x", "y"))),)
TAUGHT_TWICE = (*TAUGHT, Group("ab", "ab", copy=2, taught=Taught(("x", "y"))))
TAUGHT_APART = tuple(Group(task, task, taught=Taught(("x", "y"))) for task in TASKS)
SPENT = {"networks": 40, "steps": 2500, "seconds": 75.0}


def picked(groups: tuple[Group, ...], change: float, budget: int | None = None, method: str = "auto") -> list[Record]:
    changes = [change, change - 0.001, change + 0.001]
    return records(method, budget or len(groups), changes, changes, groups)


def overview(*methods: list[Record], width: int = 80, **more: Any) -> str:
    labels = {record.label for method in methods for record in method}
    noise = dict.fromkeys(labels, 0.001)
    copies = {label: 0.001 for label in labels if label[0] not in ("ensemble", "best-of")}
    every = [*together(), *(record for method in methods for record in method)]
    return results(every, **({"noise": RowNoise(noise, noise, copies, copies)} | more)).overview(width)


def answer(text: str, name: str) -> str:
    """Returns an answer, which may go on in indented lines, as one line."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(name))
    more = takewhile(lambda line: line.startswith("    "), lines[start + 1 :])
    return " ".join([lines[start].removeprefix(name).strip(), *map(str.strip, more)])


def rows(text: str) -> list[str]:
    """Returns the rows of the table without repeated blanks."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("networks ")) + 1
    end = next(number for number, line in enumerate(lines) if line.startswith(("* recommended", "Change in")))
    return [" ".join(line.split()) for line in lines[start:end]]


def test_each_number_of_networks_has_its_best_way_and_its_changes() -> None:
    copies = picked(COPIES, -0.1, method="ensemble")
    first, second = rows(overview(picked(TAUGHT, -0.05), picked(APART, -0.2), copies))
    assert first.startswith("1 1 taught by 2 others -5.0% (")
    assert second.startswith("* 2 2 for some tasks -20.0% (")
    assert "-11.1% (" in second, "the change from copies, 0.8 / 0.9 - 1"
    picked_copies = (Group("ab", "ab", copy=2), Group("ab", "ab", copy=5))
    _, second = rows(overview(picked(picked_copies, -0.2), copies, picked(TAUGHT, -0.05)))
    assert second.startswith("* 2 2 copies -20.0% (")
    assert second.count("%") == 1, "copies are not compared with copies"


def test_results_without_intervals_have_an_overview() -> None:
    text = results([*together(1), *records("auto", 2, [-0.1], [-0.1])]).overview()
    assert rows(text)[-1] == "2 2 for some tasks -10.0%"
    assert answer(text, "Worth it?").startswith("Not known.")
    with pytest.raises(InvalidInput, match="must include results for 'mtl'"):
        results(records("auto", 2, [-0.1], [-0.1])).overview()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ([picked(APART, -0.2), picked(COPIES, -0.1, method="ensemble")], "Groups matter"),
        ([picked(APART, -0.1), picked(COPIES, -0.1, method="ensemble")], "Copies would do"),
        ([picked(TAUGHT, -0.2), picked(COPIES, -0.1, method="ensemble")], "No"),
        ([picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2)], "No"),
        ([picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2), picked(COPIES, -0.1, method="ensemble")], "No"),
        ([picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2), picked(COPIES, -0.199, method="ensemble")], "No"),
        ([picked(TAUGHT, -0.2), picked(APART, -0.2), picked(COPIES, -0.1, method="ensemble")], "Not for one network"),
        ([picked(TAUGHT, -0.2), picked(TAUGHT_APART, -0.2), picked(COPIES, -0.1, method="ensemble")], "Not known"),
        ([picked(TAUGHT, -0.2), picked(APART, -0.2), picked(COPIES, -0.199, method="ensemble")], "Copies would do"),
        ([picked(TAUGHT, -0.2), picked(APART, -0.2)], "Not known"),
    ],
)
def test_the_overview_says_whether_groups_matter(methods: list[list[Record]], words: str) -> None:
    found = answer(overview(*methods), "Groups?")
    assert found.startswith((f"{words}.", f"{words}:"))


@pytest.mark.parametrize(("a", "b", "words"), [(1e-9, 1e-9, "Yes."), (1e-9, 0.9, "Partly. b"), (0.9, 0.9, "No.")])
def test_what_was_not_learnt_is_named(a: float, b: float, words: str) -> None:
    text = overview(picked(APART, -0.2), learning=Learning({"a": a, "b": b}))
    assert answer(text, "Learnt?").startswith(words)
    assert ("networks  best way" in text) == (words != "No."), "no table if nothing was learnt"


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((TAUGHT_APART[0], Group("b", "b"), Group("ab", "ab")), "3 1 taught by 2, 2 for some tasks"),
        ((Group("ab", "ab", size=3),), "1 of 3 times the size"),
        ((Group("ab", "ab", network="tabm"),), "1 TabM network"),
        (tuple(Group("ab", "ab", network="tabm", copy=copy) for copy in (0, 1)), "2 TabM networks"),
        ((Group("ab", "ab", taught=Taught(("x",))),), "1 taught by 1 other -30"),
        ((Group("ab", "ab", copy=4),), "1 picked from copies"),
    ],
)
def test_kinds_of_networks_are_counted(groups: tuple[Group, ...], words: str) -> None:
    method = "best-of" if words.endswith("copies") else "auto"
    size = sum(group.size for group in groups)
    assert words in " ".join(rows(overview(picked(groups, -0.3, budget=size, method=method))))
