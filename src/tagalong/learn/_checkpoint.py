"""A training under way, in a file: after a kill it goes on from the last finished epoch, to the same numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._trainer import _Training

PLAIN = ("epoch", "steps", "seconds", "best_epoch", "best_loss", "best", "curve")
STATEFUL = ("network", "optimizer", "balancer", "scaler", "meter")


def save_checkpoint(path: Path, training: _Training) -> None:
    """Writes beside the file first: a kill half-way leaves the checkpoint before."""
    state: dict[str, Any] = {name: getattr(training, name) for name in PLAIN}
    parts = {name: getattr(training, name) for name in STATEFUL}
    state |= {name: part.state_dict() for name, part in parts.items() if part is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(state, draft)
    os.replace(draft, path)


def load_checkpoint(path: Path, training: _Training) -> None:
    """Puts the training where the checkpoint left it; its job must be the same."""
    state = torch.load(path, map_location=training.device, weights_only=False)
    for name in PLAIN:
        setattr(training, name, state[name])
    for name in STATEFUL:
        part = getattr(training, name)
        if part is not None:
            part.load_state_dict(state[name])
