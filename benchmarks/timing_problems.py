"""Problems for timing: synthetic ones, the ones with truth tables, and npz files of them that are quick to copy."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tagalong.learn import MLP, Problem, Recipe, Split, Task, require_in_memory
from truth_problems import PROBLEMS

PARTS = ("train", "val", "test")
MISSING = 0.08  # of the labels of synthetic problems, as in nhanes


def synthetic(rows: int, tasks: int, encoder: MLP, recipe: Recipe, *, mixed: bool = False) -> Problem:
    """Draws a problem whose targets share some directions of the inputs, with tasks of all kinds if `mixed`."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(encoder.features, tasks, generator=generator) / encoder.features**0.5
    kinds = ("regression", "binary", "multiclass") if mixed else ("regression",)
    chosen = tuple(Task(f"t{k}", kind=kinds[k * len(kinds) // tasks], classes=3) for k in range(tasks))

    def draw(count: int) -> Split:
        inputs = torch.randn(count, encoder.features, generator=generator)
        signal = inputs @ directions
        signal += signal.roll(1, 1).sin() + torch.randn(signal.shape, generator=generator)
        targets = {task.name: _labels(task, column) for task, column in zip(chosen, signal.T, strict=True)}
        for target in targets.values():
            target[torch.rand(count, generator=generator) < MISSING] = torch.nan
        return Split(inputs, targets)

    splits = [draw(rows), *(draw(max(2, rows // 7)) for _ in range(2))]
    return Problem("mixed" if mixed else "synthetic", chosen, *splits, encoder=encoder, recipe=recipe)


def _labels(task: Task, values: Tensor) -> Tensor:
    if task.kind == "multiclass":
        return (values > -0.5).float() + (values > 0.5).float()
    return (values > 0).float() if task.kind == "binary" else values.clone()


def load(name: str, data: Path | None) -> Problem:
    """Reads `data/NAME.npz` if there is one, or else loads the problem as for its truth table.

    Raises:
        FileNotFoundError, ImportError, ValueError: If the data are missing.
    """
    file = None if data is None else data / f"{name}.npz"
    return PROBLEMS[name](data) if file is None or not file.exists() else read_problem(file)


def save_problem(problem: Problem, file: Path) -> None:
    """Writes the splits, tasks and recipe of a problem whose encoder is an `MLP`."""
    arrays = {}
    for part in PARTS:
        split = require_in_memory(problem.splits[part], "an export")
        # Column by column, a fingerprint of 0 and 1 takes a tenth of the space.
        arrays[f"{part}_inputs"] = np.asfortranarray(split.inputs.numpy())
        arrays[f"{part}_targets"] = torch.stack([split.targets[name] for name in problem.names], 1).numpy()
    about = {
        "name": problem.name,
        "tasks": [{"name": t.name, "kind": t.kind, "classes": t.classes, "error": t.error} for t in problem.tasks],
        "encoder": vars(problem.encoder),
        "recipe": asdict(problem.recipe),
        "scales": {name: list(map(float, scale)) for name, scale in problem.scales.items()},
    }
    np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)


def read_problem(file: Path) -> Problem:
    """Reads a problem that `save_problem` wrote."""
    with np.load(file) as arrays:
        about = json.loads(str(arrays["about"]))
        tasks = tuple(Task(**task) for task in about["tasks"])
        splits = []
        for part in PARTS:
            inputs, targets = (
                torch.from_numpy(np.ascontiguousarray(arrays[f"{part}_{what}"])) for what in ("inputs", "targets")
            )
            columns = {task.name: column.contiguous() for task, column in zip(tasks, targets.T, strict=True)}
            splits.append(Split(inputs, columns))
    scales = {name: tuple(scale) for name, scale in about["scales"].items()}
    recipe = Recipe(**about["recipe"])
    return Problem(about["name"], tasks, *splits, encoder=MLP(**about["encoder"]), recipe=recipe, scales=scales)
