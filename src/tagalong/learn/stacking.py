"""Networks with the same architecture whose weights are stacked, so that the networks can run together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from tagalong.score import Score

from .network import Network, evaluation_mode
from .own_targets import Targets, to_probabilities
from .piecewise_linear import PiecewiseLinear
from .problem import Problem
from .randomness import MaskGenerators, SharedMasks
from .rows import require_in_memory
from .scoring import as_float64, errors_of_stack
from .tabm import TabMHeads
from .task import Task

OPERATION = "training many networks together"  # what needs rows in memory, for messages
Tensors = dict[str, Tensor]


class Stack:
    """Networks with separate weights and equal layers, which differ in their tasks or seeds.

    Args:
        networks: a network for each seed. Only the layers of the first one are used afterward, not its weights.
        origins: for each network of the stack, the index in `networks` of the network to copy. In training mode,
            networks with the same seed must follow each other, and there must be equally many for each seed.

    Attributes:
        network: the network whose layers are used. It determines the device and the training mode.
        parameters: the stacked parameters [networks, …] by name, as leaf tensors that an optimizer can train.
        buffers: the stacked buffers [networks, …] by name.
        seeds: the different seeds of the networks in the stack.
    """

    def __init__(self, networks: Sequence[Network], origins: Sequence[int]) -> None:
        self.network = networks[0]
        copied = torch.tensor(origins)
        named = [dict(network.named_parameters()) for network in networks]
        self.parameters = {
            name: _stack_copies([own[name] for own in named], copied).requires_grad_(parameter.requires_grad)
            for name, parameter in named[0].items()
        }
        buffers = [dict(network.named_buffers()) for network in networks]
        self.buffers = {name: _stack_copies([own[name] for own in buffers], copied) for name in buffers[0]}
        self._heads_are_linear = _are_linear(self.network.heads)
        self._set_seeds([networks[origin].seed for origin in origins])

    def _set_seeds(self, seeds: list[int]) -> None:
        self._seed_of_network, self.seeds = seeds, list(dict.fromkeys(seeds))
        device = next(iter(self.tensors.values())).device
        self._seed_indices = torch.arange(len(self.seeds), device=device)
        self._generators = MaskGenerators(self.seeds, device)
        if len(self.seeds) == 1:
            self.network.seed = self.seeds[0]

    @property
    def tensors(self) -> Tensors:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def __call__(self, inputs: Tensor) -> Tensors:
        """Returns the outputs [networks, rows, …] of every task.

        Args:
            inputs: the inputs [rows, …]. In training mode, if there are several seeds, the inputs [seeds, rows, …] of
                each seed.
        """
        with nullcontext() if self._by_seed else self.network.masks():
            features = self._encode(inputs)
            if self._heads_are_linear and features.dim() == 3:
                return self._linear_heads(features)
            return {task: self._apply_head(index, features) for index, task in enumerate(self.network.tasks)}

    def seed_masks(self) -> list[torch.Generator]:
        """Seeds all random number generators of the next training step in advance.

        Returns the generators besides the global one.
        """
        if self._by_seed:
            for part in ("encoder", *self.network.tasks):
                if (step := self.network.mask_step(part)) is not None:
                    self._generators.at(part, step)
            return self._generators.all()
        self.network.reseed_part("encoder")
        return []

    @property
    def can_seed_in_advance(self) -> bool:
        """Whether `seed_masks` suffices: with a single seed, heads reseed the generator that the encoder has used."""
        return self._by_seed or not any(self.network.random_parts[task] for task in self.network.tasks)

    @property
    def _by_seed(self) -> bool:
        """Whether rows and random numbers depend on the seed. In evaluation mode, all networks have the same rows."""
        return len(self.seeds) > 1 and self.network.training

    @torch.no_grad()
    def outputs_on(self, inputs: Tensor, rows_at_once: int) -> Tensors:
        """Returns the outputs of every task in evaluation mode."""
        with evaluation_mode(self.network):
            chunks = [self(chunk) for chunk in inputs.split(rows_at_once)]
        return {task: torch.cat([chunk[task] for chunk in chunks], 1) for task in self.network.tasks}

    def _encode(self, inputs: Tensor) -> Tensor:
        encoder, tensors = self.network.encoder, self._tensors_of("encoder.")
        if isinstance(encoder, nn.Sequential) and isinstance(encoder[0], PiecewiseLinear):
            # It has no weights, so the codes of a row are the same for all networks, and are computed only once.
            inputs, encoder = encoder[0](inputs), encoder[1:]
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("0.")}
        return self._call_part("encoder", encoder, tensors, inputs, shared_inputs=True)

    def _apply_head(self, index: int, features: Tensor) -> Tensor:
        task, head = self.network.tasks[index], self.network.heads[index]
        return self._call_part(task, head, self._tensors_of(f"heads.{index}."), features, shared_inputs=False)

    def _call_part(
        self, part: str, module: nn.Module, tensors: Tensors, inputs: Tensor, *, shared_inputs: bool
    ) -> Tensor:
        """Calls a part of the network with the weights of each network.

        Networks with the same seed use the same random numbers, e.g. dropout masks.

        Args:
            part: the name of the part, see `Network.reseed_part`.
            module: the part.
            tensors: the parameters and buffers [networks, …] of the part.
            inputs: the inputs [networks, …].
            shared_inputs: whether networks with the same seed have the same inputs, so that the inputs are [seeds, …],
                or […] if rows do not depend on the seed.
        """
        if not self._by_seed:
            self.network.reseed_part(part)
            return _call_each(module, tensors, inputs, None if shared_inputs else 0, len(self._seed_of_network))
        step = self.network.mask_step(part)
        generators = [] if step is None else self._generators.at(part, step)
        per_seed = len(self._seed_of_network) // len(self.seeds)
        grouped = {name: self._group_by_seed(tensor) for name, tensor in tensors.items()}

        def call_seed(own: Tensors, rows: Tensor, seed_index: Tensor) -> Tensor:
            with SharedMasks(generators, seed_index):
                return _call_each(module, own, rows, None if shared_inputs else 0, per_seed)

        rows = inputs if shared_inputs else self._group_by_seed(inputs)
        each_seed = torch.vmap(call_seed, in_dims=(0 if tensors else None, 0, 0), randomness="same")
        outputs: Tensor = each_seed(grouped, rows, self._seed_indices)
        return outputs.flatten(0, 1)

    def _group_by_seed(self, tensor: Tensor) -> Tensor:
        """Views a tensor [networks, …] as [seeds, networks per seed, …]."""
        return tensor.view(len(self.seeds), -1, *tensor.shape[1:])

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
        self._set_seeds([self._seed_of_network[index] for index in networks.tolist()])
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
        return self._sizes["encoder"] + sum(self._sizes[f"heads.{self.network.tasks.index(task)}"] for task in tasks)

    @cached_property
    def _sizes(self) -> Counter[str]:
        """The number of parameters of the encoder and of each head."""
        sizes: Counter[str] = Counter()
        for name, parameter in self.parameters.items():
            part = name.split(".")
            sizes[".".join(part[:2]) if part[0] == "heads" else part[0]] += parameter[0].numel()
        return sizes

    def _name_in_network(self, key: str, wanted: set[str]) -> str | None:
        """Returns the name of a state dict entry in a network with only these tasks, or None if there is none."""
        if not key.startswith("heads."):
            return key
        _, index, rest = key.split(".", 2)
        tasks = self.network.tasks
        if tasks[int(index)] not in wanted:
            return None
        return f"heads.{sum(task in wanted for task in tasks[: int(index)])}.{rest}"


def _stack_copies(tensors: Sequence[Tensor], origins: Tensor) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].detach().expand(len(origins), *tensors[0].shape).clone()
    return torch.stack([tensor.detach() for tensor in tensors]).index_select(0, origins.to(tensors[0].device))


def _call_each(module: nn.Module, tensors: Tensors, inputs: Tensor, inputs_dim: int | None, copies: int) -> Tensor:
    """Calls a module with the weights of each network. All networks use the same random numbers, e.g. dropout masks."""
    if not tensors and inputs_dim is None:
        shared: Tensor = module(inputs)
        return shared.expand(copies, *shared.shape)

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
        self.trains, self._device = trains, device
        columns: dict[Hashable, list[int]] = {}
        for column, task in enumerate(tasks):
            columns.setdefault(_family_key(problem, task), []).append(column)
        self._families, networks, places, weights = [], [], [], []
        for members in columns.values():
            if not trains[:, members].any():
                continue
            network, member = np.nonzero(trains[:, members])
            pairs = None if trains[:, members].all() else torch.from_numpy(network * len(members) + member).to(device)
            self._families.append(_Family(tuple(tasks[column] for column in members), pairs, network, member))
            networks.append(network)
            places.append(np.array(members)[member])
            weights += [tasks[column].weight for column in places[-1]]
        self._networks, self._columns = np.concatenate(networks), np.concatenate(places)
        dtype = require_in_memory(problem.train, OPERATION).targets[tasks[0].name].dtype
        self.weights = torch.tensor(weights, dtype=dtype, device=device)

    def targets(self, targets: Targets, own: Sequence[Targets] = ()) -> list[FamilyTargets]:
        """Returns the targets of all pairs.

        Args:
            targets: the targets of each task.
            own: for each network, the targets that replace these, by task. If empty, no targets are replaced.
        """
        return [family.targets(targets, own, self._device) for family in self._families]

    def __call__(self, outputs: Mapping[str, Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Returns the mean loss of every pair.

        Args:
            outputs: the outputs [networks, rows, …] of each task.
            targets: the targets of each family, from `FamilyTargets.on`.
        """
        parts = [family.losses(outputs, target) for family, target in zip(self._families, targets, strict=True)]
        return torch.cat(parts)

    def with_halves(self, outputs: Mapping[str, Tensor], targets: Sequence[Tensor], first: Tensor) -> Tensor:
        """Returns the mean loss of every pair on all rows, on those in the first half, and on the others, [pairs, 3].

        Args:
            outputs: see above.
            targets: see above.
            first: whether each row is in the first half.
        """
        parts = [
            family.losses_with_halves(outputs, target, first)
            for family, target in zip(self._families, targets, strict=True)
        ]
        return torch.cat(parts)

    def to_array(self, losses: Tensor) -> NDArray[np.float64]:
        """Returns losses [pairs, …] as an array [networks, tasks, …], with NaN for tasks that are not trained."""
        table = np.full((*self.trains.shape, *losses.shape[1:]), np.nan)
        table[self._networks, self._columns] = losses.detach().cpu().double().numpy()
        return table


def select_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Returns the rows of a tensor with these indices. Faster than `tensor[rows]`, since it copies whole rows."""
    selected = tensor.index_select(0, rows.flatten())
    return selected.view(*rows.shape, *tensor.shape[1:])


@dataclass(frozen=True)
class FamilyTargets:
    """The targets of all pairs of a family. Targets that several pairs share are stored only once.

    Attributes:
        values: the different targets [targets, rows, …].
        places: the index in `values` of each pair's target, or None if all pairs share one target.
        networks: the network of each pair.
    """

    values: Tensor
    places: Tensor | None
    networks: Tensor

    def on(self, rows: Tensor | None) -> Tensor:
        """Returns the targets [pairs, rows, …] on some rows, or [1, rows, …] if all pairs share them.

        Args:
            rows: the indices of the rows, [rows] or [networks, rows], or None for all rows.
        """
        if rows is not None and rows.dim() == 2:
            return self._on_own_rows(rows)
        values = self.values if rows is None else self.values.index_select(1, rows)
        return values if self.places is None else values.index_select(0, self.places)

    def _on_own_rows(self, rows: Tensor) -> Tensor:
        places = rows.index_select(0, self.networks)
        if self.places is not None:
            places = places + self.places.unsqueeze(1) * self.values.shape[1]
        return select_rows(self.values.flatten(0, 1), places)


@dataclass(frozen=True)
class _Family:
    """A group of tasks with the same loss, and the (network, task) pairs for these tasks.

    Attributes:
        tasks: the members of the family.
        pairs: the indices of the pairs in the flattened array [networks, members], or None for all pairs.
        networks: the network of each pair.
        members: the index of each pair's task in `tasks`.
    """

    tasks: tuple[Task, ...]
    pairs: Tensor | None
    networks: NDArray[np.intp]
    members: NDArray[np.intp]

    def targets(self, targets: Targets, own: Sequence[Targets], device: torch.device) -> FamilyTargets:
        """Returns the targets of all pairs."""
        distinct = [targets[task.name] for task in self.tasks]
        places = self.members
        if any(task.name in replaced for replaced in own for task in self.tasks):
            names = [self.tasks[member].name for member in self.members]
            used = [own[network].get(name, targets[name]) for network, name in zip(self.networks, names, strict=True)]
            numbers: dict[int, int] = {}
            places = np.array([numbers.setdefault(id(target), len(numbers)) for target in used])
            distinct = list({id(target): target for target in used}.values())
        if len({target.dim() for target in distinct}) > 1:
            classes = self.tasks[0].head_size
            distinct = [to_probabilities(target, classes) if target.dim() == 1 else target for target in distinct]
        values = torch.stack([target.to(device, targets[self.tasks[0].name].dtype) for target in distinct])
        chosen = torch.from_numpy(places).to(device) if len(distinct) > 1 else None
        return FamilyTargets(values, chosen, torch.from_numpy(self.networks).to(device))

    def losses(self, outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Returns the mean loss of each pair, given outputs [networks, rows, …] and targets [pairs or 1, rows, …]."""
        losses, present = self._row_losses(*self._pairs(outputs, targets))
        return losses.sum(1) / present.sum(1).clamp(min=1)

    def losses_with_halves(self, outputs: Mapping[str, Tensor], targets: Tensor, first: Tensor) -> Tensor:
        """Returns the same for all rows, for those in the first half, and for the others, [pairs, 3].

        The loss on a half without labels is NaN.
        """
        losses, present = self._row_losses(*self._pairs(outputs, targets))
        mean = losses.sum(1) / present.sum(1).clamp(min=1)
        halves = [
            torch.where(half, losses, 0).sum(1) / torch.where(half, present, 0).sum(1) for half in (first, ~first)
        ]
        return torch.stack([mean, *halves], 1)

    def _pairs(self, outputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs and targets [pairs, rows, …] of each pair."""
        member_outputs = [outputs[task.name] for task in self.tasks]
        chosen = member_outputs[0] if len(self.tasks) == 1 else torch.stack(member_outputs, 1).flatten(0, 1)
        if self.pairs is not None:
            chosen = chosen.index_select(0, self.pairs)
        if len(targets) != len(chosen):
            targets = targets.expand(len(chosen), *targets.shape[1:])
        return chosen, targets

    def _row_losses(self, chosen: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the losses [pairs, rows], and whether each row has a label."""
        if self.tasks[0].loss is not None:
            losses, present = torch.vmap(self.tasks[0].row_losses)(chosen, targets)
            return losses, present
        # The usual losses depend on one row only, so the rows of all pairs can be computed as rows of one pair.
        losses, present = self.tasks[0].row_losses(chosen.flatten(0, 1), targets.flatten(0, 1))
        shape = targets.shape[:2]
        return losses.view(shape), present.view(shape)


def _family_key(problem: Problem, task: Task) -> Hashable:
    """Returns a key that is the same for tasks with equal losses and shapes, and unique for tasks with custom heads."""
    target = require_in_memory(problem.train, OPERATION).targets[task.name]
    if task.head is not None or not (problem.head is None or isinstance(problem.head, TabMHeads)):
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
        task_scores = _task_scores(problem, task, chosen, split.targets[name].to(device))
        for network, score in zip(networks, task_scores, strict=True):
            scores[network][name] = score
    return scores


def _task_scores(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> list[Score]:
    """Returns the scores of one task, given outputs [networks, rows, …], with the same results as `scores_on`."""
    rows = _row_losses(task, *as_float64(task, outputs, targets))
    finite, losses = np.isfinite(rows).any(1), np.full(len(rows), np.nan)
    losses[finite] = np.nanmean(rows[finite], 1)
    errors = errors_of_stack(task, outputs, targets, problem.scales.get(task.name), losses.tolist())
    found = zip(losses.tolist(), errors, rows.astype(np.float32), strict=True)
    return [Score(loss, error, own) for loss, error, own in found]


def _row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """Returns the losses [networks, rows], with NaN for missing labels."""
    losses, present = torch.vmap(lambda output: task.row_losses(output, targets))(outputs)
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())
