"""Many networks of one shape as one: stacked weights, their losses and their scores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from .network import Network, evaluating
from .problem import Problem
from .rows import in_memory
from .scoring import Score, error_of, mean_loss, precise
from .task import Task

TOGETHER = "training many networks together"  # what needs rows in memory, for messages
Tensors = dict[str, Tensor]


class Stack:
    """Copies of a network that drift apart when trained.

    Args:
        network: what each copy is at the start; afterwards it lends its layers, not its weights.
        copies: how many.

    Attributes:
        network: the layers, on the device and in the mode (training, evaluation) of the stack.
        parameters: [networks, …] by the network's names; leaves that an optimiser can train.
        buffers: [networks, …] by name.
    """

    def __init__(self, network: Network, copies: int) -> None:
        self.network = network
        self.parameters = {
            name: _repeated(parameter, copies).requires_grad_(parameter.requires_grad)
            for name, parameter in network.named_parameters()
        }
        self.buffers = {name: _repeated(buffer, copies) for name, buffer in network.named_buffers()}
        self._one_product = _linear(network.heads)

    @property
    def tensors(self) -> Tensors:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def __call__(self, inputs: Tensor) -> Tensors:
        """Outputs [networks, rows, …] of every task."""
        with self.network.masks():
            self.network.draw("encoder")
            features = self._encoded(inputs)
            if self._one_product and features.dim() == 3:
                return self._linear_heads(features)
            return {task: self._head(place, features) for place, task in enumerate(self.network.tasks)}

    @torch.no_grad()
    def outputs_on(self, inputs: Tensor, rows_at_once: int) -> Tensors:
        """The outputs of every task in evaluation mode."""
        with evaluating(self.network):
            parts = [self(part) for part in inputs.split(rows_at_once)]
        return {task: torch.cat([part[task] for part in parts], 1) for task in self.network.tasks}

    def _encoded(self, inputs: Tensor) -> Tensor:
        tensors = self._part("encoder.")
        if tensors:
            return _each(self.network.encoder, tensors, inputs, None)
        features: Tensor = self.network.encoder(inputs)
        return features.expand(self._copies(), *features.shape)

    def _copies(self) -> int:
        return len(next(iter(self.tensors.values())))

    def _head(self, place: int, features: Tensor) -> Tensor:
        self.network.draw(self.network.tasks[place])
        return _each(self.network.heads[place], self._part(f"heads.{place}."), features, 0)

    def _linear_heads(self, features: Tensor) -> Tensors:
        """All heads in one product; one by one they would be products with a single column each."""
        places = range(len(self.network.tasks))
        weight = torch.cat([self.parameters[f"heads.{place}.weight"] for place in places], 1)
        bias = torch.cat([self.parameters[f"heads.{place}.bias"] for place in places], 1)
        outputs = torch.baddbmm(bias.unsqueeze(1), features, weight.mT)
        sizes = [self.parameters[f"heads.{place}.bias"].shape[1] for place in places]
        return dict(zip(self.network.tasks, outputs.split(sizes, 2), strict=True))

    def _part(self, prefix: str) -> Tensors:
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}

    def keep(self, networks: Tensor) -> Mapping[Tensor, Tensor]:
        """Drops all networks but these; gives for each old parameter the new one."""
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
    def copy_from(self, other: Stack, theirs: Tensor, mine: Tensor) -> None:
        """Takes over weights and buffers of some networks of another stack."""
        taken = other.tensors
        for name, tensor in self.tensors.items():
            tensor.index_copy_(0, mine, taken[name].index_select(0, theirs))

    def states(self, tasks: Sequence[Sequence[str]]) -> list[Tensors]:
        """The state dict of every network with only its own heads, as a network of these tasks alone names them."""
        names = {id(tensor): name for name, tensor in (*self.network.named_parameters(), *self.network.named_buffers())}
        stored = self.network.state_dict(keep_vars=True)
        tensors = {key: self.tensors[names[id(tensor)]].detach().cpu() for key, tensor in stored.items()}
        return [
            {own: tensors[key][place].clone() for key in tensors if (own := self._own_name(key, set(wanted)))}
            for place, wanted in enumerate(tasks)
        ]

    def parameters_of(self, tasks: Sequence[str]) -> int:
        """How many parameters a network of these tasks has."""
        wanted = set(tasks)
        return sum(p[0].numel() for name, p in self.parameters.items() if self._own_name(name, wanted))

    def _own_name(self, key: str, wanted: set[str]) -> str | None:
        """What a network with only these tasks calls an entry of the state; None if it has none."""
        if not key.startswith("heads."):
            return key
        _, place, rest = key.split(".", 2)
        tasks = self.network.tasks
        if tasks[int(place)] not in wanted:
            return None
        return f"heads.{sum(task in wanted for task in tasks[: int(place)])}.{rest}"


def _repeated(tensor: Tensor, copies: int) -> Tensor:
    return tensor.detach().expand(copies, *tensor.shape).clone()


def _each(module: nn.Module, tensors: Tensors, inputs: Tensor, inputs_dim: int | None) -> Tensor:
    """A module with the weights of every network; random numbers (dropout masks) are drawn once for all."""

    def alone(own: Tensors, rows: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, own, (rows,))
        return outputs

    in_dims = (0 if tensors else None, inputs_dim)
    return torch.vmap(alone, in_dims=in_dims, randomness="same")(tensors, inputs)


def _linear(heads: nn.ModuleList) -> bool:
    """Whether every head is one linear layer with a bias, whose weights train."""
    return all(
        type(head) is nn.Linear and head.bias is not None and not head._forward_hooks and not head._forward_pre_hooks
        for head in heads
    )


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
        dtype = in_memory(problem.train, TOGETHER).targets[tasks[0].name].dtype
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


def _family(problem: Problem, task: Task) -> Hashable:
    """Tasks of one family have the same loss and shapes; those whose head may be of any shape stand alone."""
    target = in_memory(problem.train, TOGETHER).targets[task.name]
    if problem.head is not None or task.head is not None:
        return task.name
    weights = None if task.class_weights is None else tuple(task.class_weights)
    return task.kind, id(task.loss), task.head_size, weights, tuple(target.shape[1:]), target.dtype


def scores_of_stack(problem: Problem, stack: Stack, trains: NDArray[np.bool_], part: str) -> list[dict[str, Score]]:
    """For every network the scores of its tasks on a part of the data.

    Args:
        problem: whose data.
        stack: the networks.
        trains: [networks, tasks], which tasks of the stack each network has.
        part: "val" or "test".
    """
    split = in_memory(problem.splits[part], TOGETHER)
    device = next(iter(stack.tensors.values())).device
    outputs = stack.outputs_on(split.inputs.to(device), problem.recipe.batch_size)
    scores: list[dict[str, Score]] = [{} for _ in trains]
    for column, name in enumerate(stack.network.tasks):
        networks = np.flatnonzero(trains[:, column])
        if not len(networks):
            continue
        chosen = outputs.pop(name).index_select(0, torch.from_numpy(networks).to(device))
        task = problem.task(name)
        own = task.loss is not None or callable(task.error)  # which may hold tensors of the device
        where = device if own else torch.device("cpu")
        of_task = _scores(problem, task, chosen.to(where), split.targets[name].to(where))
        for network, score in zip(networks, of_task, strict=True):
            scores[network][name] = score
    return scores


def _scores(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> list[Score]:
    """The scores of one task from outputs [networks, rows, …]; as `scores_on`, in one pass for losses."""
    scale = problem.scales.get(task.name)
    rows = _row_losses(task, *precise(task, outputs, targets))
    losses = [float(np.nanmean(own)) if np.isfinite(own).any() else float("nan") for own in rows]
    errors = [error_of(task, out, targets, scale, loss) for out, loss in zip(outputs, losses, strict=True)]
    return [Score(loss, error, own.astype(np.float32)) for loss, error, own in zip(losses, errors, rows, strict=True)]


def _row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """[networks, rows], NaN where a label is missing."""
    losses, present = torch.vmap(lambda out: task.row_losses(out, targets))(outputs)
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())
