"""Ranks that observe the same tasks find the affinities of one process on all rows; other ranks are refused."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
TASKS, INPUTS, ROWS, ROUNDS = "abcd", 6, 8, 12


@dataclass(frozen=True)
class Way:
    """How gradients are computed: micro-batches per step, and whether ranks average only the last one."""

    accumulate: int = 1
    no_sync: bool = False
    bucket_view: bool = False
    optimizer: str = "AdamW"


WAYS = {
    "plain": Way(),
    "SGD": Way(optimizer="SGD"),
    "accumulated": Way(accumulate=2),
    "no_sync": Way(accumulate=2, no_sync=True),
    "accumulated with bucket views": Way(accumulate=2, bucket_view=True),
}


class Run:
    """Trains on one task per micro-batch; each rank has the same number of rows of every batch."""

    def __init__(self, rank: int, world: int, way: Way) -> None:
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.model: nn.Module = self.inner
        if world > 1:
            self.model = DistributedDataParallel(self.inner, gradient_as_bucket_view=way.bucket_view)
        self.optimizer = getattr(torch.optim, way.optimizer)(self.inner.parameters(), lr=0.01)
        self.meter = self.new_meter()
        self._rows = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        self._way = way
        self._draw = torch.Generator().manual_seed(1)
        self._teachers = torch.randn(len(TASKS), INPUTS, 1, dtype=torch.float64, generator=self._draw)

    def new_meter(self) -> AffinityMeter:
        estimators = ["streaming", "streaming_gradient"]
        return AffinityMeter(self.inner, self.optimizer, estimator=estimators, sketch_dimension=101)

    def train(self, *, observe: bool = True, rounds: int = ROUNDS) -> None:
        order = [int(k) for _ in range(rounds) for k in torch.randperm(len(TASKS), generator=self._draw)]
        for start in range(0, len(order), self._way.accumulate):
            step = order[start : start + self._way.accumulate]
            for number, task in enumerate(step):
                waits = self._way.no_sync and number + 1 < len(step) and self.model is not self.inner
                with self.model.no_sync() if waits else nullcontext():  # type: ignore[operator]
                    loss = self.loss(task)
                    loss.backward()
                if observe:
                    self.meter.observe(TASKS[task], loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def loss(self, task: int) -> Tensor:
        x = torch.randn(ROWS, INPUTS, dtype=torch.float64, generator=self._draw)[self._rows]
        return (self.model(x) - x @ self._teachers[task]).pow(2).mean()

    def weights(self) -> list[Any]:
        return [p.detach().numpy().copy() for p in self.inner.parameters()]


def measure(rank: int, world: int, way: Way) -> dict[str, Any]:
    run = Run(rank, world, way)
    run.train()
    affinity, first_order = run.meter.affinity(), run.meter.affinity("streaming_gradient")
    return {
        "tasks": affinity.tasks,
        "cosines": affinity.mean,
        "count": affinity.count,
        "products": first_order.mean,
        "weights": run.weights(),
    }


def weights_without_a_meter(rank: int, world: int, way: Way) -> list[Any]:
    run = Run(rank, world, way)
    run.train(observe=False)
    return run.weights()


def refused(rank: int, *, resumed: bool, rounds: int) -> str:
    """Returns the error of ranks that take the same tasks in different orders."""
    run = Run(rank, 2, Way())
    if resumed:
        run.train(rounds=2)
        state, run.meter = run.meter.state_dict(), run.new_meter()
        run.meter.load_state_dict(state)
    for number in range(rounds * len(TASKS)):
        task = (number + rank) % len(TASKS) if number >= (rounds - 1) * len(TASKS) else number % len(TASKS)
        run.loss(task).backward()
        try:
            run.meter.observe(TASKS[task], 1.0)
        except RuntimeError as error:
            return f"{number}: {error}"
        run.optimizer.zero_grad()
    return "accepted"


def bucket_views_without_sync(rank: int) -> str:
    try:
        Run(rank, 2, Way(accumulate=2, no_sync=True, bucket_view=True)).train()
    except RuntimeError as error:
        return str(error)
    return "accepted"


def everything(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: measure(rank, 2, way) for name, way in WAYS.items()}
    found |= {f"{name} without": weights_without_a_meter(rank, 2, way) for name, way in WAYS.items()}
    found["refused at once"] = refused(rank, resumed=False, rounds=1)
    found["refused after a checkpoint"] = refused(rank, resumed=True, rounds=1)
    found["bucket views"] = bucket_views_without_sync(rank)
    found["refused later"] = refused(rank, resumed=False, rounds=32)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), everything)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_observe_what_one_process_does_on_all_rows(ranks: list[dict[str, Any]], way: str) -> None:
    expected = measure(0, 1, WAYS[way])
    assert np.isfinite(expected["cosines"]).all()
    for found in ranks:
        assert found[way]["tasks"] == expected["tasks"]
        np.testing.assert_array_equal(found[way]["count"], expected["count"])
        np.testing.assert_allclose(found[way]["cosines"], expected["cosines"], atol=1e-4)
        np.testing.assert_allclose(found[way]["products"], expected["products"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_the_same_affinity_to_the_last_bit(ranks: list[dict[str, Any]], way: str) -> None:
    for name in ("cosines", "products"):
        np.testing.assert_array_equal(ranks[0][way][name], ranks[1][way][name])


@pytest.mark.parametrize("way", WAYS)
def test_ranks_train_as_without_a_meter(ranks: list[dict[str, Any]], way: str) -> None:
    for found in ranks:
        for one, two in zip(found[way]["weights"], found[f"{way} without"], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("when", "observed"), [("at once", 0), ("after a checkpoint", 0), ("later", 127)]
)  # ranks compare their tasks at the first observations, and then every 64
def test_different_tasks_in_the_same_step_are_refused_on_every_rank(
    ranks: list[dict[str, Any]], when: str, observed: int
) -> None:
    for found in ranks:
        message = found[f"refused {when}"]
        assert message.startswith(f"{observed}: ranks have trained on different tasks in the same step")


def test_gradients_that_move_when_they_are_averaged_are_refused_in_no_sync(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "has gradient_as_bucket_view=True; create it without this option" in found["bucket views"]
