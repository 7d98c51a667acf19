"""The report of `meter.check`: what would be measured, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tagalong.rendering import TextTable

from .closure import LazyLosses, ReplayableClosure, TaskLosses
from .gradients import row_dtype
from .history import MeterHistory
from .objects import MAX_OBJECTS
from .schedules import Schedule, Stopwatch
from .setup import Setup

SIMULATED_CALLS = 1000  # to find out how often a schedule measures


@dataclass(frozen=True)
class Check:
    """The report of `AffinityMeter.check`; print it for a summary.

    Attributes:
        tasks: Task names.
        shared: The shared parameters by name, each with its shape and the tasks that depend on it.
        unconnected: Pairs of tasks that do not share any parameters.
        notes: Notes about tied or untrained parameters, and about what makes affinities less useful.
        memory: About how many extra bytes a measured step needs, without the activations of one forward pass and the
            copy of an optimizer for which there is no formula.
        ratio: The duration of a measurement divided by that of a plain step. With one closure per task, a plain step
            trains on one task.
        overhead: The expected number of seconds spent measuring per second of plain training.
    """

    tasks: tuple[str, ...]
    shared: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]]
    unconnected: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    memory: int
    ratio: float
    overhead: float

    def __str__(self) -> str:
        shared = TextTable("", "", "")
        for name, (shape, tasks) in self.shared.items():
            touched = "all tasks" if len(tasks) == len(self.tasks) else ", ".join(tasks) or "no task"
            shared.add_row(f"  {name}", f"{'×'.join(map(str, shape)) or 'scalar':<13}", touched)
        lines = [f"{len(self.tasks)} tasks: {', '.join(self.tasks)}", f"{len(self.shared)} shared parameters:"]
        lines += shared.lines()
        lines += [f"unconnected: {a} – {b}" for a, b in self.unconnected]
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"extra memory per measured step: {self.memory / 2**20:,.1f} MiB")
        lines.append(f"time per measurement: {self.ratio:.1f} plain steps; expected overhead {self.overhead:.0%}")
        return "\n".join(lines)


def plain_step_seconds(setup: Setup, closure: Callable[[], Any] | LazyLosses) -> float:
    # Returns the duration of a forward and a backward pass, for one task if tasks have closures of their own.
    watch = Stopwatch(setup.parameters[0].device)
    if isinstance(closure, LazyLosses):
        task = next(iter(closure))
        returned = {task: closure.closures[task]()}
    else:
        returned = closure()
    losses = list(TaskLosses.read(returned).by_task.values())
    if losses:  # a rank may have none
        total = torch.stack([loss.reshape(()) for loss in losses]).sum()
        torch.autograd.grad(total, setup.trainable(), allow_unused=True)
    return watch.seconds()


def parameter_names(closure: ReplayableClosure, parameters: Sequence[Tensor]) -> list[list[str]]:
    # Returns each parameter's names in the outermost module that contains it. Tied parameters have several names.
    names: dict[int, list[str]] = {}
    reached = [x for x in closure.state.seen.values() if isinstance(x, nn.Module)]
    for module in [*closure.state.modules.values(), *reached]:  # outermost first
        names_here: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names_here.setdefault(id(parameter), []).append(name)
        names = names_here | names
    return [names.get(id(p), [f"parameter {i}"]) for i, p in enumerate(parameters)]


def summarize(
    setup: Setup,
    history: MeterHistory,
    closure: ReplayableClosure,
    notes: Iterable[str],
    has_held_out: bool,
    ratio: float,
    schedule: Schedule,
) -> Check:
    """Returns the report.

    Args:
        setup: The meter's settings.
        history: The history of the measured step.
        closure: The closure, which has run.
        notes: What the measured step noted.
        has_held_out: Whether a measured step also keeps the gradients of held-out losses.
        ratio: As in `Check`.
        schedule: The meter's schedule.
    """
    tasks, parameters = history.tasks or (), setup.trainable()
    names = parameter_names(closure, parameters)
    index = {id(p): k for k, p in enumerate(setup.parameters)}
    used = {task: {index[key] for key in graph.leaves if key in index} for task, graph in closure.graphs.items()}
    used |= history.touched  # on all ranks
    users = [tuple(task for task in tasks if index[id(p)] in used.get(task, ())) for p in parameters]

    all_notes = [*notes]
    all_notes += [f"`{name}` is tied to {', '.join(tied)}, which moves with it" for name, *tied in names if tied]
    owned = {id(p) for optimizer in setup.optimizers for group in optimizer.param_groups for p in group["params"]}
    idle = [name for p, (name, *_) in zip(parameters, names, strict=True) if id(p) not in owned]
    if idle and setup.uses_steps and setup.lr is None:
        all_notes.append(f"no optimizer updates {', '.join(idle)}, so a step does not move them")
    if closure.state.truncated:
        all_notes.append(
            f"the closure reaches more than {MAX_OBJECTS} objects; changes to those farthest from it are not undone"
        )

    # Saved values if parameters move, one gradient, and the training gradient if `meter.backward` is used.
    memory = (3 if "after" in setup.needs else 2) * sum(p.nbytes for p in parameters) + 2 * closure.state.copied
    if setup.uses_gradients:
        rows = len(tasks) * (1 + has_held_out) + 1
        memory += rows * sum(p.numel() for p in parameters) * row_dtype(parameters).itemsize
    measured = sum(schedule.due(call) for call in range(SIMULATED_CALLS))
    return Check(
        tasks,
        {name[0]: (tuple(p.shape), by) for p, name, by in zip(parameters, names, users, strict=True)},
        tuple((a, b) for a, b in combinations(used, 2) if not used[a] & used[b]),
        tuple(all_notes),
        memory,
        ratio,
        # Of an "auto" schedule, every call is due until it has been timed.
        overhead=min(ratio * measured / SIMULATED_CALLS, getattr(schedule, "max_overhead", math.inf)),
    )
