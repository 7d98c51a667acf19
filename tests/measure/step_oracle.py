"""The true optimiser's step, and every dense optimiser of torch with its variants."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from tagalong.measure.step_rules import ParameterSlice
from tagalong.measure.steps import Steps

SHAPES = ((3, 4), (4,), (), (2, 3, 2))
# Values for the rarer settings; everything else is read from the signatures.
NUMBERS = {"weight_decay": 0.1, "momentum": 0.8, "lr_decay": 0.05, "lambd": 0.1, "dampening": 0.3, "rho": 0.7}
FLAGS = ("maximize", "amsgrad", "centered", "nesterov", "decoupled_weight_decay")


def dense_optimizers() -> list[type[Optimizer]]:
    """Returns the optimisers in torch's module, so that one which torch adds is not forgotten."""
    found = {c for c in vars(torch.optim).values() if inspect.isclass(c) and issubclass(c, Optimizer)}
    return sorted(found - {Optimizer, LBFGS, SparseAdam}, key=lambda c: c.__name__)


def variants(kind: type[Optimizer]) -> Iterator[dict[str, Any]]:
    """Returns settings of one optimiser: each by itself, some together, for all implementations."""
    options = inspect.signature(kind).parameters
    yield {"lr": 0.05}
    for name, number in NUMBERS.items():
        if name in options:
            yield {name: number} | ({"momentum": 0.8} if name == "dampening" else {})
    for flag in FLAGS:
        if flag in options:
            for value in (True, False):
                yield {flag: value, **_all_settings(options)}
    for name in ("foreach", "fused"):
        if name in options:
            yield {name: True, "lr": 0.05}
            yield {name: True, **_all_settings(options)}
    if "foreach" in options:
        yield {"foreach": False, **_all_settings(options)}
        if "Tensor" in str(options["lr"].annotation):
            yield {"foreach": False, "lr": torch.tensor(0.0625)}
    if "fused" in options:
        yield {"fused": True, "lr": torch.tensor(0.0625)}


def _all_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"lr": 0.05} | {n: v for n, v in NUMBERS.items() if n in options and n != "dampening"}


def cases() -> list[tuple[type[Optimizer], dict[str, Any]]]:
    return [(kind, settings) for kind in dense_optimizers() for settings in variants(kind)]


def case_id(case: object) -> str:
    kind, settings = case  # type: ignore[misc]
    return kind.__name__ + "".join(f"-{k}={v.item() if isinstance(v, Tensor) else v}" for k, v in settings.items())


def parameters_for(kind: type[Optimizer], dtype: torch.dtype, device: str = "cpu") -> list[nn.Parameter]:
    shapes = ((3, 4), (4, 2)) if kind.__name__ == "Muon" else SHAPES
    return [nn.Parameter(torch.randn(shape, dtype=dtype, device=device)) for shape in shapes]


def random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.randn_like(t) for t in tensors]


def train(parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer], steps: int) -> None:
    for _ in range(steps):
        for p in parameters:
            p.grad = torch.randn_like(p)
        for optimizer in optimizers:
            optimizer.step()


def true_step(
    parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Returns the parameters after a step of the optimisers themselves; their other parameters have no gradient."""
    copies, doubles = copy.deepcopy((list(parameters), list(optimizers)))
    for optimizer in doubles:
        optimizer._warned_capturable_if_run_uncaptured = True  # lost by deepcopy
        optimizer.zero_grad()
    for p, gradient in zip(copies, gradients, strict=True):
        p.grad = gradient.clone()
    for optimizer in doubles:
        optimizer.step()
    return [p.detach() for p in copies]


def look_ahead(steps: Steps, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Returns the looked-ahead parameters, computed in place as the meter does, and restores the originals."""
    values, saved = [p.data for p in parameters], [p.data.clone() for p in parameters]
    given = [g.clone() for g in gradients]
    steps.add(values, [ParameterSlice(i) for i in range(len(values))], gradients, saved)
    found = [v.clone() for v in values]
    assert all(torch.equal(a, b) for a, b in zip(given, gradients, strict=True)), "a gradient was written"
    for value, old in zip(values, saved, strict=True):
        value.copy_(old)
    return found


def step_delta(steps: Steps, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Returns the step Δθ alone, added to zeros."""
    out, origin = [torch.zeros_like(p) for p in parameters], [p.detach().clone() for p in parameters]
    steps.add(out, [ParameterSlice(i) for i in range(len(out))], gradients, origin)
    assert all(torch.equal(o, p) for o, p in zip(origin, parameters, strict=True)), "origin does not hold θ again"
    return out


def snapshot(parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Returns the values and identities of everything that a step must not change."""
    return copy.deepcopy(
        {
            "values": [p.detach() for p in parameters],
            "versions": [p._version for p in parameters],
            "grads": [p.grad for p in parameters],
            "state": [[(id(key), dict(value)) for key, value in o.state.items()] for o in optimizers],
            "settings": [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in optimizers],
            "attributes": [sorted(vars(o)) for o in optimizers],
        }
    )


def assert_identical(first: Any, second: Any) -> None:
    """Asserts equality bit for bit, through lists, tuples and dicts."""
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert list(first) == list(second)
        assert_identical(list(first.values()), list(second.values()))
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_identical(a, b)
    else:
        assert first == second
