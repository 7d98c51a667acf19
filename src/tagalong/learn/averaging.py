"""Averages the answers of several networks for the same task."""

from __future__ import annotations

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
    answers = {}
    for task in dict.fromkeys(task for network in outputs for task in network):
        members = [index for index, network in enumerate(outputs) if task in network]
        own, average = [outputs[index][task] for index in members], averages.get(task)
        if len(own) == 1:
            answers[task] = own[0]
        elif average is None:
            raise ValueError(f"it is not known how to average the outputs for the task {task!r}")
        else:
            answers[task] = average_outputs(own, average, [weights[index] for index in members] if weights else ())
    return answers


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
    shares = torch.tensor(weights if len(weights) else [1.0] * len(stacked), dtype=exact.dtype, device=exact.device)
    shares = (shares / shares.sum()).view(-1, *[1] * (exact.dim() - 1))
    if average == "outputs":
        return (shares * exact).sum(0).to(stacked.dtype)
    logs = shares.log()
    if average == "sigmoid":  # the logarithms of both probabilities, which avoids 1 - p
        positive, negative = functional.logsigmoid(exact), functional.logsigmoid(-exact)
        answer = (positive + logs).logsumexp(0) - (negative + logs).logsumexp(0)
    else:
        answer = (torch.log_softmax(exact, 2) + logs).logsumexp(0)
    return answer.to(stacked.dtype)
