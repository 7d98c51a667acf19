"""What a closure returned: task losses, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ClosureError(ValueError):
    """The closure (or what the meter was told about it) cannot be measured.

    Attributes:
        problems: One sentence per problem; all that could be found in one look.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the affinity cannot be measured:\n" + "\n".join(f"- {p}" for p in problems))


def raise_all(problems: Sequence[str]) -> None:
    """Raises one error that lists `problems`, or returns if there are none."""
    if problems:
        raise ClosureError(problems)


class Problems:
    """Tries one thing after another, and raises what went wrong with any of them at the end."""

    def __init__(self) -> None:
        self._errors: list[ValueError | TypeError] = []

    def __call__(self, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except (ValueError, TypeError) as error:
            self._errors.append(error)
            return None

    def done(self) -> None:
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ValueError("the meter cannot be made:\n" + "\n".join(f"- {error}" for error in self._errors))


@dataclass
class TaskLosses:
    """The scalar losses of one run of a closure, by task, with the weight of each under data parallelism."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, returned: Any, what: str = "closure") -> TaskLosses:
        """Takes apart what a closure returned; a task whose loss is None is missing."""
        read = cls()
        if not isinstance(returned, Mapping):
            read.problems.append(_not_a_mapping(returned, what))
            return read
        for name, item in returned.items():
            if not isinstance(name, str):
                read.problems.append(f"the {what} names a task {name!r}; task names must be strings.")
            elif item is not None:
                read._add(name, item, what)
        return read

    def _add(self, name: str, item: Any, what: str) -> None:
        loss, weight = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
        if loss is None:
            return
        if not isinstance(loss, Tensor):
            self.problems.append(
                f"the {what}'s loss of `{name}` is a {type(loss).__name__}; return the tensor itself, before .item(), "
                "or None where the batch has no label."
            )
        elif loss.numel() != 1:
            self.problems.append(
                f"the {what}'s loss of `{name}` has shape {tuple(loss.shape)}; reduce it to a scalar, e.g. by .mean()."
            )
        elif not loss.is_floating_point():
            self.problems.append(
                f"the {what}'s loss of `{name}` is of {loss.dtype}; it must be a real floating number."
            )
        elif not _is_weight(weight):
            self.problems.append(
                f"the {what} returned a pair for `{name}` whose second part is {_short(weight)}; it must be the loss's "
                "weight among data-parallel ranks, a number of at least 0 such as the count of labels."
            )
        else:
            self.losses[name] = loss
            self.weights[name] = weight

    def values(self, tasks: Sequence[str]) -> Tensor:
        """Losses in the order of `tasks`, detached, in double precision; NaN where missing. No host read."""
        if not self.losses or not tasks:
            return torch.full((len(tasks),), float("nan"), dtype=torch.float64)
        like = next(iter(self.losses.values())).detach()
        missing = torch.full_like(like, float("nan"))
        found = [self.losses.get(t, missing).detach().reshape(()) for t in tasks]
        if len({(loss.device, loss.dtype) for loss in found}) > 1:
            found = [loss.to(like.device, torch.float64) for loss in found]
        return torch.stack(found).to(torch.float32 if like.device.type == "mps" else torch.float64)


def name_problems(read: TaskLosses, tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    unknown = [name for name in read.losses if name not in tasks]
    if unknown:
        yield (
            f"the {what} returned tasks {unknown} that are not among {list(tasks)}; task names must not change. "
            "Name all tasks beforehand with `tasks=[...]`; those missing from a batch may be left out or None."
        )


def graph_problems(read: TaskLosses, present: Iterable[str], what: str = "closure") -> Iterable[str]:
    bare = [name for name in present if name in read.losses and not read.losses[name].requires_grad]
    if bare:
        yield (
            f"the {what}'s losses of {bare} carry no graph; return them as computed, without .detach() and outside "
            "torch.no_grad(), or None where the batch has no label for a task."
        )


def sign_problems(values: Sequence[float], tasks: Sequence[str], what: str = "closure") -> Iterable[str]:
    negative = [f"`{t}` ({v:.4g})" for t, v in zip(tasks, values, strict=True) if v < 0]
    if negative:
        yield (
            f"the {what}'s losses of {', '.join(negative)} are negative. Affinity is the share of a loss that a step "
            "removes, 1 − after/before, which has no meaning for a negative loss; add a constant that keeps the loss "
            "positive (a likelihood's lower bound, say), or use estimator='cosine', which needs no ratio."
        )


def _not_a_mapping(returned: Any, what: str) -> str:
    found = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
    return f"the {what} must return a dict {{task name: scalar loss}}, one entry per task, got {found}."


def _is_weight(weight: Any) -> bool:
    if isinstance(weight, Tensor):
        return weight.numel() == 1 and not weight.requires_grad and not weight.is_complex()
    return isinstance(weight, Real) and float(weight) >= 0


def _short(value: Any) -> str:
    return "a loss of its own" if isinstance(value, Tensor) else repr(value)[:40]
