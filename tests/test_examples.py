"""Every example runs from start to end, in a folder of its own, without a warning."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forked_script import run_script
from tagalong import Affinity

EXAMPLES = Path(__file__).parent.parent / "examples"
TEACHING, LOOP, RANKS = (EXAMPLES / f"{name}.py" for name in ("teach_in_a_loop", "measure_in_a_loop", "data_parallel"))
OTHERS = sorted({*EXAMPLES.glob("*.py")} - {TEACHING, LOOP, RANKS})
OPTIONAL = re.compile(r"^(?:from|import) (accelerate|lightning|transformers)\b", re.MULTILINE)
# Exits at once, before gloo's threads may abort the process.
LEAVE_AT_ONCE = """
import os, runpy, sys

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


def run(example: Path, folder: Path, *arguments: str) -> str:
    """Returns what the example prints."""
    done = run_script(example, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", OTHERS, ids=lambda path: path.stem)
def test_example_runs_and_prints_an_affinity(example: Path, tmp_path: Path) -> None:
    for package in OPTIONAL.findall(example.read_text(encoding="utf-8")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    assert "Affinity (row helps column" in run(example, tmp_path, "--steps", "60")


def test_the_first_example_writes_the_record_and_two_figures(tmp_path: Path) -> None:
    assert "Affinity (row helps column" in run(LOOP, tmp_path, "--steps", "60", "--out", "results")
    written = tmp_path / "results"
    assert sorted(path.name for path in written.iterdir()) == ["affinity.json", "heatmap.html", "over_training.html"]
    assert Affinity.load(written / "affinity.json").tasks == ("vibration", "hum", "power", "fails")


def test_the_student_of_the_example_is_better_than_a_network_without_teachers(tmp_path: Path) -> None:
    printed = run(TEACHING, tmp_path, "--steps", "200", "--teachers", "4")
    losses = {name.strip(): float(loss) for name, loss in re.findall(r"^  (.+?) +([\d.]+)$", printed, re.MULTILINE)}
    assert losses["the student"] < min(losses["without a teacher"], losses["one of the teachers"])


@pytest.mark.slow
def test_the_example_of_data_parallelism_runs_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "leave_at_once.py").write_text(LEAVE_AT_ONCE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "leave_at_once.py", str(RANKS), "--steps", "60"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Affinity (row helps column" in done.stdout
