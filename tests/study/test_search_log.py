"""The log of `auto`: its text, and what happens to a log that was edited by hand."""

from typing import Any

import pytest

from tagalong.group import Group
from tagalong.study import SearchLog


def trained(kind: str | None, tasks: str, seed: int, *, effort: float = 1.0, **more: Any) -> dict:
    losses = more.pop("val")
    one = {
        "tasks": [*tasks],
        "seed": seed,
        "fraction": 1.0,
        "effort": effort,
        "val": dict(zip(tasks, losses, strict=True)),
    }
    return one | ({} if kind is None else {"kind": kind}) | more


def log() -> dict:
    """A log with two copies, two sets of tasks, and two students."""
    alternatives = {"copies": -0.01, "taught": -0.05, "all": -0.04}
    chosen = {"2": {"expected": -0.05, "doubt": 0.01, "pool": "taught", "alternatives": alternatives}}
    teachers = [Group("ab", "ab"), Group("ab", "ab", copy=1), Group("ab", "ab"), Group("b", "b")]
    pool = [trained("copy", "ab", 0, val=[1.0, 4.0]), trained("copy", "ab", 1, val=[3.0, 4.0])]
    sets = [trained("set", "a", 0, val=[0.9]), trained("set", "b", 1, val=[5.0])]
    students = [
        trained("student", "ab", 2, val=[1.0, 3.0], effort=1.5, mix=1.0, mixtures=0.0),
        trained("student", "ab", 3, val=[1.8, 4.0], effort=3.0, mix=0.5, mixtures=1.0),
    ]
    return {
        "effort": 9,
        "spent": 8.5,
        "measuring": 0.0,
        "overhead": None,
        "chosen": chosen,
        "teachers": [group.to_document(cost=False) for group in teachers],
        "steps": [
            {"spent": 4.0, "best": {"2": -0.01}, "trained": pool + sets},
            {"spent": 8.5, "best": {"2": -0.05}, "trained": students},
        ],
    }


def test_the_text_states_what_was_trained_who_teaches_and_the_alternatives() -> None:
    text = " ".join(SearchLog(log()).to_text().split())
    assert text == (
        "auto spent 8.5 of 9 trainings on 2 networks for all tasks, 2 networks for 2 sets of tasks, and 2 students, "
        "which other networks taught. 3 networks teach the 2 students: 2 trained on all tasks and 1 trained on (b). "
        "budget 2: -5.0% ± 1.0 (copies only -1.0%, with taught networks -5.0%, with all networks -4.0%); expected on "
        "validation by effort: -1.0% at 4, -5.0% at 8.5"
    )


def test_students_are_compared_with_the_mean_of_the_copies() -> None:
    trainings = SearchLog(log()).trainings
    assert [one.kind for one in trainings] == ["copy", "copy", "set", "set", "student", "student"]
    # Sets are compared with the copy of the same seed; students with losses of 2 and 4, and the mean over tasks counts.
    assert [one.change for one in trainings] == [
        None, None, pytest.approx(-0.1), pytest.approx(0.25), pytest.approx(-0.375), pytest.approx(-0.05),
    ]  # fmt: skip
    assert trainings[-1].spent == pytest.approx(8.5)
    students = SearchLog(log()).students
    assert {way: [one.seed for one in some] for way, some in students.items()} == {(1.0, 0.0): [2], (0.5, 1.0): [3]}


@pytest.mark.parametrize(("kind", "more"), [("wide", {"size": 2}), ("tabm", {})])
def test_other_networks_are_counted_and_compared_with_the_mean_of_the_copies(kind: str, more: dict[str, Any]) -> None:
    document, group = log(), Group("ab", "ab", **(more or {"network": "tabm"}))
    document["teachers"].append(group.to_document(cost=False))
    document["steps"][0]["trained"] += [
        trained(kind, "ab", 0, val=[1.0, 2.0], effort=2.0, **more),
        trained(None, "ab", 1, val=[9.0, 9.0], effort=2.0) | {"val": {}},  # diverged, with the seed of a copy
    ]
    document["chosen"]["2"]["alternatives"][kind] = -0.03
    found = SearchLog(document)
    assert [one.change for one in found.trainings if one.kind == kind] == [pytest.approx(-0.5)]
    assert found.trainings[2].change == pytest.approx(-0.1), "compared with the copy of the same seed, not with this"
    assert found.trainings[3].change == pytest.approx(0.25), "compared with the copy that converged"
    assert group in found.teachers
    text = " ".join(found.to_text().split())
    assert "(1 diverged)" in text
    assert f"{'wider' if kind == 'wide' else 'with TabM'} networks -3.0%" in text


def test_the_log_of_a_search_without_students_has_no_teachers_and_no_alternatives() -> None:
    document = log() | {"chosen": {"2": {"expected": -0.05, "doubt": 0.01}}}
    del document["teachers"]
    document["steps"][1]["trained"] = []
    found = SearchLog(document)
    assert (found.teachers, found.students, found.teaching, found.alternatives) == ((), {}, "", {2: {}})


def test_networks_with_losses_of_zero_have_no_change() -> None:
    document = log()
    document["steps"][0]["trained"][0]["val"]["a"] = 0.0
    document["steps"][0]["trained"][1]["val"]["a"] = 0.0
    assert [one.change for one in SearchLog(document).trainings if one.kind == "student"] == [None, None]
