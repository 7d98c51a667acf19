"""The answers of trained networks on validation rows, and the losses of their averages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.learn import Task, first_half, row_losses_of, weighted_losses

Array = NDArray[np.float64]
Scale = tuple[float, ...]
Members = tuple[int, ...]  # the networks of an average; a network that occurs twice counts twice
MAX_ELEMENTS = 2**22  # answers that are averaged at once
TINY = 1e-300  # the smallest probability
MISSING_TASK_FACTOR = 1000.0  # how much worse than any other loss a task without an answer is
ALL, FIRST, SECOND = range(3)  # parts of the validation rows: all of them, and two halves


class Answers:
    """The answers of trained networks on the validation rows.

    The rows are split into two halves, so that networks can be chosen on one half and judged on the other.

    Args:
        tasks: the tasks, whose answers can all be averaged.
        targets: the targets [rows, …] of each task, with NaN for missing labels.
        clusters: one cluster label per row, or None. Rows in the same cluster are in the same half.
        weights: the weight of each row in mean losses, or None if all rows count the same.
        scales: see `Problem.answer_scales`. Averages are clipped as they are when they are scored and served.

    Attributes:
        tasks: the tasks.
        first: whether each row is in the first half.
        worth: what a unit of each task's loss is worth in mean skill [tasks].

    Example:
        >>> tasks = [Task("age", kind="regression")]
        >>> answers = Answers(tasks, {"age": torch.tensor([1.0, 1.0])})
        >>> for guess in (0.0, 2.0, 3.0):
        ...     answers.add({"age": torch.tensor([[guess], [guess]])})
        >>> answers.losses([(0,), (0, 1), (1, 2)])[:, 0, ALL].tolist()
        [1.0, 0.0, 2.25]
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        targets: Mapping[str, Tensor],
        clusters: Tensor | None = None,
        weights: Tensor | None = None,
        scales: Mapping[str, Scale] | None = None,
    ) -> None:
        self.tasks, self.worth = tuple(tasks), np.ones(len(tasks))
        halves = first_half(len(targets[self.tasks[0].name]), clusters)
        self.first = halves.numpy()
        self._weights = None if weights is None else weights.double().cpu()
        parts = torch.stack([torch.ones_like(halves), halves, ~halves], 1).double()
        self._parts = parts if self._weights is None else parts * self._weights[:, None]
        self._answers = [
            _answers_of(task, targets[task.name].cpu(), (scales or {}).get(task.name)) for task in self.tasks
        ]

    def add(self, outputs: Mapping[str, Tensor]) -> None:
        """Adds a network, given its outputs for the tasks that it was trained on."""
        for task, answers in zip(self.tasks, self._answers, strict=True):
            answers.add(outputs.get(task.name))

    def __len__(self) -> int:
        return len(self._answers[0].places)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Whether each network was trained on each task, [networks, tasks]."""
        return np.array([[place is not None for place in answers.places] for answers in self._answers]).T

    def losses(self, averages: Sequence[Members]) -> Array:
        """Returns the losses of averages, [averages, tasks, parts], which are infinite if no member has a task."""
        found = np.empty((len(averages), len(self.tasks), 3))
        alike: dict[Members, list[int]] = {}
        for place, members in enumerate(averages):
            alike.setdefault(members[:-1], []).append(place)
        for members, places in alike.items():
            found[places] = self.losses_with(members, [averages[place][-1] for place in places])
        return found

    def losses_with(self, members: Members, candidates: Sequence[int]) -> Array:
        """Returns the losses of `members` together with each of the candidates, [candidates, tasks, parts]."""
        return np.stack([self.task_losses_with(task, members, candidates) for task in range(len(self.tasks))], axis=1)

    def task_losses_with(self, task: int, members: Members, candidates: Sequence[int]) -> Array:
        """Returns the same for the task with this number, [candidates, parts]."""
        return self._answers[task].losses_with(members, candidates, self._parts)

    def weigh(self, losses: Array) -> Array:
        """Returns the sums [averages] of losses [averages, tasks], weighted by what each task is worth in mean skill.

        Tasks that no network answers (whose losses are infinite) count as much worse than any answer, so that networks
        for them are added first. Tasks without labels (whose losses are NaN if answered) say nothing.
        """
        missing = np.isinf(losses)
        worth = np.where(missing | np.isnan(losses), 0.0, losses) * self.worth
        penalty = MISSING_TASK_FACTOR * (1 + np.abs(worth).max(initial=0.0))
        return np.asarray(worth.sum(-1) + penalty * missing.sum(-1))

    def row_losses(self, task: int, members: Members) -> Array:
        """Returns the loss of each row for the task with this number, with NaN for missing labels."""
        answers = self._answers[task]
        losses = answers.row_losses(torch.stack(answers.of(members)).mean(0, keepdim=True))
        rows = torch.where(answers.present, losses, torch.nan).numpy()
        if self._weights is not None:
            rows = weighted_losses(rows, self._weights.numpy()[None])
        return np.asarray(rows[0])

    def cross_fitted(self, on_first: Members, on_second: Members) -> dict[str, Array]:
        """Returns the losses of each row, by task, from one average on the first half and another on the second."""
        return {
            task.name: np.where(self.first, self.row_losses(number, on_first), self.row_losses(number, on_second))
            for number, task in enumerate(self.tasks)
        }


class _TaskAnswers:
    """The answers of networks for one task, in a form in which they can be averaged: here, outputs or probabilities."""

    def __init__(self, task: Task, targets: Tensor, scale: Scale | None) -> None:
        self.task, self.scale = task, scale
        self.targets = targets.double() if targets.is_floating_point() else targets
        self.present = targets.isfinite().flatten(1).any(1) if targets.dim() > 1 else targets.isfinite()
        self.places: list[int | None] = []  # of each network among the answers, or None if it does not have the task
        self._values: list[Tensor] = []
        self._stacked: Tensor | None = None

    def add(self, outputs: Tensor | None) -> None:
        self.places.append(None if outputs is None else len(self._values))
        if outputs is not None:
            self._values.append(self.to_answers(outputs.double().cpu()))
            self._stacked = None

    def of(self, members: Members) -> list[Tensor]:
        return [self._values[place] for member in members if (place := self.places[member]) is not None]

    def losses_with(self, members: Members, candidates: Sequence[int], parts: Tensor) -> Array:
        """Returns the losses [candidates, parts] of averages."""
        common, places = self.of(members), [self.places[candidate] for candidate in candidates]
        found = np.full((len(candidates), parts.shape[1]), np.inf)
        if common and None in places:
            alone = torch.stack(common).mean(0, keepdim=True)
            found[[at for at, place in enumerate(places) if place is None]] = self._part_losses(alone, parts)
        joining = [at for at, place in enumerate(places) if place is not None]
        step = max(1, MAX_ELEMENTS // max(1, self._values[0].numel())) if self._values else 1
        for start in range(0, len(joining), step):
            some = joining[start : start + step]
            means = self._stack()[[places[at] for at in some]]
            if common:
                means = (means + torch.stack(common).sum(0)) / (1 + len(common))
            found[some] = self._part_losses(means, parts)
        return found

    def _stack(self) -> Tensor:
        if self._stacked is None:
            self._stacked = torch.stack(self._values)
            self._values = list(self._stacked)
        return self._stacked

    def _part_losses(self, means: Tensor, parts: Tensor) -> Array:
        labels = self.present.double() @ parts
        return np.asarray(torch.where(self.present, self.row_losses(means), 0.0) @ parts / labels)

    def to_answers(self, outputs: Tensor) -> Tensor:
        if self.task.averaging == "sigmoid":  # both probabilities, since 1 - p would lose digits
            return torch.stack([torch.sigmoid(-outputs), torch.sigmoid(outputs)], -1)
        return torch.softmax(outputs, 1) if self.task.averaging == "softmax" else outputs

    def row_losses(self, means: Tensor) -> Tensor:
        """Returns the loss of each row, [averages, rows], for average answers [averages, rows, …]."""
        outputs = means
        if self.task.averaging in ("sigmoid", "softmax"):
            outputs = means.clamp(min=TINY).log()
        if self.task.averaging == "sigmoid":
            outputs = outputs[..., 1] - outputs[..., 0]
        return torch.from_numpy(row_losses_of(self.task, outputs, self.targets, self.scale))


class _Classes(_TaskAnswers):
    """Probabilities of several classes, whose losses are computed several times faster here."""

    def __init__(self, task: Task, targets: Tensor, scale: Scale | None) -> None:
        super().__init__(task, targets, scale)
        self._labels = torch.where(targets.isfinite(), targets, 0).long()
        weights = task.class_weights
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)[self._labels]
        self._lowest = TINY if scale is None else math.exp(scale[2])

    def row_losses(self, means: Tensor) -> Tensor:
        clipped = means.clamp(min=self._lowest)  # [averages, rows, classes]
        labels = self._labels.expand(len(means), -1).unsqueeze(2)
        losses = clipped.sum(2).log() - clipped.gather(2, labels).squeeze(2).log()
        return losses if self._weights is None else losses * self._weights


def _answers_of(task: Task, targets: Tensor, scale: Scale | None) -> _TaskAnswers:
    has_classes = task.loss is None and task.kind == "multiclass" and task.averaging == "softmax"
    kind = _Classes if has_classes and targets.dim() == 1 else _TaskAnswers
    return kind(task, targets, scale)
