"""The diagonal matrix P that turns a gradient into an optimizer's step, for optimizers whose state determines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from .sharding import local_part

Scalar = float | Tensor


@dataclass(frozen=True)
class Preconditioner:
    """P = η · factor / √(squares + least), or η · factor without moments, where η is the learning rate.

    It is the derivative of the step with respect to the gradient, except that the gradient's own contribution to the
    squares is left out. Momentum from earlier steps and decoupled weight decay do not depend on the gradient.

    Attributes:
        factor: A number, or a tensor if the optimizer counts its steps on the device.
        least: The same.
        moments: The tensors of the optimizer's state from which the squares follow, each a list over the parameters.
        squares: Computes the squares from the moments, each concatenated over the parameters. It may overwrite them.
    """

    factor: Scalar
    least: Scalar = 0.0
    moments: Sequence[Sequence[Tensor | None]] = ()
    squares: Callable[..., Tensor] = lambda moment: moment


class GroupState:
    """The settings of a parameter group, and the optimizer's state of some of its parameters."""

    def __init__(self, optimizer: Optimizer, number: int, parameters: Sequence[Tensor]) -> None:
        self.settings = optimizer.param_groups[number]
        self.states = [optimizer.state.get(p, {}) for p in parameters]

    def has(self, name: str) -> bool:
        return any(state.get(name) is not None for state in self.states)

    def tensors(self, name: str) -> list[Tensor | None]:
        tensors = [state.get(name) for state in self.states]
        return [None if tensor is None else local_part(tensor) for tensor in tensors]

    def number(self, name: str) -> Scalar:
        """Returns a number that is the same for all parameters, as a tensor if it is on a device."""
        default = self.settings.get(name, math.inf)
        value = next((state[name] for state in self.states if name in state), default)
        return value if isinstance(value, Tensor) and value.device.type != "cpu" else float(value)

    @property
    def square_of_eps(self) -> float:
        return float(self.settings["eps"]) ** 2

    @property
    def first_correction(self) -> Scalar:
        """(1 − β₁)/(1 − β₁ᵗ), where t is the number of the next step."""
        beta1 = float(self.settings["betas"][0])
        return (1.0 - beta1) / (1.0 - beta1 ** (self.number("step") + 1.0))

    @property
    def second_correction(self) -> Scalar:
        return 1.0 - float(self.settings["betas"][1]) ** self.number("step")


def _sgd(group: GroupState) -> Preconditioner:
    momentum, dampening = float(group.settings["momentum"]), float(group.settings["dampening"])
    fresh = 1.0 - dampening if group.has("momentum_buffer") else 1.0
    return Preconditioner(1.0 + momentum * fresh if group.settings["nesterov"] else fresh)


def _adam(group: GroupState) -> Preconditioner:
    correction = group.second_correction  # v̂ = v / correction
    moment = "max_exp_avg_sq" if group.settings.get("amsgrad") else "exp_avg_sq"
    factor = group.first_correction * correction**0.5
    return Preconditioner(factor, correction * group.square_of_eps, [group.tensors(moment)])


def _nadam(group: GroupState) -> Preconditioner:
    """The next gradient counts twice: directly, and as a part of the first moment."""
    beta1, decay = float(group.settings["betas"][0]), float(group.settings["momentum_decay"])
    step = float(group.number("step")) + 1.0
    now, later = (beta1 * (1.0 - 0.5 * 0.96 ** (t * decay)) for t in (step, step + 1.0))
    product = float(group.number("mu_product")) * now
    factor = (1.0 - now) / (1.0 - product) + later * (1.0 - beta1) / (1.0 - product * later)
    return replace(_adam(group), factor=factor * group.second_correction**0.5)


def _radam(group: GroupState) -> Preconditioner | None:
    beta2, step = float(group.settings["betas"][1]), float(group.number("step")) + 1.0
    longest = 2.0 / (1.0 - beta2) - 1.0  # ρ∞
    length = longest - 2.0 * step * beta2**step / (1.0 - beta2**step)  # ρ at the next step
    if length <= 5.0:
        return None  # the first steps are plain
    rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    adam = _adam(group)
    return replace(adam, factor=adam.factor * rectified**0.5)


def _adamax(group: GroupState) -> Preconditioner:
    moments = [group.tensors("exp_inf")]
    return Preconditioner(group.first_correction, moments=moments, squares=lambda largest: largest.square_())


def _rmsprop(group: GroupState) -> Preconditioner:
    if not group.settings["centered"]:
        return Preconditioner(1.0, group.square_of_eps, [group.tensors("square_avg")])
    return Preconditioner(
        1.0,
        group.square_of_eps,
        [group.tensors("square_avg"), group.tensors("grad_avg")],
        lambda squares, mean: squares.addcmul_(mean, mean, value=-1.0).clamp_min_(0.0),
    )


def _adagrad(group: GroupState) -> Preconditioner | None:
    step = group.number("step")
    if isinstance(step, float) and step == 0.0:
        return None  # the state exists before the first step
    factor = 1.0 / (1.0 + step * float(group.settings["lr_decay"]))
    return Preconditioner(factor, group.square_of_eps, [group.tensors("sum")])


def _adadelta(group: GroupState) -> Preconditioner:
    eps = float(group.settings["eps"])
    return Preconditioner(
        1.0,
        moments=[group.tensors("square_avg"), group.tensors("acc_delta")],
        squares=lambda squares, steps: squares.add_(eps).div_(steps.add_(eps)),
    )


Rule = Callable[[GroupState], Preconditioner | None]

# The rule, and a tensor that the optimizer's state contains after the first step if P depends on its state.
_LIKE_ADAM: tuple[Rule, str] = (_adam, "exp_avg_sq")
_RULES: dict[type[Optimizer], tuple[Rule, str | None]] = {
    SGD: (_sgd, None),
    NAdam: (_nadam, "exp_avg_sq"),
    RAdam: (_radam, "exp_avg_sq"),
    Adam: _LIKE_ADAM,
    AdamW: _LIKE_ADAM,
    Adamax: (_adamax, "exp_inf"),
    RMSprop: (_rmsprop, "square_avg"),
    Adagrad: (_adagrad, "sum"),
    Adadelta: (_adadelta, "square_avg"),
}


def preconditioner(optimizer: Optimizer, number: int, parameters: Sequence[Tensor]) -> Preconditioner | None:
    """Returns P for some parameters of a group, or None as long as the optimizer has no state for them.

    Args:
        optimizer: The optimizer.
        number: The number of the parameter group.
        parameters: The parameters.
    """
    rule, moment = _find_rule(optimizer)
    group = GroupState(optimizer, number, parameters)
    if moment is not None:
        if not any(group.states):
            return None
        shapes = zip(parameters, group.tensors(moment), strict=True)
        if not group.has(moment) or any(m is not None and m.shape != local_part(p).shape for p, m in shapes):
            raise _unknown_optimizer(optimizer)
    return rule(group)


def check_optimizers(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> None:
    """Checks that P is known and positive for each optimizer that trains any of the parameters."""
    shared = {id(p) for p in parameters}
    for optimizer in optimizers:
        groups = [group for group in optimizer.param_groups if any(id(p) in shared for p in group["params"])]
        if groups:
            _find_rule(optimizer)
        if any(group.get("maximize") for group in groups):
            raise ValueError(
                f"`optimizer` ({type(optimizer).__name__}) has maximize=True, but streaming estimators measure how "
                "losses decrease; minimize the negative of the objective"
            )


def _find_rule(optimizer: Optimizer) -> tuple[Rule, str | None]:
    for kind in type(optimizer).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    # Fused and other implementations of Adam have the same settings, and their state has the same names.
    if all("betas" in group and isinstance(group.get("eps"), float) for group in optimizer.param_groups):
        return _LIKE_ADAM
    raise _unknown_optimizer(optimizer)


def _unknown_optimizer(optimizer: Optimizer) -> ValueError:
    names = ", ".join(sorted(kind.__name__ for kind in _RULES))
    return ValueError(
        f"`optimizer` is {type(optimizer).__name__}, whose steps streaming estimators cannot predict; they know "
        f"{names}. Pass `update='sgd'` to measure gradients times the learning rate"
    )
