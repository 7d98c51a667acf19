"""
Use the meter when every task has its own data: three data sets, three loaders, one encoder.

$ python examples/one_loader_per_task.py

Each training step uses one batch of one task. A measurement needs the losses of all tasks, each on its own batch, so it
takes one batch from each loader.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="One loader per task.")
parser.add_argument("--steps", type=int, default=600)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: three surveys with different people; the labels of two of them depend on the same inputs
tasks = {"income": slice(0, 6), "rent": slice(0, 6), "sleep": slice(6, 12)}


def make_loader(inputs: slice) -> DataLoader:
    x = torch.randn(1000, 12)
    y = x[:, inputs].sum(1).tanh() + 0.1 * torch.randn(1000)
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


loaders = {task: cycle(make_loader(inputs)) for task, inputs in tasks.items()}

# -----------------------------------------------------------------------------
# model
encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in tasks})
optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], lr=0.05)


def loss_of(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(heads[task](encoder(x)).squeeze(1), y)


# -----------------------------------------------------------------------------
# tasks take turns; measure every three rounds, with `measure_only`, since these losses are not used for training
meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=1)
for step in range(args.steps):
    task = list(tasks)[step % len(tasks)]
    loss = loss_of(task, *next(loaders[task]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % (3 * len(tasks)) == 0:
        batches = {name: next(loader) for name, loader in loaders.items()}
        meter.measure_only(lambda: {name: loss_of(name, *batch) for name, batch in batches.items()})

print(meter.affinity())
