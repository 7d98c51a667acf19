"""The step of any dense optimiser: its own class, run on copies."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ._pieces import Piece
from ._rule import StepRule

# Schedulers replace `step`, and a GradScaler leaves the other two for fused kernels: none belongs to the copy.
_PATCHES = frozenset({"step", "grad_scale", "found_inf"})


class GenericRule(StepRule):
    """Runs the real optimiser class on copies of the parameters' state, for every task anew.

    The optimiser steps `out` itself where that holds the parameters. Where `out` collects the step alone, it steps
    `origin`, which holds θ again afterwards.
    """

    elementwise = False

    def __init__(self, optimizer: Optimizer, parameters: Mapping[int, Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._own = type(optimizer).__module__.startswith("torch.optim")
        # Optimisers of others may mix tensors (a global norm, say), so their step is taken on all at once.
        self.separable = self._own

    @property
    def state_bytes(self) -> int:
        states = (self._optimizer.state.get(p) or {} for p in self._parameters.values())
        return sum(v.nbytes for state in states for v in state.values() if isinstance(v, Tensor))

    def add(
        self, out: Sequence[Tensor], pieces: Sequence[Piece], gradients: Sequence[Tensor], origin: Sequence[Tensor]
    ) -> None:
        theta = [self._parameters[piece.index].data for piece in pieces]
        in_place = [o.data_ptr() == t.data_ptr() for o, t in zip(out, theta, strict=True)]
        moving = [o if here else start for o, here, start in zip(out, in_place, origin, strict=True)]
        stand_ins = [nn.Parameter(values.detach()) for values in moving]
        for stand_in, gradient in zip(stand_ins, gradients, strict=True):
            stand_in.grad = gradient if self._own else gradient.clone()
        owners = [self._parameters[piece.index] for piece in pieces]
        try:
            clone = copy_over(self._optimizer, dict(zip(map(id, owners), stand_ins, strict=True)))
            with without_global_hooks():
                clone.step()
        except (TypeError, AttributeError) as error:
            raise RuntimeError(
                f"a copy of `optimizer` ({type(self._optimizer).__name__}) cannot be made or stepped ({error}), so its "
                "step is not known; use update='sgd'."
            ) from error
        for values, stand_in in zip(moving, stand_ins, strict=True):
            if stand_in.data_ptr() != values.data_ptr():  # an optimiser that sets `p.data` instead of writing it
                values.copy_(stand_in.data)
        for target, here, start, old in zip(out, in_place, origin, theta, strict=True):
            if not here:
                target.add_(start - old)
                start.copy_(old)


def copy_over(optimizer: Optimizer, stand_ins: Mapping[int, Tensor]) -> Optimizer:
    """A copy of the optimiser, settings and state, that holds `stand_ins` (by the id of whom they stand for) only.

    Made like an unpickled one: the class's own `__init__` may demand arguments we do not know. Whatever else the
    instance holds is copied too, and wherever it mentions a parameter or the optimiser itself the copy mentions
    the stand-in, so that nothing reaches the original.
    """
    clone: Optimizer = object.__new__(type(optimizer))
    groups: list[dict[str, Any]] = []
    state: defaultdict[Any, Any] = defaultdict(dict)
    memo: dict[int, Any] = {
        **stand_ins, id(optimizer): clone, id(optimizer.param_groups): groups, id(optimizer.state): state
    }  # fmt: skip
    for group in optimizer.param_groups:
        here = [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]
        if here:
            settings = {k: copy.deepcopy(v, memo) for k, v in group.items() if k not in ("params", "param_names")}
            groups.append({**settings, "params": here})
    for key, value in optimizer.state.items():
        if not isinstance(key, Tensor):
            state[key] = copy.deepcopy(value, memo)
        elif value and id(key) in stand_ins:
            state[stand_ins[id(key)]] = copy.deepcopy(value, memo)
    rest = {k: copy.deepcopy(v, memo) for k, v in vars(optimizer).items() if not _rebuilt(k)}
    Optimizer.__setstate__(clone, {**rest, "param_groups": groups, "state": state})
    return clone


def _rebuilt(name: str) -> bool:
    """Whether an attribute is made anew: settings and state, patches, and hooks, which are not of this step."""
    return name in _PATCHES or name in ("param_groups", "state") or (name.startswith("_optimizer_") and "hooks" in name)


@contextmanager
def without_global_hooks() -> Iterator[None]:
    """Silences the step hooks that users register for all optimisers: no real step is taken here."""
    registries: tuple[dict[int, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    kept = [dict(registry) for registry in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, hooks in zip(registries, kept, strict=True):
            registry.update(hooks)
