"""What the ranks of the tests of data parallelism do, and the same in one process."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from small import TwoLayers
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

from tagalong import AffinityMeter

TASKS = ("a", "b", "c")
ROWS = {1: [slice(0, 18)], 2: [slice(0, 5), slice(5, 18)], 3: [slice(0, 5), slice(5, 13), slice(13, 18)]}


@dataclass
class Batch:
    """Rows of one rank, and the number of labels of each task over all ranks."""

    x: Tensor
    y: dict[str, Tensor]
    counts: dict[str, int]


def batches(rank: int, world: int, steps: int = 3) -> Iterator[Batch]:
    """Different rows and numbers of labels on every rank; the first rank never has a label of b."""
    draw = torch.Generator().manual_seed(1)
    here = ROWS[world][rank]
    for _ in range(steps):
        x = torch.randn(18, 4, dtype=torch.float64, generator=draw)
        y = {t: torch.randn(18, 1, dtype=torch.float64, generator=draw) for t in TASKS}
        y["b"][:5] = float("nan")
        y["c"][3:9] = float("nan")
        counts = {t: int((~labels.isnan()).sum()) for t, labels in y.items()}
        yield Batch(x[here], {t: labels[here] for t, labels in y.items()}, counts)


def losses(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    found = {}
    for task, out in model(batch.x).items():
        known = ~batch.y[task].isnan()
        if known.any():
            found[task] = (out - batch.y[task])[known].pow(2).mean(), int(known.sum())
    return found


def network(**options: Any) -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers(TASKS, **options).double()


def wrap(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **({"find_unused_parameters": True} | options))


def network_and_wrapper(world: int) -> tuple[TwoLayers, nn.Module]:
    inner = network()
    return inner, inner if world == 1 else wrap(inner)


def through_the_inner_module(rank: int, world: int) -> np.ndarray:
    """The closure calls the module inside the wrapper, which the meter must notice."""
    inner, _wrapper = network_and_wrapper(world)
    meter = AffinityMeter(inner.encoder, lr=0.1, model=inner, tasks=TASKS)
    meter(lambda: losses(inner, next(batches(rank, world))))
    return meter.affinity().mean


class SynchronisedNorm(nn.SyncBatchNorm):
    """What SyncBatchNorm does on a GPU: statistics, and their gradients, over the rows of all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        sums = torch.cat([x.sum(0), x.pow(2).sum(0), x.new_tensor([len(x)])])
        if dist.is_initialized():
            sums = all_reduce(sums)
        mean, square = (part / sums[-1] for part in sums[:-1].chunk(2))
        return (x - mean) / (square - mean.pow(2) + self.eps).sqrt() * self.weight + self.bias


def synchronized(rank: int, world: int) -> np.ndarray:
    """Ranks communicate within every gradient, including ranks without a label of its task."""
    model, names = network(), ["lookahead", "gradient"]
    model.encoder[2] = SynchronisedNorm(6).double()
    group = None if world == 1 else dist.group.WORLD  # the wrapper requires a GPU for these norms
    meter = AffinityMeter(model.encoder, lr=0.1, tasks=TASKS, estimator=names, process_group=group)
    meter(lambda: losses(model, next(batches(rank, world))))
    return np.stack([meter.affinity(name).mean for name in names])


def nan_for_missing(rank: int, world: int) -> np.ndarray:
    """A rank without a label returns NaN instead of leaving the task out."""
    inner, model = network_and_wrapper(world)
    batch = next(batches(rank, world))

    def closure() -> dict[str, Any]:
        nothing = {t: (out.sum() * float("nan"), 3) for t, out in model(batch.x).items()}
        return nothing | losses(model, batch)

    meter = AffinityMeter(inner.encoder, lr=0.1, estimator="gradient")
    meter(closure)
    return meter.affinity().mean


def unnamed(rank: int, world: int) -> np.ndarray:
    """The meter is not told the tasks, and is reset; the first rank's closure never returns b."""
    inner, model = network_and_wrapper(world)
    meter = AffinityMeter(inner.encoder, lr=0.1, every=2)
    checked = meter.check(lambda: losses(model, next(batches(rank, world))))
    assert sorted(checked.tasks) == ["a", "b", "c"]
    assert {tasks for _, tasks in checked.shared.values()} == {checked.tasks}
    histories = []
    for _ in range(2):
        meter.reset()
        for batch in batches(rank, world):
            meter(lambda batch=batch: losses(model, batch))
        affinity = meter.affinity()
        # The first rank's names are followed by those that only other ranks have.
        assert world == 1 or affinity.tasks == ("a", "c", "b")
        assert affinity.settings["unconnected"] == []
        histories.append(affinity.only(TASKS).history)
    np.testing.assert_array_equal(*histories)
    return histories[0]


# Each returns the same on every rank as in one process on all rows.
SITUATIONS: list[Callable[[int, int], np.ndarray]] = [
    through_the_inner_module, synchronized, nan_for_missing, unnamed,
]  # fmt: skip


def training_gradient(rank: int, world: int) -> np.ndarray:
    """Returns the gradient of `meter.backward`, from a meter that measures its own rank only."""
    inner, model = network_and_wrapper(world)
    meter = AffinityMeter(inner.encoder, lr=0.1, every=1, tasks=TASKS, process_group=None)
    for batch in batches(rank, world):
        meter(lambda batch=batch: losses(model, batch))
        meter.backward()
    assert inner.encoder[0].weight.grad is not None
    return inner.encoder[0].weight.grad.numpy()


def messages(rank: int, world: int, name: str, **options: Any) -> tuple[list[list[int]], int]:
    """Returns the sizes of the meter's messages at each call, and the number of shared parameters."""
    inner, model = network_and_wrapper(world)
    meter = AffinityMeter(
        inner.encoder, lr=0.1, every=2, estimator=name.removesuffix(", held out"), tasks=TASKS, **options
    )
    sent: list[int] = []
    real = dist.all_reduce

    def counting(message: Tensor, **options: Any) -> Any:
        sent.append(message.numel())
        return real(message, **options)

    calls = []
    dist.all_reduce = counting
    for batch in batches(rank, world, steps=4):
        sent.clear()
        closure = lambda batch=batch: losses(model, batch)  # noqa: E731 - called at once
        meter(closure, held_out=closure if "held out" in name else None)
        calls.append(list(sent))
    dist.all_reduce = real
    return calls, sum(p.numel() for p in inner.encoder.parameters())


WRAPPERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
    "own buffers": {"broadcast_buffers": False},
    "accumulated": {},
    "held out": {},
    "held out, unused": {"find_unused_parameters": True},
    "evaluated without a graph": {},
}


class Normed(nn.Module):
    """BatchNorm, whose statistics the wrapper broadcasts, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({t: nn.Linear(8, 1) for t in "ab"})

    def forward(self, x: Tensor, tasks: str = "ab") -> dict[str, Tensor]:
        hidden = self.encoder(x)
        return {t: self.heads[t](hidden).square().mean() for t in tasks}


def trace(rank: int, way: str, *, metered: bool) -> tuple[dict[str, Tensor], int]:
    """Returns the state after training with a wrapper, with or without a meter, and the number of measured calls."""
    torch.manual_seed(0)
    inner = Normed()
    model = DistributedDataParallel(inner, **WRAPPERS[way])
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    meter = AffinityMeter(inner.encoder, optimizer, every=2, estimator=["lookahead", "gradient"])
    torch.manual_seed(rank)  # different rows and dropout masks on every rank
    for step in range(8):
        x, other = torch.randn(6 + rank, 4), torch.randn(5, 4)
        if way == "evaluated without a graph":  # as training loops do, so that the wrapper's flags matter
            with torch.no_grad():
                model(other)
        extra = [lambda other=other: model(other, "a" if "unused" in way else "ab")] if "held out" in way else []
        last = way != "accumulated" or step % 2
        with nullcontext() if last else model.no_sync():
            found = meter(lambda x=x: model(x), *extra) if metered else model(x)
            sum(found.values()).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    state = {**inner.state_dict(), "draw": torch.rand(1)}
    state |= {f"momentum {k}": s["momentum_buffer"] for k, s in enumerate(optimizer.state.values())}
    return {name: value.clone() for name, value in state.items()}, meter.measured
