"""Which optimisers can be asked what they would do, checked before training."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer, SparseAdam

_WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


def accepted(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """One, several or no optimisers as a list; raises one error with every reason against them."""
    if optimizer is None:
        return []
    given: object = optimizer
    optimizers: list[Any] = [given] if isinstance(given, Optimizer) or not isinstance(given, Iterable) else list(given)
    optimizers = [_unwrapped(o) for o in optimizers]
    wrong = [type(o).__name__ for o in optimizers if not isinstance(o, Optimizer)]
    if wrong:
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or several of them, got {', '.join(wrong)}.")
    problems = [problem for o in optimizers for problem in _problems(o)]
    if problems:
        raise ValueError(" ".join(problems))
    return optimizers


def _unwrapped(optimizer: Any) -> Any:
    """The optimiser itself, where accelerate, Fabric or Lightning have put a wrapper of their own around it.

    Only theirs, which take the same steps: others wrap an optimiser to step differently.
    """
    while type(optimizer).__module__.partition(".")[0] in _WRAPPERS and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def check_ownership(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Every shared parameter belongs to one optimiser at most, and some belong to one."""
    held = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    owners = [sum(id(p) in ids for ids in held) for p in parameters]
    if max(owners) > 1:
        raise ValueError(
            f"`optimizer`: {sum(n > 1 for n in owners)} shared parameters are held by more than one optimiser, so "
            "their step is not defined; pass the one that moves them."
        )
    if max(owners) == 0:
        raise ValueError(
            "`optimizer` holds none of the shared parameters, so its step would move nothing; pass the optimiser "
            "that trains `shared`, or update='sgd' with a learning rate `lr`."
        )


def _problems(optimizer: Optimizer) -> Iterable[str]:
    name = type(optimizer).__name__
    if isinstance(optimizer, LBFGS):
        yield (
            "`optimizer` is LBFGS, which evaluates the loss several times within one step; use update='sgd' with a "
            "learning rate `lr` and without `optimizer`."
        )
    if isinstance(optimizer, SparseAdam):
        yield (
            "`optimizer` is SparseAdam, which takes sparse gradients only; leave the sparse embeddings out of "
            "`shared` and pass the optimiser of the dense parameters."
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        yield f"`optimizer` ({name}) has differentiable=True, which ties its step to the graph; make it with False."
