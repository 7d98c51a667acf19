"""Loads the networks exported here; needs only torch.

    from load import load
    networks = load()
    networks.predict(inputs)  # {task: probabilities, or values in the units of the data}

`inputs` are those of the networks; `networks.json` says under "table" how raw rows become inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent


class ExportedNetworks:
    """The exported networks, and what their outputs mean."""

    def __init__(self, folder: str | Path = HERE, device: str = "cpu") -> None:
        self.about = json.loads((Path(folder) / "networks.json").read_text())
        missing = [note for note in self.about["notes"] if note]
        if missing:
            advice = "build these networks yourself and load `state_dicts(folder)` into them"
            raise RuntimeError("\n".join([*missing, advice]))
        files = [str(Path(folder) / name) for name in self.about["programmes"]]
        self.networks = [torch.export.load(name).module().to(device) for name in files]

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> dict[str, Tensor]:
        """Probabilities (binary: of label 1; multiclass: of every class), or values in the units of the data."""
        outputs: dict[str, Tensor] = {}
        for network in self.networks:
            outputs.update(network(inputs))
        return {task["name"]: meaning(task, outputs[task["name"]]) for task in self.about["tasks"]}


def meaning(task: dict[str, Any], outputs: Tensor) -> Tensor:
    """What the outputs of a head stand for."""
    if task["kind"] == "binary":
        outputs = torch.sigmoid(outputs)
    elif task["kind"] == "multiclass":
        outputs = torch.softmax(outputs, 1)
    elif task["kind"] == "regression" and task["scale"]:
        mean, deviation = task["scale"]
        outputs = outputs * deviation + mean
    return outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs


def load(folder: str | Path = HERE, device: str = "cpu") -> ExportedNetworks:
    """The networks, ready to predict."""
    return ExportedNetworks(folder, device)


def state_dicts(folder: str | Path = HERE) -> list[dict[str, Tensor]]:
    """The weights of every network."""
    about = json.loads((Path(folder) / "networks.json").read_text())
    return [torch.load(Path(folder) / name, weights_only=True) for name in about["weights"]]
