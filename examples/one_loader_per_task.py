"""
Every batch belongs to one task: three data sets, three loaders, one encoder.

$ python examples/one_loader_per_task.py

A step on one task's batch is looked at through the losses of the other tasks on batches of their own, so a measurement
takes one batch of each. The training itself goes on with one batch of one task per step.
"""

# ruff: noqa: B023 - the meter calls a closure at once, before the loop moves on
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
# data: three surveys of other people each, who were asked other things; two of them depend on the same answers
tasks = {"income": slice(0, 6), "rent": slice(0, 6), "sleep": slice(6, 12)}


def survey(answers: slice) -> DataLoader:
    x = torch.randn(1000, 12)
    y = x[:, answers].sum(1).tanh() + 0.1 * torch.randn(1000)
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


loaders = {task: cycle(survey(answers)) for task, answers in tasks.items()}

# -----------------------------------------------------------------------------
# model
encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in tasks})
optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], lr=0.05)


def loss_of(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(heads[task](encoder(x)).squeeze(1), y)


# -----------------------------------------------------------------------------
# tasks take turns; measure after every three rounds, with `measure_only`, since these losses are not trained on
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
