"""Many networks of one shape as one: every weight and buffer has a first dimension, the networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ._network import Network, evaluating

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
