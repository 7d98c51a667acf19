"""The paper's experiments on files of CelebA's formats, from reading to results."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from official_celeba import write_celeba

from tagalong_paper import EXPERIMENTS, Value, load_setup, run_experiment

pytestmark = pytest.mark.slow

FIVE = ["5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard"]


def test_every_experiment_runs_on_written_files(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    write_celeba(tmp_path, 200)
    nine = load_setup("celeba", "small", out=tmp_path / "run", options={"data": tmp_path}, seeds=1, device="cpu")
    for name in (experiment.name for experiment in EXPERIMENTS if experiment.trains):
        report = run_experiment(name, nine if name == "task-sets" else replace(nine, tasks=FIVE))
        report.save(nine.out)
        assert "celeba, small: 140 rows for training, 20 for validation, 40 for test" in report.notes[0], name
        found = [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, Value)]
        assert found, name
        if name == "main":
            printed = [cell for cell in report.table("2 groups, as printed").column("printed a7") if cell is not None]
            shown = {(cell.mean, cell.stderr, cell.served) for cell in printed}
            assert {(4.79, 0.006, True), (4.71, 0.0, True), (4.78, 0.015, True)} <= shown
        assert not any(math.isnan(cell.mean) for cell in found), name
        assert json.loads((nine.out / f"{name}.json").read_text())["claims"], name
        assert all((nine.out / f"{figure}.html").is_file() for figure in report.figures), name
