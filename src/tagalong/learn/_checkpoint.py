"""A training under way, in a file: after a kill it goes on from the last finished epoch, to the same numbers."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tagalong.affinity._atomic import write_atomic

if TYPE_CHECKING:
    from ._trainer import _Training

PLAIN = ("epoch", "steps", "seconds", "best_epoch", "best_loss", "best", "curve")
STATEFUL = ("network", "optimizer", "balancer", "scaler", "meter", "windows")

logger = logging.getLogger(__name__)


def save_checkpoint(path: Path, training: _Training) -> None:
    """Writes the file whole or not at all: a kill half-way leaves the checkpoint before."""
    state: dict[str, Any] = {"of": training.identity, **{name: getattr(training, name) for name in PLAIN}}
    parts = {name: getattr(training, name) for name in STATEFUL}
    state |= {name: part.state_dict() for name, part in parts.items() if part is not None}
    content = io.BytesIO()
    torch.save(state, content)
    write_atomic(path, content.getvalue())


def load_checkpoint(path: Path, training: _Training) -> None:
    """Puts the training where the checkpoint left it; a file that cannot be read is left aside, with a warning.

    Raises:
        ValueError: the checkpoint is of another training.
    """

    def place(storage: Any, location: str) -> Any:
        # what was on the CPU stays there: counters of optimisers, and what some rules work out
        wanted = location if location == "cpu" else str(training.device)
        return torch.serialization.default_restore_location(storage, wanted)

    try:
        # whole objects are in it (balancing rules), so it is as trusted as the code that wrote it
        state = torch.load(path, map_location=place, weights_only=False)
    except Exception as error:
        logger.warning("%s cannot be read (%s); training starts again", path, error)
        return
    if state["of"] != training.identity:
        raise ValueError(
            f"`checkpoint` {path} must be of this training, {training.identity}, found {state['of']}; delete the file "
            "or name another"
        )
    for name in PLAIN:
        setattr(training, name, state[name])
    for name in STATEFUL:
        part = getattr(training, name)
        if part is not None:
            part.load_state_dict(state[name])
