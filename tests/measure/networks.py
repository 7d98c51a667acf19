"""Small networks, one for each kind of state that replaying the closure may disturb."""

import random
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

TASKS = ("a", "b", "c")
ROWS, WIDTH, HIDDEN = 6, 6, 4
Losses = dict[str, Tensor]


@dataclass
class Batch:
    """Features and one target column per task."""

    x: Tensor
    y: Tensor


@dataclass
class Network:
    """A network to train in a test.

    Attributes:
        model: Holds every parameter and buffer.
        shared: The shared modules or parameters.
        losses: Returns the losses of a batch, by task.
        around: Context entered around every call of the closure, including the meter's replays.
        named: Whether the meter needs `model`.
    """

    model: nn.Module
    shared: nn.Module | list[nn.Parameter]
    losses: Callable[[Batch], Losses]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    needs_model: bool = False


def batches(count: int, device: str = "cpu") -> list[Batch]:
    generator = torch.Generator().manual_seed(7)
    draw = [torch.randn(ROWS, WIDTH + len(TASKS), generator=generator).to(device) for _ in range(count)]
    return [Batch(d[:, :WIDTH], d[:, WIDTH:]) for d in draw]


class Heads(nn.ModuleDict):
    """One head per task, and its mean squared error."""

    def __init__(self, make: Callable[[], nn.Module] = lambda: nn.Linear(HIDDEN, 1)) -> None:
        super().__init__({task: make() for task in TASKS})

    def losses(self, hidden: Tensor, y: Tensor) -> Losses:
        return {t: F.mse_loss(head(hidden)[:, 0].float(), y[:, k]) for k, (t, head) in enumerate(self.items())}


class HardSharing(nn.Module):
    def __init__(self, encoder: nn.Module, heads: Heads | None = None) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads or Heads()

    def forward(self, x: Tensor, y: Tensor) -> Losses:
        return self.heads.losses(self.encoder(x), y)  # type: ignore[operator]


def hard_sharing(encoder: nn.Module, heads: Heads | None = None, **options: Any) -> Network:
    model = HardSharing(encoder, heads)
    return Network(model, model.encoder, lambda batch: model(batch.x, batch.y), **options)


def batchnorm() -> Network:
    def head() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 1))

    return hard_sharing(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()), Heads(head))


def convolution() -> Network:
    layers = [nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, HIDDEN, 2), nn.BatchNorm2d(HIDDEN), nn.Flatten()]
    encoder = nn.Sequential(*layers, nn.Linear(2 * HIDDEN, HIDDEN)).to(memory_format=torch.channels_last)
    return hard_sharing(encoder)


def dropout() -> Network:
    def head() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.3), nn.Linear(HIDDEN, 1))

    return hard_sharing(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Dropout(0.3)), Heads(head))


def spectral_norm() -> Network:
    layer = parametrizations.spectral_norm(nn.Linear(WIDTH, HIDDEN))
    return hard_sharing(
        nn.Sequential(layer, nn.Tanh()), Heads(lambda: parametrizations.spectral_norm(nn.Linear(HIDDEN, 1)))
    )


def old_spectral_norm() -> Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return hard_sharing(nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, HIDDEN)), nn.Tanh()))


class Recurrent(nn.Module):
    def __init__(self, *cells: nn.Module) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.reshape(len(x), 3, 2)
        for cell in self.cells:
            hidden = cell(hidden)[0] if isinstance(cell, nn.LSTM) else cell(hidden)
        return hidden[:, -1]


def lstm() -> Network:
    """Has dropout between its layers, not inside them, since cuDNN's own dropout cannot be repeated."""
    first, second = nn.LSTM(2, HIDDEN, batch_first=True), nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
    return hard_sharing(Recurrent(first, nn.Dropout(0.2), second))


def stacked_lstm() -> Network:
    """Not in `NETWORKS`: the meter rejects it on CUDA."""
    return hard_sharing(Recurrent(nn.LSTM(2, HIDDEN, num_layers=2, dropout=0.2, batch_first=True)))


class Tied(nn.Module):
    """Ties the decoder to the transposed encoder weight, so that a head moves with the shared step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.decoder.weight = self.encoder.weight
        self.heads = Heads()

    def forward(self, x: Tensor, y: Tensor) -> Losses:
        hidden = torch.tanh(self.encoder(x))
        losses: Losses = self.heads.losses(hidden, y)
        return losses | {"a": F.mse_loss(hidden @ self.decoder.weight, x)}


def tied() -> Network:
    model = Tied()
    return Network(model, model.encoder, lambda batch: model(batch.x, batch.y))


def augmentation() -> Network:
    """Draws from every global generator."""
    network = hard_sharing(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh()))

    def losses(batch: Batch) -> Losses:
        x = batch.x + 0.1 * torch.randn_like(batch.x) + 0.1 * torch.randn(WIDTH).to(batch.x)
        x = x * float(np.random.uniform(0.9, 1.1))  # noqa: NPY002 - what augmentation code draws from
        flip: Tensor = x.flip(1) if random.random() < 0.5 else x
        return network.model(flip, batch.y)  # type: ignore[no-any-return]

    network.losses = losses
    return network


def bfloat16_inside() -> Network:
    network = batchnorm()
    inner = network.losses

    def losses(batch: Batch) -> Losses:
        with torch.autocast(batch.x.device.type, torch.bfloat16):
            return inner(batch)

    network.losses = losses
    return network


def bfloat16_around() -> Network:
    network = batchnorm()
    network.around = lambda: torch.autocast(next(network.model.parameters()).device.type, torch.bfloat16)
    return network


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return hidden


def checkpointed() -> Network:
    return hard_sharing(Checkpointed())


class Stateful(nn.Module):
    """Keeps its last hidden state, a counter, a history and a tensor that it writes to as plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.last: Tensor | None = None
        self.calls, self.mean = 0, torch.zeros(())
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(x))
        if self.last is not None:
            hidden = hidden + 0.5 * self.last
        self.last, self.calls = hidden.detach().mean(0), self.calls + 1
        self.history.append(self.calls)
        self.mean = self.mean.to(x.device)
        self.mean.lerp_(hidden.detach().mean(), 0.1)
        return hidden * (1 + self.mean)


def stateful() -> Network:
    return hard_sharing(Stateful())


class Rebinding(nn.Module):
    """Rebinds its buffers instead of writing to them in place; one of them starts as None."""

    mean: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        if self.last is not None:
            hidden = hidden + 0.1 * self.last
        self.last = hidden.detach().mean(0)
        return torch.tanh(hidden - self.mean)


def rebinding() -> Network:
    return hard_sharing(Rebinding())


class RunningScale(nn.Module):
    """Writes a buffer in place and then computes with it, so that the graph holds what a replay would overwrite."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.register_buffer("scale", torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        with torch.no_grad():
            self.scale.lerp_(hidden.abs().mean(0), 0.1)
        return hidden / self.scale


def running_scale() -> Network:
    return hard_sharing(RunningScale())


def gradient_penalty() -> Network:
    """Differentiates inside the closure."""
    network = hard_sharing(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Dropout(0.2)))

    def losses(batch: Batch) -> Losses:
        x = batch.x.clone().requires_grad_()
        found: Losses = network.model(x, batch.y)
        (slope,) = torch.autograd.grad(found["a"], x, create_graph=True)
        return found | {"a": found["a"] + slope.pow(2).sum()}

    network.losses = losses
    return network


NETWORKS: dict[str, Callable[[], Network]] = {
    make.__name__: make
    for make in (
        batchnorm, convolution, dropout, spectral_norm, old_spectral_norm, lstm, tied, augmentation,
        bfloat16_inside, bfloat16_around, checkpointed, stateful, rebinding, running_scale, gradient_penalty,
    )
}  # fmt: skip
