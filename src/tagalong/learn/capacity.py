"""Wider networks: one network with the channels or parameters of multiple networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from tagalong.errors import InvalidInput

from .network import build_network, count_multiplications
from .problem import Problem

# The widths that `width_of_size` found. To find a width, many networks are built.
_widths: WeakKeyDictionary[Problem, dict[tuple[frozenset[str], float, float], float]] = WeakKeyDictionary()
TOLERANCE = 1e-3  # relative; channel counts are integers, so some parameter counts cannot be reached


@dataclass(frozen=True)
class Capacity:
    """The size of a wider network.

    Attributes:
        by: the quantity that is multiplied, "channels" (the paper's "n× channels") or "parameters".
        times: the requested multiple.
        width: the width of the encoder, for `Job.width`.
        parameters: the number of parameters in the network, including its heads.
        reached: the number of parameters relative to a network of width 1. Doubling the channels of a convolution
            quadruples its parameters, so the two interpretations of the paper's "as large as n networks" differ widely.
    """

    by: str
    times: float
    width: float
    parameters: int
    reached: float


def capacities(problem: Problem, times: Sequence[float] = (2, 3, 4)) -> list[Capacity]:
    """Returns the paper's wider networks for all tasks, first with n× the channels, then with n× the parameters.

    Args:
        problem: a problem whose encoder is a callable with a `width` argument.
        times: the multiples n.
    """
    base = count_parameters(problem, problem.names)
    sizes: list[Capacity] = []
    for by in ("channels", "parameters"):
        for multiple in times:
            width = float(multiple) if by == "channels" else width_of_size(problem, problem.names, multiple)
            parameters = count_parameters(problem, problem.names, width)
            sizes.append(Capacity(by, multiple, width, parameters, parameters / base))
    return sizes


def count_parameters(problem: Problem, tasks: Iterable[str], width: float = 1.0) -> int:
    """Returns the number of encoder and head parameters in a network for these tasks."""
    network = build_network(problem, tasks, seed=0, width=width)
    return sum(parameter.numel() for parameter in network.parameters())


def relative_step_cost(problem: Problem, network: str | None) -> float:
    """Returns what a training step of another network costs, as a multiple of a step of the problem's own network.

    Costs are computed rather than timed: they are the multiplications of both networks for all tasks, times the rows of
    a batch. The backward pass of either takes about twice as many as its forward pass.

    Args:
        problem: the problem.
        network: one of `problem.alternatives`, or None for the problem's own network, which costs 1.

    Example:
        >>> import torch
        >>> inputs = torch.rand(100, 3)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"])
        >>> round(relative_step_cost(problem, "tabm"), 1)
        16.4
    """
    if network is None:
        return 1.0
    row, _ = problem.train.only(()).batch(torch.arange(1))
    costs = []
    for own in (problem.with_network(network), problem):
        multiplications = count_multiplications(build_network(own, own.names, seed=0), row)
        costs.append(multiplications * min(own.recipe.batch_size, len(own.train)))
    return costs[0] / costs[1]


def width_of_size(problem: Problem, tasks: Iterable[str], times: float, width: float = 1.0) -> float:
    """Finds the width at which a network has a multiple of the parameters that a network of all tasks has.

    Widths are remembered for each problem, since many networks are built to find them.

    Args:
        problem: a problem whose encoder is a callable with a `width` argument.
        tasks: the tasks of the network.
        times: the multiple.
        width: the width of the network of all tasks.

    Raises:
        InvalidInput: If the encoder does not grow with its width.
    """
    names = tuple(tasks)
    widths, key = _widths.setdefault(problem, {}), (frozenset(names), float(times), float(width))
    if key in widths:
        return widths[key]
    parameters = times * count_parameters(problem, problem.names, width)
    low, high = 0.0, 1.0
    while count_parameters(problem, names, high) < parameters:
        low, high = high, 2 * high
        if high > 1024:
            too_few = f"fewer than {parameters:g} parameters at width {low:g}"
            raise InvalidInput("encoder", "must grow with `width`", too_few)

    # Bisection; the width that comes closest is kept.
    best, distance = high, abs(count_parameters(problem, names, high) - parameters)
    while high - low > 1e-4 * high and distance > TOLERANCE * parameters:
        middle = round((low + high) / 2, 6)
        count = count_parameters(problem, names, middle)
        if abs(count - parameters) < distance:
            best, distance = middle, abs(count - parameters)
        low, high = (middle, high) if count < parameters else (low, middle)
    widths[key] = best
    return best
