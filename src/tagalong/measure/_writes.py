"""What a closure wrote that no replay can put back."""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Writes:
    """Parameters, their ``.grad`` and plain tensor attributes of modules, to tell later which were written.

    Copies of them would cost as much memory as the model, so a closure that writes them is refused instead.

    Attributes:
        lazy: Names of parameters without a shape yet.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[str, Tensor, int]] = []
        self._gradients: list[tuple[str, Tensor, Tensor | None, int]] = []
        self._sizes: list[tuple[str, Tensor, int, Tensor]] = []
        self.lazy: list[str] = []

    def watch(self, module: nn.Module, name: str) -> None:
        parameters = {f"{name}.{key}": p for key, p in module.named_parameters(recurse=False)}
        self.lazy += [key for key, p in parameters.items() if is_lazy(p)]
        known = {key: p for key, p in parameters.items() if not is_lazy(p)}
        plain = {k: v for k, v in vars(module).items() if isinstance(v, Tensor) and not v.requires_grad}
        for key, tensor in {**{f"{name}.{k}": v for k, v in plain.items()}, **known}.items():
            self._tensors.append((key, tensor, tensor._version))
        for key, p in known.items():
            self._gradients.append((f"{key}.grad", p, p.grad, _version(p.grad)))
            # Writes through .data bump no version, but move the storage or change the numbers in it.
            self._sizes.append((key, p, p.data_ptr(), _size(p)))

    def found(self) -> list[str]:
        """Names of what was written since."""
        tensors = [name for name, tensor, version in self._tensors if tensor._version != version]
        gradients = [name for name, p, old, version in self._gradients if p.grad is not old or _version(old) != version]
        data = [name for name, p, at, size in self._sizes if p.data_ptr() != at or not torch.equal(_size(p), size)]
        return list(dict.fromkeys(tensors + gradients + data))


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version


def _size(parameter: Tensor) -> Tensor:
    precise = torch.float32 if parameter.device.type == "mps" else torch.float64
    size: Tensor = torch.linalg.vector_norm(parameter.detach().to(precise).nan_to_num())
    return size
