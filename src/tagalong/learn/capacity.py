"""Larger networks for all tasks: what the same compute as several networks would buy in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .network import build_network
from .problem import Problem

CLOSE = 1e-3  # of the parameters asked for; layers have whole numbers of channels, so no closer than one allows


@dataclass(frozen=True)
class Capacity:
    """A wider network.

    Attributes:
        by: what is multiplied: "channels" (the paper's "n× channels") or "parameters".
        times: the multiple asked for.
        width: of the encoder that has it, for `Job.width`.
        parameters: of that network, heads included.
        reached: those parameters as a multiple of the network of width 1. Twice the channels of a convolution are
            four times its parameters, so the paper's two readings of "as large as n networks" are far apart.
    """

    by: Literal["channels", "parameters"]
    times: float
    width: float
    parameters: int
    reached: float

    def __str__(self) -> str:
        return f"{self.times:g}× {self.by}: width {self.width:g}, {self.reached:.2f}× parameters"


def capacities(
    problem: Problem, tasks: Iterable[str] | None = None, times: Sequence[float] = (2, 3, 4)
) -> list[Capacity]:
    """The paper's networks without a latency constraint: n× the channels, then n× the parameters.

    Args:
        problem: whose encoder must be a callable with a `width` argument.
        tasks: of the network; None: all.
        times: the multiples.
    """
    names = problem.names if tasks is None else tuple(tasks)
    once = parameters_of(problem, names)

    def capacity(by: Literal["channels", "parameters"], multiple: float, width: float) -> Capacity:
        parameters = parameters_of(problem, names, width)
        return Capacity(by, multiple, width, parameters, parameters / once)

    by_channels = [capacity("channels", multiple, float(multiple)) for multiple in times]
    return by_channels + [
        capacity("parameters", multiple, width_for(problem, names, once * multiple)) for multiple in times
    ]


def parameters_of(problem: Problem, tasks: Iterable[str], width: float = 1.0) -> int:
    """How many parameters a network for these tasks has, encoder and heads."""
    network = build_network(problem, tasks, seed=0, width=width)
    return sum(parameter.numel() for parameter in network.parameters())


def width_for(problem: Problem, tasks: Iterable[str], parameters: float) -> float:
    """The width whose network comes closest to so many parameters, by bisection.

    Raises:
        ValueError: the encoder does not grow with its width.
    """
    names = tuple(tasks)
    low, high = 0.0, 1.0
    while parameters_of(problem, names, high) < parameters:
        low, high = high, 2 * high
        if high > 1024:
            raise ValueError(f"`encoder` must grow with `width`; at width {low:g} it has fewer than {parameters:g}")
    best, distance = high, abs(parameters_of(problem, names, high) - parameters)
    while high - low > 1e-4 * high and distance > CLOSE * parameters:
        middle = round((low + high) / 2, 6)
        found = parameters_of(problem, names, middle)
        if abs(found - parameters) < distance:
            best, distance = middle, abs(found - parameters)
        low, high = (middle, high) if found < parameters else (low, middle)
    return best
