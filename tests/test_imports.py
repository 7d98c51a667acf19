"""What is imported: pandas and scikit-learn where tables enter, never by measuring, grouping or training on arrays."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TABLES = """
import sys

sys.modules["pandas"] = sys.modules["sklearn"] = None  # importing them fails
import torch
from tagalong import AffinityMeter, MLP, Problem, Recipe, Study, Task, select_groups

encoder, heads = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
inputs = torch.randn(16, 3)
meter = AffinityMeter(encoder, lr=0.1, every=1)
meter(lambda: dict(zip("ab", heads(encoder(inputs)).square().mean(0))))
assert select_groups(meter.affinity(), 1).groups
assert select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], 2).value == 11

targets = {"number": inputs.sum(1), "class": inputs[:, 0] > 0}
problem = Problem.from_arrays(
    inputs.repeat(4, 1), {task: labels.repeat(4) for task, labels in targets.items()}, ["number", "class"],
    encoder=MLP(3, (4,)), recipe=Recipe(epochs=1),
)
results = Study(problem, "out", device="cpu").run(["mtl", "stl", "tag"], budgets=[1], seeds=1)
assert len(results.records) == 3
assert results.best().predict(inputs)["number"].shape == (16,)
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_arrays_need_neither_pandas_nor_scikit_learn(tmp_path: Path) -> None:
    finished = run(WITHOUT_TABLES, tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        ("tagalong", "torch pandas scipy sklearn plotly"),
        ("tagalong.group", "torch pandas plotly"),
        ("tagalong.learn", "pandas sklearn plotly"),
    ],
)
def test_imports_are_light(imported: str, heavy: str, tmp_path: Path) -> None:
    finished = run(f"import sys, {imported}; print(sorted(set({heavy.split()}) & set(sys.modules)))", tmp_path)
    assert finished.stdout == "[]\n", finished.stderr
