"""Observing gradients on a GPU leaves no trace, and never waits for the device."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tagalong import AffinityMeter

pytestmark = pytest.mark.cuda


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 70), nn.Tanh(), nn.Linear(70, 30), nn.Tanh(), nn.Linear(30, 4)).cuda()


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator("cuda").manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(16, 50, device="cuda", generator=draw)).pow(2).mean().backward()
    optimizer.step()


def test_observing_on_a_gpu_leaves_no_trace() -> None:
    def train(observe: bool) -> list[Tensor]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        meter = AffinityMeter(model, optimizer, estimator="streaming")
        draw = torch.Generator("cuda").manual_seed(1)
        for step in range(200):
            out = model(torch.randn(16, 50, device="cuda", generator=draw) + step % 4)
            out[:, step % 4].pow(2).mean().backward()
            if observe:
                meter.observe(str(step % 4))
            optimizer.step()
            optimizer.zero_grad()
        assert not observe or np.isfinite(meter.affinity().mean).all()
        return [p.detach() for p in model.parameters()]

    assert all(map(torch.equal, train(observe=False), train(observe=True)))


def test_observing_never_waits_for_the_gpu() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    meter = AffinityMeter(model, optimizer, estimator="streaming")
    for step in range(6):
        take_step(model, optimizer, step)
        meter.observe(str(step % 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(20):
                take_step(model, optimizer, step)
                meter.observe(str(step % 3))
        finally:
            torch.cuda.set_sync_debug_mode("default")
