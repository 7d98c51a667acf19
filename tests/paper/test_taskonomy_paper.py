"""The paper's experiments on files of Taskonomy's formats, from reading to results; narrow networks, few pixels."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from taskonomy_small import write_taskonomy

from tagalong.cli import main
from tagalong_paper import EXPERIMENTS, ExperimentSetup, Value, load_setup, run_experiment
from tagalong_paper.experiments.task_sets import with_destructive_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:a large part of the lookahead affinities"),  # one epoch changes little
]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    data = write_taskonomy(tmp_path_factory.mktemp("taskonomy"), views=2)
    options, recipe = {"data": data, "pixels": 32}, {"epochs": 1}
    out = tmp_path_factory.mktemp("run")
    return load_setup("taskonomy", "small", out=out, options=options, recipe=recipe, device="cpu")


@pytest.mark.parametrize("name", [e.name for e in EXPERIMENTS if e.trains and e.name not in ("main", "tune")])
def test_every_experiment_runs_on_three_tasks(name: str, setup: ExperimentSetup) -> None:
    three = replace(setup, tasks=None if name == "task-sets" else setup.problem.names[:3])
    report = run_experiment(name, three)
    cells = [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, Value)]
    assert cells
    assert report.claims


def test_the_destructive_task_reads_labels_of_other_rows(setup: ExperimentSetup) -> None:
    harmful = with_destructive_task(setup.problem)
    rows = torch.arange(len(harmful.train))
    inputs, targets = harmful.train.batch(rows)
    wanted, own = setup.problem.train.batch(rows)
    assert torch.equal(inputs, wanted)
    order = harmful.train.reader.order
    assert sorted(order.tolist()) == rows.tolist()
    torch.testing.assert_close(targets["destructive"], own["segmentation"][order], equal_nan=True)
    assert harmful.fingerprint != setup.problem.fingerprint


def test_an_invalid_folder_ends_the_command_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_taskonomy(tmp_path / "data", views=1)
    (data / "test_models.txt").unlink()
    command = ["paper", "main", "--problem", "taskonomy", "--with", f"data={data}", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "test_models.txt" in err
    assert not (tmp_path / "run").exists()
