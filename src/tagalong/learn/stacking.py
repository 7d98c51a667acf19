"""Networks with the same architecture whose weights are stacked, so that the networks can run together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from tagalong.score import Score

from .network import Network, evaluation_mode
from .problem import Problem
from .rows import require_in_memory
from .scoring import as_float64, error_of, mean_loss
from .task import Task

OPERATION = "training many networks together"  # what needs rows in memory, for messages
Tensors = dict[str, Tensor]


class Stack:
    """Copies of a network with separate weights.

    Args:
        network: the network to copy. Only the network's layers are used afterward, not its weights.
        copies: the number of copies.

    Attributes:
        network: the network whose layers are used. It determines the device and the training mode.
        parameters: the stacked parameters [networks, …] by name, as leaf tensors that an optimizer can train.
        buffers: the stacked buffers [networks, …] by name.
    """

    def __init__(self, network: Network, copies: int) -> None:
        self.network = network
        self.parameters = {
            name: _repeat(parameter, copies).requires_grad_(parameter.requires_grad)
            for name, parameter in network.named_parameters()
        }
        self.buffers = {name: _repeat(buffer, copies) for name, buffer in network.named_buffers()}
        self._heads_are_linear = _are_linear(network.heads)

    @property
    def tensors(self) -> Tensors:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def __call__(self, inputs: Tensor) -> Tensors:
        """Returns the outputs [networks, rows, …] of every task."""
        with self.network.masks():
            self.network.reseed_part("encoder")
            features = self._encode(inputs)
            if self._heads_are_linear and features.dim() == 3:
                return self._linear_heads(features)
            return {task: self._apply_head(index, features) for index, task in enumerate(self.network.tasks)}

    @torch.no_grad()
    def outputs_on(self, inputs: Tensor, rows_at_once: int) -> Tensors:
        """Returns the outputs of every task in evaluation mode."""
        with evaluation_mode(self.network):
            chunks = [self(chunk) for chunk in inputs.split(rows_at_once)]
        return {task: torch.cat([chunk[task] for chunk in chunks], 1) for task in self.network.tasks}

    def _encode(self, inputs: Tensor) -> Tensor:
        tensors = self._tensors_of("encoder.")
        if tensors:
            return _call_each(self.network.encoder, tensors, inputs, None)
        features: Tensor = self.network.encoder(inputs)
        return features.expand(self._network_count(), *features.shape)

    def _network_count(self) -> int:
        return len(next(iter(self.tensors.values())))

    def _apply_head(self, index: int, features: Tensor) -> Tensor:
        self.network.reseed_part(self.network.tasks[index])
        return _call_each(self.network.heads[index], self._tensors_of(f"heads.{index}."), features, 0)

    def _linear_heads(self, features: Tensor) -> Tensors:
        """Computes all heads with one matrix product, since separate products would often have only one column each."""
        indices = range(len(self.network.tasks))
        weight = torch.cat([self.parameters[f"heads.{index}.weight"] for index in indices], 1)
        bias = torch.cat([self.parameters[f"heads.{index}.bias"] for index in indices], 1)
        outputs = torch.baddbmm(bias.unsqueeze(1), features, weight.mT)
        sizes = [self.parameters[f"heads.{index}.bias"].shape[1] for index in indices]
        return dict(zip(self.network.tasks, outputs.split(sizes, 2), strict=True))

    def _tensors_of(self, prefix: str) -> Tensors:
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}

    def keep_only(self, networks: Tensor) -> Mapping[Tensor, Tensor]:
        """Drops all networks except these. Returns a mapping from the old parameters to the new ones."""
        with torch.no_grad():
            kept = {
                name: parameter.detach().index_select(0, networks).requires_grad_(parameter.requires_grad)
                for name, parameter in self.parameters.items()
            }
            self.buffers = {name: buffer.index_select(0, networks) for name, buffer in self.buffers.items()}
        moved = {self.parameters[name]: kept[name] for name in kept}
        self.parameters = kept
        return moved

    @torch.no_grad()
    def copy_from(self, other: Stack, source_indices: Tensor, target_indices: Tensor) -> None:
        """Copies the weights and buffers of some networks from another stack."""
        source = other.tensors
        for name, tensor in self.tensors.items():
            tensor.index_copy_(0, target_indices, source[name].index_select(0, source_indices))

    def state_dicts(self, tasks: Sequence[Sequence[str]]) -> list[Tensors]:
        """Returns a state dict for each network, with only the heads of its own tasks."""
        names = {id(tensor): name for name, tensor in (*self.network.named_parameters(), *self.network.named_buffers())}
        stored = self.network.state_dict(keep_vars=True)
        tensors = {key: self.tensors[names[id(tensor)]].detach().cpu() for key, tensor in stored.items()}
        return [
            {own: tensors[key][index].clone() for key in tensors if (own := self._name_in_network(key, set(wanted)))}
            for index, wanted in enumerate(tasks)
        ]

    def count_parameters(self, tasks: Sequence[str]) -> int:
        """Returns the number of parameters of a network with these tasks."""
        wanted = set(tasks)
        return sum(p[0].numel() for name, p in self.parameters.items() if self._name_in_network(name, wanted))

    def _name_in_network(self, key: str, wanted: set[str]) -> str | None:
        """Returns the name of a state dict entry in a network with only these tasks, or None if there is none."""
        if not key.startswith("heads."):
            return key
        _, index, rest = key.split(".", 2)
        tasks = self.network.tasks
        if tasks[int(index)] not in wanted:
            return None
        return f"heads.{sum(task in wanted for task in tasks[: int(index)])}.{rest}"


def _repeat(tensor: Tensor, copies: int) -> Tensor:
    return tensor.detach().expand(copies, *tensor.shape).clone()


def _call_each(module: nn.Module, tensors: Tensors, inputs: Tensor, inputs_dim: int | None) -> Tensor:
    """Calls a module with the weights of each network. All networks use the same random numbers, e.g. dropout masks."""

    def call_one(own: Tensors, rows: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, own, (rows,))
        return outputs

    in_dims = (0 if tensors else None, inputs_dim)
    return torch.vmap(call_one, in_dims=in_dims, randomness="same")(tensors, inputs)


def _are_linear(heads: nn.ModuleList) -> bool:
    """Returns whether every head is a plain linear layer with a bias."""
    return all(
        type(head) is nn.Linear and head.bias is not None and not head._forward_hooks and not head._forward_pre_hooks
        for head in heads
    )


class PairLosses:
    """Computes the loss of each network on each of its tasks.

    Args:
        problem: the problem.
        tasks: the tasks, in the same order as the columns of `trains`.
        trains: whether each network trains each task, [networks, tasks].
        device: the device to compute on.

    Attributes:
        trains: see above.
        weights: the weight of each pair in the loss of its network.
    """

    def __init__(
        self, problem: Problem, tasks: Sequence[Task], trains: NDArray[np.bool_], device: torch.device
    ) -> None:
        self.trains = trains
        columns: dict[Hashable, list[int]] = {}
        for column, task in enumerate(tasks):
            columns.setdefault(_family_key(problem, task), []).append(column)
        self._families, networks, places, weights = [], [], [], []
        for members in columns.values():
            if not trains[:, members].any():
                continue
            network, member = np.nonzero(trains[:, members])
            pairs = None if trains[:, members].all() else torch.from_numpy(network * len(members) + member).to(device)
            member_of_pair = torch.from_numpy(member).to(device) if len(members) > 1 else None
            self._families.append(_Family(tuple(tasks[column] for column in members), pairs, member_of_pair))
            networks.append(network)
            places.append(np.array(members)[member])
            weights += [tasks[column].weight for column in places[-1]]
        self._networks, self._columns = np.concatenate(networks), np.concatenate(places)
        dtype = require_in_memory(problem.train, OPERATION).targets[tasks[0].name].dtype
        self.weights = torch.tensor(weights, dtype=dtype, device=device)

    def targets(self, targets: Mapping[str, Tensor]) -> list[Tensor]:
        """Stacks the targets of each family of tasks as [members, rows, …]."""
        return [torch.stack([targets[task.name] for task in family.tasks]) for family in self._families]

    def __call__(self, outputs: Mapping[str, Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Returns the mean loss of every pair, given the outputs [networks, rows, …] of each task."""
        parts = [family.losses(outputs, target) for family, target in zip(self._families, targets, strict=True)]
        return torch.cat(parts)

    def to_array(self, losses: Tensor) -> NDArray[np.float64]:
        """Returns the losses as a NumPy array [networks, tasks], with NaN for tasks that a network does not train."""
        table = np.full(self.trains.shape, np.nan)
        table[self._networks, self._columns] = losses.detach().cpu().double().numpy()
        return table


@dataclass(frozen=True)
class _Family:
    """A group of tasks with the same loss, and the (network, task) pairs for these tasks.

    Attributes:
        tasks: the members of the family.
        pairs: the indices of the pairs in the flattened array [networks, members], or None for all pairs.
        members: the index of each pair's task in `tasks`, or None if there is only one task.
    """

    tasks: tuple[Task, ...]
    pairs: Tensor | None
    members: Tensor | None

    def losses(self, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Returns the mean loss of each pair, given outputs [networks, rows, …] and targets [members, rows, …]."""
        member_outputs = [outputs[task.name] for task in self.tasks]
        chosen = member_outputs[0] if self.members is None else torch.stack(member_outputs, 1).flatten(0, 1)
        if self.pairs is not None:
            chosen = chosen.index_select(0, self.pairs)
        task = self.tasks[0]
        if self.members is None:
            return torch.vmap(lambda output: mean_loss(task, output, targets[0]))(chosen)
        each = torch.vmap(lambda output, target: mean_loss(task, output, target))
        return each(chosen, targets.index_select(0, self.members))


def _family_key(problem: Problem, task: Task) -> Hashable:
    """Returns a key that is the same for tasks with equal losses and shapes, and unique for tasks with custom heads."""
    target = require_in_memory(problem.train, OPERATION).targets[task.name]
    if problem.head is not None or task.head is not None:
        return task.name
    weights = None if task.class_weights is None else tuple(task.class_weights)
    return task.kind, id(task.loss), task.head_size, weights, tuple(target.shape[1:]), target.dtype


def scores_of_stack(
    problem: Problem, stack: Stack, trains: NDArray[np.bool_], split_name: str
) -> list[dict[str, Score]]:
    """Returns the scores of each network's tasks on the validation or test rows.

    Args:
        problem: the problem.
        stack: the networks.
        trains: whether each network trains each task of the stack, [networks, tasks].
        split_name: the rows to score, "val" or "test".
    """
    split = require_in_memory(problem.splits[split_name], OPERATION)
    device = next(iter(stack.tensors.values())).device
    outputs = stack.outputs_on(split.inputs.to(device), problem.recipe.batch_size)
    scores: list[dict[str, Score]] = [{} for _ in trains]
    for column, name in enumerate(stack.network.tasks):
        networks = np.flatnonzero(trains[:, column])
        if not len(networks):
            continue
        chosen = outputs.pop(name).index_select(0, torch.from_numpy(networks).to(device))
        task = problem.task(name)
        custom = task.loss is not None or callable(task.error)  # may use tensors on the device
        where = device if custom else torch.device("cpu")
        task_scores = _task_scores(problem, task, chosen.to(where), split.targets[name].to(where))
        for network, score in zip(networks, task_scores, strict=True):
            scores[network][name] = score
    return scores


def _task_scores(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> list[Score]:
    """Returns the scores of one task, given outputs [networks, rows, …], with the same results as `scores_on`."""
    scale = problem.scales.get(task.name)
    rows = _row_losses(task, *as_float64(task, outputs, targets))
    losses = [float(np.nanmean(own)) if np.isfinite(own).any() else float("nan") for own in rows]
    errors = [error_of(task, output, targets, scale, loss) for output, loss in zip(outputs, losses, strict=True)]
    return [Score(loss, error, own.astype(np.float32)) for loss, error, own in zip(losses, errors, rows, strict=True)]


def _row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """Returns the losses [networks, rows], with NaN for missing labels."""
    losses, present = torch.vmap(lambda output: task.row_losses(output, targets))(outputs)
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())
