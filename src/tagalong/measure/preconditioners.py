"""The diagonal matrix P that turns a gradient into an optimizer's step, for optimizers whose state determines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from tagalong.errors import InvalidInput

Scalars = tuple[Any, Any]
"""`factor` and `least` of P = η · factor / √(squares + least), as numbers or as tensors on the device."""


class GroupState:
    """A parameter group, and the optimizer's state of some of its parameters, which determine P.

    P = η · factor / √(squares + least), or η · factor if there are no squares, where η is the learning rate. It is the
    derivative of the step with respect to the gradient, except that the gradient's own contribution to the squares is
    left out. Momentum from earlier steps and decoupled weight decay do not depend on the gradient.

    Args:
        optimizer: The optimizer.
        settings: The parameter group.
        parameters: The parameters.
    """

    def __init__(self, optimizer: Optimizer, settings: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        self._optimizer, self.settings, self._parameters = optimizer, settings, parameters
        self._rule = _find_rule(optimizer)
        self._states: list[Mapping[str, Any]] = [optimizer.state.get(p, {}) for p in parameters]
        self._tensors: dict[str, list[Tensor | None]] = {}
        self._numbers: dict[str, Any] = {}

    def scalars(self) -> Scalars:
        """Returns `factor` and `least`."""
        return self._known_rule.scalars(self)

    def square_tensors(self) -> list[list[Tensor | None]]:
        """Returns the tensors of the state from which `squares` follow: lists with a tensor per parameter."""
        return [self.tensors(name) for name in self._known_rule.names(self)]

    def squares(self, flat: Sequence[Tensor]) -> Tensor:
        """Returns the squares, given the concatenated `square_tensors`, which it may overwrite."""
        return self._known_rule.combine(self, *flat)

    @property
    def _known_rule(self) -> _Rule:
        assert self._rule is not None  # `optimizer_problems` was called when the meter was created
        return self._rule

    @property
    def is_ready(self) -> bool:
        """Whether P is known; most optimizers have no state before their first step."""
        rule = self._rule
        if rule is None or rule.state is None:
            return True
        if not any(self._states):
            return False
        if not self.has(rule.state) or (rule is _LIKE_ADAM and not self.has_shapes(rule.state)):
            raise _unknown_optimizer(self._optimizer)
        return rule.is_ready(self)

    def has_shapes(self, name: str) -> bool:
        """Whether a tensor of the state has the shape of its parameter, for all parameters that have it."""
        found = zip(self._parameters, self.tensors(name), strict=True)
        return all(tensor is None or tensor.shape == p.shape for p, tensor in found)

    def has(self, name: str) -> bool:
        return any(state.get(name) is not None for state in self._states)

    def tensors(self, name: str) -> list[Tensor | None]:
        if name not in self._tensors:
            self._tensors[name] = [state.get(name) for state in self._states]
        return self._tensors[name]

    def number(self, name: str, default: float = math.inf) -> Any:
        """Returns a number that is the same for all parameters, as a tensor if it is on a device."""
        if name not in self._numbers:
            found = next((state[name] for state in self._states if name in state), self.settings.get(name, default))
            is_on_device = isinstance(found, Tensor) and found.device.type != "cpu"
            self._numbers[name] = found if is_on_device else float(found)
        return self._numbers[name]

    def momentum_factor(self) -> Any:
        """Returns Adam's (1 − β₁)/(1 − β₁ᵗ), where t is the number of the next step."""
        beta1 = float(self.settings["betas"][0])
        return (1.0 - beta1) / (1.0 - beta1 ** (self.number("step") + 1.0))


def _no_names(group: GroupState) -> tuple[str, ...]:
    return ()


def _second_moment(group: GroupState) -> tuple[str, ...]:
    return ("max_exp_avg_sq",) if group.settings.get("amsgrad") else ("exp_avg_sq",)


def _unchanged(group: GroupState, squares: Tensor) -> Tensor:
    return squares


@dataclass(frozen=True)
class _Rule:
    """How P follows from the state of an optimizer.

    Attributes:
        scalars: Returns `factor` and `least`.
        state: A tensor that the state of each parameter contains, or None if P is known without any state.
        names: Returns the names of the tensors from which the squares follow.
        combine: Computes the squares from these tensors, each concatenated over the parameters.
        is_ready: Whether P is known from the state as it is.
    """

    scalars: Callable[[GroupState], Scalars]
    state: str | None
    names: Callable[[GroupState], tuple[str, ...]] = _second_moment
    combine: Callable[..., Tensor] = _unchanged
    is_ready: Callable[[GroupState], bool] = lambda group: True


def _sgd(group: GroupState) -> Scalars:
    momentum = float(group.settings["momentum"])
    fresh = 1.0 - float(group.settings["dampening"]) if group.has("momentum_buffer") else 1.0
    return (1.0 + momentum * fresh if group.settings["nesterov"] else fresh), 0.0


def _adam(group: GroupState) -> Scalars:
    correction = _second_correction(group)  # v̂ = v / correction
    return group.momentum_factor() * correction**0.5, correction * _square_of_eps(group)


def _second_correction(group: GroupState) -> Any:
    return 1.0 - float(group.settings["betas"][1]) ** group.number("step")


def _square_of_eps(group: GroupState) -> float:
    return float(group.settings["eps"]) ** 2


def _nadam(group: GroupState) -> Scalars:
    """The next gradient counts twice: directly, and as a part of the first moment."""
    (_, least), beta1, decay = _adam(group), float(group.settings["betas"][0]), group.settings["momentum_decay"]
    step = float(group.number("step")) + 1.0
    now, later = (beta1 * (1.0 - 0.5 * 0.96 ** (t * decay)) for t in (step, step + 1.0))
    product = float(group.number("mu_product")) * now
    factor = (1.0 - now) / (1.0 - product) + later * (1.0 - beta1) / (1.0 - product * later)
    return factor * _second_correction(group) ** 0.5, least


def _radam(group: GroupState) -> Scalars:
    (factor, least), (length, longest) = _adam(group), _average_lengths(group)
    rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return factor * rectified**0.5, least


def _average_lengths(group: GroupState) -> tuple[float, float]:
    """Returns RAdam's ρ at the next step, and its limit ρ∞."""
    beta2, step = float(group.settings["betas"][1]), float(group.number("step")) + 1.0
    longest = 2.0 / (1.0 - beta2) - 1.0
    return longest - 2.0 * step * beta2**step / (1.0 - beta2**step), longest


def _adamax(group: GroupState) -> Scalars:
    return group.momentum_factor(), 0.0


def _rmsprop(group: GroupState) -> Scalars:
    return 1.0, _square_of_eps(group)


def _rmsprop_names(group: GroupState) -> tuple[str, ...]:
    return ("square_avg", "grad_avg") if group.settings["centered"] else ("square_avg",)


def _variance(group: GroupState, squares: Tensor, mean: Tensor | None = None) -> Tensor:
    return squares if mean is None else squares.addcmul_(mean, mean, value=-1.0).clamp_min_(0.0)


def _adagrad(group: GroupState) -> Scalars:
    return 1.0 / (1.0 + group.number("step") * float(group.settings["lr_decay"])), _square_of_eps(group)


def _adadelta(group: GroupState) -> Scalars:
    return 1.0, 0.0


def _ratio(group: GroupState, squares: Tensor, steps: Tensor) -> Tensor:
    eps = float(group.settings["eps"])
    return squares.add_(eps).div_(steps.add_(eps))


_ADAM = _Rule(_adam, "exp_avg_sq")
# Fused and other implementations of Adam have the same settings, and their state has the same names.
_LIKE_ADAM = _Rule(_adam, "exp_avg_sq")
_RULES: dict[type[Optimizer], _Rule] = {
    SGD: _Rule(_sgd, None, _no_names),
    NAdam: _Rule(_nadam, "exp_avg_sq"),
    RAdam: _Rule(_radam, "exp_avg_sq", is_ready=lambda group: _average_lengths(group)[0] > 5.0),  # plain steps first
    Adam: _ADAM,
    AdamW: _ADAM,
    Adamax: _Rule(_adamax, "exp_inf", lambda group: ("exp_inf",), lambda group, largest: largest.square_()),
    RMSprop: _Rule(_rmsprop, "square_avg", _rmsprop_names, _variance),
    Adagrad: _Rule(
        _adagrad,
        "sum",
        lambda group: ("sum",),
        is_ready=lambda group: isinstance(group.number("step"), Tensor) or group.number("step") > 0,
    ),
    Adadelta: _Rule(_adadelta, "square_avg", lambda group: ("square_avg", "acc_delta"), _ratio),
}


def _find_rule(optimizer: Optimizer) -> _Rule | None:
    for kind in type(optimizer).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    like_adam = all("betas" in group and isinstance(group.get("eps"), float) for group in optimizer.param_groups)
    return _LIKE_ADAM if like_adam else None


def _unknown_optimizer(optimizer: Optimizer) -> InvalidInput:
    known = ", ".join(sorted(kind.__name__ for kind in _RULES))
    return InvalidInput(
        "optimizer",
        f"is {type(optimizer).__name__}, whose steps streaming estimators cannot predict; they know {known}",
        hint="pass `update='sgd'` to measure gradients times the learning rate",
    )


def optimizer_problems(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> Iterable[InvalidInput]:
    """Yields a problem for each optimizer of any of the parameters for which P is unknown or not positive."""
    wanted = {id(p) for p in parameters}
    for optimizer in optimizers:
        groups = [g for g in optimizer.param_groups if any(id(p) in wanted for p in g["params"])]
        if groups and _find_rule(optimizer) is None:
            yield _unknown_optimizer(optimizer)
        if any(group.get("maximize") for group in groups):
            yield InvalidInput(
                "optimizer",
                f"({type(optimizer).__name__}) has maximize=True, but streaming estimators measure how losses decrease",
                hint="minimize the negative of the objective",
            )
