"""Loads the networks exported to this folder. Requires only torch.

    from load import load
    networks = load()
    networks.predict(inputs)  # {task: probabilities, or values in the original units}

`inputs` is a tensor of network inputs. The "table" entry in `networks.json` describes how to convert raw rows to
inputs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

HERE = Path(__file__).resolve().parent


class ExportedNetworks:
    """The exported networks, and how to convert their outputs to predictions."""

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
        """Returns the probability of label 1 (binary) or of each class (multiclass), or values in original units.

        If several networks serve a task, their answers are averaged.
        """
        members = self._member_outputs(inputs)
        return {task["name"]: to_prediction(task, average(task, members[task["name"]])) for task in self.about["tasks"]}

    @torch.no_grad()
    def spread(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the standard deviation of the predictions of the networks that serve each task."""
        members = self._member_outputs(inputs)
        return {
            task["name"]: torch.stack([to_prediction(task, one) for one in members[task["name"]]]).std(0, correction=0)
            for task in self.about["tasks"]
        }

    def _member_outputs(self, inputs: Tensor) -> dict[str, list[Tensor]]:
        """Returns the outputs of every network that serves a task."""
        found: dict[str, list[Tensor]] = {}
        for network in self.networks:
            for task, outputs in network(inputs).items():
                found.setdefault(task, []).append(outputs)
        return found


def average(task: dict[str, Any], members: list[Tensor]) -> Tensor:
    """Averages the outputs of several networks: probabilities for classes, otherwise the outputs themselves."""
    if len(members) == 1:
        return members[0]
    exact = torch.stack(members).double()
    how = task.get("average") or {"binary": "sigmoid", "multiclass": "softmax"}.get(task["kind"], "outputs")
    if how == "sigmoid":
        found = functional.logsigmoid(exact).logsumexp(0) - functional.logsigmoid(-exact).logsumexp(0)
    elif how == "softmax":
        found = torch.log_softmax(exact, 2).logsumexp(0) - math.log(len(members))
    else:
        found = exact.mean(0)
    return found.to(members[0].dtype)


def to_prediction(task: dict[str, Any], outputs: Tensor) -> Tensor:
    """Converts a head's outputs to probabilities or to the original units."""
    if task["kind"] == "binary":
        outputs = torch.sigmoid(outputs)
    elif task["kind"] == "multiclass":
        outputs = torch.softmax(outputs, 1)
    elif task["kind"] == "regression" and task["scale"]:
        mean, deviation = task["scale"]
        outputs = outputs * deviation + mean
    return outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs


def load(folder: str | Path = HERE, device: str = "cpu") -> ExportedNetworks:
    """Loads the networks."""
    return ExportedNetworks(folder, device)


def state_dicts(folder: str | Path = HERE) -> list[dict[str, Tensor]]:
    """Loads the weights of every network."""
    about = json.loads((Path(folder) / "networks.json").read_text())
    return [torch.load(Path(folder) / name, weights_only=True) for name in about["weights"]]
