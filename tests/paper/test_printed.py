"""The printed numbers: the data files have the paper's digits, and say where in the paper they are."""

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from tagalong_paper import CELEBA, MATRICES, TASKONOMY, printed

FILES = sorted(file.name for file in files(printed).iterdir() if file.name.endswith(".json"))
# Digests of the numbers as they were typed from the paper, with rows in the order of its tables.
DIGESTS = {
    "MATRICES": "059a4ac4ab5e0914",
    "PRINTED": "507ddccd126135f2",
    "OPTIMAL": "5b8645e0c773abd0",
    "BASELINES": "5e68e5dbba616db9",
    "CAPACITY": "24a56c1b3140aea6",
    "PARTNER": "9f42c49723325ded",
    "SPEED": "032e64f5fe4a7977",
    "HYPERPARAMETERS": "b80ecec604a4e4ee",
    "SPREAD": "03fc9764478ad988",
    "PCGRAD_GAIN": "dcef140a79fb0fe2",
    "partner pearson": "e2364a9def35233c",
    "validation pearson": "7d1de54336997f11",
    "train error": "64ccf18028fea92a",
    "validation error": "d83f98a462f87cee",
}


def rows_of(columns: Mapping[str, Mapping[Any, float]]) -> dict[Any, tuple[float, ...]]:
    return {row: tuple(column[row] for column in columns.values()) for row in next(iter(columns.values()))}


def lines_of(table: Mapping[str, Mapping[Any, printed.PrintedGrouping]]) -> dict[str, dict[Any, tuple[Any, ...]]]:
    return {
        dataset: {
            label: (line.groups[0].results, line.total, line.groups[0].stderr or None) for label, line in lines.items()
        }
        for dataset, lines in table.items()
    }


def plain(value: Any) -> Any:
    """Converts a value to JSON, with exact numbers and in the order of the tables."""
    if isinstance(value, printed.PrintedGroup) and not value.stderr:
        value = (value.results, value.bold, None)
    if isinstance(value, Mapping):
        return [[plain(key), plain(one)] for key, one in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | np.ndarray):
        return [plain(one) for one in value]
    return float(value).hex() if isinstance(value, float) else value


@pytest.mark.parametrize("name", DIGESTS)
def test_every_digit_is_that_of_the_paper(name: str) -> None:
    settings = tuple(printed.HYPERPARAMETERS)
    by_row = {
        "BASELINES": lines_of(printed.BASELINES),
        "CAPACITY": lines_of(printed.CAPACITY),
        "PARTNER": rows_of(printed.PARTNER),
        "SPEED": rows_of(printed.SPEED),
        "HYPERPARAMETERS": {
            k: dict(zip(settings, row, strict=True)) for k, row in rows_of(printed.HYPERPARAMETERS).items()
        },
        **printed.IN_TEXT,
    }
    value = by_row[name] if name in by_row else getattr(printed, name)
    assert hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_where_its_numbers_are_in_the_paper(name: str) -> None:
    content = json.loads(files(printed).joinpath(name).read_text(encoding="utf-8"))
    parts = [content] if "where" in content else [part for part in content.values() if isinstance(part, dict)]
    assert parts
    assert all(part["where"] for part in parts)


def test_printed_tables_are_complete() -> None:
    assert CELEBA == ("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9")
    assert TASKONOMY == ("s", "d", "n", "t", "k")
    for dataset, tasks in (("celeba", CELEBA), ("taskonomy", TASKONOMY)):
        for line in (*printed.BASELINES[dataset].values(), *printed.CAPACITY[dataset].values()):
            assert tuple(line.groups[0].results) == tasks
        for method in ("tag", "cs", "hoa"):
            assert MATRICES[f"{dataset}_{method}"].shape == (len(tasks), len(tasks))
            for budget, grouping in printed.PRINTED[f"{dataset}_{method}"].items():
                assert len(grouping.groups) == budget
                assert {task for group in grouping.groups for task in group.results} == set(tasks)
        for budget, grouping in printed.OPTIMAL[dataset].items():
            assert len(grouping.groups) == budget
            assert sorted(task for group in grouping.groups for task in group.bold) == sorted(tasks)
