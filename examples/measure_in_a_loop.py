"""
Measure affinity inside an ordinary training loop, with several losses and missing labels.

$ python examples/measure_in_a_loop.py --out runs/loop

It prints which task helps which, and writes affinity.json and two figures into the folder.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from tagalong import AffinityMeter
from tagalong.report import affinity_heatmap, affinity_over_training

parser = argparse.ArgumentParser(description="Measure affinity inside a training loop.")
parser.add_argument("--out", type=Path, default=Path("out"), help="folder for affinity.json and the figures")
parser.add_argument("--steps", type=int, default=600)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: a made-up machine, so that we know the answer. Vibration and hum depend on its wear, power depends on its load,
# and whether it fails depends on both. A third of the power labels are missing.
x = torch.randn(4096, 24)
wear, load = x[:, :8].mean(1) * 3, x[:, 8:16].mean(1) * 3
y = {
    "vibration": wear.tanh() + 0.1 * torch.randn(4096),
    "hum": wear.sin() + 0.1 * torch.randn(4096),
    "power": load.tanh() + 0.1 * torch.randn(4096),
    "fails": (wear + load + 0.5 * torch.randn(4096) > 0).float(),
}
y["power"][torch.rand(4096) < 1 / 3] = float("nan")

# -----------------------------------------------------------------------------
# model: one shared encoder, one small head per task
encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
heads = nn.ModuleDict({task: nn.Linear(16, 1) for task in y})
optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], lr=0.05)


def task_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the loss of every task for which these rows have labels."""
    features, losses = encoder(x[rows]), {}
    for task, labels in y.items():
        known = ~labels[rows].isnan()
        if known.any():
            out, truth = heads[task](features[known]).squeeze(1), labels[rows][known]
            binary = task == "fails"
            losses[task] = F.binary_cross_entropy_with_logits(out, truth) if binary else F.mse_loss(out, truth)
    return losses


# -----------------------------------------------------------------------------
# training: the meter takes two lines
meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=5, tasks=list(y))
print(meter.check(lambda: task_losses(torch.arange(64))), end="\n\n")
for step in range(args.steps):
    rows = torch.randint(4096, (64,))
    losses = meter(lambda: task_losses(rows))
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 200 == 0:
        print(f"step {step}: " + ", ".join(f"{task} {loss.item():.3f}" for task, loss in losses.items()))

# -----------------------------------------------------------------------------
# results
affinity = meter.affinity()
print("", affinity, "", affinity.spread(), sep="\n")
args.out.mkdir(parents=True, exist_ok=True)
affinity.save(args.out / "affinity.json")
affinity_heatmap(affinity).write_html(args.out / "heatmap.html")
affinity_over_training(affinity).write_html(args.out / "over_training.html")
print(f"\nwrote affinity.json, heatmap.html and over_training.html to {args.out}")
