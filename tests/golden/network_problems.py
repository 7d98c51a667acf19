"""Small problems for the golden networks. All numbers are drawn by NumPy, whose generators never change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from training import MappedTensor, Split, StreamedRows

from tagalong import MLP, Problem, Recipe, Task


def soft_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs.squeeze(1) - targets).square() + 1).sqrt()


TASKS = (
    Task("size", "regression"),
    Task("ill", "binary", class_weights=(1, 3), error="auroc"),
    Task("sort", "multiclass", classes=3, class_weights=(1, 2, 0.5), weight=0.5),
    Task("price", "custom", loss=soft_absolute_error, average="outputs", soft_targets=True),
)
RECIPE = Recipe(lr=0.05, batch_size=23, epochs=10, patience=2)  # a batch of 23, another, and one of the other 24
TRAIN, VAL, TEST, UNLABELLED = slice(0, 70), slice(70, 100), slice(100, 130), slice(130, 150)
TABLE = MLP(6, hidden=(12, 8), dropout=0.2)


class Layers:
    """Creates encoders from functions that create layers."""

    def __init__(self, *layers: Callable[[], nn.Module]) -> None:
        self.layers = layers

    def __call__(self) -> nn.Module:
        return nn.Sequential(*(layer() for layer in self.layers))


# No biases before BatchNorm: their gradients are nothing but rounding errors, which Adam would amplify.
CONVOLUTIONS = Layers(
    lambda: nn.Conv2d(2, 4, 3, padding=1, bias=False),
    lambda: nn.BatchNorm2d(4),
    nn.ReLU,
    lambda: nn.MaxPool2d(2),
    lambda: nn.Dropout(0.2),
    lambda: nn.Conv2d(4, 5, 3, padding=1, bias=False),
    lambda: nn.BatchNorm2d(5, momentum=0.3),
    nn.GELU,
    lambda: nn.AdaptiveAvgPool2d(2),
    nn.Flatten,
)


class Branching(nn.Module):
    """Chooses its second layer by the outputs of the first, so networks with other weights cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.ModuleList([nn.Tanh(), nn.Softplus()])

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.second[int(hidden.mean() > 0)](hidden)
        return outputs


class Noise(nn.Module):
    """Draws random numbers that are no dropout masks, so networks cannot be stacked."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.1 * torch.randn(inputs.shape, dtype=inputs.dtype) if self.training else inputs


def make_problem(
    encoder: Any,
    shape: Sequence[int] = (6,),
    tasks: Sequence[Task] = TASKS,
    recipe: Recipe | None = RECIPE,
    missing: float = 0.2,
) -> Problem:
    """Returns a noisy problem in float64, in which some labels are missing and every two rows form a group."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(UNLABELLED.stop, *shape))
    features = inputs.reshape(len(inputs), -1)[: TEST.stop]
    targets = {}
    for number, task in enumerate(tasks):
        values = features[:, number] + features[:, number + 1] + 0.5 * random.normal(size=len(features))
        if task.kind == "binary":
            values = (values > 0.5).astype(float)
        if task.kind == "multiclass":
            values = values.round().clip(-1, 1) + 1
        targets[task.name] = np.where(random.random(len(features)) < missing, np.nan, values)
    rows = np.arange(TEST.stop)
    return Problem.from_arrays(
        torch.from_numpy(inputs[: TEST.stop]),  # networks have the precision of these
        targets,
        tasks,
        encoder=encoder,
        recipe=recipe,
        split=[rows[TRAIN], rows[VAL], rows[TEST]],
        groups=rows // 2,
        unlabelled=torch.from_numpy(inputs[UNLABELLED]),
    )


def make_words() -> Problem:
    """Returns a problem with integers as inputs, and a module instead of a function that creates one."""
    torch.manual_seed(5)
    encoder = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(18, 8), nn.Tanh()).double()
    problem = make_problem(TABLE)
    splits = {name: replace(split, inputs=to_words(split.inputs)) for name, split in problem.splits.items()}
    return replace(problem, encoder=encoder, unlabelled=None, **splits)


def to_words(inputs: Tensor) -> Tensor:
    return inputs.round().clamp(-2, 2).long() + 2


def make_places() -> Problem:
    """Returns a problem in which a task has two labels per row, and a head with dropout."""
    problem = make_problem(TABLE, tasks=TASKS[:2])
    splits = {
        name: replace(split, targets={"place": add_label(split.targets["size"], split), "ill": split.targets["ill"]})
        for name, split in problem.splits.items()
    }
    place = Task("place", "regression", outputs=2, head=make_place_head)
    return replace(problem, tasks=(place, TASKS[1]), scales={}, **splits)


def add_label(sizes: Tensor, split: Split) -> Tensor:
    return torch.stack([sizes, split.inputs[:, 0] - split.inputs[:, 3]], 1)


def make_place_head(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))


def make_default_table() -> Problem:
    """Returns a problem with the default network of tables, to which TabM is the alternative."""
    problem = make_problem(None, tasks=TASKS[:3], recipe=None)
    return replace(problem, recipe=replace(problem.recipe, epochs=3))


def make_mapped_images(folder: Path) -> Problem:
    """Returns images of 8-bit integers that are mapped from one file, like CelebA's."""
    random = np.random.default_rng(3)
    labels = {name: random.random(TEST.stop) < 0.5 for name in ("hat", "beard")}
    images = random.integers(0, 100, (TEST.stop, 3, 8, 8), dtype=np.uint8)
    images[labels["hat"], 0, :3] += 60
    images[labels["beard"], 1, 5:] += 60
    np.save(folder / "images.npy", images)
    splits = [
        Split(
            MappedTensor.open(folder / "images.npy", "drawn images", rows.start, rows.stop - rows.start),
            {name: torch.from_numpy(flags[rows].astype(float)) for name, flags in labels.items()},
        )
        for rows in (TRAIN, VAL, TEST)
    ]
    tasks = [Task(name, "multiclass", classes=2) for name in labels]
    recipe = Recipe("sgd", lr=0.02, batch_size=23, epochs=6, schedule="step", period=2)
    return Problem("drawn images", tuple(tasks), *splits, encoder=make_image_encoder, recipe=recipe)


def make_image_encoder() -> nn.Module:
    return nn.Sequential(
        Centred(), nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    ).double()


class Centred(nn.Module):
    """Maps integers from 0 to 255 to numbers from -1 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.double() / 127.5 - 1


class ViewReader:
    """Reads views of rooms from a file each, like Taskonomy's, and mirrors some of them for training."""

    tasks = ("depth", "edges", "indoor")

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> tuple[Tensor, dict[str, Tensor]]:
        view = torch.from_numpy(np.fromfile(self.files[row])).view(5, 6, 6)
        if draw is not None and draw % 2:
            view = view.flip(-1)
        image, targets = view[:3], {"depth": view[3:4], "edges": view[4:], "indoor": (view[:3].mean() > 0).double()}
        return image, {task: targets[task] for task in tasks}

    def contents(self) -> Iterator[bytes]:
        yield repr([path.name for path in self.files]).encode()


def make_views(folder: Path) -> Problem:
    """Returns rows that are streamed from files, with dense targets, heads of their own, and lowered learning rates."""
    random = np.random.default_rng(4)
    files = [folder / f"{row}.bin" for row in range(64)]
    for path in files:
        image = random.normal(size=(3, 6, 6))
        depth = np.where(random.random((1, 6, 6)) < 0.2, np.nan, image[:1] + image[1:2])
        edges = image[2:] - np.roll(image[2:], 1, -1)
        np.concatenate([image, depth, edges]).tofile(path)
    rows = [
        StreamedRows(ViewReader(part), ViewReader.tasks, at_once=5, threads=3)
        for part in (files[:40], files[40:52], files[52:])
    ]
    tasks = (
        Task("depth", "custom", outputs=1, loss=lambda outputs, targets: (outputs - targets).abs()),
        Task("edges", "regression"),
        Task("indoor", "binary"),
    )
    encoder = Layers(lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False), lambda: nn.BatchNorm2d(4), nn.ReLU)
    recipe = Recipe("sgd", lr=0.2, batch_size=8, epochs=6, patience=None, schedule="windows", window=40)
    return Problem("drawn views", tasks, *rows, encoder=encoder, head=make_view_head, recipe=recipe)


def make_view_head(task: Task, features: int) -> nn.Module:
    if task.kind == "binary":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1))
    return nn.Conv2d(features, 1, 1)


# Larger problems in float32, for whole trainings


def make_survey(encoder: Any, recipe: Recipe) -> Problem:
    """Returns a table like a health survey's: noisy measurements of few causes, some of which were not taken."""
    random = np.random.default_rng(11)
    causes = random.normal(size=(600, 4))
    inputs = causes @ random.normal(size=(4, 12)) + random.normal(size=(600, 12))
    results = np.tanh(causes @ random.normal(size=(4, 5))) + 0.3 * random.normal(size=(600, 5))
    results[:, 4] = results[:, 4] > 0.5
    results[random.random(results.shape) < 0.08] = np.nan
    tasks = [Task(name, "regression") for name in ("pressure", "sugar", "fat", "lead")] + [Task("smokes")]
    rows = np.split(np.arange(600), (400, 480))
    return Problem.from_arrays(inputs, results, tasks, encoder=encoder, recipe=recipe, split=rows)


def make_faces() -> Problem:
    """Returns images with marks in four places, for four attributes that depend on each other."""
    random = np.random.default_rng(12)
    is_man = random.random(600) < 0.5
    attributes = {name: random.random(600) < np.where(is_man, share, 0.3) for name, share in FACE_SHARES.items()}
    images = random.normal(size=(600, 3, 12, 12)).astype(np.float32)
    for number, (name, has_attribute) in enumerate(attributes.items()):
        row, column = divmod(number, 2)
        images[has_attribute, number % 3, 6 * row : 6 * row + 4, 6 * column : 6 * column + 4] += 0.8
        attributes[name] = has_attribute ^ (random.random(600) < 0.03)
    recipe = Recipe(lr=5e-3, batch_size=64, epochs=30, patience=5)
    rows = np.split(np.arange(600), (400, 480))
    return Problem.from_arrays(
        images, attributes, list(attributes), encoder=make_face_encoder, recipe=recipe, split=rows
    )


FACE_SHARES = {"hat": 0.5, "beard": 0.8, "rosy": 0.1, "hair": 0.4}


def make_face_encoder() -> nn.Module:
    convolution = [nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolution, nn.Flatten())
