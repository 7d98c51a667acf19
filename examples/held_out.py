"""
Measure whether a step on one task helps another on held-out rows.

$ python examples/held_out.py

The step is the one that AdamW, with its current state, would take on the training batch of one task. The losses before
and after it come from a validation batch. Compare the two matrices: on the training loss, even the task that is pure
noise has a positive self-affinity, because the step fits the noise of the batch.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="Affinity onto training and onto held-out losses.")
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: two tasks with the same hidden cause, one with another cause, and one that is pure noise
x = torch.randn(3000, 20)
cause, other = x[:, :5].sum(1).sin(), x[:, 5:10].sum(1).sin()
y = {"twin_a": cause, "twin_b": -2 * cause, "other": other, "noise": torch.randn(3000)}
train, valid = torch.arange(2000), torch.arange(2000, 3000)

# -----------------------------------------------------------------------------
# model: dropout masks are the same before and after the measured step
encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU())
heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in y})
optimizer = torch.optim.AdamW([*encoder.parameters(), *heads.parameters()], lr=3e-3)


def task_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    features = encoder(x[rows])
    return {task: F.mse_loss(heads[task](features).squeeze(1), y[task][rows]) for task in y}


def held_out_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    encoder.eval()  # the meter restores the mode
    return task_losses(rows)


# -----------------------------------------------------------------------------
# two meters in one loop: one for the training loss, one for the held-out loss
onto_train = AffinityMeter(shared=encoder, optimizer=optimizer, every=5)
onto_valid = AffinityMeter(shared=encoder, optimizer=optimizer, every=5)
for _ in range(args.steps):
    rows = train[torch.randint(len(train), (128,))]
    valid_rows = valid[torch.randint(len(valid), (128,))]
    onto_valid(lambda: task_losses(rows), held_out=lambda: held_out_losses(valid_rows))
    losses = onto_train(lambda: task_losses(rows))
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()

for name, meter in (("training", onto_train), ("held-out", onto_valid)):
    print(f"Onto the {name} loss:", meter.affinity(), "", sep="\n")
