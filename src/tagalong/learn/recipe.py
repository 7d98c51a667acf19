"""`Recipe`: the training settings that affect results, and the learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, is_nonnegative, is_positive, is_positive_integer, one_of, raise_problems

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "cosine", "step", "windows")


@dataclass(frozen=True)
class Recipe:
    """The training settings for a network: optimizer, batch size, learning rate and early stopping.

    Attributes:
        optimizer: "sgd", "adam" or "adamw".
        lr: the initial learning rate.
        momentum: the momentum of SGD.
        weight_decay: the optimizer's weight decay.
        batch_size: the number of rows per step.
        epochs: the maximum number of epochs.
        patience: the number of epochs without an improvement in the validation loss after which training stops. If
            None, training continues for all epochs.
        keep: the weights to keep, either the "best" by validation loss or the "last" after all epochs (requires
            `patience=None`).
        schedule: "constant", "cosine" (decays to zero over `epochs`), "step" (multiplied by `factor` every `period`
            epochs), or "windows" (multiplied by `factor` when the training loss has not decreased over the last
            `window` rows). With "windows", the window doubles each time, up to four times its initial size.
        period: the number of epochs between steps of the schedule.
        factor: the factor by which the schedule multiplies the learning rate.
        window: the number of rows in the first window.
        lowest_lr: the learning rate below which training stops.
        amp: "bf16" or "fp16" for mixed precision. If None, the precision of the inputs is used.
        start_heads: the initial biases of linear heads. With "base_rate", they are the mean of the training labels
            (regression), the log-odds of label 1 (binary) or the log-frequencies of the classes (multiclass), so that
            training does not begin by learning these. With "random", they are torch's.

    Example:
        >>> recipe = Recipe(lr=0.1, schedule="step", period=2, factor=0.5)
        >>> [recipe.rate(epoch) for epoch in range(5)]
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
    start_heads: Literal["random", "base_rate"] = "random"

    def __post_init__(self) -> None:
        choices: dict[str, Sequence[Any]] = {
            "optimizer": tuple(OPTIMIZERS),
            "keep": ("best", "last"),
            "schedule": SCHEDULES,
            "amp": ("bf16", "fp16", None),
            "start_heads": ("random", "base_rate"),
        }
        is_last = self.keep == "last"  # trains for all epochs
        checks = [  # the argument, whether it is valid, and what is
            *((name, getattr(self, name) in allowed, one_of(allowed)) for name, allowed in choices.items()),
            ("batch_size", is_positive_integer(self.batch_size), "must be a positive integer"),
            ("epochs", is_positive_integer(self.epochs), "must be a positive integer"),
            ("period", is_positive_integer(self.period), "must be a positive integer"),
            ("window", is_positive_integer(self.window), "must be a positive integer"),
            ("patience", self.patience is None or is_positive_integer(self.patience), "must be a positive integer"),
            ("patience", self.patience is None or not is_last, "must be None with `keep='last'`"),
            ("lr", is_positive(self.lr), "must be a positive number"),
            ("factor", is_positive(self.factor), "must be a positive number"),
            ("momentum", is_nonnegative(self.momentum), "must be a non-negative number"),
            ("weight_decay", is_nonnegative(self.weight_decay), "must be a non-negative number"),
            ("lowest_lr", is_nonnegative(self.lowest_lr), "must be a non-negative number"),
            ("lowest_lr", self.lowest_lr == 0 or not is_last, "must be 0 with `keep='last'`"),
        ]
        wrong = [(argument, expected) for argument, is_valid, expected in checks if not is_valid]
        raise_problems([InvalidInput(name, expected, repr(getattr(self, name))) for name, expected in wrong])

    def rate(self, epoch: int) -> float:
        """Returns the learning rate for an epoch (counted from 0). For "windows", this is the initial rate."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        if self.schedule == "step":
            return self.lr * self.factor ** (epoch // self.period)
        return self.lr

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Returns a context manager for mixed precision, if the recipe uses it."""
        if self.amp is None:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16 if self.amp == "bf16" else torch.float16)

    def make_optimizer(
        self, parameters: Iterable[Tensor], rule: Iterable[Tensor] = (), *, captured: bool = False
    ) -> torch.optim.Optimizer:
        """Creates the optimizer. All optimizers work element by element, so stacked networks remain independent.

        Args:
            parameters: the network's parameters.
            rule: the parameters of a balancing rule, which are trained without weight decay.
            captured: whether steps are captured in CUDA graphs, which read the learning rate from the GPU, in single
                precision.
        """
        groups: list[dict[str, Any]] = [{"params": list(parameters)}]
        device = groups[0]["params"][0].device
        if rule_parameters := list(rule):
            groups.append({"params": rule_parameters, "weight_decay": 0.0})
        options = {"momentum": self.momentum} if self.optimizer == "sgd" else {"capturable": captured}
        optimizer: torch.optim.Optimizer = OPTIMIZERS[self.optimizer](
            groups,
            lr=torch.tensor(self.lr, device=device) if captured else self.lr,
            weight_decay=self.weight_decay,
            fused=captured or device.type == "cpu" or None,
            **options,
        )
        return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate. On a GPU, it may be a tensor that CUDA graphs read."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def adapt_optimizer_state(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns an optimizer's saved state with the settings of this device instead of those of the one that saved it."""
    settings = ("lr", "fused", "foreach", "capturable")  # how the optimizer runs, not what it computes
    here = [{name: group.get(name) for name in settings} for group in optimizer.param_groups]
    groups = [{**group, **own} for group, own in zip(saved["param_groups"], here, strict=True)]
    return {**saved, "param_groups": groups}


MAX_WINDOW_GROWTH = 4  # the largest window, as a multiple of the first
GRACE_EPOCHS = 2  # number of initial epochs in which the rate is never lowered
COMPARED_FRACTION = 3 / 8  # fraction of a window at its start that is compared with the same fraction at its end
TRIMMED_FRACTION = 0.05  # fraction of the compared losses that is trimmed at each end
EQUALITY_P_VALUE = 0.99  # p-value above which the first and last losses count as equal


class LossWindows:
    """The "windows" schedule, which lowers the rate when the training loss has not decreased over a window of steps.

    The losses at the start and end of a window are sorted, trimmed and compared with a paired t-test. Each time the
    rate is lowered, a new window starts. It is twice as long as the previous window, but at most four times as long as
    the first.

    Args:
        recipe: the recipe, which contains the initial learning rate, the size of the first window and the factor.

    Attributes:
        rate: the learning rate of the next step.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.rate = recipe.lr
        self._factor, self._first = recipe.factor, max(1, recipe.window // recipe.batch_size)
        self._window = self._first
        self._losses: list[float] = []

    def add_loss(self, loss: float, epoch: int) -> None:
        """Records the loss of a step, and lowers the rate if the loss did not decrease over the window."""
        self._losses.append(loss)
        del self._losses[: -self._window - 1]
        full = epoch >= GRACE_EPOCHS and len(self._losses) > self._window
        if full and has_stalled(np.array(self._losses[-self._window :])):
            self.rate *= self._factor
            self._window = min(2 * self._window, MAX_WINDOW_GROWTH * self._first)
            self._losses.clear()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that changes during training."""
        return {"rate": self.rate, "window": self._window, "losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self.rate, self._window, self._losses = state["rate"], state["window"], list(state["losses"])


def has_stalled(losses: NDArray[np.float64]) -> bool:
    """Returns True if the loss has stopped decreasing.

    Example:
        >>> has_stalled(np.linspace(1, 0, 80)), has_stalled(np.linspace(0, 1, 80)), has_stalled(np.ones(80))
        (False, True, True)
    """
    from scipy.special import stdtr

    size = max(1, int(len(losses) * COMPARED_FRACTION))
    gain = _trim(losses[:size]) - _trim(losses[-size:])
    mean, deviation = float(gain.mean()), float(gain.std(ddof=1)) if len(gain) > 1 else 0.0
    if mean <= 0 or not deviation:
        return mean <= 0
    p_value = 2 * stdtr(len(gain) - 1, -mean / deviation * np.sqrt(len(gain)))
    return bool(p_value > EQUALITY_P_VALUE)


def _trim(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = int(len(losses) * TRIMMED_FRACTION)
    return np.sort(losses)[cut : len(losses) - cut]
