"""Computes the losses of a network's tasks: task by task, or all at once if the heads are linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .early_stopping import first_half
from .network import Network, evaluation_mode
from .rows import Batch, Draw, Rows, Split, rows_at_once
from .scoring import loss_and_labels, row_losses_on
from .task import Task

T = TypeVar("T")
LossesAndLabels = dict[str, tuple[Tensor, Tensor]]
HalfLosses = list[list[float]]  # for each task, the mean loss on each half of the validation rows, NaN without labels


class TaskLosses(Protocol[T]):
    """The losses of a network on training and validation rows. `T` is the type of a batch's targets.

    Attributes:
        modules: the modules whose parameters are trained.
    """

    modules: list[nn.Module]

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[tuple[Tensor, T]]:
        """Yields the inputs and targets of each batch of training rows; see `Rows.batches`."""

    def validation_batch(self, rows: Tensor) -> tuple[Tensor, T]:
        """Returns the inputs and targets of these validation rows."""

    def losses_and_labels(self, inputs: Tensor, targets: T) -> LossesAndLabels:
        """Returns the mean loss of each task over the labeled rows, and the number of such rows."""

    def total(self, inputs: Tensor, targets: T) -> Tensor:
        """Returns the sum of the mean losses, each multiplied by the weight of its task."""

    def validation_and_half_losses(self) -> tuple[list[float], HalfLosses]:
        """Returns the mean loss of each task on all validation rows, and on each half of them, in evaluation mode.

        See `first_half` for the halves.
        """


class SeparateLosses:
    """Computes the losses task by task, for any heads, losses, targets and rows.

    Args:
        network: the network.
        tasks: its tasks, in the order of its heads.
        train: the training rows.
        val: the validation rows.
    """

    def __init__(self, network: Network, tasks: Sequence[Task], train: Rows, val: Rows) -> None:
        self._network, self._tasks, self._train, self._val = network, tasks, train, val
        self._first = first_half(len(val), val.groups)
        self.modules: list[nn.Module] = [network]

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[tuple[Tensor, Any]]:
        return self._train.batches(parts, draw)

    def validation_batch(self, rows: Tensor) -> tuple[Tensor, Any]:
        return self._val.batch(rows)

    def losses_and_labels(self, inputs: Tensor, targets: Any) -> LossesAndLabels:
        outputs = self._network(inputs)
        return {task.name: loss_and_labels(task, outputs[task.name], targets[task.name]) for task in self._tasks}

    def total(self, inputs: Tensor, targets: Any) -> Tensor:
        losses = self.losses_and_labels(inputs, targets)
        return torch.stack([task.weight * losses[task.name][0] for task in self._tasks]).sum()

    def validation_and_half_losses(self) -> tuple[list[float], HalfLosses]:
        rows = row_losses_on(self._network, self._tasks, self._val)
        sums, counts = (torch.stack([one.sum() for one in part]) for part in zip(*rows, strict=True))
        halves = [torch.stack([one[self._first].sum() for one in part]) for part in zip(*rows, strict=True)]
        return _means_and_halves(sums, counts, *halves)


class JointLosses:
    """Computes the losses of all tasks at once, for linear heads and tasks without losses of their own.

    Tasks that differ only in their targets form a family. The losses of a family are computed in one operation.

    Args:
        network: the network (see `make_task_losses` for the requirements).
        tasks: its tasks, in the order of its heads.
        train: the training rows.
        val: the validation rows.
        join: whether to train the heads as one layer. This is faster, but the parameters of the single heads, which
            are then parts of the layer's parameters, have no gradients of their own.
    """

    def __init__(self, network: Network, tasks: Sequence[Task], train: Rows, val: Rows, join: bool) -> None:
        self._network = network
        families: dict[object, list[Task]] = {}
        for task in tasks:
            families.setdefault((task.kind, task.head_size, task.class_weights), []).append(task)
        self._families = list(families.values())
        ordered = [task for family in self._families for task in family]
        self._names = [task.name for task in ordered]
        self._heads: list[Any] = [network.heads[network.tasks.index(name)] for name in self._names]
        self._joined = join_layers(self._heads) if join else None
        self.modules: list[nn.Module] = [network] if self._joined is None else [network.encoder, self._joined]
        self._sizes = [sum(task.head_size for task in family) for family in self._families]
        like = next(network.heads.parameters())
        self._weights = torch.tensor([task.weight for task in ordered]).to(like)
        self.train, self._val = (_stack_targets(rows, self._families) for rows in (train, val))
        self._first = first_half(len(val), val.groups).to(like.device)[:, None]

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[tuple[Tensor, JointTargets]]:
        return self.train.batches(parts, draw)

    def validation_batch(self, rows: Tensor) -> tuple[Tensor, JointTargets]:
        return self._val.batch(rows)

    def losses_and_labels(self, inputs: Tensor, targets: JointTargets) -> LossesAndLabels:
        sums, counts = self._sums_and_counts(inputs, targets)
        pairs = zip(_means(sums, counts).unbind(), counts.unbind(), strict=True)
        found = dict(zip(self._names, pairs, strict=True))
        return {name: found[name] for name in self._network.tasks}

    def total(self, inputs: Tensor, targets: JointTargets) -> Tensor:
        return (_means(*self._sums_and_counts(inputs, targets)) * self._weights).sum()

    @torch.no_grad()
    def validation_and_half_losses(self) -> tuple[list[float], HalfLosses]:
        found, start = [], 0
        with evaluation_mode(self._network):
            for inputs, targets in self._val.chunks():
                first = self._first[start : start + len(inputs)]
                found.append(self._sums_and_counts(inputs, targets, first))
                start += len(inputs)
        losses, halves = _means_and_halves(*(torch.stack(part).sum(0) for part in zip(*found, strict=True)))
        places = [self._names.index(name) for name in self._network.tasks]
        return [losses[place] for place in places], [halves[place] for place in places]

    def _sums_and_counts(self, inputs: Tensor, targets: JointTargets, *parts: Tensor) -> tuple[Tensor, ...]:
        """Returns the sum of each task's losses over the labeled rows, and the number of such rows.

        The same follows for each of `parts`, which say whether a row [rows, 1] counts.
        """
        outputs = self._outputs(inputs).split(self._sizes, 1)
        found: list[list[Tensor]] = []
        for index, (family, values) in enumerate(zip(self._families, targets.values, strict=True)):
            losses = _element_losses(family, outputs[index], values)
            if targets.present is None:
                count = losses.new_full((len(family),), len(losses))
                some = [part.expand(losses.shape) for part in parts]
            else:
                losses = torch.where(targets.present[index], losses, 0)
                count = targets.present[index].sum(0).to(losses.dtype)
                some = [part & targets.present[index] for part in parts]
            found.append([losses.sum(0), count])
            for part in some:
                found[-1] += [torch.where(part, losses, 0).sum(0), part.sum(0).to(losses.dtype)]
        return tuple(one[0] if len(one) == 1 else torch.cat(one) for one in zip(*found, strict=True))

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Returns the outputs [rows, columns] of all heads, computed with one matrix product."""
        features = self._network.encode(inputs)
        if self._joined is not None:
            outputs: Tensor = self._joined(features)
            return outputs
        weights, biases = [head.weight for head in self._heads], [head.bias for head in self._heads]
        return functional.linear(features, torch.cat(weights), torch.cat(biases))


def join_layers(layers: Sequence[nn.Linear]) -> nn.Linear:
    """Returns a layer with the outputs of all given layers, whose parameters become parts of its parameters.

    Example:
        >>> first, second = nn.Linear(3, 1), nn.Linear(3, 2)
        >>> joined = join_layers([first, second])
        >>> _ = joined.bias.data.copy_(torch.tensor([4.0, 5.0, 6.0]))
        >>> second.bias.tolist()
        [5.0, 6.0]
    """
    sizes = [layer.out_features for layer in layers]
    joined = nn.Linear(layers[0].in_features, sum(sizes), device="meta")
    for name in ("weight", "bias"):
        whole = nn.Parameter(torch.cat([getattr(layer, name).detach() for layer in layers]))
        setattr(joined, name, whole)
        for layer, part in zip(layers, whole.detach().split(sizes), strict=True):
            setattr(layer, name, nn.Parameter(part))
    return joined


def _element_losses(family: Sequence[Task], outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses [rows, members] of a family, given its outputs and its targets [rows, members]."""
    if family[0].kind == "multiclass":
        outputs = outputs.unflatten(1, (len(family), -1)).movedim(1, 2)  # [rows, classes, members]
    return family[0].element_losses(outputs, targets)


def _means(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / counts.clamp(min=1)


def _means_and_halves(
    sums: Tensor, counts: Tensor, first_sums: Tensor, first_counts: Tensor
) -> tuple[list[float], HalfLosses]:
    """Returns the mean losses on all rows and on each half, given sums for all rows and for the first half.

    The loss on a half without labels is NaN.
    """
    second_counts = counts - first_counts
    first = first_sums / first_counts
    second = torch.where(second_counts > 0, (sums - first_sums) / second_counts, torch.nan)
    found: list[list[float]] = torch.stack([_means(sums, counts), first, second]).tolist()
    return found[0], [list(pair) for pair in zip(found[1], found[2], strict=True)]


@dataclass(frozen=True)
class JointTargets:
    """The targets of some rows.

    Attributes:
        values: the targets [rows, members] of each family of tasks, with 0 for missing labels.
        present: whether each label is present, for each family, or None if no label is missing.
    """

    values: tuple[Tensor, ...]
    present: tuple[Tensor, ...] | None

    @classmethod
    def stack(cls, targets: Mapping[str, Tensor], families: Sequence[Sequence[Task]]) -> JointTargets:
        """Stacks the targets of each family of tasks."""
        stacked = [torch.stack([targets[task.name] for task in family], 1) for family in families]
        present = tuple(part.isfinite() for part in stacked)
        return cls(tuple(torch.where(mask, part, 0) for mask, part in zip(present, stacked, strict=True)), present)

    def take(self, rows: Tensor | slice) -> JointTargets:
        """Returns the targets of these rows."""
        present = None if self.present is None else tuple(_take(part, rows) for part in self.present)
        return JointTargets(tuple(_take(part, rows) for part in self.values), present)


def _take(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


class RowsInMemory:
    """Rows in memory, with the targets of all tasks stacked once.

    Args:
        rows: the rows.
        families: the families of tasks.
    """

    def __init__(self, rows: Split, families: Sequence[Sequence[Task]]) -> None:
        self._inputs = rows.inputs
        targets = JointTargets.stack(rows.targets, families)
        assert targets.present is not None
        complete = all(bool(part.all()) for part in targets.present)
        self._targets = replace(targets, present=None) if complete else targets

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[tuple[Tensor, JointTargets]]:
        """Yields the batches of an epoch; see `Rows.batches`."""
        rows = torch.cat(list(parts)).to(self._inputs.device)  # all at once: a GPU would wait for each copy
        return map(self.batch, rows.split([len(part) for part in parts]))

    def batch(self, rows: Tensor) -> tuple[Tensor, JointTargets]:
        """Returns the inputs and targets of these rows."""
        return self._slice(rows.to(self._inputs.device))

    def chunks(self) -> Iterator[tuple[Tensor, JointTargets]]:
        """Yields all rows in order, in chunks."""
        at_once = rows_at_once(self._inputs)
        return (self._slice(slice(start, start + at_once)) for start in range(0, len(self._inputs), at_once))

    def _slice(self, rows: Tensor | slice) -> tuple[Tensor, JointTargets]:
        return _take(self._inputs, rows), self._targets.take(rows)


class StreamedRows:
    """Rows that are read from files. Their targets are stacked batch by batch.

    Args:
        rows: the rows.
        families: the families of tasks.
    """

    def __init__(self, rows: Rows, families: Sequence[Sequence[Task]]) -> None:
        self._rows, self._families = rows, families

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[tuple[Tensor, JointTargets]]:
        """Yields the batches of an epoch; see `Rows.batches`."""
        return map(self._stack, self._rows.batches(parts, draw))

    def batch(self, rows: Tensor) -> tuple[Tensor, JointTargets]:
        """Returns the inputs and targets of these rows."""
        return self._stack(self._rows.batch(rows))

    def chunks(self) -> Iterator[tuple[Tensor, JointTargets]]:
        """Yields all rows in order, in chunks."""
        return map(self._stack, self._rows.chunks())

    def _stack(self, batch: Batch) -> tuple[Tensor, JointTargets]:
        inputs, targets = batch
        return inputs, JointTargets.stack(targets, self._families)


def _stack_targets(rows: Rows, families: Sequence[Sequence[Task]]) -> RowsInMemory | StreamedRows:
    return RowsInMemory(rows, families) if isinstance(rows, Split) else StreamedRows(rows, families)


def make_task_losses(
    network: Network, tasks: Sequence[Task], train: Rows, val: Rows, *, join: bool = False
) -> SeparateLosses | JointLosses:
    """Returns joint losses if possible.

    They require heads that are plain linear layers, and tasks with one label per row and without losses of their own.

    Args:
        network: the network.
        tasks: its tasks, in the order of its heads.
        train: the training rows.
        val: the validation rows.
        join: see `JointLosses`.
    """
    if any(task.loss is not None for task in tasks) or not _has_linear_heads(network):
        return SeparateLosses(network, tasks, train, val)
    inputs, targets = train.batch(torch.arange(1))
    with evaluation_mode(network), torch.no_grad():
        flat = network.encode(inputs).dim() == 2
    joint = flat and all(targets[task.name].dim() == 1 for task in tasks)
    return JointLosses(network, tasks, train, val, join) if joint else SeparateLosses(network, tasks, train, val)


def _has_linear_heads(network: Network) -> bool:
    """Returns whether every head is a plain linear layer with weights and a bias of its own, and without hooks."""
    parameters = list(network.named_parameters(remove_duplicate=False))
    shared = len({id(parameter) for _, parameter in parameters}) < len(parameters)
    return not shared and all(
        type(head) is nn.Linear and head.bias is not None and not head._forward_hooks and not head._forward_pre_hooks
        for head in network.heads
    )
