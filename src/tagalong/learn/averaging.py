"""Averages the answers of several networks for the same task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Average = Literal["outputs", "sigmoid", "softmax"]
AVERAGES: tuple[Average, ...] = ("outputs", "sigmoid", "softmax")
# The average of tasks without a loss of their own.
AVERAGES_BY_KIND: Mapping[str, Average] = {"regression": "outputs", "binary": "sigmoid", "multiclass": "softmax"}


def average_answers(
    outputs: Sequence[Mapping[str, Tensor]],
    averages: Mapping[str, Average | None],
    weights: Sequence[float] = (),
) -> dict[str, Tensor]:
    """Returns the outputs for each task, averaged over the networks that serve it.

    Args:
        outputs: the outputs of each network for the tasks that it serves.
        averages: how to average the outputs for each task; not needed for tasks that one network serves.
        weights: the weight of each network in the averages. If empty, all networks count the same.
    """
    found: dict[str, list[int]] = {}
    for index, network in enumerate(outputs):
        for task in network:
            found.setdefault(task, []).append(index)
    return {
        task: _average_or_single(
            [outputs[index][task] for index in indices],
            averages.get(task),
            [weights[index] for index in indices] if weights else [],
            task,
        )
        for task, indices in found.items()
    }


def _average_or_single(
    members: Sequence[Tensor], average: Average | None, weights: Sequence[float], task: str
) -> Tensor:
    if len(members) == 1:
        return members[0]
    if average is None:
        raise ValueError(f"it is not known how to average the outputs for the task {task!r}")
    return average_outputs(members, average, weights)


def average_outputs(members: Sequence[Tensor], average: Average, weights: Sequence[float] = ()) -> Tensor:
    """Returns outputs that stand for the average answer of several networks.

    Args:
        members: the outputs [rows, …] of each network.
        average: "outputs" for the mean of the outputs, "sigmoid" for the logits of the mean probability of label 1,
            or "softmax" for the logarithms of the mean probabilities of the classes, which are in the second dimension.
        weights: the positive weight of each network. If empty, all networks count the same.

    Example:
        >>> sure, unsure = torch.tensor([[4.0]]), torch.tensor([[0.0]])
        >>> mean = average_outputs([sure, unsure], "sigmoid")
        >>> bool(torch.isclose(torch.sigmoid(mean), (torch.sigmoid(sure) + 0.5) / 2))
        True
    """
    stacked = torch.stack(list(members))
    exact = stacked.double()
    if len(weights):
        return _weighted_average(exact, average, weights).to(stacked.dtype)
    if average == "outputs":
        found = exact.mean(0)
    elif average == "sigmoid":  # the logarithms of both probabilities, which avoids 1 - p
        found = functional.logsigmoid(exact).logsumexp(0) - functional.logsigmoid(-exact).logsumexp(0)
    else:
        found = torch.log_softmax(exact, 2).logsumexp(0) - math.log(len(members))
    return found.to(stacked.dtype)


def _weighted_average(outputs: Tensor, average: Average, weights: Sequence[float]) -> Tensor:
    shares = torch.tensor(weights, dtype=outputs.dtype, device=outputs.device).view(-1, *[1] * (outputs.dim() - 1))
    shares = shares / shares.sum()
    if average == "outputs":
        return (shares * outputs).sum(0)
    logs = shares.log()
    if average == "sigmoid":
        positive, negative = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
        return (positive + logs).logsumexp(0) - (negative + logs).logsumexp(0)
    return (torch.log_softmax(outputs, 2) + logs).logsumexp(0)
