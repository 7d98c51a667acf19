"""Lookahead subtracts nearly equal losses; the meter says so where only rounding errors are left."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tagalong import AffinityMeter

TASKS = ("a", "b", "c", "d")


def adapter(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], dict[str, Tensor]]]:
    """Returns a small adapter in float32 beside a frozen layer of the given precision, and the losses in float32."""
    torch.manual_seed(0)
    frozen = nn.Linear(32, 64).to(dtype).requires_grad_(False)
    adapting = nn.Sequential(nn.Linear(32, 2), nn.Linear(2, 64))
    heads = nn.ModuleDict({task: nn.Linear(64, 1).to(dtype) for task in TASKS})
    x, y = torch.randn(64, 32), {task: torch.randn(64, 1) for task in TASKS}

    def losses() -> dict[str, Tensor]:
        z = torch.tanh(frozen(x.to(dtype)) + adapting(x).to(dtype))
        return {task: (head(z).float() - y[task]).pow(2).mean() for task, head in heads.items()}

    return adapting, losses


@pytest.mark.parametrize(("dtype", "lr"), [(torch.bfloat16, 1e-3), (torch.bfloat16, 1e-5), (torch.float32, 1e-7)])
def test_steps_too_small_for_the_precision_are_warned_about_once(dtype: torch.dtype, lr: float) -> None:
    shared, losses = adapter(dtype)
    meter = AffinityMeter(shared, lr=lr, every=1)
    with pytest.warns(UserWarning, match=r"large part of the lookahead affinities is rounding .*estimator='gradient'"):
        meter(losses)
    for _ in range(11):
        meter(losses)  # checked again after ten measurements
    assert any("rounding error" in note for note in meter.check(losses).notes)


@pytest.mark.parametrize("estimator", ["lookahead", "gradient"])
@pytest.mark.parametrize("lr", [0.0, 1e-5])
def test_steps_that_are_lost_in_the_parameters_are_warned_about(estimator: str, lr: float) -> None:
    torch.manual_seed(0)
    shared, heads = nn.Linear(6, 16).bfloat16(), nn.ModuleDict({task: nn.Linear(16, 1).bfloat16() for task in TASKS})
    x = torch.randn(64, 6).bfloat16()
    meter = AffinityMeter(shared, torch.optim.SGD(shared.parameters(), lr=lr), every=1, estimator=estimator)

    def losses() -> dict[str, Tensor]:
        return {task: (head(shared(x)) - 1.0).pow(2).mean() for task, head in heads.items()}

    if lr == 0.0:  # as in the first step of a warm-up
        meter(losses)
    else:
        with pytest.warns(UserWarning, match="rounding error.* in float32"):
            meter(losses)
    assert not meter.affinity().mean.any()
