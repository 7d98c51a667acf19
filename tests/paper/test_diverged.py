"""Networks that diverge: an experiment continues without them if it can, and otherwise says what to do."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tagalong.learn import Diverged, Problem, Recipe, Task
from tagalong_paper import ExperimentSetup, run_experiment
from tagalong_paper.report import claim_all_lower

pytestmark = pytest.mark.slow


def exploding(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.exp(1000 * (outputs[:, 0] - targets) ** 2)


@pytest.fixture
def diverging_setup(tmp_path: Path) -> ExperimentSetup:
    """A setup whose networks all diverge."""
    rows = torch.randn(90, 3, generator=torch.manual_seed(0))
    labels = {name: 5 + rows[:, place].numpy() for place, name in enumerate("abc")}
    tasks = [Task(name, "custom", loss=exploding) for name in labels]
    problem = Problem.from_arrays(rows, labels, tasks, recipe=Recipe(lr=1.0, batch_size=32, epochs=2))
    return ExperimentSetup(problem, tmp_path, seeds=(0, 1), device="cpu")


@pytest.fixture
def partly_diverging_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentSetup:
    """A setup in which the networks for some sets of tasks diverge, among them one of a single task."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "study"))
    problem = importlib.import_module("diverging_small").diverging_problem()
    return ExperimentSetup(problem, tmp_path, seeds=(0, 1), size="small", device="cpu")


@pytest.mark.parametrize("name", ["capacity", "hyperparameters", "partner", "main"])
def test_the_error_says_what_to_do_if_all_networks_diverge(name: str, diverging_setup: ExperimentSetup) -> None:
    with pytest.raises(Diverged, match=r"lower `recipe.lr`"):
        run_experiment(name, diverging_setup)


def test_claims_about_diverged_methods_are_not_tested(diverging_setup: ExperimentSetup) -> None:
    report = run_experiment("no-early-stopping", diverging_setup)
    assert all(math.isnan(cell.mean) for cell in report.table("Total").column("last weights"))
    assert {claim.reproduced for claim in report.claims} == {"not tested"}


def test_tune_has_no_best_setting_if_all_diverged(diverging_setup: ExperimentSetup) -> None:
    report = run_experiment("tune", diverging_setup)
    assert report.numbers == {"lr": None, "batch_size": None, "alpha": None}
    assert all(math.isinf(cell.mean) for cell in report.table("GradNorm").column("total"))


def test_networks_that_diverge_leave_gaps_and_claims_that_are_not_tested(
    partly_diverging_setup: ExperimentSetup,
) -> None:
    report = run_experiment("main", partly_diverging_setup)
    document = json.loads(report.save(partly_diverging_setup.out)[0].read_text())
    by_seed = {(one["method"], one["budget"]): one["by_seed"] for one in document["totals"]}
    assert by_seed["stl", None] == [None, None]
    assert np.isfinite(by_seed["oracle", 2]).all()
    answers = {claim.text: claim.reproduced for claim in report.claims}
    assert answers["TAG does better than STL"] == "not tested"
    assert answers["TAG does better than MTL"] != "not tested"
    assert not any("nan" in claim.because for claim in report.claims)


@pytest.mark.filterwarnings("ignore:a step on each task changed no loss")  # all units are dead in the end
def test_a_diverged_pair_has_no_gain(partly_diverging_setup: ExperimentSetup) -> None:
    report = run_experiment("partner", partly_diverging_setup)
    assert any("a with wild, b with wild" in note for note in report.notes)
    assert "wild" not in report.table("Who they are").rows[0][1:]


def test_a_claim_with_a_diverged_comparison_is_not_tested_but_can_be_refuted() -> None:
    diverged, better, worse = ([1.0, math.nan], [2.0, 2.1]), ([1.0, 1.1], [2.0, 2.1]), ([3.0, 3.1], [2.0, 2.1])
    assert claim_all_lower("better", {"a": better, "b": diverged}).reproduced == "not tested"
    assert claim_all_lower("better", {"a": worse, "b": diverged}).reproduced == "no"
