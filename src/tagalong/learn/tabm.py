"""TabM: an encoder for tables whose members share most weights, and heads that average the members' answers.

Gorishniy, Kotelnikov and Babenko, "TabM: Advancing tabular deep learning with parameter-efficient ensembling", ICLR
2025, https://arxiv.org/abs/2410.24210.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import InvalidInput

from .averaging import AVERAGES_BY_KIND, average_outputs
from .network import ModuleFactory
from .piecewise_linear import Edges, PiecewiseLinear, checked_edges, count_bins, describe_edges
from .task import Kind, Task

MEMBERS = 16  # with 32 as in the paper, training takes twice as long for 0.4 points of skill (benchmarks/README.md)
AVERAGED_KINDS = ("binary", "multiclass", "regression")  # a custom task does not say what its outputs mean


class TabM(ModuleFactory):
    """Creates encoders that contain several members: networks that share all weights except for rank-1 adapters.

    The features have the shape [rows, features, members], so the encoder needs the heads of `TabMHeads`.

    Args:
        features: the number of input features.
        hidden: the size of each hidden layer, before multiplying by `width`.
        dropout: the dropout probability after each layer.
        members: the number of members.
        edges: the edges of the bins of each input feature; see `MLP`.
    """

    def __init__(
        self,
        features: int,
        hidden: Sequence[int] = (64, 64),
        dropout: float = 0.1,
        members: int = MEMBERS,
        edges: Edges = (),
    ) -> None:
        self.features, self.hidden, self.dropout, self.members = features, tuple(hidden), dropout, members
        self.edges = checked_edges(edges, features)

    def __call__(self, width: float = 1.0) -> nn.Module:
        bins = count_bins(self.edges)
        sizes = [self.features + bins, *(max(1, round(wanted * width)) for wanted in self.hidden)]
        layers: list[nn.Module] = [PiecewiseLinear(self.edges)] if bins else []
        for number, (size, wide) in enumerate(pairwise(sizes)):
            layers += [AdaptedLinear(size, wide, self.members, random_signs=number == 0), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, MembersLast())

    def __repr__(self) -> str:
        settings = f"hidden={self.hidden}, dropout={self.dropout}, members={self.members}"
        return f"TabM({self.features}, {settings}{describe_edges(self.edges)})"


class TabMHeads(ModuleFactory):
    """Creates the heads of networks with a `TabM` encoder, for use as `Problem.head`.

    Args:
        members: the number of members of the encoder.
    """

    def __init__(self, members: int = MEMBERS) -> None:
        self.members = members

    def __call__(self, task: Task, features: int) -> nn.Module:
        return MemberHead(features, task.head_size, self.members, task.kind)

    def __repr__(self) -> str:
        return f"TabMHeads({self.members})"


class AdaptedLinear(nn.Module):
    """A linear layer with shared weights W, which computes s ∘ W(r ∘ x) + b with r, s and b of each member.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs.
        members: the number of members.
        random_signs: whether r consists of random signs, as in the first layer, where they tell the members apart.
            Otherwise, all members start equal.
    """

    def __init__(self, inputs: int, outputs: int, members: int, random_signs: bool) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        scales = torch.randint(0, 2, (members, 1, inputs)) * 2.0 - 1 if random_signs else torch.ones(members, 1, inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.input_scales = nn.Parameter(scales)
        self.output_scales = nn.Parameter(torch.ones(members, 1, outputs))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound).repeat(members, 1, 1))
        self.multiplications = members * (inputs * outputs + inputs + outputs)  # of a row

    def forward(self, values: Tensor) -> Tensor:
        """Returns the outputs [members, rows, outputs], given inputs [rows, inputs] or [members, rows, inputs]."""
        return functional.linear(values * self.input_scales, self.weight) * self.output_scales + self.bias


class MembersLast(nn.Module):
    """Turns [members, rows, features] into [rows, features, members], as rows and features come first outside."""

    def forward(self, values: Tensor) -> Tensor:
        return values.permute(1, 2, 0)


class MemberHead(nn.Module):
    """A linear head for each member.

    In training mode, returns the outputs [rows · members, outputs] of all members, so that `Task.row_losses` averages
    their losses. In evaluation mode, returns one output [rows, outputs] like any other head, the average of the
    members: of their outputs for a regression task, and of their probabilities, as logits, for a classification task.

    Args:
        features: the number of features of each member.
        outputs: the number of outputs.
        members: the number of members.
        kind: the kind of the task.
    """

    def __init__(self, features: int, outputs: int, members: int, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        bound = 1 / math.sqrt(features)
        self.weight = nn.Parameter(torch.empty(members, features, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))
        self.multiplications = members * features * outputs  # of a row

    def forward(self, features: Tensor) -> Tensor:
        outputs = torch.baddbmm(self.bias, features.permute(2, 0, 1), self.weight)  # [members, rows, outputs]
        if self.training:
            return outputs.transpose(0, 1).flatten(0, 1)
        return average_outputs(outputs.unbind(), AVERAGES_BY_KIND[self.kind])


def task_problems(tasks: Iterable[Task]) -> list[InvalidInput]:
    """Lists the tasks that a TabM network cannot learn."""
    return [
        InvalidInput(f"task {task.name!r}", f"must {expected} to use the encoder 'tabm'", found)
        for task in tasks
        for expected, found, wrong in (
            (
                f"be {', '.join(AVERAGED_KINDS[:-1])} or {AVERAGED_KINDS[-1]}",
                task.kind,
                task.kind not in AVERAGED_KINDS,
            ),
            ("have no head of its own", repr(task.head), task.head is not None),
        )
        if wrong
    ]
