"""
Which of 50 datasets belong together? Fine-tune a small transformer with LoRA on one dataset per step, and group them.

$ python examples/datasets_as_tasks.py

The meter observes the gradients that training computes anyway: one line after backward(), no further pass.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tagalong import AffinityMeter, select_groups

parser = argparse.ArgumentParser(description="Datasets as tasks.")
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: tokens and a class for each; the datasets of a topic mostly agree on the classes
topics = ["law", "code", "news", "games", "food"]
datasets = [f"{topic} {k}" for k in range(10) for topic in topics]
by_topic = {topic: torch.randn(32, 4) for topic in topics}
teachers = {name: by_topic[name.split()[0]] + 0.7 * torch.randn(32, 4) for name in datasets}


def batch_of(dataset: str) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(32, (16, 12))
    return tokens, teachers[dataset][tokens].argmax(2)


# -----------------------------------------------------------------------------
# model: frozen, with trainable low-rank weights (LoRA)
class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))  # zero, so that training starts from the base

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(32, 32), layer, nn.Linear(32, 4)).requires_grad_(False)
layer.linear1, layer.linear2, model[2] = Lora(layer.linear1), Lora(layer.linear2), Lora(model[2])
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=3e-3)

# -----------------------------------------------------------------------------
# training: one dataset per step, in random order
meter = AffinityMeter(trained, optimizer, estimator="streaming")
for step in range(args.steps):
    if step % len(datasets) == 0:
        order = torch.randperm(len(datasets)).tolist()
    dataset = datasets[order[step % len(datasets)]]
    tokens, labels = batch_of(dataset)
    F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
    meter.observe(dataset)
    optimizer.step()
    optimizer.zero_grad()

affinity = meter.affinity()
print(affinity.only(datasets[:6]))
if (affinity.count > 0).all():  # every pair has taken turns
    print(select_groups(affinity, budget=5))
