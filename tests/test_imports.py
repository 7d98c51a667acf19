"""What is imported: torch, pandas and others where they are needed, never earlier."""

import os
import subprocess
import sys
from pathlib import Path

from fake_run import make_run

import tagalong
from tagalong import show_versions

# What a process does in this order, and which packages it has not imported afterwards.
LIGHT = [
    ("import tagalong, tagalong.affinity, tagalong.integrations", "torch pandas scipy sklearn plotly pydantic"),
    ("import tagalong.integrations", "lightning transformers accelerate"),
    ("from tagalong.cli import main; main(['--help'])", "torch pandas scipy plotly"),
    ("main(['group', '--help'])", "torch pandas scipy plotly"),
    ("import tagalong.report, tagalong.group", "torch pandas plotly"),
    ("main(['paper']); main(['paper', 'selection']); main(['leaderboard', '--help'])", "torch"),
    ("main(['group', 'square.csv', '--budget', '1'])", "torch"),
    ("main(['report', 'mine'])", "torch"),
    ("tagalong.show_versions()", "ray sklearn"),
]
RUN_LIGHT = """
import sys
from pathlib import Path

for step, packages in {steps}:
    exec(step)
    imported = set(packages.split()) & set(sys.modules)
    assert not imported, (step, imported)
"""
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
assert "plotly" not in sys.modules
results = Study(problem, "out", device="cpu").run(["mtl", "stl", "tag"], budgets=[1], seeds=1)
assert len(results.records) == 3
assert results.best().predict(inputs)["number"].shape == (16,)
"""


def run(code: str, folder: Path) -> None:
    paths = [*filter(None, sys.path), str(Path(__file__).parent / "report")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_packages_are_imported_only_where_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "square.csv").write_text(",a,b\na,0,1\nb,1,0\n")
    make_run(tmp_path / "mine", [*"abc"])
    run(RUN_LIGHT.format(steps=LIGHT), tmp_path)


def test_arrays_need_neither_pandas_nor_scikit_learn(tmp_path: Path) -> None:
    run(WITHOUT_TABLES, tmp_path)


def test_versions_are_printed_one_per_line(capsys) -> None:
    show_versions()
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"Python", "OS", "CUDA", "torch", "scipy"} <= printed.keys()
    assert printed["tagalong"] == tagalong.__version__
