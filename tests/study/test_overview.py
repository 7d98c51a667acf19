"""The overview of a study on records with given changes."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from verdict_records import APART, TASKS, records, results, together

from tagalong.errors import InvalidInput
from tagalong.group import Group, Taught
from tagalong.study import LateNetworks, Learning, Record, RowNoise

COPIES = (Group("ab", "ab"), Group("ab", "ab", copy=1))
TAUGHT = (Group("ab", "ab", copy=1, taught=Taught(("x", "y"))),)
TAUGHT_TWICE = (*TAUGHT, Group("ab", "ab", copy=2, taught=Taught(("x", "y"))))
TAUGHT_APART = tuple(Group(task, task, taught=Taught(("x", "y"))) for task in TASKS)
CLEAR = [-0.1, -0.11, -0.12]
SPENT = {"networks": 40, "steps": 2500, "seconds": 75.0}


def picked(groups: tuple[Group, ...], change: float, budget: int | None = None, method: str = "auto") -> list[Record]:
    changes = [change, change - 0.001, change + 0.001]
    return records(method, budget or len(groups), changes, changes, groups)


def overview(*found: list[Record], width: int = 80, **more: Any) -> str:
    labels = {record.label for some in found for record in some}
    noise = dict.fromkeys(labels, 0.001)
    every = [*together(), *(record for some in found for record in some)]
    copies = {label: 0.001 for label in labels if label[0] not in ("ensemble", "best-of")}
    given = {"noise": RowNoise(noise, noise, copies, copies)} | more
    return results(every, **given).overview(width)


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


def test_each_number_of_networks_has_its_best_way_and_change() -> None:
    text = overview(picked(TAUGHT, -0.05), picked(APART, -0.2), picked(COPIES, -0.1, method="ensemble"))
    first, second = rows(text)
    assert first.startswith("1 1 taught by 2 others -5.0% (")
    assert second.startswith("* 2 2 for some tasks -20.0% (")
    assert "-11.1% (" in second, "the change from copies, 0.8 / 0.9 - 1"
    assert "* recommended." in text
    assert "Copies are picked with as much effort." in text


def test_without_copies_there_is_no_column_for_them() -> None:
    text = overview(picked(APART, -0.2, method="tag"))
    assert "copies" not in text.splitlines()[1]
    assert "Copies are" not in text
    assert rows(text)[0] == "1 1 plain network"
    assert "No copies were trained to compare the 2 networks with" in answer(text, "Groups?")


def test_copies_are_not_compared_with_copies() -> None:
    picked_copies = (Group("ab", "ab", copy=2), Group("ab", "ab", copy=5))
    text = overview(picked(picked_copies, -0.2), picked(COPIES, -0.1, method="ensemble"), picked(TAUGHT, -0.05))
    assert "from copies" in text.splitlines()[1]
    assert rows(text)[1].startswith("* 2 2 copies -20.0% (")
    assert rows(text)[1].count("%") == 1


def test_a_plain_network_is_marked_if_nothing_else_is_worth_it() -> None:
    text = overview(picked(APART, 0.1, method="tag"))
    assert rows(text)[0] == "* 1 1 plain network"
    assert answer(text, "Worth it?").startswith("No. Train them all together in one network:")


def test_the_recommendation_is_that_of_the_verdict() -> None:
    found = results([*together(), *picked(APART, -0.2)], noise={("auto", 2): 0.001})
    sentence = answer(found.overview(80), "Worth it?")
    assert sentence == f"Yes. {found.verdict().sentence}"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([picked(APART, -0.2), picked(COPIES, -0.1, method="ensemble")], "Groups matter: compared with ensemble"),
        ([picked(APART, -0.1), picked(COPIES, -0.1, method="ensemble")], "Copies would do: compared with ensemble"),
        (
            [picked(TAUGHT, -0.2), picked(COPIES, -0.1, method="ensemble")],
            "No. With 2 networks, copies are the best way found.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2)],
            "No. With 2 networks, the best way found trains each of them on all tasks.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2), picked(COPIES, -0.1, method="ensemble")],
            "No. With 2 networks, the best way found trains each of them on all tasks.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(TAUGHT_TWICE, -0.2), picked(COPIES, -0.199, method="ensemble")],
            "No. With 2 networks, the best way found trains each of them on all tasks, and copies would do.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(APART, -0.2), picked(COPIES, -0.1, method="ensemble")],
            "Not for one network. With 2 networks, groups beat copies by more than the noise.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(TAUGHT_APART, -0.2), picked(COPIES, -0.1, method="ensemble")],
            "Not known. With 2 networks, groups beat copies, but all seeds share their teachers.",
        ),
        (
            [picked(TAUGHT, -0.2), picked(APART, -0.2), picked(COPIES, -0.199, method="ensemble")],
            "Copies would do. With 2 networks, groups are not better by more than the noise.",
        ),
        ([picked(TAUGHT, -0.2), picked(APART, -0.2)], "Not known. No copies were trained to compare the groups with."),
    ],
)
def test_the_overview_says_whether_groups_matter(found: list[list[Record]], words: str) -> None:
    assert answer(overview(*found), "Groups?").startswith(words)


def test_tasks_that_were_not_learnt_are_named() -> None:
    everything = answer(overview(picked(APART, -0.2), learning=Learning({"a": 1e-9, "b": 1e-9})), "Learnt?")
    assert everything.startswith("Yes. On validation data, a network beats a constant")
    partly = answer(overview(picked(APART, -0.2), learning=Learning({"a": 1e-9, "b": 0.9})), "Learnt?")
    assert partly.startswith("Partly. b is not counted")


def test_there_is_no_table_if_nothing_was_learnt() -> None:
    text = overview(picked(APART, -0.2), learning=Learning({"a": 0.9, "b": 0.9}))
    assert "networks  best way" not in text
    assert answer(text, "Worth it?").startswith("No. Nothing was learnt")
    assert answer(text, "Groups?") == "Not known. There are no groups to compare with copies."


def test_too_few_epochs_are_mentioned_only_if_there_are_too_few() -> None:
    late = Learning(late={("mtl", None): LateNetworks(2, 3), ("auto", 2): LateNetworks(0, 6)})
    assert answer(overview(picked(APART, -0.2), learning=late), "Epochs?") == (
        "Too few. 2 of 9 networks were best in one of the last 3 epochs and might improve; raise `epochs`."
    )
    assert "Epochs?" not in overview(picked(APART, -0.2))


def test_the_cost_counts_all_networks_in_units_of_a_plain_one() -> None:
    text = overview(picked(APART, -0.2), settings={"spent": SPENT})
    assert answer(text, "Cost") == "40 networks trained in 1 min 15 s, as many steps as 25 plain ones."
    assert "Cost" not in overview(picked(APART, -0.2)), "unknown for networks that others trained"


def test_the_page_is_mentioned_if_it_was_written(tmp_path: Path) -> None:
    found = results([*together(), *picked(APART, -0.2)], out=tmp_path)
    assert "Page" not in found.overview()
    (tmp_path / "report.html").touch()
    assert found.overview(200).splitlines()[-1] == f"Page       {tmp_path / 'report.html'}"


def test_fresh_seeds_are_counted_apart() -> None:
    fresh = [*together(2, first=3), *records("auto", 2, CLEAR[:2], CLEAR[:2], first=3)]
    text = results(
        [*together(), *records("auto", 2, CLEAR, CLEAR), *fresh], settings={"confirming_seeds": [3, 4]}
    ).overview()
    assert text.splitlines()[0].endswith(": 2 tasks, 3 seeds and 2 fresh ones to confirm")


@pytest.mark.parametrize("width", [80, 100])
def test_the_overview_fits_on_one_screen(width: int, tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    mixed = (TAUGHT_APART[0], Group("b", "b", taught=Taught(("x", "y", "z"))), Group("ab", "ab"))
    three = tuple(Group("ab", "ab", copy=copy) for copy in range(3))
    late = Learning({"a": 1e-9, "b": 0.9}, late={("mtl", None): LateNetworks(2, 3), ("auto", 3): LateNetworks(1, 3)})
    text = overview(
        *(picked(TAUGHT, -0.1), picked(TAUGHT_APART, -0.2), picked(mixed, -0.3)),
        *(picked(COPIES, -0.1, method="ensemble"), picked(three, -0.15, method="ensemble")),
        width=width,
        settings={"spent": SPENT},
        learning=late,
        out=tmp_path,
    )
    assert len(rows(text)) >= 3
    assert len(text.splitlines()) <= 24  # and a line by the command
    assert max(map(len, text.splitlines()[:-1])) <= width


def test_kinds_of_networks_are_counted() -> None:
    mixed = (TAUGHT_APART[0], Group("b", "b"), Group("ab", "ab"))
    wide = (Group("ab", "ab", size=3),)
    best = (Group("ab", "ab", copy=4),)
    tabm = (Group("ab", "ab", network="tabm"),)
    described = " ".join(rows(overview(picked(mixed, -0.3))))
    assert "3 1 taught by 2, 2 for some tasks" in described
    assert "1 of 3 times the size" in " ".join(rows(overview(picked(wide, -0.3, budget=3))))
    assert "1 TabM network" in " ".join(rows(overview(picked(tabm, -0.3))))
    taught = (Group("ab", "ab", taught=Taught(("x",))),)
    assert "1 taught by 1 other -30" in " ".join(rows(overview(picked(taught, -0.3))))
    two = (*tabm, Group("ab", "ab", network="tabm", copy=1))
    assert "2 TabM networks" in " ".join(rows(overview(picked(two, -0.3))))
    assert "1 picked from copies" in " ".join(rows(overview(picked(best, -0.3, method="best-of"))))


def test_the_overview_needs_results_for_one_plain_network() -> None:
    with pytest.raises(InvalidInput, match="must include results for 'mtl'"):
        results(records("auto", 2, CLEAR, CLEAR)).overview()


def test_results_without_intervals_have_an_overview() -> None:
    one = records("auto", 2, CLEAR[:1], CLEAR[:1])
    text = results([*together(1), *one]).overview()
    assert rows(text)[-1] == "2 2 for some tasks -10.0%"
    assert answer(text, "Worth it?").startswith("Not known.")


def test_tabm_networks_for_different_tasks_are_not_called_an_average() -> None:
    apart = (Group("ab", "a", network="tabm"), Group("ab", "b", copy=1))
    found = answer(overview(picked(apart, -0.3)), "Worth it?")
    assert found.startswith("Yes. Picking TabM networks for some tasks is worth it")
    averaged = (Group("ab", "ab", network="tabm"), Group("ab", "ab", copy=1))
    assert "Averaging with TabM networks is worth it" in answer(overview(picked(averaged, -0.3)), "Worth it?")
