"""The printed numbers: the data files have the paper's digits, and say where in the paper they are."""

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

import tagalong_paper
from tagalong_paper import CELEBA, MATRICES, TASKONOMY, printed

FILES = sorted(file.name for file in files(printed).iterdir() if file.name.endswith(".json"))
# Digests of the numbers as they were typed from the paper.
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
    "PARTNER_PEARSON": "e2364a9def35233c",
    "VALIDATION_PEARSON": "7d1de54336997f11",
    "EVERY_STEP_ERROR": "64ccf18028fea92a",
    "VALIDATION_ERROR": "d83f98a462f87cee",
}


def plain(value: Any) -> Any:
    """Converts a value to JSON, with exact numbers and in the order of the tables."""
    if isinstance(value, Mapping):
        return [[plain(key), plain(one)] for key, one in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | np.ndarray):
        return [plain(one) for one in value]
    return float(value).hex() if isinstance(value, float) else value


@pytest.mark.parametrize("name", DIGESTS)
def test_every_digit_is_that_of_the_paper(name: str) -> None:
    found = json.dumps(plain(getattr(printed, name))).encode()
    assert hashlib.sha256(found).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_where_its_numbers_are_in_the_paper(name: str) -> None:
    found = json.loads(files(printed).joinpath(name).read_text(encoding="utf-8"))
    parts = [found] if "where" in found else [part for part in found.values() if isinstance(part, dict)]
    assert parts
    assert all(part["where"] for part in parts)


def test_values_have_the_annotated_types() -> None:
    assert CELEBA == ("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9")
    assert TASKONOMY == ("s", "d", "n", "t", "k")
    assert {key: (matrix.dtype, matrix.shape) for key, matrix in MATRICES.items()} == {
        f"{dataset}_{method}": (np.float64, (size, size))
        for dataset, size in (("celeba", 9), ("taskonomy", 5))
        for method in ("tag", "cs", "hoa")
    }
    groups = [
        group
        for tables in (printed.PRINTED, printed.OPTIMAL)
        for table in tables.values()
        for one in table.values()
        for group in one.groups
    ]
    assert {type(value) for group in groups for value in (*group.results.values(), *(group.stderr or {}).values())} == {
        float
    }
    assert {key for table in printed.PRINTED.values() for key in table} == {2, 3, 4}
    assert printed.CAPACITY["taskonomy"]["mtl", 2].results["k"] == 0.1173
    assert printed.SPEED["every 10"].speed_up == 3.19


@pytest.mark.parametrize(
    "name", ["CELEBA", "MATRICES", "PRINTED", "PrintedGrouping", "PrintedGroup", "PublishedMatrix", "TASKONOMY"]
)
def test_the_package_exports_the_same_objects(name: str) -> None:
    assert getattr(tagalong_paper, name) is getattr(printed, name)
