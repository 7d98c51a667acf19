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

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "examples" / "teach_in_a_loop.py"  # the only example that measures nothing
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {TEACHING})


OPTIONAL = re.compile(r"^(?:from|import) (accelerate|lightning|transformers)\b", re.MULTILINE)
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(example: Path, folder: Path, *arguments: str) -> str:
    """Returns what the example prints, with fewer steps than by default and one thread."""
    text = example.read_text(encoding="utf-8")
    for package in OPTIONAL.findall(text):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if "torchrun" not in text:
        done = run_script(example, "--steps", "60", *arguments, folder=folder)
    else:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "error", *TORCHRUN, _write_runner(folder), str(example), "--steps", "60"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _write_runner(folder: Path) -> str:
    """Writes a script that runs another and exits at once, before gloo's threads may abort it."""
    script = folder / "leaving_at_once.py"
    script.write_text(
        "import os, runpy, sys\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    return str(script)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints_an_affinity(example: Path, tmp_path: Path) -> None:
    assert "Affinity (row helps column" in run(example, tmp_path)


def test_the_student_of_the_example_is_better_than_a_network_without_teachers(tmp_path: Path) -> None:
    printed = run(TEACHING, tmp_path, "--steps", "200", "--teachers", "4")
    losses = {name.strip(): float(loss) for name, loss in re.findall(r"^  (.+?) +([\d.]+)$", printed, re.MULTILINE)}
    assert losses["the student"] < min(losses["without a teacher"], losses["one of the teachers"])


def test_the_first_example_writes_the_record_and_two_figures(tmp_path: Path) -> None:
    run(ROOT / "examples" / "measure_in_a_loop.py", tmp_path, "--out", "results")
    written = tmp_path / "results"
    assert sorted(path.name for path in written.iterdir()) == ["affinity.json", "heatmap.html", "over_training.html"]
    assert Affinity.load(written / "affinity.json").tasks == ("vibration", "hum", "power", "fails")
    assert "plotly" in (written / "heatmap.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_fits_on_two_screens(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 80
