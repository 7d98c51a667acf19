"""The losses of all tasks of one network, or of many networks at once.

Tasks that differ only in their targets form a family, whose losses are computed in one operation. A task with a loss of
its own, with several labels per row or with outputs of another shape is computed separately. In the shapes below,
`networks` may be 1 for what all networks share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .early_stopping import first_half
from .network import Network, evaluation_mode
from .rows import Batch, Draw, Rows, Split, rows_at_once, select_rows
from .task import Task

Item = TypeVar("Item")
Targets = Mapping[str, Tensor]  # of some tasks


def mean_loss(task: Task, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the mean loss over the labeled rows, weighted if rows have weights, or 0 if there are none."""
    losses, counted = _weigh(*task.row_losses(outputs, targets), weights)
    return _divide(losses.sum(), counted.sum())


class LabeledBatch(NamedTuple):
    """Some rows with their labels.

    Attributes:
        inputs: [rows, …], or [seeds, rows, …] if networks have different seeds.
        targets: the targets of each family, then of each separate task [networks, rows, tasks, …]. In a family, missing
            labels are 0.
        present: 1 for each label of the families that is present and 0 for the others [networks, rows, tasks], or None
            if none is missing.
        weights: the weight of each row [networks, rows, 1], or None if all rows count the same.
    """

    inputs: Tensor
    targets: list[Tensor]
    present: Tensor | None
    weights: Tensor | None = None


@dataclass(frozen=True)
class LabelTable:
    """The targets of some tasks on all rows, or which of them are present. Each different target is stored once.

    Attributes:
        values: the different targets [rows, columns, …].
        columns: the column of each network and task [networks, tasks], or None if all networks have the same columns.
    """

    values: Tensor
    columns: Tensor | None = None

    def on(self, rows: Tensor) -> Tensor:
        """Returns the values on the rows with these indices [networks, rows]."""
        if self.columns is None:
            return select_rows(self.values, rows)
        return self.values[rows.unsqueeze(-1), self.columns.unsqueeze(1)]


class Losses:
    """Computes the losses of tasks, for one network or for a stack of networks.

    Args:
        tasks: the tasks.
        network: a network that trains all of them, the shapes of whose outputs tell which tasks form families.
        rows: rows with the labels of the tasks.
        trains: whether each network trains each task [networks, tasks], or None for one network that trains all tasks.

    Attributes:
        tasks: the tasks family by family. Losses of single rows are in this order, mean losses in that of the argument.
        families: the tasks of each family.
        separate: the tasks that belong to no family. They come last.
        weights: the weight of each given task in the loss of each network [networks, tasks], 0 if it is not trained.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        network: Network,
        rows: Rows,
        trains: NDArray[np.bool_] | None = None,
    ) -> None:
        inputs, targets = rows.batch(torch.arange(min(2, len(rows))))
        with evaluation_mode(network), torch.no_grad():
            outputs = network(inputs)
        families: dict[Hashable, list[Task]] = {}
        self.separate: list[Task] = []
        for task in tasks:
            target, size = targets[task.name], task.head_size if task.kind == "multiclass" else 1
            if task.loss is None and target.dim() == 1 and outputs[task.name].shape == (len(target), size):
                families.setdefault((task.kind, size, task.class_weights, target.dtype), []).append(task)
            else:
                self.separate.append(task)
        self.families = list(families.values())
        self.tasks = [*(task for family in self.families for task in family), *self.separate]
        self._sizes = [sum(task.head_size for task in family) for family in self.families]
        like = next(iter(outputs.values()))
        places = [self.tasks.index(task) for task in tasks]
        self._places = None if places == sorted(places) else torch.tensor(places, device=like.device)
        trained = np.ones((1, len(tasks)), dtype=bool) if trains is None else trains
        self.weights = torch.from_numpy(trained * [task.weight for task in tasks]).to(like)
        self._is_single = trains is None
        networks = [np.flatnonzero(trained[:, tasks.index(task)]) for task in self.separate]
        self._trained_by = [torch.from_numpy(numbers).to(like.device) for numbers in networks]

    def split(self, outputs: Tensor) -> Sequence[Tensor]:
        """Splits the outputs of all families [networks, rows, outputs]."""
        return outputs.split(self._sizes, 2) if len(self._sizes) > 1 else [outputs]

    def join(self, outputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Joins the outputs of each family, and appends those of the separate tasks [networks, rows, outputs].

        Args:
            outputs: the outputs of each task [networks, rows, outputs], or [rows, outputs] of one network.
        """
        joined = [torch.cat([outputs[task.name] for task in family], -1) for family in self.families]
        joined += [outputs[task.name] for task in self.separate]
        return [values.unsqueeze(0) for values in joined] if self._is_single else joined

    def tables(self, targets: Targets, own: Sequence[Targets] = ()) -> tuple[list[LabelTable], LabelTable | None]:
        """Prepares the targets of all rows, for each family and each separate task, and which labels are present.

        Labels of separate tasks are not marked as present, and None means that no others are missing.

        Args:
            targets: the targets of each task.
            own: for each network, the targets that replace these, by task. If empty, no targets are replaced.
        """
        groups = [*self.families, *([task] for task in self.separate)]
        tables = [self._make_table(group, targets, own) for group in groups]
        if not self.families:
            return tables, None
        distinct, columns = _columns(self.tasks[: len(self.tasks) - len(self.separate)], targets, own)
        present = torch.stack([target.isfinite().unsqueeze(1).flatten(1).all(1) for target in distinct], 1)
        is_complete = bool(present.all())
        return tables, None if is_complete else LabelTable(present.to(tables[0].values), columns)

    def _make_table(self, tasks: Sequence[Task], targets: Targets, own: Sequence[Targets]) -> LabelTable:
        distinct, columns = _columns(tasks, targets, own)
        if len({target.dim() for target in distinct}) > 1:  # classes, and probabilities of classes
            size = tasks[0].head_size
            distinct = [to_probabilities(target, size) if target.dim() == 1 else target for target in distinct]
        values = torch.stack([target.to(targets[tasks[0].name]) for target in distinct], 1)
        if tasks[0] not in self.separate:
            values = torch.where(values.isfinite(), values, 0)
        return LabelTable(values, columns)

    def row_losses(self, outputs: Sequence[Tensor], batch: LabeledBatch) -> tuple[Tensor, Tensor | None]:
        """Returns the loss of each row for each task [networks, rows, tasks], times the weight of the row.

        Also returns how much each label counts: the weight of its row, or 0 if the label is missing. This is None if
        all labels count the same.

        Args:
            outputs: the outputs of each family and of each separate task, see `join`.
            batch: the rows.
        """
        first = len(self.families)
        families = zip(self.families, outputs[:first], batch.targets[:first], strict=True)
        separate = zip(self.separate, outputs[first:], batch.targets[first:], self._trained_by, strict=True)
        of_families = [_family_losses(*part) for part in families]
        of_separate = [self._separate_losses(*part) for part in separate]

        parts = [*of_families, *(part for part, _ in of_separate)]
        losses, counted = parts[0] if len(parts) == 1 else torch.cat(parts, -1), batch.present
        if of_separate:
            in_families = losses[..., : -len(of_separate)]
            mask = torch.ones_like(in_families) if counted is None else counted.expand_as(in_families)
            counted = torch.cat([mask, *(present for _, present in of_separate)], -1)
        if counted is not None:
            losses = losses * counted
        if batch.weights is not None and counted is None:
            counted = torch.ones_like(losses)
        return (losses, None) if counted is None else _weigh(losses, counted, batch.weights)

    def _separate_losses(self, task: Task, outputs: Tensor, targets: Tensor, networks: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the losses [networks, rows, 1] of a separate task, and 1 for each label that is present, otherwise 0.

        Networks that do not train the task are left out, since a loss of any kind may be infinite, and 0 times infinity
        is not 0.
        """
        targets = targets[:, :, 0]
        if self._is_single:
            losses, present = task.row_losses(outputs[0], targets[0])
            return losses[None, :, None], present[None, :, None]
        is_shared = len(targets) < len(outputs)
        targets = targets[0] if is_shared else targets.index_select(0, networks)
        row_losses = torch.vmap(task.row_losses, in_dims=(0, None if is_shared else 0))
        trained = row_losses(outputs.index_select(0, networks), targets)
        absent = trained[0].new_zeros(len(outputs), trained[0].shape[1])
        losses, present = (absent.index_copy(0, networks, values).unsqueeze(2) for values in trained)
        return losses, present

    def means(self, outputs: Sequence[Tensor], batch: LabeledBatch) -> tuple[Tensor, Tensor | None]:
        """Returns the mean loss of each task over the labeled rows, 0 if there are none, and how much these rows count.

        The tasks are in the order in which they were given. Both are [networks, tasks]; counts are None if all rows
        count the same.
        """
        losses, counted = self.row_losses(outputs, batch)
        if counted is None:
            return self.reorder(losses.mean(-2)), None
        counts = counted.sum(-2)
        return self.reorder(_divide(losses.sum(-2), counts)), self.reorder(counts)

    def reorder(self, values: Tensor) -> Tensor:
        """Brings values [networks, tasks] family by family into the order in which the tasks were given."""
        return values if self._places is None else values.index_select(-1, self._places.to(values.device))


def _weigh(losses: Tensor, counted: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Multiplies losses by weights, where the loss of a row of weight 0 may be infinite or NaN."""
    return (losses, counted) if weights is None else (torch.where(weights > 0, losses * weights, 0), counted * weights)


def _divide(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / counts.clamp(min=torch.finfo(counts.dtype).tiny)  # 0 if nothing counts


def _family_losses(family: Sequence[Task], outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses [networks, rows, tasks] of a family, as if no label was missing.

    If the network has several members, the outputs are [networks, rows · members, outputs], and the loss of a row is
    the mean over the members.
    """
    task = family[0]
    members = outputs.shape[1] // targets.shape[1]
    if members > 1:
        targets = targets.repeat_interleave(members, 1)
    if task.kind == "multiclass":
        outputs = outputs.unflatten(2, (len(family), -1))
        shape = outputs.shape[:3]
        targets = targets.expand(*shape, *targets.shape[3:])  # classes, or their probabilities
        losses = task.element_losses(outputs.flatten(0, 2), targets.flatten(0, 2)).view(shape)
    else:
        losses = task.element_losses(outputs, targets.expand_as(outputs))
    if members > 1:
        losses = losses.unflatten(1, (-1, members)).mean(2)
    return losses


class LabeledRows:
    """Rows with the labels of all tasks, prepared once if the rows are in memory, otherwise batch by batch.

    Args:
        rows: the rows.
        losses: the losses that the labels are for.
        own: see `Losses.tables`.
        weights: the row weights of each network, or None for those of the rows.
    """

    def __init__(
        self, rows: Rows, losses: Losses, own: Sequence[Targets] = (), weights: Sequence[Tensor | None] | None = None
    ) -> None:
        self._rows, self._losses = rows, losses
        self._tables, self._present = losses.tables(rows.targets, own) if isinstance(rows, Split) else ([], None)
        self._weights: LabelTable | None = None
        distinct, numbers = _distinct([rows.weights] if weights is None else weights)
        if any(tensor is not None for tensor in distinct):
            ones = losses.weights.new_ones(len(rows))
            values = torch.stack([ones if tensor is None else tensor.to(ones) for tensor in distinct], 1)
            columns = torch.tensor(numbers, device=ones.device).unsqueeze(1) if len(distinct) > 1 else None
            self._weights = LabelTable(values, columns)

    def batch(self, rows: Tensor) -> LabeledBatch:
        """Returns these rows, [rows] or [seeds, rows]."""
        if not isinstance(self._rows, Split):
            return self._label_streamed(self._rows.batch(rows))
        rows = rows.to(self._rows.inputs.device)
        inputs, of_networks = select_rows(self._rows.inputs, rows), rows.unsqueeze(0)
        if rows.dim() > 1:
            of_networks = rows.repeat_interleave(len(self._losses.weights) // len(rows), 0)
        targets = [table.on(of_networks) for table in self._tables]
        present = None if self._present is None else self._present.on(of_networks)
        weights = None if self._weights is None else self._weights.on(of_networks)
        return LabeledBatch(inputs, targets, present, weights)

    def _label_streamed(self, batch: Batch) -> LabeledBatch:
        inputs, targets = batch
        tables, present = self._losses.tables(targets)
        rows = torch.arange(len(inputs), device=inputs.device).unsqueeze(0)
        return LabeledBatch(inputs, [table.on(rows) for table in tables], None if present is None else present.on(rows))

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[LabeledBatch]:
        """Yields the batches of an epoch; see `StreamedRows.batches`."""
        if not isinstance(self._rows, Split):
            return map(self._label_streamed, self._rows.batches(parts, draw))
        rows = torch.cat(list(parts)).to(self._rows.inputs.device)  # all at once: a GPU would wait for each copy
        return map(self.batch, rows.split([len(part) for part in parts]))

    def chunks(self) -> Iterator[LabeledBatch]:
        """Yields all rows in order, in chunks."""
        if not isinstance(self._rows, Split):
            return map(self._label_streamed, self._rows.chunks())
        rows = torch.arange(len(self._rows), device=self._rows.inputs.device)
        return map(self.batch, rows.split(rows_at_once(self._rows.inputs)))

    @cached_property
    def _in_first_half(self) -> Tensor:
        return first_half(len(self._rows), self._rows.groups).unsqueeze(1).to(self._losses.weights.device)

    @torch.no_grad()
    def mean_losses(self, outputs_on: Callable[[Tensor], Sequence[Tensor]]) -> NDArray[np.float64]:
        """Returns the mean loss of each task on all rows, and on each half of them [networks, tasks, 3].

        The loss on a half without labels is NaN. See `first_half` for the halves.

        Args:
            outputs_on: computes the outputs on some inputs, see `Losses.join`.
        """
        sums, start = torch.zeros(()), 0
        for batch in self.chunks():
            losses, counted = self._losses.row_losses(outputs_on(batch.inputs), batch)
            counted = torch.ones_like(losses) if counted is None else counted.expand_as(losses).to(losses.dtype)
            in_first = self._in_first_half[start : start + len(batch.inputs)]
            both = torch.stack([losses, counted])
            sums = sums + torch.stack([torch.where(half, both, 0).sum(-2) for half in (in_first, ~in_first)], 1)
            start += len(batch.inputs)
        halves = self._losses.reorder(sums.double().cpu())  # [losses and counts, halves, networks, tasks]
        total = _divide(*halves.sum(1))
        return torch.stack([total, *(halves[0] / halves[1])], -1).numpy()


def _columns(tasks: Sequence[Task], targets: Targets, own: Sequence[Targets]) -> tuple[list[Tensor], Tensor | None]:
    """Returns the different targets of some tasks, and the column of each network and task, see `LabelTable`."""
    if not any(task.name in replaced for replaced in own for task in tasks):
        return [targets[task.name] for task in tasks], None
    of_networks = [replaced.get(task.name, targets[task.name]) for replaced in own for task in tasks]
    if len(own) == 1:
        return of_networks, None
    distinct, numbers = _distinct(of_networks)
    return distinct, torch.tensor(numbers, device=distinct[0].device).view(-1, len(tasks))


def _distinct(tensors: Sequence[Item]) -> tuple[list[Item], list[int]]:
    """Returns the different tensors, and the place of each given one among them."""
    by_id = {id(tensor): tensor for tensor in tensors}
    places = {key: place for place, key in enumerate(by_id)}
    return list(by_id.values()), [places[id(tensor)] for tensor in tensors]


def to_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Converts class labels [rows] to probabilities [rows, classes], with NaN for missing labels."""
    present = labels.isfinite()
    encoded = functional.one_hot(torch.where(present, labels, 0).long(), classes).to(labels.dtype)
    return torch.where(present.unsqueeze(1), encoded, torch.nan)
