"""
Use the meter with a model compiled by torch.compile.

$ python examples/compiled.py

Two things differ from the usual loop. The meter cannot observe compiled modules, so pass it the model. And
torch.compile must be configured, before the first call, to keep the buffers that a second gradient needs.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
from torch import nn
from torch._functorch import config as functorch_config

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="The meter with torch.compile.")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--backend", default="aot_eager", help="inductor is faster, but takes time to compile")
args = parser.parse_args()
torch.manual_seed(0)
functorch_config.donated_buffer = False  # before the first call

# -----------------------------------------------------------------------------
# data: two tasks depend on the same columns, the third on different ones
x = torch.randn(2048, 16)
y = {"sum": x[:, :8].sum(1), "negated": -x[:, :8].sum(1), "other": x[:, 8:].sum(1)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in y})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.encoder(x)
        return {task: head(features).squeeze(1) for task, head in self.heads.items()}


model = Model()
compiled = torch.compile(model, backend=args.backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def task_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {task: (out - y[task][rows]).pow(2).mean() for task, out in compiled(x[rows]).items()}


# -----------------------------------------------------------------------------
meter = AffinityMeter(shared=model.encoder, optimizer=optimizer, model=model, every=5)
for _ in range(args.steps):
    rows = torch.randint(2048, (64,))
    losses = meter(lambda: task_losses(rows))
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()

print(meter.affinity())
