"""Measured values are sent to loggers at once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tagalong import AffinityMeter

TASKS = ("age", "ill", "tall")


def train(steps: int = 20, **settings: Any) -> AffinityMeter:
    torch.manual_seed(0)
    encoder = torch.nn.Linear(4, 8)
    heads = {task: torch.nn.Linear(8, 1) for task in TASKS}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=5, **settings)
    for _ in range(steps):
        x, y = torch.randn(16, 4), torch.randn(16, 1)
        losses = meter(lambda x=x, y=y: {t: (heads[t](encoder(x)) - y).pow(2).mean() for t in TASKS})
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return meter


class Run:
    """Has the `log` method of wandb's runs."""

    def __init__(self) -> None:
        self.received: list[tuple[int, dict[str, float]]] = []

    def log(self, data: dict[str, float], step: int) -> None:
        self.received.append((step, data))


def test_every_measured_step_is_received_at_once_and_in_full() -> None:
    run = Run()
    affinity = train(log=run).affinity()
    assert [step for step, _ in run.received] == [0, 5, 10, 15]
    for (_, metrics), values in zip(run.received, affinity.history, strict=True):
        assert len(metrics) == 6
        assert metrics["lookahead onto ill/age"] == values[0, 1]


def test_each_estimator_logs_under_its_own_name() -> None:
    run = Run()
    train(log=run.log, estimator=["lookahead", "cosine"])
    assert {"lookahead onto ill/age", "cosine onto ill/age"} <= set(run.received[0][1])


def test_logging_does_not_change_the_affinity() -> None:
    assert (train(log=Run()).affinity().history == train().affinity().history).all()


def test_an_invalid_logger_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"`log` must be a function that takes the metrics and the step, .*, found "):
        train(log=3)


def test_tensorboard_shows_the_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:

        def log(metrics: dict[str, float], step: int) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        affinity = train(log=log).affinity()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    shown = events.Scalars("lookahead onto ill/age")
    assert [event.step for event in shown] == affinity.steps.tolist()
    assert [event.value for event in shown] == pytest.approx(affinity.history[:, 0, 1].tolist(), rel=1e-6)
