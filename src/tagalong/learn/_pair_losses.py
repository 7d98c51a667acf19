"""The losses of many networks: one number per pair of a network and a task that it trains.

Pairs that are not trained never enter the computation, so that nothing they would give (0 · NaN is NaN) can leak into
the others. Tasks with one and the same loss are computed in one go.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._problem import Problem
from ._rows import held
from ._scoring import mean_loss
from ._task import Task

TOGETHER = "training many networks together"


@dataclass(frozen=True)
class _Family:
    """Tasks with one loss, and which pairs of network and member there are.

    Attributes:
        tasks: the members.
        pairs: places in the flattened [networks, members]; None if every pair is there.
        members: the member of each pair, to find its targets; None where there is only one.
    """

    tasks: tuple[Task, ...]
    pairs: Tensor | None
    members: Tensor | None

    def losses(self, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """The mean loss of each pair, from outputs [networks, rows, …] and targets [members, rows, …]."""
        of_members = [outputs[task.name] for task in self.tasks]
        chosen = of_members[0] if self.members is None else torch.stack(of_members, 1).flatten(0, 1)
        if self.pairs is not None:
            chosen = chosen.index_select(0, self.pairs)
        task = self.tasks[0]
        if self.members is None:
            return torch.vmap(lambda out: mean_loss(task, out, targets[0]))(chosen)
        each = torch.vmap(lambda out, target: mean_loss(task, out, target))
        return each(chosen, targets.index_select(0, self.members))


class PairLosses:
    """Computes the losses of all pairs.

    Args:
        problem: whose tasks they are.
        tasks: the columns of `trains`.
        trains: [networks, tasks], whether a network trains a task.
        device: where.

    Attributes:
        trains: as given.
        weights: of each pair in its network's sum of losses.
    """

    def __init__(
        self, problem: Problem, tasks: Sequence[Task], trains: NDArray[np.bool_], device: torch.device
    ) -> None:
        self.trains = trains
        columns: dict[Hashable, list[int]] = {}
        for column, task in enumerate(tasks):
            columns.setdefault(_family(problem, task), []).append(column)
        self._families, networks, places, weights = [], [], [], []
        for members in columns.values():
            if not trains[:, members].any():
                continue
            network, member = np.nonzero(trains[:, members])
            pairs = None if trains[:, members].all() else torch.from_numpy(network * len(members) + member).to(device)
            of_pairs = torch.from_numpy(member).to(device) if len(members) > 1 else None
            self._families.append(_Family(tuple(tasks[column] for column in members), pairs, of_pairs))
            networks.append(network)
            places.append(np.array(members)[member])
            weights += [tasks[column].weight for column in places[-1]]
        self._networks, self._columns = np.concatenate(networks), np.concatenate(places)
        dtype = held(problem.train, TOGETHER).targets[tasks[0].name].dtype
        self.weights = torch.tensor(weights, dtype=dtype, device=device)

    def targets(self, targets: Mapping[str, Tensor]) -> list[Tensor]:
        """Targets in the order the losses want them: for each family [members, rows, …]."""
        return [torch.stack([targets[task.name] for task in family.tasks]) for family in self._families]

    def __call__(self, outputs: Mapping[str, Tensor], targets: Sequence[Tensor]) -> Tensor:
        """The mean loss of every pair, from outputs [networks, rows, …] of each task."""
        parts = [family.losses(outputs, target) for family, target in zip(self._families, targets, strict=True)]
        return torch.cat(parts)

    def table(self, losses: Tensor) -> NDArray[np.float64]:
        """Losses of pairs as [networks, tasks] on the host, NaN where a task is not trained."""
        table = np.full(self.trains.shape, np.nan)
        table[self._networks, self._columns] = losses.detach().cpu().double().numpy()
        return table


def _family(problem: Problem, task: Task) -> Hashable:
    """Tasks of one family have the same loss and shapes; those whose head may be of any shape stand alone."""
    target = held(problem.train, TOGETHER).targets[task.name]
    if problem.head is not None or task.head is not None:
        return task.name
    weights = None if task.class_weights is None else tuple(task.class_weights)
    return task.kind, id(task.loss), task.head_size, weights, tuple(target.shape[1:]), target.dtype
