"""Commands on a full disk name the file that could not be written, with exit status 1."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal, environment

from full_disk import FULL, fill_disk
from tagalong.affinity import Affinity

pytestmark = pytest.mark.usefixtures("one_thread")
RUN = ("run", "table.csv", "--targets", "a,b", "--methods", "mtl,tag", "--budgets", "2", "--seeds", "1")
RUN += ("--recipe", "epochs=1", "--device", "cpu", "--out", "out")


@pytest.fixture(autouse=True)
def _inputs(tagalong: Terminal) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4))
    Path("table.csv").write_text("\n".join(["p,q,a,b", *(",".join(f"{x:.3f}" for x in row) for row in rows)]))
    Affinity.from_matrix([[0, 1], [1, 0]], ["a", "b"]).save("affinity.json")


@pytest.mark.parametrize(
    ("file", "arguments"),
    [("own/settings.json", ("plan", "affinity.json", "--budgets", "2", "--out", "own")), ("out/settings.json", RUN)],
)
def test_the_error_names_the_file(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, file: str, arguments: tuple[str, ...]
) -> None:
    fill_disk(monkeypatch)
    status, _, err = tagalong(*arguments)
    assert status == 1, err
    assert "Traceback" not in err
    assert f"tagalong: {file}: {FULL}" in " ".join(err.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_that_cannot_be_written_is_named(tagalong: Terminal) -> None:
    command = [sys.executable, "-m", "tagalong", "group", "affinity.json", "--budget", "2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
    assert done.returncode == 1
    assert " ".join(done.stderr.split()).startswith(f"tagalong: standard output: {FULL}")
    assert "Traceback" not in done.stderr
