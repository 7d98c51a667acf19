"""The answers of trained networks on validation rows, and the losses of their averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.learn import Task

Array = NDArray[np.float64]
Members = tuple[int, ...]  # the networks of an average; a network that occurs twice counts twice
MAX_ELEMENTS = 2**24  # outputs that are averaged at once
TINY = 1e-300  # the smallest probability
ALL, FIRST, SECOND = range(3)  # parts of the validation rows: all of them, and two halves


@dataclass
class Answers:
    """The answers of trained networks on the validation rows.

    The rows are split into two halves, so that networks can be chosen on one half and judged on the other.

    Args:
        tasks: the tasks, whose answers can all be averaged.
        targets: the targets [rows, …] of each task, with NaN for missing labels.
        clusters: one cluster label per row, or None. Rows in the same cluster are in the same half.

    Example:
        >>> tasks = [Task("age", kind="regression")]
        >>> answers = Answers(tasks, {"age": torch.tensor([1.0, 1.0])})
        >>> for guess in (0.0, 2.0, 3.0):
        ...     answers.add({"age": torch.tensor([guess, guess])})
        >>> answers.losses([(0,), (0, 1), (1, 2)])[:, 0, ALL].tolist()
        [1.0, 0.0, 2.25]
    """

    tasks: Sequence[Task]
    targets: Mapping[str, Tensor]
    clusters: Tensor | None = None
    _values: dict[str, list[Tensor | None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._values = {task.name: [] for task in self.tasks}
        rows = len(next(iter(self.targets.values())))
        labels = torch.arange(rows) if self.clusters is None else torch.unique(self.clusters, return_inverse=True)[1]
        half = (labels % 2).cpu()
        self._parts = torch.stack([torch.ones(rows), half == 0, half == 1], 1).double()

    def add(self, outputs: Mapping[str, Tensor]) -> None:
        """Adds a network, given its outputs for the tasks that it was trained on."""
        for task in self.tasks:
            own = outputs.get(task.name)
            self._values[task.name].append(None if own is None else _to_answers(own.double().cpu(), task))

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Whether each network was trained on each task, [networks, tasks]."""
        found = [[value is not None for value in values] for values in self._values.values()]
        return np.array(found, dtype=bool).reshape(len(self.tasks), len(self)).T

    def losses(self, averages: Sequence[Members]) -> Array:
        """Returns the losses of averages, [averages, tasks, parts], which are infinite if no member has a task."""
        found = [[self._member_losses(task, [members])[0] for task in self.tasks] for members in averages]
        return np.array(found).reshape(len(averages), len(self.tasks), 3)

    def losses_with(self, members: Members, candidates: Sequence[int]) -> Array:
        """Returns the losses of `members` together with each of the candidates, [candidates, tasks, parts]."""
        found = np.empty((len(candidates), len(self.tasks), 3))
        for place, task in enumerate(self.tasks):
            values = self._values[task.name]
            joining = [at for at, candidate in enumerate(candidates) if values[candidate] is not None]
            found[:, place] = self._member_losses(task, [members])[0]
            if joining:
                sets = [(*members, candidates[at]) for at in joining]
                found[joining, place] = self._member_losses(task, sets, shared=members)
        return found

    def row_losses(self, task: Task, members: Members) -> Array:
        """Returns the loss of each row, with NaN for missing labels."""
        values = [value for member in members if (value := self._values[task.name][member]) is not None]
        targets = self.targets[task.name].cpu()
        losses, present = task.row_losses(_to_outputs(torch.stack(values).mean(0), task), _float(targets, task))
        return np.asarray(torch.where(present > 0, losses, torch.nan).double())

    def _member_losses(self, task: Task, averages: Sequence[Members], shared: Members = ()) -> Array:
        """Returns the losses [averages, parts] of averages that begin with the same members."""
        values, own = self._values[task.name], [members[len(shared) :] for members in averages]
        common = [value for member in shared if (value := values[member]) is not None]
        start = torch.stack(common).sum(0) if common else torch.tensor(0.0).double()
        found = np.full((len(averages), 3), np.inf)
        rest = [[value for member in members if (value := values[member]) is not None] for members in own]
        known = [at for at, some in enumerate(rest) if common or some]
        if not known:
            return found
        size = (common or rest[known[0]])[0].numel()
        step = max(1, MAX_ELEMENTS // size)
        for at in range(0, len(known), step):
            chunk = known[at : at + step]
            means = [
                (start + (torch.stack(rest[one]).sum(0) if rest[one] else 0)) / (len(common) + len(rest[one]))
                for one in chunk
            ]
            found[chunk] = self._part_losses(task, torch.stack(means))
        return found

    def _part_losses(self, task: Task, answers: Tensor) -> Array:
        """Returns the mean losses [averages, parts] of answers [averages, rows, …] on each part of the rows."""
        targets = _float(self.targets[task.name].cpu(), task)
        repeated = targets.repeat(len(answers), *[1] * (targets.dim() - 1))
        losses, present = task.row_losses(_to_outputs(answers.flatten(0, 1), task), repeated)
        losses, present = (one.double().unflatten(0, (len(answers), -1)) for one in (losses, present))
        return np.asarray(losses @ self._parts / (present @ self._parts))


def _float(targets: Tensor, task: Task) -> Tensor:
    return targets.double() if task.loss is None else targets


def _to_answers(outputs: Tensor, task: Task) -> Tensor:
    """Converts outputs to answers whose mean is the average answer: outputs, or the probability of every class."""
    if task.averaging == "sigmoid":  # both probabilities, since 1 - p would lose digits
        return torch.stack([torch.sigmoid(-outputs), torch.sigmoid(outputs)], -1)
    return torch.softmax(outputs, 1) if task.averaging == "softmax" else outputs


def _to_outputs(answers: Tensor, task: Task) -> Tensor:
    """Converts answers back to outputs."""
    if task.averaging == "sigmoid":
        no, yes = answers.clamp(min=TINY).log().unbind(-1)
        return yes - no
    return answers.clamp(min=TINY).log() if task.averaging == "softmax" else answers
