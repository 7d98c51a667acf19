"""The problems of `fair.py`. Every repetition has a split of its own, and drawn data of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.learn.table_networks import default_network
from truth_problems import faces, nhanes, qm9, tox21

DIGITS = "digits.npz"  # scikit-learn's images of digits, for machines without scikit-learn
PAIRS = {"train": 2000, "val": 500, "test": 1000}  # of digits
SCENES, PIXELS, BALLS = 1000, 5, 1


@dataclass(frozen=True)
class FairProblem:
    """A problem of the comparison.

    Attributes:
        load: loads the problem from a data folder, with a split for each seed. Its network and recipe are those of the
            truth tables, if there is one for the problem.
        title: what it is about.
        is_table: whether its inputs are the columns of a table, so that other networks for tables can be compared.
    """

    load: Callable[[Path | None, int], Problem]
    title: str
    is_table: bool = False


def with_old_network(problem: Problem) -> Problem:
    """Replaces network and recipe by those that every table had before they were chosen by its size.

    These are two layers of 64 units without dropout or codes for numbers, heads that start at random, a learning rate
    of 0.001 and at most 100 epochs with a patience of 10.
    """
    return replace(problem, encoder=MLP(problem.train.inputs.shape[1], (64, 64)), head=None, recipe=Recipe())


def with_default_network(problem: Problem) -> Problem:
    """Replaces network and recipe by those that a table gets by default."""
    return replace(problem, head=None, **default_network(problem.train.inputs, "mlp"))


def with_tabm(problem: Problem) -> Problem:
    """Replaces network and recipe by those that a table gets with `encoder="tabm"`."""
    return replace(problem, **default_network(problem.train.inputs, "tabm"))


TABLE_NETWORKS: dict[str, Callable[[Problem], Problem]] = {
    "old network": with_old_network,
    "default network": with_default_network,
    "TabM": with_tabm,
}


def digits(data: Path | None, seed: int) -> Problem:
    """Two handwritten digits side by side, and six multiclass tasks about their values."""
    images, values = _read_digits(data)
    random = np.random.default_rng([seed, 19])
    order = random.permutation(len(images))
    parts = dict(zip(PAIRS, np.split(order, [int(0.6 * len(order)), int(0.75 * len(order))]), strict=True))
    splits = []
    for part, own in parts.items():
        left, right = random.choice(own, (2, PAIRS[part]))
        inputs = np.concatenate([images[left], images[right]], 1).astype(np.float32) / 8 - 1
        splits.append(Split(torch.from_numpy(inputs), _digit_targets(values[left], values[right])))
    classes = {"left": 10, "right": 10, "sum": 19, "difference": 10, "larger": 10, "product": 10}
    tasks = tuple(Task(name, "multiclass", classes=number) for name, number in classes.items())
    recipe = Recipe(lr=1e-2, batch_size=256, epochs=300, patience=10, weight_decay=0.1, schedule="step", period=30)
    return Problem("digits", tasks, *splits, encoder=MLP(128, (48,)), recipe=recipe)


def _read_digits(data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    if data is not None and (data / DIGITS).exists():
        with np.load(data / DIGITS) as arrays:
            return arrays["images"], arrays["values"]
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def _digit_targets(left: np.ndarray, right: np.ndarray) -> dict[str, Tensor]:
    values = {
        "left": left,
        "right": right,
        "sum": left + right,
        "difference": np.abs(left - right),
        "larger": np.maximum(left, right),
        "product": left * right % 10,
    }
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in values.items()}


def scenes(data: Path | None, seed: int) -> Problem:
    """Drawn scenes of a ball before a wall, with six targets for every pixel, such as its depth."""
    drawn = draw_scenes(SCENES, np.random.default_rng([seed, 23]))
    images, targets = drawn.pop("image"), {name: values.astype(np.float32) for name, values in drawn.items()}
    tasks = [
        Task(name, "custom", loss=pixel_entropy, average="sigmoid", soft_targets=True, head=pixel_head)
        if name in ("ball", "edge")
        else Task(name, "custom", loss=pixel_error, average="outputs", soft_targets=True, head=pixel_head)
        for name in targets
    ]
    recipe = Recipe(lr=1e-2, batch_size=256, epochs=150, patience=8)
    inputs = images.reshape(len(images), -1).astype(np.float32)
    encoder = MLP(inputs.shape[1], (64,))
    return Problem.from_arrays(inputs, targets, tasks, encoder=encoder, recipe=recipe, name="scenes", seed=seed)


def pixel_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each pixel."""
    return (outputs - targets).square()


def pixel_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each pixel."""
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def pixel_head(features: int) -> nn.Module:
    """Creates a head that answers for every pixel."""
    return nn.Sequential(nn.Linear(features, PIXELS**2), nn.Unflatten(1, (PIXELS, PIXELS)))


def draw_scenes(rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws balls in front of a wall, lit from one side; returns images [rows, 3, y, x] and targets [rows, y, x]."""
    grid = (np.arange(PIXELS) + 0.5) / PIXELS * 2 - 1
    x, y = grid[None, None, :], grid[None, :, None]
    shape = (rows, PIXELS, PIXELS)
    depth, owner = np.ones(shape), np.zeros(shape, int)
    slopes = {"slope_x": np.zeros(shape), "slope_y": np.zeros(shape)}
    albedo = np.broadcast_to(random.uniform(0.1, 0.9, (rows, 3, 1, 1)), (rows, 3, PIXELS, PIXELS)).copy()
    for ball in range(1, BALLS + 1):
        middle_x, middle_y = random.uniform(-0.8, 0.8, (2, rows, 1, 1))
        size, near = random.uniform(0.25, 0.6, (rows, 1, 1)), random.uniform(0.2, 0.9, (rows, 1, 1))
        across, down = (x - middle_x) / size, (y - middle_y) / size
        height = np.sqrt(np.clip(1 - across**2 - down**2, 0, None))
        own = near - 0.3 * size * height
        front = (height > 0) & (own < depth)
        depth, owner = np.where(front, own, depth), np.where(front, ball, owner)
        slopes["slope_x"] = np.where(front, across, slopes["slope_x"])
        slopes["slope_y"] = np.where(front, down, slopes["slope_y"])
        albedo = np.where(front[:, None], random.uniform(0.1, 0.9, (rows, 3, 1, 1)), albedo)
    facing = np.sqrt(np.clip(1 - slopes["slope_x"] ** 2 - slopes["slope_y"] ** 2, 0, 1))
    shade = np.clip(0.3 + 0.7 * (0.8 * facing - 0.4 * slopes["slope_x"] - 0.4 * slopes["slope_y"]), 0.1, 1)
    edge = np.zeros(shape, bool)
    edge[:, :, 1:] |= owner[:, :, 1:] != owner[:, :, :-1]
    edge[:, 1:] |= owner[:, 1:] != owner[:, :-1]
    haze = (depth[:, None] - 0.2) * 0.5
    image = albedo * shade[:, None] * (1 - haze) + 0.7 * haze + 0.03 * random.standard_normal(albedo.shape)
    return {"image": image * 2 - 1, "depth": depth, **slopes, "shade": shade, "ball": owner > 0, "edge": edge}


PROBLEMS: dict[str, FairProblem] = {
    "nhanes": FairProblem(nhanes, "health survey (`nhanes`)", is_table=True),
    "tox21": FairProblem(tox21, "toxicity of molecules (`tox21`)", is_table=True),
    "faces": FairProblem(faces, "drawn faces"),
    "qm9-32": FairProblem(qm9(32), "molecules (`qm9`), width 32"),
    "qm9-128": FairProblem(qm9(128), "molecules (`qm9`), width 128", is_table=True),
    "digits": FairProblem(digits, "two digits", is_table=True),
    "scenes": FairProblem(scenes, "drawn scenes, for every pixel"),
}
