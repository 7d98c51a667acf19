"""Writes the state of a training to a file, so that a killed training can continue."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tagalong.errors import InvalidInput
from tagalong.files import damage_logger, open_atomic


def save_checkpoint(path: Path, identity: str, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically. If the process is killed, the previous checkpoint remains.

    Args:
        path: the file.
        identity: a string that identifies the training.
        state: its state: tensors and plain values only, so that reading them does not execute any code.
    """
    with open_atomic(path) as file:
        torch.save({**state, "of": identity}, file)


def load_checkpoint(path: Path, identity: str, device: torch.device) -> dict[str, Any] | None:
    """Returns the saved state. A damaged file is ignored with a warning, so that training starts again.

    Raises:
        InvalidInput: If the checkpoint belongs to a different training.
    """

    def restore_location(storage: Any, location: str) -> Any:
        # tensors saved from the CPU stay there: optimizers' step counters and the state of some rules
        wanted = location if location == "cpu" else str(device)
        return torch.serialization.default_restore_location(storage, wanted)

    try:
        content = io.BytesIO(path.read_bytes())
    except FileNotFoundError:  # another process has just finished the same training
        return None
    try:
        state: dict[str, Any] = torch.load(content, map_location=restore_location, weights_only=True)
        saved = state["of"]
    except Exception as error:  # torch may raise anything for a file that is not its own
        damage_logger.warning("could not use %s (%s); training from scratch", path, str(error).partition("\n")[0])
        return None
    if saved != identity:
        raise InvalidInput(f"`checkpoint` {path}", f"must come from the same training ({identity})", saved, "delete it")
    return state
