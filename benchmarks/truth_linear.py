"""A linearised estimate of short fine-tuning on a subset of tasks, from one training of all tasks together.

Outputs are taken to first order in the weights around those of the trained network, f(x) + J(x) Δ, for changes Δ
along a few hundred random directions, and a few hundred rows. Fine-tuning on some tasks is then a convex problem in a
few hundred numbers: one damped Gauss–Newton step on the sum of their training losses, where the damping stands for how
short it is. What that does to losses on validation rows costs next to nothing for every subset of the tasks.
"""

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap

from tagalong.learn import Job, Network, Problem, Task, build_network, train
from tagalong_paper.truth import subset_members

DIRECTIONS = 256
ROWS = 512  # of either part
DAMPING = 0.1  # in units of the mean curvature
NAME = "linearised fine-tuning"


def measure_linear(problem: Problem, seed: int) -> tuple[np.ndarray, float]:
    """Trains all tasks together, and predicts every subset from there.

    Returns:
        Logarithms of validation losses, [subsets, tasks], and what they took beside the training.
    """
    trained = train(problem, Job(problem.names, seed))
    with torch.random.fork_rng(devices=[]):
        network = build_network(problem, problem.names, seed)
        network.load_state_dict(trained.state)
        rows = min(ROWS, len(problem.train)) + min(ROWS, len(problem.val))
        # every direction is two forward passes, a step of training three
        cost = 2 * DIRECTIONS * rows / (3 * trained.steps * problem.recipe.batch_size)
        return predicted(problem, network.eval(), seed), cost


def predicted(problem: Problem, network: Network, seed: int, damping: float = DAMPING) -> np.ndarray:
    """Logarithms of validation losses after a short fine-tuning of this network on every subset, [subsets, tasks]."""
    draw = torch.Generator().manual_seed(seed)
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    signs = {
        name: (torch.randint(0, 2, (DIRECTIONS, *weight.shape), generator=draw) * 2 - 1).to(weight.dtype)
        for name, weight in weights.items()
    }
    parts = []
    for split in (problem.train, problem.val):
        some = torch.randperm(len(split), generator=draw)[:ROWS]
        outputs, slopes = _slopes(network, weights, signs, split.inputs[some])
        parts.append({name: (outputs[name], slopes[name], split.targets[name][some]) for name in problem.names})
    curvatures, pulls = zip(*(_curvature(problem.task(name), *parts[0][name]) for name in problem.names), strict=True)
    moves = _moves(torch.stack(curvatures), torch.stack(pulls), damping)
    inside = subset_members(len(problem.names))
    logs = np.full(inside.shape, np.nan)
    for column, task in enumerate(problem.tasks):
        logs[inside[:, column], column] = _losses(task, *parts[1][task.name], moves[inside[:, column]])
    return logs


def _slopes(
    network: Network, weights: dict[str, Tensor], signs: dict[str, Tensor], inputs: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By task the outputs [rows, outputs], and how they change along each direction [rows, outputs, directions]."""
    buffers = dict(network.named_buffers())

    def outputs(some: dict[str, Tensor]) -> dict[str, Tensor]:
        return functional_call(network, (some, buffers), (inputs,))

    def along(direction: dict[str, Tensor]) -> dict[str, Tensor]:
        return jvp(outputs, (weights,), (direction,))[1]

    with torch.no_grad():
        changes = vmap(along, chunk_size=16)(signs)
        return outputs(weights), {task: found.movedim(0, -1) / DIRECTIONS**0.5 for task, found in changes.items()}


def _curvature(task: Task, outputs: Tensor, slopes: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The Gauss–Newton matrix of the training loss along the directions, and its gradient."""
    outputs = outputs.detach().requires_grad_()
    (first,) = torch.autograd.grad(_mean_loss(task, outputs, targets), outputs, create_graph=True)
    second = torch.autograd.grad(first.sum(), outputs)[0] if first.requires_grad else torch.zeros_like(first)
    flat = slopes.flatten(0, 1)
    return flat.T @ (second.reshape(-1, 1).clamp(min=0) * flat), flat.T @ first.detach().flatten()


def _moves(curvatures: Tensor, pulls: Tensor, damping: float) -> Tensor:
    """[subsets, directions]: where a damped step on the sum of a subset's losses goes."""
    inside = torch.from_numpy(subset_members(len(pulls))).to(pulls.dtype)
    usual = torch.diagonal(curvatures.sum(0)).mean()
    ridge = damping * usual * torch.eye(pulls.shape[1], dtype=pulls.dtype)
    found = []
    for some in inside.split(64):
        matrices = torch.einsum("sn,nde->sde", some, curvatures) + ridge
        found.append(-torch.linalg.solve(matrices, (some @ pulls)[..., None])[..., 0])
    return torch.cat(found)


def _losses(task: Task, outputs: Tensor, slopes: Tensor, targets: Tensor, moves: Tensor) -> np.ndarray:
    changed = outputs + torch.einsum("rod,sd->sro", slopes, moves).reshape(len(moves), *outputs.shape)
    return np.log([max(float(_mean_loss(task, one, targets)), 1e-12) for one in changed])


def _mean_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Over the rows that have a label."""
    losses, present = task.row_losses(outputs, targets)
    return losses.sum() / present.sum().clamp(min=1)
