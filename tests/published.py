"""The published affinity matrices, their optimal groupings, and the groupings that the paper prints.

Each file in `golden/published` says where its numbers come from. The optima were computed in exact arithmetic, and
without this package.
"""

import json
from pathlib import Path
from typing import Any

from tagalong import Affinity, Grouping

FOLDER = Path(__file__).parent / "golden" / "published"
# problem: budget: the optimum and what the paper prints
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected_groupings.json").read_text())["problems"]
# Results of pairs of tasks and of single tasks, such as those of HOA, allow networks for single tasks.
OPTIONS: dict[str, Any] = {
    problem: {
        "allow_single": problem.endswith("hoa"),
        "objective": "min" if problem == "taskonomy_hoa" else "max",
    }
    for problem in EXPECTED
}


def read_affinity(problem: str) -> Affinity:
    published = json.loads((FOLDER / f"{problem}.json").read_text())
    aliases = published["task_aliases"] if published["dataset"] == "celeba" else {}
    names = [aliases.get(task, task) for task in published["tasks"]]
    return Affinity.from_matrix(published["matrix"], names, axis="target")


def optimal_groups(problem: str, budget: int) -> dict[frozenset[str], set[str]]:
    """Returns what each group of the optimum trains, and what it serves."""
    (optimum,) = EXPECTED[problem][str(budget)]["optimal"]
    serves: list[set[str]] = [set() for _ in optimum["groups"]]
    for task, groups in optimum["served_by"].items():
        (group,) = groups
        serves[group].add(task)
    return dict(zip(map(frozenset, optimum["groups"]), serves, strict=True))


def groups_of(grouping: Grouping) -> dict[frozenset[str], set[str]]:
    return {group.trains: set(group.serves) for group in grouping.groups}
