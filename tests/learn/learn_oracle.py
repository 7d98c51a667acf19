"""A plain training loop, row by row, with explicit optimizers: a reference for the trainer in float64."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.learn import Problem, Recipe, Task, derive_seed


def slow_train(problem: Problem, names: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Validation losses after every epoch, the epoch of the best ones, the best weights, and the number of steps."""
    recipe = problem.recipe
    tasks = [task for task in problem.tasks if task.name in names]
    torch.manual_seed(derive_seed(seed, "encoder"))
    encoder = problem.encoder().double()
    features = encoder.eval()(problem.train.inputs[:2]).shape[1]
    encoder.train()
    heads = {}
    for task in tasks:
        torch.manual_seed(derive_seed(seed, "head", task.name))
        heads[task.name] = nn.Linear(features, 1).double()
    parameters = [p for module in (encoder, *heads.values()) for p in module.parameters()]
    memory: list[dict[str, Any]] = [{} for _ in parameters]
    curve, best_epoch, best_loss, best, steps = [], -1, math.inf, None, 0
    for epoch in range(recipe.epochs):
        order = torch.randperm(
            len(problem.train), generator=torch.Generator().manual_seed(derive_seed(seed, "rows", epoch))
        ).tolist()
        batches = [order[start : start + recipe.batch_size] for start in range(0, len(order), recipe.batch_size)]
        if len(batches[-1]) == 1:
            last = batches.pop()
            batches[-1] += last
        for batch in batches:
            torch.manual_seed(derive_seed(seed, "masks", "encoder", steps))
            features = slow_forward(encoder, problem.train.inputs[batch])
            total = torch.zeros((), dtype=torch.float64)
            for task in tasks:
                loss = slow_loss(task, heads[task.name](features), problem.train.targets[task.name][batch])
                total = total + task.weight * loss
            gradients = torch.autograd.grad(total, parameters)
            slow_step(recipe, slow_rate(recipe, epoch), parameters, gradients, memory)
            steps += 1
        encoder.eval()
        with torch.no_grad():
            features = encoder(problem.val.inputs)
            losses = [slow_loss(t, heads[t.name](features), problem.val.targets[t.name]).item() for t in tasks]
        encoder.train()
        curve.append(losses)
        loss = sum(task.weight * value for task, value in zip(tasks, losses, strict=True))
        if recipe.keep == "last" or loss < best_loss:
            best_epoch, best_loss, best = epoch, loss, copy.deepcopy((encoder, heads))
        if recipe.patience is not None and epoch - best_epoch >= recipe.patience:
            break
    return {"curve": curve, "best_epoch": best_epoch, "best": best, "steps": steps}


def slow_forward(encoder: nn.Module, values: Tensor) -> Tensor:
    for layer in encoder:
        if isinstance(layer, nn.Dropout):
            keep = torch.empty(values.shape, dtype=values.dtype).bernoulli_(1 - layer.p)
            values = values * keep / (1 - layer.p)
        else:
            values = layer(values)
    return values


def slow_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the rows that have a label, one row at a time."""
    total, number = outputs.sum() * 0, 0
    for output, target in zip(outputs[:, 0], targets.tolist(), strict=True):
        if math.isnan(target):
            continue
        if task.kind == "regression":
            total = total + (output - target) ** 2
        else:
            weight = (task.class_weights or (1, 1))[int(target)]
            total = total - weight * functional.logsigmoid(output if target else -output)
        number += 1
    return total / max(number, 1)


def slow_rate(recipe: Recipe, epoch: int) -> float:
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    if recipe.schedule == "step":
        return recipe.lr * recipe.factor ** (epoch // recipe.period)
    return recipe.lr


def slow_step(
    recipe: Recipe, lr: float, parameters: list[Tensor], gradients: tuple[Tensor, ...], memory: list[dict[str, Any]]
) -> None:
    for parameter, gradient, kept in zip(parameters, gradients, memory, strict=True):
        value = parameter.detach()
        if recipe.optimizer == "adamw":
            value = value - lr * recipe.weight_decay * value
        else:
            gradient = gradient + recipe.weight_decay * value
        if recipe.optimizer == "sgd":
            kept["pace"] = gradient + (recipe.momentum * kept["pace"] if kept else 0)
            value = value - lr * kept["pace"]
        else:
            kept["count"] = kept.get("count", 0) + 1
            kept["mean"] = 0.9 * kept.get("mean", 0) + 0.1 * gradient
            kept["square"] = 0.999 * kept.get("square", 0) + 0.001 * gradient**2
            mean = kept["mean"] / (1 - 0.9 ** kept["count"])
            square = kept["square"] / (1 - 0.999 ** kept["count"])
            value = value - lr * mean / (square.sqrt() + 1e-8)
        parameter.data = value
