"""How a network is trained: everything that changes the numbers, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import from_zero, refuse

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "cosine", "step", "windows")
# Settings that `Recipe.definition` leaves out. Frozen: defaults of `Recipe` may change, these never do. A new setting
# gets the value here with which training is as it was before, so that networks trained before are found again.
UNSAID: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "batch_size": 256,
    "epochs": 100,
    "patience": 10,
    "keep": "best",
    "schedule": "constant",
    "period": 15,
    "factor": 0.5,
    "window": 500_000,
    "lowest_lr": 0.0,
    "amp": None,
}


@dataclass(frozen=True)
class Recipe:
    """Optimiser, batches, learning rate and stopping of one training.

    Attributes:
        optimizer: "sgd", "adam" or "adamw".
        lr: the learning rate at the start.
        momentum: of sgd.
        weight_decay: as the optimiser understands it.
        batch_size: rows of a step.
        epochs: at most so many.
        patience: training stops when the validation loss has not improved for so many epochs; None: never before the
            last epoch.
        keep: which weights count: "best" by validation loss, or "last", after all epochs (with `patience=None`).
        schedule: "constant", "cosine" (to zero over `epochs`), "step" (times `factor` every `period` epochs), or
            "windows" (times `factor` when the training loss has not fallen over the last `window` rows; the window
            doubles each time, up to four times the first).
        period: epochs between steps of the schedule.
        factor: of a step of the schedule.
        window: rows of the first window.
        lowest_lr: training ends before an epoch whose learning rate would be below this.
        amp: "bf16" or "fp16" for mixed precision, None for the precision of the inputs.

    Example:
        >>> Recipe(lr=0.1, schedule="step", period=2, factor=0.5).rates(5)
        [0.1, 0.1, 0.05, 0.05, 0.025]
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.01
    batch_size: int = 256
    epochs: int = 100
    patience: int | None = 10
    keep: Literal["best", "last"] = "best"
    schedule: Literal["constant", "cosine", "step", "windows"] = "constant"
    period: int = 15
    factor: float = 0.5
    window: int = 500_000
    lowest_lr: float = 0.0
    amp: Literal["bf16", "fp16"] | None = None

    def __post_init__(self) -> None:
        refuse(list(self._problems()))

    def _problems(self) -> Iterable[str]:
        choices = {
            "optimizer": tuple(OPTIMIZERS),
            "keep": ("best", "last"),
            "schedule": SCHEDULES,
            "amp": ("bf16", "fp16", None),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                yield f"`{name}` must be one of {', '.join(map(repr, allowed))}, found {getattr(self, name)!r}"
        for name in ("batch_size", "epochs", "patience", "period", "window"):
            if name == "patience" and self.patience is None:
                continue
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                yield f"`{name}` must be a whole number from 1, found {getattr(self, name)!r}"
        if self.keep == "last" and self.patience is not None:
            yield f"`keep` 'last' means after all epochs and needs `patience` None, found {self.patience!r}"
        for name in ("lr", "factor"):
            if not from_zero(getattr(self, name)) or not getattr(self, name):
                yield f"`{name}` must be a positive number, found {getattr(self, name)!r}"
        if self.keep == "last" and self.lowest_lr:
            yield f"`keep` 'last' means after all epochs and needs `lowest_lr` 0, found {self.lowest_lr!r}"
        for name in ("momentum", "weight_decay", "lowest_lr"):
            if not from_zero(getattr(self, name)):
                yield f"`{name}` must be a number from 0, found {getattr(self, name)!r}"

    @property
    def definition(self) -> dict[str, Any]:
        """The settings that tell it from other recipes; a setting that is added later is left out where it changes
        nothing, so that keys of networks stay as they are.

        Example:
            >>> Recipe(lr=0.1).definition
            {'lr': 0.1}
        """
        return {name: value for name, value in asdict(self).items() if name not in UNSAID or value != UNSAID[name]}

    def stops(self, epochs: int, waited: int, rate: float | None = None) -> bool:
        """Whether training is over after so many epochs, the last `waited` of them without improvement.

        Args:
            epochs: done.
            waited: of them without improvement.
            rate: of the next one; None: what the schedule says.
        """
        if epochs >= self.epochs or (self.patience is not None and waited >= self.patience):
            return True
        return (self.rate(epochs) if rate is None else rate) < self.lowest_lr

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0; with windows, as long as it has not been lowered."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        if self.schedule == "step":
            return self.lr * self.factor ** (epoch // self.period)
        return self.lr

    def rates(self, epochs: int | None = None) -> list[float]:
        """The learning rates of the first epochs."""
        return [self.rate(epoch) for epoch in range(self.epochs if epochs is None else epochs)]

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Mixed precision inside, where the recipe asks for it."""
        if self.amp is None:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16 if self.amp == "bf16" else torch.float16)

    def make_optimizer(
        self, parameters: Iterable[Tensor], rule: Iterable[Tensor] = (), fused: bool | None = None
    ) -> torch.optim.Optimizer:
        """The optimiser; every one here works element by element, so that stacked networks stay apart.

        Args:
            parameters: of the network.
            rule: what a balancing rule learns: trained alike, but no weight decay pulls on it.
            fused: as torch's optimisers take it.
        """
        momentum = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        kind: Any = OPTIMIZERS[self.optimizer]
        made: torch.optim.Optimizer = kind(
            parameters, lr=self.lr, weight_decay=self.weight_decay, fused=fused, **momentum
        )
        learnt = list(rule)
        if learnt:
            made.add_param_group({"params": learnt, "weight_decay": 0.0})
        return made


WIDEST = 4  # times the first window
UNTOUCHED = 2  # epochs at the start whose rate is never lowered
SHARE = 3 / 8  # of a window: its beginning and its end, which are compared
OUTLIERS = 0.05  # of either end's losses, on both sides
SAME = 0.99  # p-value from which beginning and end count as equal


class LossWindows:
    """The schedule "windows": lowers the rate whenever a window of training losses ends no lower than it begins.

    Losses of beginning and end are sorted, trimmed and compared in a paired t-test; each time the rate falls, the
    window doubles, up to four times the first one, and starts anew.

    Args:
        recipe: with the first window in rows, and the factor.

    Attributes:
        rate: the learning rate of the next step.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.rate = recipe.lr
        self._factor, self._first = recipe.factor, max(1, recipe.window // recipe.batch_size)
        self._window = self._first
        self._losses: list[float] = []

    def see(self, loss: float, epoch: int) -> None:
        """Takes the loss of a step into account."""
        self._losses.append(loss)
        del self._losses[: -self._window - 1]
        if epoch >= UNTOUCHED and len(self._losses) > self._window and stalled(np.array(self._losses[-self._window :])):
            self.rate *= self._factor
            self._window = min(2 * self._window, WIDEST * self._first)
            self._losses.clear()

    def state_dict(self) -> dict[str, Any]:
        """What changes while training."""
        return {"rate": self.rate, "window": self._window, "losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts it back."""
        self.rate, self._window, self._losses = state["rate"], state["window"], list(state["losses"])


def stalled(losses: NDArray[np.float64]) -> bool:
    """Whether the end of these losses is no lower than their beginning.

    Example:
        >>> stalled(np.linspace(1, 0, 80)), stalled(np.linspace(0, 1, 80)), stalled(np.ones(80))
        (False, True, True)
    """
    from scipy.special import stdtr

    size = max(1, int(len(losses) * SHARE))
    gain = _trimmed(losses[:size]) - _trimmed(losses[-size:])
    mean, deviation = float(gain.mean()), float(gain.std(ddof=1)) if len(gain) > 1 else 0.0
    if mean <= 0 or not deviation:
        return mean <= 0
    chance = 2 * stdtr(len(gain) - 1, -mean / deviation * np.sqrt(len(gain)))
    return bool(chance > SAME)


def _trimmed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = int(len(losses) * OUTLIERS)
    return np.sort(losses)[cut : len(losses) - cut]
