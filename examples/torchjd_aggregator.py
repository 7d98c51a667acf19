"""
Measure affinities while training with a TorchJD aggregator: PCGrad, which projects away conflicting gradients.

$ python examples/torchjd_aggregator.py

TorchJD computes the task gradients and combines those of the shared encoder. For this it needs the encoder's output,
which the closure returns along with the losses.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
from torch import nn
from torchjd.aggregation import PCGrad
from torchjd.autojac import jac_to_grad, mtl_backward

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="The meter with a TorchJD aggregator.")
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: a bridge; two tasks depend on its load, the third on the weather
x = torch.randn(2048, 12)
load, weather = x[:, :6].sum(1).tanh(), x[:, 6:].sum(1).tanh()
y = {"strain": load, "sag": 2 * load + 0.1 * weather, "wind": weather}

encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh())
heads = nn.ModuleDict({task: nn.Linear(16, 1) for task in y})
optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], lr=0.05)


def task_losses(rows: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    features = encoder(x[rows])
    losses = {task: (heads[task](features).squeeze(1) - y[task][rows]).pow(2).mean() for task in y}
    return losses, features


# -----------------------------------------------------------------------------
aggregator = PCGrad()
meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=5, estimator=["lookahead", "cosine"])
for step in range(args.steps):
    rows = torch.randint(2048, (64,))
    losses, features = meter(lambda: task_losses(rows))
    mtl_backward(list(losses.values()), features=features)
    weights = jac_to_grad(encoder.parameters(), aggregator)  # one weight per loss, in the same order
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step}: weights " + ", ".join(f"{t} {w:.2f}" for t, w in zip(losses, weights, strict=True)))

print(meter.affinity("lookahead"), meter.affinity("cosine"), sep="\n\n")
