"""Networks with the same architecture whose weights are stacked, so that the networks can run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call

from .network import Network, evaluation_mode
from .piecewise_linear import PiecewiseLinear
from .randomness import SharedMasks, derive_seed, is_capturing

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

    def __init__(self, networks: Sequence[Network], origins: ArrayLike) -> None:
        self.network = networks[0]
        self._heads_are_linear = self.network.head_type is nn.Linear
        self.parameters, self.buffers = torch.func.stack_module_state([*networks])
        self._seed_of_network = [network.seed for network in networks]
        self.keep_only(torch.as_tensor(origins, device=next(iter(self.tensors.values())).device))

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
        encoder, tensors = self.network.encoder, self._tensors_of("encoder.")
        if isinstance(encoder, nn.Sequential) and isinstance(encoder[0], PiecewiseLinear):
            # It has no weights, so the codes of a row are the same for all networks, and are computed only once.
            inputs, encoder = encoder[0](inputs), encoder[1:]
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("0.")}
        features = self._call_part("encoder", encoder, tensors, inputs, shared_inputs=True)
        if self._heads_are_linear and features.dim() == 3:
            return self._linear_heads(features)
        outputs = {}
        for index, (task, head) in enumerate(zip(self.network.tasks, self.network.heads, strict=True)):
            tensors = self._tensors_of(f"heads.{index}.")
            outputs[task] = self._call_part(task, head, tensors, features, shared_inputs=False)
        return outputs

    def seed_masks(self) -> list[torch.Generator]:
        """Seeds the generators of all dropout masks of the next training step in advance, and returns them."""
        parts = dict.fromkeys(("encoder", *self.network.tasks))
        return [generator for part in parts for generator in self._mask_generators(part)]

    def _mask_generators(self, part: str) -> list[torch.Generator]:
        """Returns the generator of each seed, seeded for a part of the network and its step, if it draws any masks.

        A generator is seeded exactly as `Network.reseed_part` seeds the global one, so it draws the same masks.
        """
        step = self.network.mask_step(part)
        if step is None:
            return []
        if part not in self._generators:
            self._generators[part] = [torch.Generator(self._seed_indices.device) for _ in self.seeds]
        if not is_capturing():  # otherwise, they were seeded in advance
            for seed, generator in zip(self.seeds, self._generators[part], strict=True):
                generator.manual_seed(derive_seed(seed, "masks", part, step))
        return self._generators[part]

    @torch.no_grad()
    def outputs_on(self, inputs: Tensor, rows_at_once: int) -> Tensors:
        """Returns the outputs of every task in evaluation mode."""
        with evaluation_mode(self.network):
            chunks = [self(chunk) for chunk in inputs.split(rows_at_once)]
        return {task: torch.cat([chunk[task] for chunk in chunks], 1) for task in self.network.tasks}

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
        generators, shared_dim = self._mask_generators(part), None if shared_inputs else 0
        if len(self.seeds) == 1 or not self.network.training:  # all networks have the same rows and masks
            with SharedMasks(generators) if generators else nullcontext():
                return _call_each(module, tensors, inputs, shared_dim, len(self._seed_of_network))
        per_seed = len(self._seed_of_network) // len(self.seeds)
        by_seed = {name: tensor.unflatten(0, (-1, per_seed)) for name, tensor in tensors.items()}
        rows = inputs if shared_inputs else inputs.unflatten(0, (-1, per_seed))

        def call_seed(own: Tensors, rows: Tensor, seed_index: Tensor) -> Tensor:
            with SharedMasks(generators, seed_index):
                return _call_each(module, own, rows, shared_dim, per_seed)

        each_seed = torch.vmap(call_seed, in_dims=(0 if tensors else None, 0, 0), randomness="same")
        outputs: Tensor = each_seed(by_seed, rows, self._seed_indices)
        return outputs.flatten(0, 1)

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
        kept = {
            name: parameter.detach().index_select(0, networks).requires_grad_(parameter.requires_grad)
            for name, parameter in self.parameters.items()
        }
        moved = {self.parameters[name]: kept[name] for name in kept}
        self.parameters = kept
        self.buffers = {name: buffer.index_select(0, networks) for name, buffer in self.buffers.items()}
        self._seed_of_network = [self._seed_of_network[index] for index in networks.tolist()]
        self.seeds = list(dict.fromkeys(self._seed_of_network))
        self._seed_indices = torch.arange(len(self.seeds), device=networks.device)
        self._generators: dict[str, list[torch.Generator]] = {}
        return moved

    @torch.no_grad()
    def load(self, tensors: Tensors, networks: Tensor | slice = slice(None)) -> None:
        """Replaces the weights and buffers of some networks."""
        for name, tensor in self.tensors.items():
            tensor[networks] = tensors[name].to(tensor)

    def state_dicts(self, tasks: Sequence[Sequence[str]]) -> list[Tensors]:
        """Returns a state dict for each network, with only the heads of its own tasks."""
        names = {id(tensor): name for name, tensor in (*self.network.named_parameters(), *self.network.named_buffers())}
        stored = self.network.state_dict(keep_vars=True)
        tensors = {key: self.tensors[names[id(tensor)]].detach().cpu() for key, tensor in stored.items()}
        return [
            {own: tensors[key][index].clone() for key in tensors if (own := self._name_in_network(key, set(wanted)))}
            for index, wanted in enumerate(tasks)
        ]

    def _name_in_network(self, key: str, wanted: set[str]) -> str | None:
        """Returns the name of a state dict entry in a network with only these tasks, or None if there is none."""
        if not key.startswith("heads."):
            return key
        _, index, rest = key.split(".", 2)
        tasks = self.network.tasks
        if tasks[int(index)] not in wanted:
            return None
        return f"heads.{sum(task in wanted for task in tasks[: int(index)])}.{rest}"


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
