"""The plain loop: trains one network as a careful engineer would without the library. Its time is the unit of others.

All heads are one linear layer, tasks of one kind share a masked loss over [rows, tasks], and all rows are on the
device. AdamW has torch's defaults, validation after each epoch takes one transfer, and the best weights are kept. Row
order and initial weights are those of `tagalong.learn.train`, so that the results can be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.learn import Job, Problem, Rows, Task, build_network, require_in_memory
from tagalong.learn.randomness import batches

ROWS_AT_ONCE = 4096  # in validation


@dataclass
class PlainResult:
    """A network trained by the plain loop.

    Attributes:
        curve: The validation losses [epochs, tasks].
        best_epoch: The epoch whose weights are kept, counting from 0.
        steps: The number of optimizer steps.
        state: The kept weights.
    """

    curve: np.ndarray
    best_epoch: int
    steps: int
    state: dict[str, Tensor]


def train_plain(problem: Problem, job: Job, *, device: torch.device | str = "cpu") -> PlainResult:
    """Trains one network with early stopping."""
    tasks = sorted((problem.task(name) for name in job.tasks), key=_kind)  # so that tasks of a kind are adjacent
    _check(problem, tasks)
    recipe, network = problem.recipe, _build(problem, job, tasks).to(device)
    rows, val = (LabeledRows(split, tasks, device) for split in (problem.train, problem.val))
    weights = [task.weight for task in tasks]
    task_weights = rows.targets.new_tensor(weights)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    result, best_loss = PlainResult(np.empty((0, len(tasks))), -1, 0, {}), float("inf")
    for epoch in range(recipe.epochs):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(epoch)
        parts = batches(job.seed, epoch, len(rows), recipe.batch_size)
        for chosen in torch.cat(parts).to(device).split([len(part) for part in parts]):
            inputs, targets, present = rows.batch(chosen)
            optimizer.zero_grad()
            losses = masked_sums(network(inputs), targets, present, tasks) / present.sum(0).clamp(min=1)
            (losses @ task_weights).backward()
            optimizer.step()
        val_losses = validate(network, val, tasks)
        result.curve = np.vstack([result.curve, val_losses])
        result.steps += len(parts)
        loss = float(val_losses @ weights)
        if loss < best_loss:
            best_loss, result.best_epoch = loss, epoch
            result.state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        is_out_of_patience = recipe.patience is not None and epoch - result.best_epoch >= recipe.patience
        if is_out_of_patience or recipe.rate(epoch + 1) < recipe.lowest_lr:
            break
    names = [task.name for task in tasks]
    result.curve = result.curve[:, [names.index(name) for name in job.tasks]]
    return result


@torch.no_grad()
def validate(network: nn.Module, val: "LabeledRows", tasks: Sequence[Task]) -> np.ndarray:
    """Returns the mean loss of each task."""
    network.eval()
    parts = zip(*(tensor.split(ROWS_AT_ONCE) for tensor in (val.inputs, val.targets, val.present)), strict=True)
    sums = sum(masked_sums(network(inputs), targets, present, tasks) for inputs, targets, present in parts)
    network.train()
    return (sums / val.labels).cpu().double().numpy()


def masked_sums(outputs: Tensor, targets: Tensor, present: Tensor, tasks: Sequence[Task]) -> Tensor:
    """Returns the sum of each task's losses over the labeled rows."""
    losses, task, output = [], 0, 0
    for (kind, size), members in groupby(tasks, _kind):
        number = len(list(members))
        these = outputs[:, output : output + number * size], targets[:, task : task + number]
        losses.append(_losses(kind, *these))
        task, output = task + number, output + number * size
    return ((losses[0] if len(losses) == 1 else torch.cat(losses, 1)) * present).sum(0)


def _losses(kind: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses [rows, tasks] of tasks of one kind and size."""
    if kind == "regression":
        return functional.mse_loss(outputs, targets, reduction="none")
    if kind == "binary":
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    classes = outputs.reshape(targets.numel(), -1)
    return functional.cross_entropy(classes, targets.reshape(-1).long(), reduction="none").view_as(targets)


class LabeledRows:
    """Inputs, targets [rows, tasks] with 0 for missing labels, and a mask of the labels that are present."""

    def __init__(self, rows: Rows, tasks: Sequence[Task], device: torch.device | str) -> None:
        split = require_in_memory(rows, "the plain loop")
        targets = torch.stack([split.targets[task.name] for task in tasks], 1)
        self.inputs, self.targets = split.inputs.to(device), targets.nan_to_num(0, 0, 0).to(device)
        self.present = targets.isfinite().to(targets.dtype).to(device)
        self.labels = self.present.sum(0).clamp(min=1)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the inputs, targets and mask of these rows."""
        inputs, targets, present = (part.index_select(0, rows) for part in (self.inputs, self.targets, self.present))
        return inputs, targets, present


def _build(problem: Problem, job: Job, tasks: Sequence[Task]) -> nn.Module:
    """Builds the encoder followed by all heads as one linear layer, with the same initial weights as the library."""
    network = build_network(problem, job.tasks, job.seed, job.width)
    heads = dict(zip(network.tasks, network.heads, strict=True))
    first = heads[tasks[0].name]
    head = nn.Linear(first.in_features, sum(task.head_size for task in tasks), dtype=first.weight.dtype)
    with torch.no_grad():
        head.weight.copy_(torch.cat([heads[task.name].weight for task in tasks]))
        head.bias.copy_(torch.cat([heads[task.name].bias for task in tasks]))
    return nn.Sequential(network.encoder, head)


def _kind(task: Task) -> tuple[str, int]:
    return task.kind, task.head_size


def _check(problem: Problem, tasks: Sequence[Task]) -> None:
    recipe = problem.recipe
    own = any(task.loss or task.head or task.class_weights or task.kind == "custom" for task in tasks)
    if own or problem.head is not None:
        raise ValueError("the plain loop has no losses, heads or class weights of a task's own")
    if recipe.optimizer != "adamw" or recipe.amp or recipe.keep != "best" or recipe.schedule == "windows":
        raise ValueError("the plain loop trains with AdamW in full precision, keeps the best weights, has no windows")
