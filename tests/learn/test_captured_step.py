"""Training steps that are replayed as CUDA graphs give the same networks."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from batched_problems import MLP_WITH_DROPOUT, assert_same, make_problem
from learn_small import TASKS, encoder, small_problem
from test_plain_loop import KINDS
from torch import Tensor, nn

from tagalong.learn import Job, Problem, Recipe, Trained, module_step, train
from tagalong.learn.captured_step import CapturedStep, can_be_captured


class Branching(nn.Module):
    """Decides in Python, which a graph would not repeat."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if torch.rand(()) < 0.5 else 2 * inputs


def test_only_known_layers_are_captured() -> None:
    assert can_be_captured(encoder(dropout=0.3, norm=True)())
    assert not can_be_captured(nn.Sequential(nn.Linear(4, 4), Branching()))
    assert not can_be_captured(nn.BatchNorm1d(3, momentum=None))
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    assert not can_be_captured(hooked)


def without_graphs(monkeypatch: pytest.MonkeyPatch, problem: Problem, job: Job) -> Trained:
    with monkeypatch.context() as patch:
        patch.setattr(module_step, "can_be_captured", lambda network: False)
        return train(problem, job, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("optimizer", "schedule"), [("sgd", "constant"), ("adam", "cosine"), ("adamw", "step"), ("adamw", "constant")]
)
def test_graphs_give_the_same_networks(
    optimizer: str, schedule: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {"optimizer": optimizer, "schedule": schedule, "period": 3, "epochs": 12, "patience": None}
    problem = make_problem(MLP_WITH_DROPOUT, tasks=KINDS, lr=2**-5, **settings)
    job = Job(problem.names, seed=5)
    # Graphs read rates in single precision, which holds all but those of a cosine exactly.
    tolerances = (1e-5, 1e-4) if schedule == "cosine" else (1e-9, 1e-7)
    found = train(problem, job, device="cuda")
    assert "as a CUDA graph" in caplog.text
    assert_same(found, without_graphs(monkeypatch, problem, job), *tolerances)


@pytest.mark.cuda
def test_a_meter_leaves_no_trace_beside_graphs() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, tasks=KINDS, epochs=12, patience=None)
    job = Job(problem.names)
    assert_same(train(problem, job, device="cuda", meter={"every": 5}), train(problem, job, device="cuda"))


@pytest.mark.cuda
def test_a_run_of_graphs_resumes(tmp_path: Path) -> None:
    problem, job = small_problem(Recipe(lr=0.02, batch_size=8, epochs=12)), Job(TASKS)
    path = tmp_path / "a.pt"

    def stop(epoch: int) -> None:
        if epoch == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(problem, job, device="cuda", checkpoint=path, progress=stop)
    assert_same(train(problem, job, device="cuda", checkpoint=path), train(problem, job, device="cuda"))
    with pytest.raises(KeyboardInterrupt):
        train(problem, job, checkpoint=path, progress=stop)
    np.testing.assert_allclose(
        train(problem, job, device="cuda", checkpoint=path).curve, train(problem, job).curve, rtol=1e-6
    )


@pytest.mark.cuda
def test_a_step_that_cannot_be_captured_runs_anyway(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    total = torch.zeros((), device="cuda")
    torch.cuda.manual_seed(0)
    expected = torch.rand(3, device="cuda")

    def step(rows: Tensor) -> None:
        total.add_(float(rows.sum()))  # reads a value back

    captured = CapturedStep(step, lambda: ())
    for _ in range(10):
        captured(torch.ones(4, device="cuda"))
    assert float(total) == 40
    assert "training without CUDA graphs" in caplog.text
    torch.cuda.manual_seed(0)
    assert torch.equal(torch.rand(3, device="cuda"), expected), "random numbers are drawn as before"
