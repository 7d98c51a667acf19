"""Every file carries the disclaimer on what affinity does not mean."""

import json
from pathlib import Path

import numpy as np
import pytest

from tagalong import Affinity
from tagalong.affinity import disclaimer


@pytest.mark.parametrize(
    ("task", "trait"),
    [
        ("gender", "gender"), ("is_male", "gender"), ("Race", "race and origin"), ("ethnicity_2", "race and origin"),
        ("religion", "religion"), ("Age", "age"), ("patientAge", "age"), ("health_status", "health"), ("ill", "health"),
    ],
)  # fmt: skip
def test_names_of_sensitive_tasks_are_recognised(task: str, trait: str) -> None:
    assert f"({trait}: {task})" in disclaimer([task, "depth"])


@pytest.mark.parametrize("task", ["depth", "average", "package", "illumination", "embrace", "message", "0"])
def test_names_of_other_tasks_are_not(task: str) -> None:
    assert disclaimer([task]) == disclaimer([])


def test_saved_affinities_carry_it_and_load(tmp_path: Path) -> None:
    path = tmp_path / "affinity.json"
    Affinity.from_matrix(np.eye(2), ["gender", "depth"]).save(path)
    assert json.loads(path.read_text())["caution"] == disclaimer(["gender", "depth"])
    assert Affinity.load(path).tasks == ("gender", "depth")
