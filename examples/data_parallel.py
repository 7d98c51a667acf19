"""
Use the meter with DistributedDataParallel: every rank has its own rows, and all ranks get the same affinity.

$ torchrun --nproc-per-node 2 examples/data_parallel.py

The closure calls the wrapped model. With each loss, it returns the number of labels, which differs between ranks.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="The meter under DistributedDataParallel.")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()

# -----------------------------------------------------------------------------
# data: the same on all ranks; a third of the labels for "tides" are missing
generator = torch.Generator().manual_seed(0)
x = torch.randn(2048, 12, generator=generator)
moon, rain = x[:, :6].sum(1).tanh(), x[:, 6:].sum(1).tanh()
y = {"tides": moon.clone(), "currents": -moon, "floods": rain}
y["tides"][torch.rand(2048, generator=generator) < 1 / 3] = float("nan")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(24, 1) for task in y})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.encoder(x)
        return {task: head(features).squeeze(1) for task, head in self.heads.items()}


torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def task_losses(rows: torch.Tensor) -> dict[str, tuple[torch.Tensor, int]]:
    losses = {}
    for task, out in model(x[rows]).items():
        known = ~y[task][rows].isnan()
        losses[task] = (out - y[task][rows])[known].pow(2).mean(), int(known.sum())
    return losses


# -----------------------------------------------------------------------------
meter = AffinityMeter(shared=model.module.encoder, optimizer=optimizer, every=5)
torch.manual_seed(rank)  # so that ranks draw different rows
for _ in range(args.steps):
    rows = torch.randint(2048, (64,))
    losses = meter(lambda: task_losses(rows))
    sum(loss for loss, _ in losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()  # no rank exits while another still needs it
affinity = meter.affinity()  # the same on every rank
dist.destroy_process_group()
if rank == 0:
    print(affinity)
