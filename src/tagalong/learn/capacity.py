"""The sizes of networks: numbers of parameters, costs of a step, and widths with a given number of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch

from tagalong.errors import InvalidInput

from .network import build_network, count_multiplications
from .problem import Problem

# The widths that `width_of_size` found. To find a width, many networks are built.
_widths: WeakKeyDictionary[Problem, dict[tuple[frozenset[str], float, float], float]] = WeakKeyDictionary()
TOLERANCE = 1e-3  # relative; channel counts are integers, so some parameter counts cannot be reached


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
    wanted = times * count_parameters(problem, problem.names, width)
    low, high = 0.0, 1.0
    counts = {high: count_parameters(problem, names, high)}
    while counts[high] < wanted:
        low, high = high, 2 * high
        if high > 1024:
            too_few = f"fewer than {wanted:g} parameters at width {low:g}"
            raise InvalidInput("encoder", "must grow with `width`", too_few)
        counts[high] = count_parameters(problem, names, high)

    # Bisection; the width that comes closest is kept.
    middle = high
    while high - low > 1e-4 * high and abs(counts[middle] - wanted) > TOLERANCE * wanted:
        middle = round((low + high) / 2, 6)
        counts[middle] = count_parameters(problem, names, middle)
        low, high = (middle, high) if counts[middle] < wanted else (low, middle)
    widths[key] = min(counts, key=lambda width: abs(counts[width] - wanted))
    return widths[key]
