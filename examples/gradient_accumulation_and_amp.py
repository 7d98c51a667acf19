"""
Use the meter with bfloat16 autocast, gradient accumulation and clipping.

$ python examples/gradient_accumulation_and_amp.py

Call the meter once per micro-batch. A measurement uses only the gradients of its own micro-batch: it neither reads nor
changes what has accumulated in `.grad`. `meter.backward` reuses the task gradients of a measured call for training.
"""

# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from tagalong import AffinityMeter

parser = argparse.ArgumentParser(description="Accumulation, mixed precision, clipping.")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--micro", type=int, default=4, help="micro-batches per optimizer step")
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: small images with a bright square; the tasks are its position, its size, and whether it is in the left half
left, top, size = torch.randint(8, (2048,)), torch.randint(8, (2048,)), torch.randint(3, 8, (2048,))
pixel = torch.arange(16)
inside_x = (pixel >= left[:, None]) & (pixel < (left + size)[:, None])
inside_y = (pixel >= top[:, None]) & (pixel < (top + size)[:, None])
images = (inside_y[:, :, None] & inside_x[:, None, :]).float()[:, None] + 0.3 * torch.randn(2048, 1, 16, 16)
center = left + size / 2
y = {"across": center / 8 - 1, "size": size / 5 - 1, "is_left": (center < 6).float()}

# -----------------------------------------------------------------------------
# model: measuring does not change BatchNorm's running statistics
encoder = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
)  # fmt: skip
heads = nn.ModuleDict({task: nn.Linear(16 * 4 * 4, 1) for task in y})
parameters = [*encoder.parameters(), *heads.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.005)


def task_losses(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(images[rows])
        out = {task: head(features).squeeze(1).float() for task, head in heads.items()}
    regression = {task: F.mse_loss(out[task], y[task][rows]) for task in ("across", "size")}
    return {**regression, "is_left": F.binary_cross_entropy_with_logits(out["is_left"], y["is_left"][rows])}


# -----------------------------------------------------------------------------
# measure every 3 micro-batches: 3 does not divide 4, so all positions within the accumulation are measured
share = dict.fromkeys(y, 1 / args.micro)
meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=3, weights=share)
for step in range(args.steps):
    for _ in range(args.micro):
        rows = torch.randint(2048, (32,))
        losses = meter(lambda: task_losses(rows))
        meter.backward()  # (Σ share · loss).backward(), accumulated into .grad
    norm = nn.utils.clip_grad_norm_(parameters, 5.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 25 == 0:
        values = ", ".join(f"{task} {loss.item():.3f}" for task, loss in losses.items())
        print(f"step {step}: {values}, gradient norm {norm:.2f}")

print("", meter.affinity(), sep="\n")
print(f"{meter.measured} of {meter.calls} micro-batches measured; overhead {meter.overhead:.0%} of the training time")
