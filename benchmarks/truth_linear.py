"""Estimates the effect of short fine-tuning on every subset of tasks, from one training of all tasks together.

Outputs are linearized around the trained weights, f(x) + J(x) Δ, for changes Δ along a few hundred random directions,
on a few hundred rows. Fine-tuning on some tasks is then a convex problem in a few hundred variables: one damped
Gauss–Newton step on the sum of their training losses, where stronger damping means shorter fine-tuning. Predicting the
validation losses of every subset then costs next to nothing.
"""

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap

from tagalong.learn import Job, Network, Problem, Task, build_network, train
from tagalong_paper.truth import subset_members

DIRECTIONS = 256
ROWS = 512  # of the training data, and as many of the validation data
DAMPING = 0.1  # in units of the mean curvature
NAME = "linearised fine-tuning"


def measure_linear(problem: Problem, seed: int) -> tuple[np.ndarray, float]:
    """Trains all tasks together, and predicts the losses of every subset.

    Returns:
        Logarithms of validation losses, [subsets, tasks], and the cost beyond that of the training.
    """
    trained = train(problem, Job(problem.names, seed))
    with torch.random.fork_rng(devices=[]):
        network = build_network(problem, problem.names, seed)
        network.load_state_dict(trained.state)
        rows = min(ROWS, len(problem.train)) + min(ROWS, len(problem.val))
        # a direction costs two forward passes, a training step three
        cost = 2 * DIRECTIONS * rows / (3 * trained.steps * problem.recipe.batch_size)
        return predict_losses(problem, network.eval(), seed), cost


def predict_losses(problem: Problem, network: Network, seed: int, damping: float = DAMPING) -> np.ndarray:
    """Returns log validation losses after short fine-tuning of this network on every subset, [subsets, tasks]."""
    rng = torch.Generator().manual_seed(seed)
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    signs = {
        name: (torch.randint(0, 2, (DIRECTIONS, *weight.shape), generator=rng) * 2 - 1).to(weight.dtype)
        for name, weight in weights.items()
    }
    parts = []
    for split in (problem.train, problem.val):
        rows = torch.randperm(len(split), generator=rng)[:ROWS]
        outputs, slopes = _linearize(network, weights, signs, split.inputs[rows])
        parts.append({name: (outputs[name], slopes[name], split.targets[name][rows]) for name in problem.names})
    curvatures, gradients = zip(
        *(_expand_loss(problem.task(name), *parts[0][name]) for name in problem.names), strict=True
    )
    moves = _damped_steps(torch.stack(curvatures), torch.stack(gradients), damping)
    inside = subset_members(len(problem.names))
    logs = np.full(inside.shape, np.nan)
    for column, task in enumerate(problem.tasks):
        logs[inside[:, column], column] = _log_losses(task, *parts[1][task.name], moves[inside[:, column]])
    return logs


def _linearize(
    network: Network, weights: dict[str, Tensor], signs: dict[str, Tensor], inputs: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns outputs [rows, outputs] by task, and their derivatives by direction [rows, outputs, directions]."""
    buffers = dict(network.named_buffers())

    def outputs(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        return functional_call(network, (parameters, buffers), (inputs,))

    def derivative(direction: dict[str, Tensor]) -> dict[str, Tensor]:
        return jvp(outputs, (weights,), (direction,))[1]

    with torch.no_grad():
        changes = vmap(derivative, chunk_size=16)(signs)
        return outputs(weights), {task: found.movedim(0, -1) / DIRECTIONS**0.5 for task, found in changes.items()}


def _expand_loss(task: Task, outputs: Tensor, slopes: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the Gauss–Newton matrix and the gradient of the training loss along the directions."""
    outputs = outputs.detach().requires_grad_()
    (first,) = torch.autograd.grad(_mean_loss(task, outputs, targets), outputs, create_graph=True)
    second = torch.autograd.grad(first.sum(), outputs)[0] if first.requires_grad else torch.zeros_like(first)
    flat = slopes.flatten(0, 1)
    return flat.T @ (second.reshape(-1, 1).clamp(min=0) * flat), flat.T @ first.detach().flatten()


def _damped_steps(curvatures: Tensor, gradients: Tensor, damping: float) -> Tensor:
    """Returns the damped step on the sum of each subset's losses, [subsets, directions]."""
    inside = torch.from_numpy(subset_members(len(gradients))).to(gradients.dtype)
    mean_curvature = torch.diagonal(curvatures.sum(0)).mean()
    ridge = damping * mean_curvature * torch.eye(gradients.shape[1], dtype=gradients.dtype)
    found = []
    for members in inside.split(64):
        matrices = torch.einsum("sn,nde->sde", members, curvatures) + ridge
        found.append(-torch.linalg.solve(matrices, (members @ gradients)[..., None])[..., 0])
    return torch.cat(found)


def _log_losses(task: Task, outputs: Tensor, slopes: Tensor, targets: Tensor, moves: Tensor) -> np.ndarray:
    changed = outputs + torch.einsum("rod,sd->sro", slopes, moves).reshape(len(moves), *outputs.shape)
    return np.log([max(float(_mean_loss(task, one, targets)), 1e-12) for one in changed])


def _mean_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean loss over the rows that have a label."""
    losses, present = task.row_losses(outputs, targets)
    return losses.sum() / present.sum().clamp(min=1)
