"""Training for the tests of data parallelism, on several ranks and the same in one process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from small import TwoLayers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tagalong import AffinityMeter

TASKS = ("a", "b", "c")
NAMES = ("lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
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


def train(
    model: nn.Module,
    inner: TwoLayers,
    optimizer: torch.optim.Optimizer,
    meter: Callable[[Callable[[], Any]], Any],
    rank: int,
    world: int,
) -> dict[str, Tensor]:
    """Trains on the mean over all labels of all ranks and returns the final state."""
    for batch in batches(rank, world):
        found = meter(lambda batch=batch: losses(model, batch))
        # The wrapper takes the mean over ranks of what is the sum over labels here.
        sum(loss * count * world / batch.counts[t] for t, (loss, count) in found.items()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in inner.state_dict().items()}


def measure_affinities(rank: int, world: int, optimizer: str, **options: Any) -> dict[str, np.ndarray]:
    """Returns the affinities of every estimator, step by step."""
    inner = network()
    model = inner if world == 1 else wrap(inner)
    steps = OPTIMIZERS[optimizer](inner.parameters())
    meter = AffinityMeter(inner.encoder, steps, every=1, estimator=NAMES, tasks=TASKS, **options)
    train(model, inner, steps, meter, rank, world)
    return {name: meter.affinity(name).history for name in NAMES}
