"""`Network`: a shared encoder and a head for each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tagalong._version import is_own_module
from tagalong.errors import InvalidInput

from .piecewise_linear import Edges, PiecewiseLinear, checked_edges, count_bins, describe_edges
from .randomness import SharedMasks, derive_seed, reseed, seeded_rng
from .task import Task

if TYPE_CHECKING:
    from .problem import Problem

Encoder = nn.Module | Callable[..., nn.Module]
EncoderName = Literal["mlp", "tabm"]  # encoders for flat inputs, created by `Problem.from_arrays` and `from_table`


class Network(nn.Module):
    """A network with a shared encoder and one head per task, which returns the outputs of every task.

    Attributes:
        tasks: the names of the tasks, in the problem's order.
        seed: the seed for the dropout masks; see `at_step`.
        step: the step for which they are drawn, or None.
    """

    def __init__(self, encoder: nn.Module, heads: Sequence[nn.Module], tasks: Sequence[str], seed: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(heads)  # a ModuleDict does not allow dots in names
        self.tasks = tuple(tasks)
        self.seed = seed
        self.random_parts = {task: _is_random(head) for task, head in zip(tasks, heads, strict=True)}
        # a task may also be named "encoder"
        self.random_parts["encoder"] = _is_random(encoder) or self.random_parts.get("encoder", False)
        self.step: int | None = None

    def at_step(self, step: int | None) -> Network:
        """Sets the step for which dropout masks are drawn. The masks of each head do not depend on the other heads."""
        self.step = step
        return self

    def encode(self, inputs: Tensor) -> Tensor:
        """Returns the features of these rows, which are the inputs of every head."""
        with self.masks():
            self.reseed_part("encoder")
            features: Tensor = self.encoder(inputs)
        return features

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        features, outputs = self.encode(inputs), {}
        with self.masks():
            for task, head in zip(self.tasks, self.heads, strict=True):
                self.reseed_part(task)
                outputs[task] = head(features)
        return outputs

    @property
    def head_type(self) -> type[nn.Module] | None:
        """The type of all heads, or None if it differs, or if heads share weights, lack a bias or have hooks."""
        parameters = [id(parameter) for _, parameter in self.named_parameters(remove_duplicate=False)]
        plain = [head for head in self.heads if getattr(head, "bias", None) is not None]
        hooks = [hook for head in plain for hook in (*head._forward_hooks, *head._forward_pre_hooks)]
        types = {type(head) for head in self.heads}
        if len(set(parameters)) < len(parameters) or len(plain) < len(self.heads) or hooks or len(types) != 1:
            return None
        return types.pop()

    def count_parameters(self, tasks: Sequence[str]) -> int:
        """Returns the number of parameters of a network with only these tasks."""
        heads = [head for task, head in zip(self.tasks, self.heads, strict=True) if task in tasks]
        return sum(parameter.numel() for parameter in nn.ModuleList([self.encoder, *heads]).parameters())

    def masks(self) -> AbstractContextManager[object]:
        """Returns a context in which dropout masks do not depend on how many networks are computed at once."""
        if self.training and self.step is not None and any(self.random_parts.values()):
            return SharedMasks()
        return nullcontext()

    def reseed_part(self, part: str) -> None:
        """Seeds the random number generators for this step and for one part of the network: "encoder" or a task."""
        if (step := self.mask_step(part)) is not None:
            reseed(derive_seed(self.seed, "masks", part, step))

    def mask_step(self, part: str) -> int | None:
        """Returns the step whose dropout masks a part of the network uses, or None if it draws no masks."""
        return self.step if self.training and self.random_parts[part] else None


def join_layers(layers: Iterable[Any], joined: Any, outputs_dim: int) -> None:
    """Makes the weights and biases of some layers parts of those of a layer with the outputs of all of them.

    Args:
        layers: the layers.
        joined: the layer that computes all outputs. It gets new parameters.
        outputs_dim: the dimension of the weights and biases that belongs to the outputs.

    Example:
        >>> first, second, joined = nn.Linear(3, 1), nn.Linear(3, 2), nn.Linear(3, 3)
        >>> join_layers([first, second], joined, 0)
        >>> _ = joined.bias.data.copy_(torch.tensor([4.0, 5.0, 6.0]))
        >>> second.bias.tolist()
        [5.0, 6.0]
    """
    for name in ("weight", "bias"):
        tensors = [getattr(layer, name).detach() for layer in layers]
        whole = nn.Parameter(torch.cat(tensors, outputs_dim))
        setattr(joined, name, whole)
        parts = whole.detach().split([tensor.shape[outputs_dim] for tensor in tensors], outputs_dim)
        for layer, part in zip(layers, parts, strict=True):
            setattr(layer, name, nn.Parameter(part))


def build_network(problem: Problem, tasks: Iterable[str], seed: int, width: float = 1.0) -> Network:
    """Builds a network for these tasks.

    The initial weights of the encoder and of each head depend on the seed, but not on the other tasks. Heads created by
    user code keep their initial biases, even if the recipe lets heads start at the base rate.
    """
    wanted = set(tasks)
    chosen = [task for task in problem.tasks if task.name in wanted]
    inputs, _ = problem.train.only(()).batch(torch.arange(min(2, len(problem.train))))
    with seeded_rng(seed, "encoder"):
        encoder = problem.make_encoder(width)
        encoder = encoder.to(inputs.dtype) if inputs.is_floating_point() else encoder
        features = feature_count(encoder, inputs)  # lazy layers are initialized here
    like = next(encoder.parameters(), inputs)
    heads = [_make_head(problem, task, features, seed, like) for task in chosen]
    return Network(encoder, heads, [task.name for task in chosen], seed)


def _make_head(problem: Problem, task: Task, features: int, seed: int, like: Tensor) -> nn.Module:
    with seeded_rng(seed, "head", task.name):
        head = task.make_head(features) if problem.head is None else problem.head(task, features)
    head = head.to(like.dtype) if like.is_floating_point() else head
    is_own = task.head is None and (problem.head is None or isinstance(problem.head, ModuleFactory))
    if problem.recipe.start_heads == "base_rate" and is_own and task.name in problem.base_rates:
        bias = head.get_parameter("bias")
        with torch.no_grad():
            bias.copy_(problem.base_rates[task.name].expand_as(bias))  # of every member, if there are several
    return head


def feature_count(encoder: nn.Module, inputs: Tensor) -> int:
    """Returns the number of features of an encoder: the size of its output's second dimension."""
    with evaluation_mode(encoder), torch.no_grad():
        features = encoder(inputs)
    if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(inputs):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        found = f"{found} for inputs of shape {list(inputs.shape)}"
        raise InvalidInput("encoder", "must return a tensor of shape [rows, features, …]", found)
    return int(features.shape[1])


def count_multiplications(network: nn.Module, inputs: Tensor) -> int:
    """Returns about how many multiplications a forward pass takes: each weight of a layer once for each of its outputs.

    Layers that use their weights otherwise have an attribute `multiplications`, the number per row.

    Example:
        >>> count_multiplications(nn.Conv2d(3, 2, 3), torch.rand(5, 3, 4, 4))  # 5 · 2 · 2 positions
        1080
    """
    count = 0

    def add(layer: Any, _: Any, outputs: Any) -> None:
        nonlocal count
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "multiplications"):
            count += len(inputs) * layer.multiplications
        elif isinstance(weight, Tensor) and weight.dim() > 1 and not isinstance(layer, nn.Embedding):
            count += outputs.numel() * weight[0].numel()

    handles = [layer.register_forward_hook(add) for layer in network.modules()]
    with evaluation_mode(network), torch.no_grad():
        network(inputs)
    for handle in handles:
        handle.remove()
    return count


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module into evaluation mode within the context. Restores the mode of each submodule on exit."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _is_random(module: nn.Module) -> bool:
    """Returns whether a forward pass in training mode may draw random numbers."""
    known = (
        nn.RReLU,
        nn.FractionalMaxPool2d,
        nn.FractionalMaxPool3d,
        nn.MultiheadAttention,
        nn.RNNBase,
        nn.Transformer,
    )
    for part in module.modules():
        kind = type(part)
        # Unknown layers may call functional.dropout.
        is_unknown = not (kind.__module__.startswith("torch.nn") or is_own_module(kind.__module__))
        if is_unknown or "Dropout" in kind.__name__ or isinstance(part, known):
            return True
    return False


class ModuleFactory:
    """Base class of tagalong's own encoders and heads: callables that create modules.

    Each argument of `__init__` is a plain value and is kept in an attribute of the same name. Networks can therefore be
    saved as JSON and weights, without pickling any code.
    """


class MLP(ModuleFactory):
    """Creates encoders made of fully connected layers.

    Args:
        features: the number of input features.
        hidden: the size of each hidden layer, before multiplying by `width`.
        dropout: the dropout probability after each layer.
        edges: for each input feature, the edges of the bins of its piecewise-linear code (see `PiecewiseLinear`). If
            empty, the first layer receives only the features themselves.
    """

    def __init__(
        self, features: int, hidden: Sequence[int] = (64, 64), dropout: float = 0.0, edges: Edges = ()
    ) -> None:
        self.features, self.hidden, self.dropout = features, tuple(hidden), dropout
        self.edges = checked_edges(edges, features)

    def __call__(self, width: float = 1.0) -> nn.Module:
        bins = count_bins(self.edges)
        sizes = [self.features + bins, *(max(1, round(wanted * width)) for wanted in self.hidden)]
        layers: list[nn.Module] = [PiecewiseLinear(self.edges)] if bins else []
        for size, wide in pairwise(sizes):
            layers += [nn.Linear(size, wide), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers)

    def __repr__(self) -> str:
        return f"MLP({self.features}, hidden={self.hidden}, dropout={self.dropout}{describe_edges(self.edges)})"
