"""One network: a shared encoder and a head for each of its tasks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tagalong._version import is_own

from .randomness import SharedMasks, derived, drawing, reseed
from .task import Task

if TYPE_CHECKING:
    from .problem import Problem

Encoder = nn.Module | Callable[..., nn.Module]


class Network(nn.Module):
    """An encoder and one head per task; gives the outputs of every task.

    Attributes:
        tasks: the names, in the order of the problem.
        seed: of the dropout masks, see `at_step`.
    """

    def __init__(self, encoder: nn.Module, heads: Sequence[nn.Module], tasks: Sequence[str], seed: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(heads)  # a ModuleDict would refuse dots in names
        self.tasks = tuple(tasks)
        self.seed = seed
        self.draws = {task: _draws(head) for task, head in zip(tasks, heads, strict=True)}
        self.draws["encoder"] = _draws(encoder) or self.draws.get("encoder", False)  # a task may be called so
        self._step: int | None = None

    def at_step(self, step: int | None) -> Network:
        """From here on dropout masks are those of this step: by part, so that other tasks' heads do not matter."""
        self._step = step
        return self

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        with self.masks():
            self.draw("encoder")
            features = self.encoder(inputs)
            outputs = {}
            for task, head in zip(self.tasks, self.heads, strict=True):
                self.draw(task)
                outputs[task] = head(features)
        return outputs

    def masks(self) -> AbstractContextManager[object]:
        """Inside, masks follow from the step and the part alone, also where many networks are computed at once."""
        return SharedMasks() if self.training and self._step is not None and any(self.draws.values()) else nullcontext()

    def draw(self, part: str) -> None:
        """What the part draws next is that of this step."""
        if self.training and self._step is not None and self.draws[part]:
            reseed(derived(self.seed, "masks", part, self._step))


def build_network(problem: Problem, tasks: Iterable[str], seed: int, width: float = 1.0) -> Network:
    """A network for these tasks with the initial weights of this seed, whatever tasks are beside each other."""
    wanted = set(tasks)
    chosen = [task for task in problem.tasks if task.name in wanted]
    inputs, _ = problem.train.only(()).batch(torch.arange(min(2, len(problem.train))))
    with drawing(seed, "encoder"):
        encoder = problem.make_encoder(width)
        encoder = encoder.to(inputs.dtype) if inputs.is_floating_point() else encoder
        features = feature_count(encoder, inputs)  # lazy layers draw their weights here
    like = next(encoder.parameters(), inputs)
    heads = [_head(problem, task, features, seed, like) for task in chosen]
    return Network(encoder, heads, [task.name for task in chosen], seed)


def _head(problem: Problem, task: Task, features: int, seed: int, like: Tensor) -> nn.Module:
    with drawing(seed, "head", task.name):
        head = task.make_head(features) if problem.head is None else problem.head(task, features)
    return head.to(like.dtype) if like.is_floating_point() else head


def feature_count(encoder: nn.Module, inputs: Tensor) -> int:
    """How many features the encoder gives: the size of the axis after the rows, as channels are."""
    with evaluating(encoder), torch.no_grad():
        features = encoder(inputs)
    if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(inputs):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"`encoder` must give a tensor [rows, features, …], found {found} for {len(inputs)} rows of inputs "
            f"{list(inputs.shape[1:])}"
        )
    return int(features.shape[1])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part has the mode it had, frozen parts too."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def make_encoder(encoder: Encoder, width: float) -> nn.Module:
    """A module from a factory, or a copy of a module given."""
    if isinstance(encoder, nn.Module):
        if width != 1:
            raise ValueError("`encoder` must be a callable with a `width` argument to be widened, found a module")
        return copy.deepcopy(encoder)
    if width == 1:
        return encoder()
    if "width" not in inspect.signature(encoder).parameters:
        raise ValueError(
            "`encoder` must have a `width` argument to be widened, found none; write `def encoder(width=1)`"
        )
    return encoder(width=width)


def _draws(module: nn.Module) -> bool:
    """Whether a forward pass in training may draw random numbers: dropout does, other known layers do not."""
    return any(_may_draw(part) for part in module.modules())


def _may_draw(part: nn.Module) -> bool:
    if "Dropout" in type(part).__name__ or isinstance(part, (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return True
    if isinstance(part, (nn.MultiheadAttention, nn.RNNBase, nn.Transformer)):
        return True
    module = type(part).__module__
    return not (module.startswith("torch.nn") or is_own(module))  # a user's may call functional.dropout


class MLP:
    """Makes encoders of fully connected layers.

    Args:
        features: of the inputs.
        hidden: the size of each layer; `width` multiplies it.
        dropout: after each layer.
    """

    def __init__(self, features: int, hidden: Sequence[int] = (64, 64), dropout: float = 0.0) -> None:
        self.features, self.hidden, self.dropout = features, tuple(hidden), dropout

    def __call__(self, width: float = 1.0) -> nn.Module:
        layers: list[nn.Module] = []
        size = self.features
        for wanted in self.hidden:
            wide = max(1, round(wanted * width))
            layers += [nn.Linear(size, wide), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            size = wide
        return nn.Sequential(*layers)

    def __repr__(self) -> str:
        return f"MLP({self.features}, hidden={self.hidden}, dropout={self.dropout})"
