"""Loads the networks exported to this folder. Requires only torch.

from load import load
networks = load()
inputs = networks.inputs([{"age": 31, "town": "Arle"}])  # rows of a table; for arrays, networks.inputs(array)
networks.predict(inputs)  # {task: probabilities, or values in the original units}
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

HERE = Path(__file__).resolve().parent
MISSING_WORDS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "."}
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0}


class ExportedNetworks:
    """The exported networks, and how to convert their outputs to predictions."""

    def __init__(self, folder: str | Path = HERE, device: str = "cpu") -> None:
        self.about = json.loads((Path(folder) / "networks.json").read_text())
        programs = [torch.export.load(str(Path(folder) / file)) for file in self.about["programs"]]
        self.networks = [program.module().to(device) for program in programs]

    def inputs(self, rows: Any) -> Tensor:
        """Converts raw rows to network inputs.

        Args:
            rows: for networks of a table, a DataFrame or a list of dicts from column name to value, such as the rows of
                `csv.DictReader`. None, NaN and empty text are missing values. For other networks, an array or tensor.
        """
        table = self.about["table"]
        if table is None:
            return torch.as_tensor(rows)
        return _scaled(table, rows) if table["kind"] == "scaling" else _encoded(table["columns"], rows)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the probability of label 1 (binary) or of each class (multiclass), or values in original units.

        If several networks serve a task, their answers are averaged.
        """
        members: dict[str, list[Tensor]] = {}
        for network in self.networks:
            for task, outputs in network(inputs).items():
                members.setdefault(task, []).append(outputs)
        return {task["name"]: to_prediction(task, average(task, members[task["name"]])) for task in self.about["tasks"]}


def _scaled(scaling: dict[str, Any], rows: Any) -> Tensor:
    dtype = getattr(torch, scaling["dtype"])
    if scaling["mean"] is None:
        return torch.as_tensor(rows).to(dtype)
    mean, deviation = (torch.tensor(scaling[name], dtype=torch.float64) for name in ("mean", "deviation"))
    return ((torch.as_tensor(rows).double() - mean) / deviation).to(dtype)


def _encoded(columns: list[dict[str, Any]], rows: Any) -> Tensor:
    if hasattr(rows, "to_dict"):  # a DataFrame
        rows = rows.to_dict("records")
    encoders = [_encoded_category if "levels" in column else _encoded_number for column in columns]
    inputs = [
        [value for column, encode in zip(columns, encoders, strict=True) for value in encode(column, row)]
        for row in rows
    ]
    return torch.tensor(inputs, dtype=torch.float64).float()


def _encoded_number(column: dict[str, Any], row: dict[str, Any]) -> list[float]:
    text = _cell_text(row[column["name"]])
    value = column["median"]
    if text is not None:
        value = _to_days(text, column["dates"]) if column["dates"] else _to_number(text)
    scaled = (value - column["center"]) / column["spread"]
    if column["squashed"]:
        scaled /= math.hypot(1, scaled / 3)
    scaled = (scaled - column["mean"]) / column["deviation"]
    return [scaled, float(text is None)] if column["indicator"] else [scaled]


def _encoded_category(column: dict[str, Any], row: dict[str, Any]) -> list[float]:
    """Returns one input per level, and one for all other and missing values."""
    text = _cell_text(row[column["name"]])
    chosen = [text is not None and _to_level(text) == level for level in column["levels"]]
    return [*map(float, chosen), float(not any(chosen))]


def _to_days(text: str, dates: str) -> float:
    moment = datetime.fromisoformat(text) if dates == "ISO8601" else datetime.strptime(text, dates)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return (moment - datetime.fromtimestamp(0, timezone.utc)) / timedelta(days=1)


def _cell_text(value: Any) -> str | None:
    text = "" if value is None else str(value).strip()
    return None if text.lower() in MISSING_WORDS else text


def _to_number(text: str) -> float:
    if "_" in text:  # Python would read the code 12_3 as 123
        raise ValueError(f"must be a number, found {text!r}")
    return BOOLEAN_WORDS[text.lower()] if text.lower() in BOOLEAN_WORDS else float(text)


def _to_level(text: str) -> str:
    try:
        return f"{_to_number(text):.17g}"
    except ValueError:
        return text


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
    """Converts a head's outputs to probabilities or to the original units, within the limits of the training labels."""
    if task["kind"] == "multiclass":
        outputs = torch.log_softmax(outputs, 1)
    if task["scale"]:
        mean, deviation, *limits = task["scale"]
        outputs = outputs * deviation + mean
        outputs = outputs.clamp(*limits) if limits else outputs
    if task["kind"] == "binary":
        outputs = torch.sigmoid(outputs)
    elif task["kind"] == "multiclass":
        outputs = torch.softmax(outputs, 1)
    return outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs


def load(folder: str | Path = HERE, device: str = "cpu") -> ExportedNetworks:
    """Loads the networks."""
    return ExportedNetworks(folder, device)
