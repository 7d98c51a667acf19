"""What a closure wrote that no replay can put back."""

from torch import Tensor, nn


class Writes:
    """Parameters, their ``.grad`` and plain tensor attributes of modules, to tell later which were written.

    Copies of them would cost as much memory as the model, so a closure that writes them is refused instead.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[str, Tensor, int]] = []
        self._gradients: list[tuple[str, Tensor, Tensor | None, int]] = []

    def watch(self, module: nn.Module, name: str) -> None:
        plain = {k: v for k, v in vars(module).items() if isinstance(v, Tensor) and not v.requires_grad}
        for key, tensor in {**plain, **dict(module.named_parameters(recurse=False))}.items():
            self._tensors.append((f"{name}.{key}", tensor, tensor._version))
        for key, parameter in module.named_parameters(recurse=False):
            self._gradients.append((f"{name}.{key}.grad", parameter, parameter.grad, _version(parameter.grad)))

    def found(self) -> list[str]:
        """Names of what was written since."""
        tensors = [name for name, tensor, version in self._tensors if tensor._version != version]
        gradients = [name for name, p, old, version in self._gradients if p.grad is not old or _version(old) != version]
        return tensors + gradients


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version
