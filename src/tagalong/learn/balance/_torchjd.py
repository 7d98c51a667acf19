"""Aggregators and scalarizers of TorchJD by name: "mgda", "torchjd:CAGrad(c=0.5)"."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._seeds import drawing

PIP = "pip install torchjd"
PER_TASK = ("shape", "n_tasks")  # arguments that say how many tasks there are, so nobody needs to give them
FIXED_ROWS = ("Krum", "TrimmedMean")  # fail when rows are left out


@dataclass(frozen=True)
class Call:
    """A name with arguments, as a rule spells it.

    Example:
        >>> read_call("CAGrad(c=0.5)")
        Call(name='CAGrad', given=(), named={'c': 0.5})
    """

    name: str
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    @property
    def lists(self) -> bool:
        """Whether a value per task was given."""
        return any(isinstance(value, list | tuple) for value in (*self.given, *self.named.values()))


def read_call(text: str) -> Call | None:
    """Reads a name and its arguments, which must be plain values, since nothing is evaluated; None if it is no call."""
    name, bracket, rest = text.strip().partition("(")
    try:
        node = ast.parse(name.replace("-", "_") + bracket + rest, mode="eval").body
        if isinstance(node, ast.Name):
            return Call(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            return Call(node.func.id, tuple(map(ast.literal_eval, node.args)), named)
    except (SyntaxError, ValueError):
        return None
    return None


def kinds() -> dict[str, type[nn.Module]]:
    """Every aggregator and scalarizer by its name in TorchJD; scalarizers, the cheaper ones, where both have one."""
    try:
        from torchjd import aggregation, scalarization
    except ImportError as error:
        raise ImportError(f"this balancing rule is TorchJD's; {PIP}") from error
    bases = ((aggregation, aggregation.Aggregator), (scalarization, scalarization.Scalarizer))
    return {
        name: kind
        for room, base in bases
        for name, kind in inspect.getmembers(room, inspect.isclass)
        if issubclass(kind, base) and not inspect.isabstract(kind) and not name.endswith("Aggregator")
    }


def find(name: str) -> type[nn.Module] | None:
    """The class of this name, however it is spelt: "nash-mtl" is `NashMTL`."""
    plain = _letters(name)
    return next((kind for known, kind in kinds().items() if _letters(known) == plain), None)


def make(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    """An aggregator or scalarizer for so many tasks, after one that was tried out on them."""
    try:
        trial = _construct(call, kind, tasks, torch.empty(0))
        with drawing(0, "trial"), torch.no_grad():
            rows = torch.rand(tasks, tasks + 1) + torch.eye(tasks, tasks + 1)
            trial(rows if is_aggregator(kind) else rows[:, 0])
    except ImportError:
        raise
    except Exception as error:
        signature = str(inspect.signature(kind)).partition(" ->")[0]
        raise ValueError(
            f"`rule`: {kind.__name__}{signature} does not fit {tasks} tasks as written: {error}"
        ) from error
    return _construct(call, kind, tasks, like)


def is_aggregator(kind: type[nn.Module]) -> bool:
    """Whether it combines gradients, not losses."""
    from torchjd.aggregation import Aggregator

    return issubclass(kind, Aggregator)


def takes_any_number(call: Call, kind: type[nn.Module]) -> bool:
    """Whether an aggregator may see fewer gradients in one step than in another."""
    from torchjd import Stateful

    return not (issubclass(kind, Stateful) or call.lists or kind.__name__ in FIXED_ROWS)


def _construct(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    names = list(inspect.signature(kind).parameters)
    per_task = {name: tasks for name in names if name in PER_TASK and name not in call.named}
    skipped = per_task if not call.given else {}
    named = {name: _tensor(value, like) for name, value in call.named.items()}
    return kind(*(_tensor(value, like) for value in call.given), **skipped, **named)


def _tensor(value: Any, like: Tensor) -> Any:
    return like.new_tensor(value) if isinstance(value, list | tuple) else value


def _letters(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
