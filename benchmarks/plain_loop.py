"""Training steps without the library: a plain step, and a measured step as it is usually written."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Closure = Callable[[], dict[str, Tensor]]


def plain_step(closure: Closure, optimizer: Optimizer, *, retain_graph: bool = False) -> None:
    """Runs the forward pass, sums the losses, and runs the backward pass and the optimizer step."""
    total = torch.stack(list(closure().values())).sum()
    total.backward(retain_graph=retain_graph)
    optimizer.step()
    optimizer.zero_grad()


def usual_measured_step(closure: Closure, optimizer: Optimizer, shared: Sequence[nn.Parameter], lr: float) -> Tensor:
    """Computes affinities as public implementations do: step in place, evaluate, read the losses, step back."""
    losses = closure()
    before = {task: loss.item() for task, loss in losses.items()}
    affinity = torch.zeros(len(losses), len(losses))
    for row, loss in enumerate(losses.values()):
        gradients = torch.autograd.grad(loss, shared, retain_graph=True)
        for parameter, gradient in zip(shared, gradients, strict=True):
            parameter.data -= lr * gradient
        with torch.no_grad():
            after = closure()
        for column, task in enumerate(losses):
            affinity[row, column] = 1 - after[task].item() / before[task]
        for parameter, gradient in zip(shared, gradients, strict=True):
            parameter.data += lr * gradient
    torch.stack(list(losses.values())).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return affinity
