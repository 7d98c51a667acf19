"""Problems for timing: the ones with truth tables, or their splits from npz files that are quick to copy."""

import json
from pathlib import Path

import numpy as np
import torch

from tagalong.learn import MLP, Problem, Recipe, Split, Task, require_in_memory
from truth_problems import PROBLEMS

PARTS = ("train", "val", "test")


def load(name: str, data: Path | None) -> Problem:
    """Reads `data/NAME.npz` if there is one, or else loads the problem as for its truth table.

    Raises:
        FileNotFoundError, ImportError, ValueError: If the data are missing.
    """
    file = None if data is None else data / f"{name}.npz"
    return PROBLEMS[name](data) if file is None or not file.exists() else read_problem(file)


def save_problem(problem: Problem, file: Path) -> None:
    """Writes the splits, tasks and recipe of a problem whose encoder is an `MLP`."""
    encoder = problem.encoder
    if not isinstance(encoder, MLP):
        raise ValueError(f"{problem.name}: only problems with an MLP can be exported, found {encoder!r}")
    arrays = {}
    for part in PARTS:
        split = require_in_memory(problem.splits[part], "an export")
        # Column by column, a fingerprint of 0 and 1 takes a tenth of the space.
        arrays[f"{part}_inputs"] = np.asfortranarray(split.inputs.numpy())
        arrays[f"{part}_targets"] = torch.stack([split.targets[name] for name in problem.names], 1).numpy()
    about = {
        "name": problem.name,
        "tasks": [{"name": t.name, "kind": t.kind, "classes": t.classes, "error": t.error} for t in problem.tasks],
        "encoder": vars(encoder),
        "recipe": problem.recipe.definition,
        "scales": {name: list(map(float, scale)) for name, scale in problem.scales.items()},
    }
    np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)


def read_problem(file: Path) -> Problem:
    """Reads a problem that `save_problem` wrote."""
    with np.load(file) as arrays:
        about = json.loads(str(arrays["about"]))
        splits = [_read_split(arrays, part, about["tasks"]) for part in PARTS]
    return Problem(
        about["name"],
        tuple(Task(**task) for task in about["tasks"]),
        *splits,
        encoder=MLP(**about["encoder"]),
        recipe=Recipe(**about["recipe"]),
        scales={name: tuple(scale) for name, scale in about["scales"].items()},
    )


def _read_split(arrays: np.lib.npyio.NpzFile, part: str, tasks: list[dict]) -> Split:
    inputs, targets = (
        torch.from_numpy(np.ascontiguousarray(arrays[f"{part}_{what}"])) for what in ("inputs", "targets")
    )
    return Split(inputs, {task["name"]: column.contiguous() for task, column in zip(tasks, targets.T, strict=True)})
