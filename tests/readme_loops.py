"""What the loops of the README take for granted: a model, an optimizer, a loader and losses."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Three tasks, two of which depend on the same inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(16, 1) for task in ("celsius", "fahrenheit", "humidity")})


def task_losses(model: Model, x: Tensor) -> dict[str, Tensor]:
    targets = {"celsius": x[:, :4].sum(1), "fahrenheit": 2 * x[:, :4].sum(1), "humidity": x[:, 4:].sum(1)}
    features = model.encoder(x)
    return {task: (model.heads[task](features).squeeze(1) - y).pow(2).mean() for task, y in targets.items()}


def training_loop() -> dict[str, Any]:
    """Returns the names of the section about a training loop."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    return {
        "model": model,
        "optimizer": optimizer,
        "loader": [torch.randn(64, 8) for _ in range(200)],
        "task_losses": task_losses,
    }


def many_datasets(families: int = 4, each: int = 3) -> dict[str, Any]:
    """Returns the names of the section about datasets, of which those with the same letter belong together."""
    torch.manual_seed(0)
    names = [f"{letter}{number}" for letter in "abcdefgh"[:families] for number in range(each)]
    common = {name[0]: torch.randn(16) for name in names}
    truth = {name: common[name[0]] + 0.3 * torch.randn(16) for name in names}
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def loader() -> Iterator[tuple[str, Tensor]]:
        for _ in range(30):
            for place in torch.randperm(len(names)).tolist():
                yield names[place], torch.randn(32, 16)

    def loss_of(model: nn.Module, dataset: str, x: Tensor) -> Tensor:
        return (model(x).squeeze(1) - x @ truth[dataset]).pow(2).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return {"model": model, "optimizer": optimizer, "loader": loader(), "loss_of": loss_of}
