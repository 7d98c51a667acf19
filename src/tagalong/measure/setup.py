"""The settings of a meter, including its shared parameters, and checks of these settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from tagalong.errors import InvalidInput, is_nonnegative, is_number, is_positive, raise_problems

from .closure import Closure, ReplayableClosure
from .distributed import Replicas, is_sharded
from .estimators import Estimator, Quantity
from .gradients import sparse_gradient_error
from .isolation import Replayer, has_compiled_modules
from .steps import Steps, check_ownership, make_steps, read_optimizers
from .task_closures import ReplayableTasks, TaskFunctions

Shared = nn.Module | Tensor | str | Iterable[Tensor | nn.Module | str]
Weights = Mapping[str, float | Tensor] | Callable[[], Mapping[str, float | Tensor]]
Update = Literal["sgd", "optimizer"]


@dataclass
class Setup:
    """The meter settings that a measured step needs."""

    parameters: list[Tensor]
    models: list[nn.Module]
    optimizers: list[Optimizer]
    estimators: list[Estimator]
    update: Update
    lr: float | None
    per_lr: bool
    weights: Weights | None
    scaler: torch.amp.GradScaler | None
    process_group: Any
    gradient_memory: float
    state_memory: float

    @property
    def needs(self) -> frozenset[Quantity]:
        return frozenset().union(*(estimator.needs for estimator in self.estimators))

    @property
    def needs_target_gradients(self) -> bool:
        """Whether the target losses must be differentiated as well."""
        return self.needs != {"after"}

    @property
    def uses_steps(self) -> bool:
        return any(estimator.of_steps for estimator in self.estimators)

    @property
    def uses_ratios(self) -> bool:
        return any(estimator.ratio for estimator in self.estimators)

    def trainable(self) -> list[Tensor]:
        return [p for p in self.parameters if p.requires_grad]

    def steps(self, parameters: Sequence[Tensor]) -> Steps:
        """Returns the steps for the optimizers' current settings and state."""
        if not self.uses_steps:
            return Steps({}, [])
        return make_steps(parameters, self.optimizers, self.update, self.lr)

    def scale(self) -> float:
        # Not scale(), which would initialize the scaler; that is up to the training loop.
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def task_weights(self, tasks: Iterable[str]) -> dict[str, float | Tensor]:
        """Returns the current loss weights."""
        if self.weights is None:
            return {}
        given = self.weights() if callable(self.weights) else self.weights
        return check_weights(given, tasks)

    def replayable(
        self,
        closure: Closure | TaskFunctions,
        replayer: Replayer,
        *,
        verify: bool,
        held_out: bool = False,
        wrapper: nn.Module | None = None,
        needed: Sequence[str] | None = None,
    ) -> ReplayableClosure:
        what, graph = ("held-out closure", self.needs_target_gradients) if held_out else ("closure", True)
        models = [*self.models, wrapper] if self.models and wrapper is not None else self.models
        if isinstance(closure, TaskFunctions):
            chosen = needed or closure.tasks
            return ReplayableTasks(
                closure, chosen, models, replayer, what, verify=verify, state_memory=self.state_memory
            )
        return ReplayableClosure(
            closure, models, replayer, what, graph=graph, verify=verify, state_memory=self.state_memory
        )

    def replicas(self, wrapper: DistributedDataParallel | None) -> Replicas:
        found = None if wrapper is None else wrapper.process_group
        group = found if self.process_group == "auto" else self.process_group
        return Replicas(group, self.parameters[0].device)


def check_weights(given: Mapping[str, float | Tensor], tasks: Iterable[str]) -> dict[str, float | Tensor]:
    tasks = list(tasks)
    missing = [task for task in tasks if task not in given]
    if missing:
        found = f"none for {', '.join(map(repr, missing))}"
        raise InvalidInput("weights", "must have an entry for every task", found)
    return {task: w.detach() if isinstance(w, Tensor) else float(w) for task, w in given.items()}


def make_setup(
    shared: Shared,
    optimizer: Optimizer | Iterable[Optimizer] | None,
    *,
    model: nn.Module | Iterable[nn.Module] | None,
    estimators: list[Estimator],
    update: Update | None,
    lr: float | None,
    **rest: Any,
) -> Setup:
    """Checks the arguments, individually and together, and returns the settings."""
    raise_problems(list(_argument_problems(model=model, lr=lr, **rest)))
    models = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
    if not models and isinstance(shared, nn.Module) and has_compiled_modules(shared.modules()):
        raise InvalidInput(
            "shared",
            "is compiled with torch.compile, so the modules called by the closure cannot be detected",
            hint="pass all of them as `model` to protect their buffers",
        )
    optimizers = read_optimizers(optimizer)
    setup = Setup(
        shared_parameters(shared, models),
        models,
        optimizers,
        estimators,
        _resolve_update(update, optimizers),
        lr,
        **rest,
    )
    _check_update(setup)
    if estimators and any(map(is_sharded, setup.parameters)):
        raise InvalidInput(
            "shared",
            "contains sharded parameters (FSDP), for which only estimator='streaming' works",
            hint="measure on an unsharded replica, or use DistributedDataParallel",
        )
    return setup


def _argument_problems(
    *,
    model: Any,
    lr: Any,
    per_lr: Any,
    weights: Any,
    scaler: Any,
    process_group: Any,
    gradient_memory: Any,
    state_memory: Any,
) -> Iterable[InvalidInput]:
    modules = [model] if isinstance(model, nn.Module) else model
    if modules is not None and not (
        isinstance(modules, list | tuple) and all(isinstance(m, nn.Module) for m in modules)
    ):
        yield InvalidInput("model", "must be a Module or a list of Modules", type(model).__name__)
    if lr is not None and not is_positive(lr):
        yield InvalidInput("lr", "must be a positive number", repr(lr))
    if not isinstance(per_lr, bool):
        yield InvalidInput("per_lr", "must be True or False", repr(per_lr))
    if weights is not None and not callable(weights):
        if not isinstance(weights, Mapping):
            expected = "must be a mapping from tasks to numbers, or a function that returns such a mapping"
            yield InvalidInput("weights", expected, type(weights).__name__)
        elif bad := [t for t, w in weights.items() if not isinstance(w, Tensor) and not is_number(w)]:
            yield InvalidInput(
                "weights", "must contain only numbers", ", ".join(f"{weights[t]!r} for {t!r}" for t in bad)
            )
    if scaler is not None and not hasattr(scaler, "get_scale"):
        yield InvalidInput("scaler", "must be a torch.amp.GradScaler", type(scaler).__name__)
    if process_group != "auto" and isinstance(process_group, str):
        yield InvalidInput("process_group", "must be 'auto', a process group or None", repr(process_group))
    if not is_positive(gradient_memory) and gradient_memory != math.inf:
        yield InvalidInput("gradient_memory", "must be a positive number of bytes", repr(gradient_memory))
    if not is_nonnegative(state_memory) and state_memory != math.inf:
        yield InvalidInput("state_memory", "must be a non-negative number of bytes", repr(state_memory))


def _resolve_update(update: str | None, optimizers: Sequence[Optimizer]) -> Update:
    if update not in (None, "sgd", "optimizer"):
        raise InvalidInput("update", "must be 'sgd', 'optimizer' or None", repr(update))
    if update is None:
        return "optimizer" if optimizers else "sgd"
    return update  # type: ignore[return-value]


def _check_update(setup: Setup) -> None:
    if not setup.uses_steps:
        return
    if setup.lr is not None and setup.update == "optimizer":
        raise InvalidInput(
            "lr", "can only be used with `update='sgd'`", repr(setup.lr), "omit `lr`, or pass `update='sgd'`"
        )
    if not setup.optimizers and (setup.update == "optimizer" or setup.lr is None):
        raise InvalidInput(
            "",
            "the step size is unknown",
            hint="pass `optimizer`, or `update='sgd'` with `lr`; only `estimator='cosine'` requires neither",
        )
    if setup.optimizers and setup.lr is None:
        check_ownership(setup.trainable(), setup.optimizers)
    if setup.per_lr:
        _ = setup.steps(setup.trainable()).lr  # raises if there is more than one


def shared_parameters(shared: Shared, models: Sequence[nn.Module] = ()) -> list[Tensor]:
    """Returns the distinct parameters of `shared` in order of appearance, with each tied parameter only once.

    Frozen parameters are included here and skipped at each step, so that they can be unfrozen later.

    Args:
        shared: Modules, parameters, or patterns for the names of parameters.
        models: The modules whose parameters are matched by patterns.
    """
    problems: list[InvalidInput] = []
    found = {id(p): p for p in _iterate_parameters(shared, models, problems)}
    raise_problems(problems)
    if not found:
        raise InvalidInput(
            "shared",
            "contains no parameters",
            hint="pass the module that the tasks share, e.g. model.encoder, or its parameters",
        )
    parameters = list(found.values())
    distinct = {problem.args: problem for p in parameters for problem in _parameter_problems(p)}
    raise_problems(list(distinct.values()))
    if not any(p.requires_grad for p in parameters):
        raise InvalidInput(
            "shared", "contains only frozen parameters (requires_grad=False), so there is nothing to measure"
        )
    return parameters


def _iterate_parameters(shared: Shared, models: Sequence[nn.Module], problems: list[InvalidInput]) -> Iterable[Tensor]:
    if isinstance(shared, nn.Module):
        _reject_sparse_embeddings(shared)
        yield from shared.parameters()
    elif isinstance(shared, Tensor):
        yield shared
    elif isinstance(shared, str):
        yield from _matching_parameters(shared, models, problems)
    elif isinstance(shared, Iterable) and not isinstance(shared, dict):
        for item in shared:
            yield from _iterate_parameters(item, models, problems)
    else:
        raise InvalidInput(
            "shared",
            "must be a Module, an iterable of Parameters, or a pattern for their names",
            type(shared).__name__,
            "pass model.encoder or model.encoder.parameters() (not named_parameters())",
        )


def _matching_parameters(pattern: str, models: Sequence[nn.Module], problems: list[InvalidInput]) -> Iterable[Tensor]:
    """Yields the parameters whose name matches `pattern`; frozen ones too, unless all of them are."""
    if not models:
        found = f"{pattern!r} without `model`"
        expected = "can only contain patterns for the names of parameters if `model` is given"
        problems.append(
            InvalidInput("shared", expected, found, "pass model=model as well, or the parameters themselves")
        )
        return
    named = [pair for model in models for pair in model.named_parameters(remove_duplicate=False)]
    matching = [p for name, p in named if fnmatchcase(name, pattern)]
    if not matching:
        inside = [name for name, _ in named if fnmatchcase(name, f"{pattern}.*")]
        hint = f"use {pattern + '.*'!r} for all parameters of that module" if inside else _example_names(named)
        problems.append(InvalidInput("shared", "must match the names of parameters of `model`", repr(pattern), hint))
    elif not any(p.requires_grad for p in matching):
        found = f"{pattern!r}, which matches only frozen ones ({len(matching)})"
        hint = "unfreeze them (requires_grad=True) before creating the meter, or leave the pattern out"
        problems.append(InvalidInput("shared", "must match parameters that are trained", found, hint))
    yield from matching


def _example_names(named: Sequence[tuple[str, Tensor]]) -> str:
    shown = [name for name, _ in named[:3]]
    return f"names look like {', '.join(map(repr, shown))}" if shown else "`model` has no parameters"


def _parameter_problems(parameter: Tensor) -> Iterable[InvalidInput]:
    if not parameter.is_leaf:
        computed = "contains a tensor that is computed from other tensors"
        yield InvalidInput("shared", computed, hint="pass the Parameters themselves")
    if parameter.is_complex():
        complex_numbers = "contains complex parameters, which the meter does not support"
        yield InvalidInput("shared", complex_numbers, hint="leave them out of `shared`")
    if isinstance(parameter, UninitializedParameter):
        lazy = "contains a lazy parameter that is not initialized"
        yield InvalidInput("shared", lazy, hint="run the model once before creating the meter")
    if getattr(parameter, "_fsdp_flattened", False):
        expected = "contains flattened parameters (FSDP1), which the meter does not support"
        hint = "use fully_shard (FSDP2) with estimator='streaming', or DistributedDataParallel"
        yield InvalidInput("shared", expected, hint=hint)


def _reject_sparse_embeddings(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise sparse_gradient_error(name or type(part).__name__)
