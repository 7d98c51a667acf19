"""The sum of losses."""

from __future__ import annotations

import torch

from ._rule import Losses, Rule, scaled


class Plain(Rule):
    """The weighted sum of losses."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        scaled(self.weighted(losses).sum(), scaler).backward()
