"""Training on one task after the other on several ranks, and the same in one process."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tagalong import AffinityMeter

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
    "no_sync": Way(accumulate=2, no_sync=True, optimizer="SGD"),
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


def observed(rank: int, world: int, way: Way) -> dict[str, Any]:
    """Returns the affinities, and the weights with and without a meter."""
    run, plain = Run(rank, world, way), Run(rank, world, way)
    run.train()
    plain.train(observe=False)
    affinity, first_order = run.meter.affinity(), run.meter.affinity("streaming_gradient")
    return {
        "tasks": affinity.tasks,
        "count": affinity.count,
        "cosines": affinity.mean,
        "products": first_order.mean,
        "weights": [[p.detach().numpy() for p in part.inner.parameters()] for part in (run, plain)],
    }


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
