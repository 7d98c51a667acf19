"""Which parameters count as shared."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

Shared = nn.Module | Tensor | Iterable[Tensor | nn.Module]


def shared_parameters(shared: Shared) -> list[Tensor]:
    """The distinct parameters of `shared`: tied ones once, in order of appearance.

    Frozen ones are kept here and left out step by step, so that thawing them later works.
    """
    found = {id(p): p for p in _walk(shared)}
    if not found:
        raise ValueError(
            "`shared` holds no parameters; pass the module that the tasks share (model.encoder) or its parameters."
        )
    parameters = list(found.values())
    problems = [problem for p in parameters for problem in _problems(p)]
    if problems:
        raise ValueError("; ".join(dict.fromkeys(problems)))
    if not any(p.requires_grad for p in parameters):
        raise ValueError("`shared` holds only frozen parameters (requires_grad=False); none of them can be stepped.")
    return parameters


def trainable(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in parameters if p.requires_grad]


def _walk(shared: Shared) -> Iterable[Tensor]:
    if isinstance(shared, nn.Module):
        _refuse_sparse(shared)
        yield from shared.parameters()
    elif isinstance(shared, Tensor):
        yield shared
    elif isinstance(shared, Iterable) and not isinstance(shared, str | dict):
        for item in shared:
            yield from _walk(item)
    else:
        raise TypeError(
            f"`shared` must be a Module or an iterable of Parameters, found {type(shared).__name__} in it; "
            "pass model.encoder or model.encoder.parameters() (not named_parameters())."
        )


def _problems(parameter: Tensor) -> Iterable[str]:
    if not parameter.is_leaf:
        yield "`shared` holds a tensor that is computed from others; pass the Parameters themselves"
    if parameter.is_complex():
        yield "`shared` holds complex parameters, which the meter does not measure; leave them out"
    if isinstance(parameter, UninitializedParameter):
        yield "`shared` holds a lazy parameter without a shape; run the model once before making the meter"
    if hasattr(parameter, "device_mesh") or getattr(parameter, "_fsdp_flattened", False):
        yield (
            "`shared` holds sharded parameters (FSDP); the meter needs whole ones: measure on a replica that is "
            "not sharded, or with DistributedDataParallel"
        )


def _refuse_sparse(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ValueError(sparse_sentence(name or type(part).__name__))


def sparse_sentence(name: str) -> str:
    return (
        f"`shared` holds an embedding with sparse gradients ({name}), which the meter does not measure; "
        "make it with sparse=False, or leave it out of `shared`."
    )
