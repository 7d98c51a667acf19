"""Training under DistributedDataParallel is the same bit for bit with and without a meter, on every rank."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "own buffers": {"broadcast_buffers": False},
}
WAYS = [*OPTIONS, "accumulated", "held out", "held out, unused", "evaluated without a graph"]


class Normed(nn.Module):
    """BatchNorm, whose statistics the wrapper broadcasts, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({t: nn.Linear(8, 1) for t in "ab"})

    def forward(self, x: Tensor, tasks: str = "ab") -> dict[str, Tensor]:
        hidden = self.encoder(x)
        return {t: self.heads[t](hidden).square().mean() for t in tasks}


def train(rank: int, way: str, meter_of: Callable[..., Any]) -> tuple[dict[str, Tensor], int]:
    """Returns the final state and the number of measured calls."""
    torch.manual_seed(0)
    inner = Normed()
    model = DistributedDataParallel(
        inner, **OPTIONS["unused" if "unused" in way else way if way in OPTIONS else "plain"]
    )
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    meter = meter_of(inner.encoder, optimizer, every=2, estimator=["lookahead", "gradient"])
    torch.manual_seed(rank)  # different rows and dropout masks on every rank
    for step in range(8):
        x, x_val = torch.randn(6 + rank, 4), torch.randn(5, 4)
        last = way != "accumulated" or step % 2
        with nullcontext() if last else model.no_sync():
            losses = meter(lambda: model(x), **held_out(way, model, x_val))  # noqa: B023 - called at once
            sum(losses.values()).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    state = {**inner.state_dict(), "draw": torch.rand(1)}
    state |= {f"momentum {k}": s["momentum_buffer"] for k, s in enumerate(optimizer.state.values())}
    return {name: value.clone() for name, value in state.items()}, getattr(meter, "measured", 0)


def held_out(way: str, model: nn.Module, x: Tensor) -> dict[str, Any]:
    def evaluated() -> dict[str, Tensor]:
        with torch.no_grad():
            losses: dict[str, Tensor] = model(x)
        return losses

    if way == "evaluated without a graph":
        evaluated()  # as the training loop does, so that the wrapper's flags matter
    if "held out" not in way:
        return {}
    return {"held_out": lambda: model(x, "a" if "unused" in way else "ab")}


def no_meter(*_: Any, **__: Any) -> Callable[..., Any]:
    return lambda closure, held_out=None: closure()


def train_with_and_without_meter(rank: int) -> dict[str, Any]:
    found = {}
    for way in WAYS:
        plain, _ = train(rank, way, no_meter)
        metered, measured = train(rank, way, AffinityMeter)
        found[way] = plain, metered, measured
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), train_with_and_without_meter)


@pytest.mark.parametrize("way", WAYS)
def test_weights_buffers_and_random_state_of_every_rank_are_those_without_a_meter(
    ranks: list[dict[str, Any]], way: str
) -> None:
    for found in ranks:
        plain, metered, _ = found[way]
        assert plain.keys() == metered.keys()
        for name, value in plain.items():
            assert torch.equal(value, metered[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_every_second_call_was_measured(ranks: list[dict[str, Any]], way: str) -> None:
    # A static graph is learned in the first two steps, so its first measurement comes at the third.
    assert [found[way][2] for found in ranks] == [3 + (way != "static")] * 2
