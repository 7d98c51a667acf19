"""
Use the meter with float16 mixed precision, a GradScaler and gradient clipping.

$ python examples/grad_scaler.py

Pass the loop's scaler to the meter: without it, the small gradients of single tasks would underflow in float16.
Measurements with non-finite gradients are skipped and counted.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="float16 with a GradScaler.")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# -----------------------------------------------------------------------------
# data: a tone; the tasks are its pitch, its volume, and whether it is high
time = torch.linspace(0, 1, 64)
pitch, volume = 2 + 6 * torch.rand(2048), torch.rand(2048) + 0.5
x = (volume[:, None] * torch.sin(2 * torch.pi * pitch[:, None] * time)).to(device)
y = {"pitch": (pitch - 5) / 3, "volume": volume - 1, "is_high": (pitch > 5).float()}
y = {task: values.to(device) for task, values in y.items()}

# -----------------------------------------------------------------------------
# model
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).to(device)
heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in y}).to(device)
parameters = [*encoder.parameters(), *heads.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
scaler = torch.amp.GradScaler(device)


def task_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.autocast(device, torch.float16):
        features = encoder(x[rows])
        out = {task: head(features).squeeze(1) for task, head in heads.items()}
    losses = {task: F.mse_loss(out[task].float(), y[task][rows]) for task in ("pitch", "volume")}
    return {**losses, "is_high": F.binary_cross_entropy_with_logits(out["is_high"].float(), y["is_high"][rows])}


# -----------------------------------------------------------------------------
# training with the usual lines for a scaler; call `unscale_` before clipping
meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=5, scaler=scaler)
for _ in range(args.steps):
    rows = torch.randint(2048, (64,), device=device)
    losses = meter(lambda: task_losses(rows))
    scaler.scale(sum(losses.values())).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

affinity = meter.affinity()
print(affinity)
print("skipped:", {reason: int(count.max()) for reason, count in affinity.skipped.items()} or "nothing")
