"""`meter.check`: measures one step without recording it, and reports what would be measured and at what cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tagalong.rendering import TextTable

from .closure import ReplayableClosure, TaskLosses, raise_closure_problems
from .distributed import Replicas, agree_on_tasks, is_learning_static_graph
from .gradients import gradient_bytes
from .isolation import Replayer, without_caches
from .measurement import Measurement
from .objects import MAX_OBJECTS, ClosureState
from .schedules import Schedule, Stopwatch
from .setup import Setup
from .task_closures import ReplayableTasks, TaskFunctions, require_single_process

SIMULATED_CALLS = 1000  # to find out how often a schedule measures


@dataclass(frozen=True)
class Check:
    """The report of `AffinityMeter.check`; print it for a summary.

    Attributes:
        tasks: Task names.
        shared: The shared parameters by name, each with its shape and the tasks that depend on it.
        unconnected: Pairs of tasks that do not share any parameters.
        notes: Notes about frozen, unused, tied or untrained parameters, missing tasks and rounding errors.
        memory: An upper bound on the extra bytes that a measured step needs, not counting the activations of one
            forward pass.
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
        for name, (shape, by) in self.shared.items():
            touched = "all tasks" if len(by) == len(self.tasks) else ", ".join(by) or "no task"
            shared.add_row(f"  {name}", f"{'×'.join(map(str, shape)) or 'scalar':<13}", touched)
        lines = [f"{len(self.tasks)} tasks: {', '.join(self.tasks)}", f"{len(self.shared)} shared parameters:"]
        lines += shared.lines()
        lines += [f"unconnected: {a} – {b}" for a, b in self.unconnected]
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"extra memory per measured step: {_format_bytes(self.memory)}")
        lines.append(f"time per measurement: {self.ratio:.1f} plain steps; expected overhead {self.overhead:.0%}")
        return "\n".join(lines)


def dry_step(
    setup: Setup,
    tasks: tuple[str, ...] | None,
    closure: Callable[[], Any] | TaskFunctions,
    held_out: Callable[[], Any] | TaskFunctions | None,
    schedule: Schedule,
    wrapper: DistributedDataParallel | None = None,
) -> Check:
    """Measures one step without recording it, and restores the original state.

    With one closure per task, each closure runs twice, but only the pairs that the schedule chooses are measured.
    """
    if is_learning_static_graph(wrapper):
        raise_closure_problems(
            ["DistributedDataParallel learns its static graph in the first two steps; call `check` after them."]
        )
    replicas, randomness = setup.replicas(wrapper), ClosureState(0)  # fetching batches may change the random state
    if isinstance(closure, TaskFunctions):
        require_single_process(replicas)
    main, held_out_closure = setup.replayable(closure, Replayer(), verify=True, wrapper=wrapper), None
    with without_caches():
        try:
            main.run()
            main.save_end()
            if held_out is not None:
                held_out_closure = setup.replayable(held_out, Replayer(), verify=True, held_out=True, wrapper=wrapper)
                held_out_closure.run()
                held_out_closure.save_end()
            names = agree_on_tasks(tasks, main, replicas)
            step = _DryStep(setup, names, main, held_out_closure, schedule, replicas)
            touched, notes = step.verify()
            ratio = _relative_duration(setup, main, step.plain_closure(closure), step.measure)
        finally:
            if held_out_closure is not None:
                held_out_closure.restore_start()
            main.restore_start()
            randomness.restore(randomness.start)
    return _summary(setup, names, touched, notes, main, ratio, schedule, step.gradients)


class _DryStep:
    """A measured step that is not recorded.

    Attributes:
        gradients: The number of task gradients that the step may keep in memory.
    """

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[str],
        main: ReplayableClosure,
        held_out: ReplayableClosure | None,
        schedule: Schedule,
        replicas: Replicas,
    ) -> None:
        self._setup, self._tasks, self._main, self._held_out = setup, tasks, main, held_out
        self._schedule, self._replicas = schedule, replicas
        self._apart = isinstance(main, ReplayableTasks)
        sources, targets = self._chosen() if self._apart else (tasks, tasks)
        self.gradients = len({*sources, *targets}) if held_out is None else len(sources) + len(targets)

    def verify(self) -> tuple[dict[str, set[int]], list[str]]:
        """Returns the parameters that each task depends on, and what is to be noted."""
        found, notes = self._run(verify=True)
        return {**self._main.touched(self._setup.parameters), **found}, notes

    def measure(self) -> None:
        if self._apart:  # the losses before the step are computed for the measurement alone
            sources, targets = self._chosen()
            self._main.replay(sources if self._held_out is not None else list(dict.fromkeys([*sources, *targets])))
            if self._held_out is not None:
                self._held_out.replay(targets)
        self._run(verify=False)

    def plain_closure(self, closure: Callable[[], Any] | TaskFunctions) -> Callable[[], Any]:
        """Returns a closure that computes the losses of a plain step; with one closure per task, that of one task."""
        if not isinstance(closure, TaskFunctions):
            return closure
        return lambda: {task: closure.loss(task) for task in self._chosen()[0][:1]}

    def _chosen(self) -> tuple[list[str], list[str]]:
        """Returns the sources and targets of the first measured step."""
        sources, targets = (list((c or self._main).losses.losses) for c in (self._main, self._held_out))
        return list(self._schedule.choose(sources, {}, 0)), list(self._schedule.choose_targets(targets, {}, 0))

    def _run(self, *, verify: bool) -> tuple[dict[str, set[int]], list[str]]:
        choose = self._schedule.choose
        everything = verify and not self._apart
        measurement = Measurement(
            self._setup,
            self._tasks,
            self._main,
            self._held_out,
            choose=lambda present: present if everything else choose(present, {}, 0),
            choose_targets=lambda present, _: self._schedule.choose_targets(present, {}, 0) if self._apart else present,
            replicas=self._replicas,
            call=0,
            verify=verify,
            keep_training_gradient=False,
        )
        found = measurement.run()
        return {} if found is None else found.touched, measurement.notes


def _relative_duration(
    setup: Setup, main: ReplayableClosure, closure: Callable[[], Any], measure: Callable[[], object], repeats: int = 3
) -> float:
    """Returns how long a measurement takes relative to a plain step, using the fastest of several runs of each."""
    plain, measuring = [], []
    for _ in range(repeats):
        main.restore_start()
        plain.append(_plain_step_seconds(setup, closure))
        watch = Stopwatch(setup.parameters[0].device)
        measure()
        measuring.append(watch.seconds())
    return min(measuring) / min(plain)


def _plain_step_seconds(setup: Setup, closure: Callable[[], Any]) -> float:
    watch = Stopwatch(setup.parameters[0].device)
    losses = list(TaskLosses.read(closure()).losses.values())
    if losses:  # a rank may have none
        total = torch.stack([loss.reshape(()) for loss in losses]).sum()
        torch.autograd.grad(total, setup.trainable(), allow_unused=True)
    return watch.seconds()


def _summary(
    setup: Setup,
    tasks: Sequence[str],
    touched: dict[str, set[int]],
    notes: Sequence[str],
    main: ReplayableClosure,
    ratio: float,
    schedule: Schedule,
    gradients: int,
) -> Check:
    parameters = setup.trainable()
    names = _parameter_names(parameters, [*main.modules(), *main.state.reached_modules()])
    number = {id(p): i for i, p in enumerate(setup.parameters)}
    shared = {
        names[id(p)][0]: (tuple(p.shape), tuple(t for t in tasks if number[id(p)] in touched.get(t, ())))
        for p in parameters
    }
    measured = sum(schedule.due(call) for call in range(SIMULATED_CALLS))
    return Check(
        tuple(tasks),
        shared,
        tuple((a, b) for a, b in combinations(touched, 2) if not touched[a] & touched[b]),
        (*_notes(setup, parameters, names, shared, tasks, touched), *_closure_notes(main), *notes),
        _extra_memory(setup, parameters, gradients) + 2 * main.state.copied,
        ratio,
        # Of an "auto" schedule, every call is due until it has been timed.
        overhead=min(ratio * measured / SIMULATED_CALLS, getattr(schedule, "max_overhead", math.inf)),
    )


def _parameter_names(parameters: Sequence[Tensor], modules: Iterable[nn.Module]) -> dict[int, list[str]]:
    """Returns each parameter's names in the outermost module that contains it. Tied parameters have several names."""
    names: dict[int, list[str]] = {}
    for module in modules:  # outermost first
        here: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            here.setdefault(id(parameter), []).append(name)
        for key, found in here.items():
            names.setdefault(key, found)
    return {id(p): names.get(id(p), [f"parameter {i}"]) for i, p in enumerate(parameters)}


def _notes(
    setup: Setup,
    parameters: Sequence[Tensor],
    names: Mapping[int, list[str]],
    shared: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]],
    tasks: Sequence[str],
    touched: Mapping[str, set[int]],
) -> Iterable[str]:
    frozen = len(setup.parameters) - len(parameters)
    if frozen:
        yield f"{frozen} shared parameters are frozen and ignored"
    for name, (_, by) in shared.items():
        if not by:
            yield f"no task in this batch depends on `{name}`"
    single = sum(len(by) == 1 for _, by in shared.values())
    if single:
        yield f"{single} shared parameters are used by only one task; leave task heads out of `shared`"
    for p in parameters:
        if len(names[id(p)]) > 1:
            yield f"`{names[id(p)][0]}` is tied to {', '.join(names[id(p)][1:])}, which therefore moves with it"
    owned = {id(p) for o in setup.optimizers for g in o.param_groups for p in g["params"]}
    idle = [names[id(p)][0] for p in parameters if id(p) not in owned]
    if setup.uses_steps and setup.lr is None and idle:
        yield f"no optimizer updates {', '.join(idle)}, so a step does not move them"
    missing = [t for t in tasks if t not in touched]
    if missing:
        yield f"this batch has no loss for {', '.join(missing)}"


def _closure_notes(main: ReplayableClosure) -> Iterable[str]:
    if main.state.truncated:
        yield f"the closure reaches more than {MAX_OBJECTS} objects; changes to those farthest from it are not undone"


def _extra_memory(setup: Setup, parameters: Sequence[Tensor], rows: int) -> int:
    size = sum(p.nbytes for p in parameters)
    # Saved values, one gradient, and the training gradient if `meter.backward` is used.
    memory = 3 * size if "after" in setup.needs else 2 * size
    if setup.needs_target_gradients:
        memory += min(gradient_bytes(parameters, rows), int(setup.gradient_memory)) + gradient_bytes(parameters, 1)
    return memory + setup.steps(parameters).state_bytes


def _format_bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
