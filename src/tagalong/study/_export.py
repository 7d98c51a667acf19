"""Networks for use without tagalong: weights, programmes of `torch.export`, and a script that needs only torch."""

from __future__ import annotations

import json
import warnings
from importlib.resources import files
from pathlib import Path

import torch

from tagalong.affinity._atomic import write_atomic
from tagalong.learn import Network

from ._best import Best
from ._best_file import to_document, weights_file

FILE, SCRIPT = "networks.json", "load.py"


def export(best: Best, folder: Path) -> list[str]:
    """Weights of every network, its programme where torch can export it, and how to load and read them."""
    folder.mkdir(parents=True, exist_ok=True)
    programmes: list[str | None] = []
    notes = []
    for number, network in enumerate(best.networks):
        torch.save(network.state_dict(), folder / weights_file(number))
        name = f"network-{number + 1}.pt2"
        problem = _export_programme(network, best.example, folder / name)
        programmes.append(None if problem else name)
        if problem:
            notes.append(
                f"network {number + 1} ({', '.join(network.tasks)}): torch.export could not take it: {problem}"
            )
    document = to_document(best) | {"programmes": programmes, "notes": notes, "format": "tagalong-export"}
    write_atomic(folder / FILE, (json.dumps(document, allow_nan=False, indent=1) + "\n").encode())
    write_atomic(folder / SCRIPT, files("tagalong.study").joinpath("_export_loader.py").read_bytes())
    return notes


def _export_programme(network: Network, example: torch.Tensor, file: Path) -> str | None:
    """Writes the programme, for any number of rows; gives what went wrong, if something did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters warn of what they are about to change in later releases
            rows = torch.export.Dim.AUTO
            programme = torch.export.export(network.eval(), (example,), dynamic_shapes={"inputs": {0: rows}})
            torch.export.save(programme, file)
    except Exception as error:  # user modules can fail to export in any way, and the weights are of use without
        file.unlink(missing_ok=True)
        return str(error).strip().split("\n")[0] or type(error).__name__
    return None
