"""The settings of a meter, including its shared parameters, and checks of these settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tagalong.errors import InvalidInput, is_positive, is_positive_integer

from .distributed import Replicas, find_wrapper, is_sharded
from .estimators import Estimator
from .steps import check_ownership, read_optimizers

Shared = nn.Module | Tensor | str | Iterable[Tensor | nn.Module | str]
Weights = Mapping[str, float | Tensor] | Callable[[], Mapping[str, float | Tensor]]
Update = Literal["sgd", "optimizer"]


class Setup:
    """The settings that a measured step needs, as passed to the meter, and what follows from them.

    Attributes:
        parameters: The distinct shared parameters; frozen ones too, so that they can be unfrozen later.
        needs: The quantities that the estimators need.
        uses_gradients: Whether any of these are inner products of gradients, including those of the target losses.
        uses_steps: Whether any estimator depends on the steps of the optimizers.
        uses_ratios: Whether any estimator divides by a loss.
        wrapper: The DistributedDataParallel module around the shared parameters, as last found.
    """

    def __init__(
        self,
        shared: Shared,
        optimizer: Optimizer | Iterable[Optimizer] | None,
        *,
        model: nn.Module | Iterable[nn.Module] | None,
        estimators: Sequence[Estimator],
        update: Update | None,
        lr: float | None,
        per_lr: bool,
        weights: Weights | None,
        scaler: torch.amp.GradScaler | None,
        process_group: Any,
        state_memory: float,
        sketch_dimension: int,
        seed: int,
    ) -> None:
        if update not in (None, "sgd", "optimizer"):
            raise ValueError(f"`update` must be 'sgd', 'optimizer' or None, found {update!r}")
        if lr is not None and not is_positive(lr):
            raise ValueError(f"`lr` must be a positive number, found {lr!r}")
        if not is_positive_integer(sketch_dimension):
            raise ValueError(f"`sketch_dimension` must be a positive integer, found {sketch_dimension!r}")
        modules = [model] if isinstance(model, nn.Module) else list(model or [])
        if not all(isinstance(module, nn.Module) for module in modules):
            raise ValueError(f"`model` must be a Module or a list of Modules, found {model!r}")

        self.models, self.estimators, self.lr, self.per_lr = modules, estimators, lr, per_lr
        self.parameters = shared_parameters(shared, modules)
        self.optimizers = read_optimizers(optimizer)
        self.update: Update = update or ("optimizer" if self.optimizers else "sgd")
        self.weights, self.scaler, self.process_group = weights, scaler, process_group
        self.state_memory, self.sketch_dimension, self.seed = state_memory, sketch_dimension, seed
        self.wrapper: DistributedDataParallel | None = None

        self.needs = frozenset().union(*(estimator.needs for estimator in estimators))
        self.uses_gradients = bool(self.needs - {"after"})
        self.uses_steps = any(estimator.of_steps for estimator in estimators)
        self.uses_ratios = any(estimator.ratio for estimator in estimators)
        self._check()

    def _check(self) -> None:
        if self.estimators and any(map(is_sharded, self.parameters)):
            raise ValueError(
                "`shared` contains sharded parameters (FSDP), for which only estimator='streaming' works; measure on "
                "an unsharded replica, or use DistributedDataParallel"
            )
        if not self.uses_steps:
            return
        if self.lr is not None and self.update == "optimizer":
            raise ValueError("`lr` can only be used with `update='sgd'`; omit `lr`, or pass `update='sgd'`")
        if not self.optimizers and (self.update == "optimizer" or self.lr is None):
            raise ValueError(
                "the step size is unknown; pass `optimizer`, or `update='sgd'` with `lr`; only `estimator='cosine'` "
                "requires neither"
            )
        if self.lr is None:
            check_ownership(self.trainable(), self.optimizers)

    def trainable(self) -> list[Tensor]:
        return [p for p in self.parameters if p.requires_grad]

    def task_weights(self, tasks: Iterable[str]) -> Mapping[str, float | Tensor]:
        # Returns the present loss weights, which may require gradients; empty if there are none.
        weights = self.weights() if callable(self.weights) else self.weights
        return {} if weights is None else check_weights(weights, tasks)

    def find_wrapper(self) -> None:  # which is slow
        self.wrapper = find_wrapper(self.models, self.parameters)

    @property
    def replicas(self) -> Replicas:
        group = self.process_group
        if group == "auto":
            group = None if self.wrapper is None else self.wrapper.process_group
        return Replicas(group, self.parameters[0].device)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "wrapper": None}  # a copy belongs to another wrapper


def check_weights(weights: Mapping[str, float | Tensor], tasks: Iterable[str]) -> Mapping[str, float | Tensor]:
    missing = [task for task in tasks if task not in weights]
    if missing:
        raise ValueError(f"`weights` must have an entry for every task, found none for {missing}")
    return weights


def shared_parameters(shared: Shared, models: Sequence[nn.Module] = ()) -> list[Tensor]:
    """Returns the distinct parameters of `shared` in order of appearance, with each tied parameter only once.

    Args:
        shared: Modules, parameters, or patterns for the names of parameters.
        models: The modules whose parameters are matched by patterns.
    """
    parameters = list({id(p): p for p in _iterate_parameters(shared, models)}.values())
    if not parameters:
        raise ValueError("`shared` contains no parameters; pass the module that the tasks share, e.g. model.encoder")
    for parameter in parameters:
        if parameter.is_complex():
            raise ValueError("`shared` contains complex parameters, which the meter does not support; leave them out")
        if getattr(parameter, "_fsdp_flattened", False):
            raise ValueError(
                "`shared` contains flattened parameters (FSDP1), which the meter does not support; use fully_shard "
                "(FSDP2) with estimator='streaming', or DistributedDataParallel"
            )
    if not any(p.requires_grad for p in parameters):
        raise ValueError("`shared` contains only frozen parameters (requires_grad=False), which do not learn anything")
    return parameters


def _iterate_parameters(shared: Shared, models: Sequence[nn.Module]) -> Iterable[Tensor]:
    if isinstance(shared, nn.Module):
        yield from shared.parameters()
    elif isinstance(shared, Tensor):
        yield shared
    elif isinstance(shared, str):
        yield from _matching_parameters(shared, models)
    elif isinstance(shared, Iterable):
        for item in shared:
            yield from _iterate_parameters(item, models)
    else:
        raise ValueError(f"`shared` must be a Module, Parameters, or patterns for their names, found {shared!r}")


def _matching_parameters(pattern: str, models: Sequence[nn.Module]) -> list[Tensor]:
    # Returns the parameters whose name matches `pattern`, frozen ones too.
    if not models:
        raise ValueError(f"`shared` can only contain a pattern ({pattern!r}) if `model` is given; pass model=model too")
    named = [pair for model in models for pair in model.named_parameters(remove_duplicate=False)]
    matching: list[Tensor] = [p for name, p in named if fnmatchcase(name, pattern)]
    if not matching:
        hint = f"names look like {', '.join(name for name, _ in named[:3])}; use 'encoder.*' for all of a module"
        raise InvalidInput("shared", "must match the names of parameters of `model`", repr(pattern), hint)
    return matching
