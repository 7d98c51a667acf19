"""Training on one task after the other on several ranks, and the same in one process."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from tagalong import AffinityMeter

TASKS, INPUTS, ROWS, ROUNDS = "abcd", 6, 8, 12


@dataclass(frozen=True)
class Way:
    """How gradients are computed: micro-batches per step, and whether ranks average only the last one.

    If `sharded`, every parameter is divided among the ranks (FSDP2).
    """

    accumulate: int = 1
    no_sync: bool = False
    bucket_view: bool = False
    optimizer: str = "AdamW"
    sharded: bool = False


WAYS = {
    "plain": Way(),
    "no_sync": Way(accumulate=2, no_sync=True, optimizer="SGD"),
    "accumulated with bucket views": Way(accumulate=2, bucket_view=True),
}
SHARDED = {
    "AdamW": Way(sharded=True),
    "SGD, accumulated": Way(accumulate=2, optimizer="SGD", sharded=True),
}


class Network(nn.Module):
    """Has odd numbers of rows, a single row, and a layer that only the first tasks use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.detour, self.last = nn.Linear(INPUTS, 7), nn.Linear(7, 7), nn.Linear(7, 1)

    def forward(self, x: Tensor, task: int) -> Tensor:
        hidden = self.first(x).tanh()
        return self.last(self.detour(hidden) if task < 2 else hidden)  # type: ignore[no-any-return]


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Run:
    """Trains on one task per micro-batch; each rank has the same number of rows of every batch."""

    def __init__(self, rank: int, world: int, way: Way) -> None:
        torch.manual_seed(0)
        self.inner = Network().double()
        self.model: nn.Module = self.inner
        if world > 1 and way.sharded:
            fully_shard(self.inner.detour)
            fully_shard(self.inner)
        elif world > 1:
            self.model = DistributedDataParallel(
                self.inner, gradient_as_bucket_view=way.bucket_view, find_unused_parameters=True
            )
        self.optimizer = getattr(torch.optim, way.optimizer)(self.inner.parameters(), lr=0.01)
        self.meter = self.new_meter()
        self._rows = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        self._way = way
        self._draw = torch.Generator().manual_seed(1)
        self._teachers = torch.randn(len(TASKS), INPUTS, 1, dtype=torch.float64, generator=self._draw)

    def new_meter(self) -> AffinityMeter:
        return AffinityMeter(self.inner, self.optimizer, estimator="streaming", sketch_dimension=101)

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
                    self.meter.observe(TASKS[task])
            self.optimizer.step()
            self.optimizer.zero_grad()

    def loss(self, task: int) -> Tensor:
        x = torch.randn(ROWS, INPUTS, dtype=torch.float64, generator=self._draw)[self._rows]
        return (self.model(x, task) - x @ self._teachers[task]).pow(2).mean()


def observed(rank: int, world: int, way: Way) -> dict[str, Any]:
    """Returns the affinities, and the weights with and without a meter."""
    run, plain = Run(rank, world, way), Run(rank, world, way)
    run.train()
    plain.train(observe=False)
    states = [run.optimizer.state_dict()["state"], plain.optimizer.state_dict()["state"]]
    affinity = run.meter.affinity()
    return {
        "tasks": affinity.tasks,
        "count": affinity.count,
        "cosines": affinity.mean,
        "weights": [[whole(p.detach()).numpy() for p in part.inner.parameters()] for part in (run, plain)],
        "states": [
            [whole(value).numpy() for state in s.values() for value in state.values() if value is not None]
            for s in states
        ],
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
            run.meter.observe(TASKS[task])
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


def changed_by_observing(rank: int) -> list[str]:
    """Returns what observing changes on this rank: parameters, gradients, states, or versions of any of them."""
    run = Run(rank, 2, SHARDED["AdamW"])
    run.train(rounds=1)
    run.loss(0).backward()
    tensors = {
        f"{name} of parameter {number}": tensor
        for number, p in enumerate(run.inner.parameters())
        for name, tensor in {"value": p, "gradient": p.grad, **run.optimizer.state[p]}.items()
    }

    @torch.no_grad()
    def snapshot() -> dict[str, Any]:
        found = {name: (tensor._version, whole(tensor).clone()) for name, tensor in tensors.items()}
        return found | {"random": (0, torch.get_rng_state())}

    before = snapshot()
    run.meter.observe("a")
    after = snapshot()
    same = [before[name][0] == after[name][0] and torch.equal(before[name][1], after[name][1]) for name in before]
    return [name for name, unchanged in zip(before, same, strict=True) if not unchanged]


def refused_sharding(rank: int, case: str) -> str:
    """Returns the error of a meter of parameters that are not all sharded by rows, or that uses a closure."""
    inner, options = Network(), {"estimator": "streaming"}
    if case == "partly":
        fully_shard(inner.detour)
    elif case == "in copies":
        fully_shard(inner, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts")))
    elif case == "by columns":
        inner.first = nn.Linear(4, 4, bias=False)
        fully_shard(inner.first, shard_placement_fn=lambda p: Shard(1))
        inner = inner.first
    else:
        fully_shard(inner)
        options = {"estimator": "lookahead", "lr": 0.1}
    try:
        AffinityMeter(inner, **options)
    except ValueError as error:
        return str(error)
    return "accepted"
