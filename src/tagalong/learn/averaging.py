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
    outputs: Sequence[Mapping[str, Tensor]], averages: Mapping[str, Average | None]
) -> dict[str, Tensor]:
    """Returns the outputs for each task, averaged over the networks that serve it.

    Args:
        outputs: the outputs of each network for the tasks that it serves.
        averages: how to average the outputs for each task; not needed for tasks that one network serves.
    """
    found: dict[str, list[Tensor]] = {}
    for network in outputs:
        for task, values in network.items():
            found.setdefault(task, []).append(values)
    return {task: _average_or_single(members, averages.get(task), task) for task, members in found.items()}


def _average_or_single(members: Sequence[Tensor], average: Average | None, task: str) -> Tensor:
    if len(members) == 1:
        return members[0]
    if average is None:
        raise ValueError(f"it is not known how to average the outputs for the task {task!r}")
    return average_outputs(members, average)


def average_outputs(members: Sequence[Tensor], average: Average) -> Tensor:
    """Returns outputs that stand for the average answer of several networks.

    Args:
        members: the outputs [rows, …] of each network.
        average: "outputs" for the mean of the outputs, "sigmoid" for the logits of the mean probability of label 1,
            or "softmax" for the logarithms of the mean probabilities of the classes, which are in the second dimension.

    Example:
        >>> sure, unsure = torch.tensor([[4.0]]), torch.tensor([[0.0]])
        >>> mean = average_outputs([sure, unsure], "sigmoid")
        >>> bool(torch.isclose(torch.sigmoid(mean), (torch.sigmoid(sure) + 0.5) / 2))
        True
    """
    stacked = torch.stack(list(members))
    exact = stacked.double()
    if average == "outputs":
        found = exact.mean(0)
    elif average == "sigmoid":  # the logarithms of both probabilities, which avoids 1 - p
        found = functional.logsigmoid(exact).logsumexp(0) - functional.logsigmoid(-exact).logsumexp(0)
    else:
        found = torch.log_softmax(exact, 2).logsumexp(0) - math.log(len(members))
    return found.to(stacked.dtype)
