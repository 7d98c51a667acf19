"""
Train several networks in your own loop, and then one network that learns from their average answer.

$ python examples/teach_in_a_loop.py

The student costs as much to run as one network, but keeps part of what averaging its teachers would gain. It also
learns from mixtures of training rows, which nobody has labelled: the teachers answer them. Only training targets
change. To choose and judge networks, use true labels, as always.
"""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F

from tagalong.learn import mix_rows, mix_targets

parser = argparse.ArgumentParser(description="One network taught by others.")
parser.add_argument("--steps", type=int, default=500, help="optimizer steps per network")
parser.add_argument("--teachers", type=int, default=6)
parser.add_argument(
    "--mix", type=float, default=1.0, help="weight of the answers: 0 for labels only, 1 for answers only"
)
args = parser.parse_args()

# -----------------------------------------------------------------------------
# data: a noisy value and a noisy class, few labels, some of them missing
torch.manual_seed(0)
x = torch.randn(2600, 8)
signal = x[:, 0].sin() * 2 + x[:, 1] * x[:, 2]
value = signal + 0.7 * torch.randn(2600)
label = (signal + torch.randn(2600) > 0).float()
value[:600:10] = torch.nan
train, valid, test = torch.arange(300), torch.arange(300, 600), torch.arange(600, 2600)
labels = {"value": value[train], "label": label[train]}


# -----------------------------------------------------------------------------
# a plain multi-task network, its losses and its training loop
class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({"value": nn.Linear(64, 1), "label": nn.Linear(64, 1)})

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.encoder(rows)
        return {task: head(features).squeeze(1) for task, head in self.heads.items()}


def total_loss(network: Network, rows: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean loss of each task over its labels. Cross-entropy accepts probabilities as targets."""
    outputs = network(rows)
    loss_functions = {"value": F.mse_loss, "label": F.binary_cross_entropy_with_logits}
    present = {task: target.isfinite() for task, target in targets.items()}
    return sum(loss_functions[task](outputs[task][known], targets[task][known]) for task, known in present.items())


def fit(seed: int, rows: torch.Tensor, targets: dict[str, torch.Tensor]) -> Network:
    """Returns the network with the lowest loss on the validation rows, whose labels are always the true ones."""
    torch.manual_seed(seed)
    network, best, lowest = Network(), Network(), float("inf")
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for step in range(args.steps):
        batch = torch.randint(len(rows), (64,))
        loss = total_loss(network, rows[batch], {task: target[batch] for task, target in targets.items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            with torch.no_grad():
                found = total_loss(network, x[valid], {"value": value[valid], "label": label[valid]}).item()
            if found < lowest:
                best, lowest = copy.deepcopy(network), found
    return best.eval()


# -----------------------------------------------------------------------------
# teachers, their average answer to training rows and mixtures, and the student
teachers = [fit(seed, x[train], labels) for seed in range(args.teachers)]
rows = torch.cat([x[train], mix_rows(x[train], 3 * len(train))])
with torch.no_grad():
    outputs = [teacher(rows) for teacher in teachers]
answers = {
    "value": torch.stack([own["value"] for own in outputs]).mean(0),
    "label": torch.stack([own["label"].sigmoid() for own in outputs]).mean(0),  # probabilities, not logits
}
unknown = torch.full((len(rows) - len(train),), torch.nan)
targets = {task: mix_targets(torch.cat([labels[task], unknown]), answers[task], args.mix) for task in labels}
student = fit(args.teachers, rows, targets)
plain = fit(args.teachers, x[train], labels)  # the same seed, without a teacher

print("loss on test rows")
with torch.no_grad():
    true = {"value": value[test], "label": label[test]}
    alone = [total_loss(network, x[test], true).item() for network in teachers]
    print(f"  one of the teachers  {sum(alone) / len(alone):.3f}")
    print(f"  without a teacher    {total_loss(plain, x[test], true):.3f}")
    print(f"  the student          {total_loss(student, x[test], true):.3f}")
