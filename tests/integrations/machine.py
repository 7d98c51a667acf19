"""A small multi-task model with BatchNorm and dropout, and its batches, for every trainer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TASKS = ("heat", "noise", "wear")
WIDTH = 6


class Machine(nn.Module):
    """One shared encoder and one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1))
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x)
        return {task: head(hidden).squeeze(1).float() for task, head in self.heads.items()}


def losses(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    out = model(x)
    return {task: F.mse_loss(out[task], y[:, k]) for k, task in enumerate(TASKS)}


def rows(count: int = 64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(count, WIDTH, generator=draw)
    y = torch.stack([x[:, :3].sum(1), 0.5 * x[:, :3].sum(1).tanh(), x[:, 3:].sum(1)], 1)
    return x, y


def fresh() -> Machine:
    torch.manual_seed(0)
    return Machine()


def equal_states(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())
