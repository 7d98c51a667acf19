"""All tasks at once against task by task: the same losses, gradients and networks."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batched_problems import CNN_WITH_BATCHNORM, MLP_WITH_DROPOUT, images, make_problem, vectors
from learn_small import TASKS, encoder, small_problem
from torch import Tensor, nn

from tagalong.learn import Job, Problem, Recipe, Task, Trained, build_network, train, trainer
from tagalong.learn.captured_step import CapturedStep, why_not_captured
from tagalong.learn.task_losses import JointLosses, SeparateLosses, make_task_losses

KINDS = (
    Task("size", kind="regression"),
    Task("ill", kind="binary", class_weights=(1, 3)),
    Task("sort", kind="multiclass", classes=3, weight=0.5),
    Task("weight", kind="regression", weight=2.0),
    Task("old", kind="binary"),
    Task("color", kind="multiclass", classes=3),
    Task("shape", kind="multiclass", classes=3, class_weights=(1, 2, 3)),
)


def train_separately(monkeypatch: pytest.MonkeyPatch, problem: Problem, job: Job, **options: Any) -> Trained:
    """Trains with the losses computed task by task."""

    def make(network: Any, tasks: Any, train_rows: Any, val: Any, join: bool = False) -> SeparateLosses:
        return SeparateLosses(network, tasks, train_rows, val)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "make_task_losses", make)
        return train(problem, job, **options)


def assert_close(found: Trained, expected: Trained, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(found.curve, expected.curve, rtol=tolerance)
    assert (found.best_epoch, found.steps, found.parameters) == (
        expected.best_epoch,
        expected.steps,
        expected.parameters,
    )
    assert found.state.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=100 * tolerance, atol=tolerance)
    for task, score in expected.test.items():
        np.testing.assert_allclose(found.test[task].loss, score.loss, rtol=10 * tolerance)


@pytest.mark.parametrize(
    ("encoder", "inputs", "tasks"),
    [
        (MLP_WITH_DROPOUT, vectors, KINDS),
        (MLP_WITH_DROPOUT, vectors, KINDS[:1]),
        (CNN_WITH_BATCHNORM, images, KINDS[4:6]),
    ],
)
def test_networks_equal_those_trained_task_by_task(
    encoder: Any, inputs: Any, tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(encoder, inputs, tasks, optimizer="adamw", schedule="cosine")
    job = Job(problem.names, seed=5)
    assert_close(train(problem, job), train_separately(monkeypatch, problem, job))


@pytest.mark.parametrize("rule", ["plain", "uw", "gradnorm", "pcgrad"])
def test_rules_and_meters_work_with_both(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, tasks=KINDS[:4], optimizer="sgd", lr=0.02)
    job = Job(problem.names, rule=rule)
    joint = train(problem, job, meter={"every": 2})
    separate = train_separately(monkeypatch, problem, job, meter={"every": 2})
    assert_close(joint, separate, 1e-7)
    np.testing.assert_allclose(joint.affinity.mean, separate.affinity.mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("join", [False, True])
def test_losses_labels_and_totals_are_those_of_each_task(missing: float, join: bool) -> None:
    problem = small_problem(missing=missing)
    tasks = [problem.task(name) for name in TASKS]
    network = build_network(problem, TASKS, 0)
    separate = SeparateLosses(network, tasks, problem.train, problem.val)
    joint = make_task_losses(network, tasks, problem.train, problem.val, join=join)
    assert isinstance(joint, JointLosses)
    rows = torch.tensor([7, 3, 19])
    (_, expected), (_, found) = (losses.validation_batch(rows) for losses in (separate, joint))
    inputs = problem.val.batch(rows)[0]
    for (loss, labels), (other, others) in zip(
        joint.losses_and_labels(inputs, found).values(),
        separate.losses_and_labels(inputs, expected).values(),
        strict=True,
    ):
        torch.testing.assert_close(loss, other)
        assert float(labels) == float(others)
    torch.testing.assert_close(joint.total(inputs, found), separate.total(inputs, expected))
    (losses, halves), (expected, expected_halves) = (one.validation_and_half_losses() for one in (joint, separate))
    assert losses == pytest.approx(expected)
    np.testing.assert_allclose(halves, expected_halves, rtol=1e-5)


def test_joined_heads_remain_parts_of_the_network() -> None:
    problem = small_problem()
    network = build_network(problem, TASKS, 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    losses = make_task_losses(network, [problem.task(t) for t in TASKS], problem.train, problem.val, join=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    trained_encoder, joined = losses.modules
    assert trained_encoder is network.encoder
    with torch.no_grad():
        joined.weight.add_(1)
    assert all(torch.equal(head.weight, before[f"heads.{k}.weight"] + 1) for k, head in enumerate(network.heads))
    network.load_state_dict(before)
    expected = torch.cat([before[f"heads.{k}.weight"] for k in range(len(TASKS))])
    assert torch.equal(joined.weight, expected)


class OwnHead(nn.Linear):
    """Not known to be a plain linear layer."""


def dense(problem: Problem) -> Problem:
    def split(rows: Any) -> Any:
        return replace(rows, targets={**rows.targets, "age": rows.inputs[:, :1].clone()})

    return replace(problem, train=split(problem.train), val=split(problem.val), test=split(problem.test))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, tasks=(replace(p.tasks[0], head=lambda features: OwnHead(features, 1)), *p.tasks[1:])),
        lambda p: replace(p, tasks=(replace(p.tasks[0], head=lambda features: nn.Linear(features, 1, bias=False)),)),
        lambda p: replace(p, tasks=(replace(p.tasks[0], loss=lambda out, y: (out[:, 0] - y).abs()), *p.tasks[1:])),
        dense,
    ],
    ids=["head", "no-bias", "loss", "dense"],
)
def test_other_heads_losses_and_targets_are_computed_task_by_task(change: Any) -> None:
    problem = change(small_problem())
    network = build_network(problem, problem.names, 0)
    losses = make_task_losses(network, problem.tasks, problem.train, problem.val)
    assert isinstance(losses, SeparateLosses)
    assert np.isfinite(train(problem, Job(problem.names)).curve).all()


class Branching(nn.Module):
    """Decides in Python, which a graph would not repeat."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if torch.rand(()) < 0.5 else 2 * inputs


def test_only_known_layers_are_captured() -> None:
    assert why_not_captured(encoder(dropout=0.3, norm=True)()) is None
    assert "Branching" in str(why_not_captured(nn.Sequential(nn.Linear(4, 4), Branching())))
    assert why_not_captured(nn.BatchNorm1d(3, momentum=None)) is not None
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    assert why_not_captured(hooked) is not None


def without_graphs(monkeypatch: pytest.MonkeyPatch, problem: Problem, job: Job) -> Trained:
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "why_not_captured", lambda network: "a test")
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
    rounded = schedule == "cosine"  # graphs read rates in single precision, which holds the other rates exactly
    found = train(problem, job, device="cuda")
    assert "without CUDA graphs" not in caplog.text
    assert_close(found, without_graphs(monkeypatch, problem, job), 1e-6 if rounded else 1e-9)


@pytest.mark.cuda
def test_a_meter_leaves_no_trace_beside_graphs() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, tasks=KINDS, epochs=12, patience=None)
    job = Job(problem.names)
    assert_close(train(problem, job, device="cuda", meter={"every": 5}), train(problem, job, device="cuda"))


@pytest.mark.cuda
def test_a_run_of_graphs_resumes(tmp_path: Path) -> None:
    problem, job = small_problem(Recipe(lr=0.02, batch_size=8, epochs=12)), Job(TASKS)
    path = tmp_path / "a.pt"

    def stop(epoch: int) -> None:
        if epoch == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(problem, job, device="cuda", checkpoint=path, progress=stop)
    assert_close(train(problem, job, device="cuda", checkpoint=path), train(problem, job, device="cuda"))
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
