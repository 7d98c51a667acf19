"""A small multi-task network with its losses, and how to compare what training leaves behind."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class TwoLayers(nn.Module):
    def __init__(self, tasks: Sequence[str] = ("a", "b", "c"), dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 5), nn.Tanh())
        self.heads = nn.ModuleDict({t: nn.Linear(5, 1) for t in tasks})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.encoder(x)
        return {t: head(z) for t, head in self.heads.items()}


def regression(
    tasks: Sequence[str] = ("a", "b", "c"), *, dropout: float = 0.0, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[TwoLayers, Callable[[], dict[str, Tensor]]]:
    """Returns a network and a closure that returns its losses on one fixed batch."""
    torch.manual_seed(seed)
    model = TwoLayers(tasks, dropout).to(dtype)
    x = torch.randn(16, 4, dtype=dtype)
    y = {t: torch.randn(16, 1, dtype=dtype) for t in tasks}
    return model, lambda: {t: (out - y[t]).pow(2).mean() for t, out in model(x).items()}


def comparable(value: Any) -> Any:
    """Returns a copy in which tensors and arrays are replaced by their bytes, so that == compares every bit."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().double().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return [comparable(item) for item in value] if isinstance(value, list | tuple) else value
