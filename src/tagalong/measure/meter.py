"""`AffinityMeter`: measures affinities with two extra lines in a training loop."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tagalong.affinity import Affinity, named_values
from tagalong.errors import InvalidInput, collect, is_positive, is_positive_integer, raise_problems
from tagalong.registry import unknown_name

from .backward import TrainingGradient
from .check import Check, dry_step
from .closure import ReplayableClosure, raise_closure_problems, raise_if_it_takes_arguments
from .distributed import (
    UNEVEN_BATCHES,
    Replicas,
    WrapperFinder,
    agree_on_tasks,
    has_uneven_batches,
    is_learning_static_graph,
    tracks_unused_parameters,
)
from .estimators import Cosine, Estimator, resolve_estimators
from .history import HISTORY_MEMORY, MeterHistory, Reading, task_names
from .isolation import Replayer, without_caches
from .measurement import Measurement
from .objects import STATE_MEMORY, ClosureState
from .schedules import Auto, Schedule, Stopwatch, TrainingClock, as_schedule
from .setup import Setup, Shared, Update, Weights, make_setup
from .streaming import STREAMING_ESTIMATORS, GradientStream, check_streaming, split_estimators
from .task_closures import LazyLosses, TaskClosure, TaskFunctions, is_task_closures, require_single_process

SINGLE_TASKS_TO_WARN = 3  # measured calls
ONE_TASK_PER_CALL = (
    "every measured call so far had the loss of only one task, so no pair of tasks has been measured. On measured "
    "calls, the closure must return the losses of several tasks, each on a batch of its own (see 'One task per step' "
    "in the documentation on measuring), or `held_out` must return those of the other tasks. With "
    "estimator='streaming', no closure is needed: call meter.observe(task) after backward()."
)

Log = Callable[[dict[str, float], int], Any]
T = TypeVar("T")


class Logger(Protocol):
    """An object with a `log(metrics, step)` method, such as a wandb run."""

    def log(self, data: dict[str, float], step: int) -> Any: ...


class AffinityMeter:
    """Measures how a step on one task would change every other task's loss, inside any training loop.

    On some calls, the meter computes how a step on each task i alone would move the shared parameters, and how much
    that step would lower the loss of each task j (Fifty et al., NeurIPS 2021, equation 1). Training continues exactly
    as it would without a meter, bit for bit.

    Args:
        shared: The parameters that the tasks share, as a Module, as Parameters, or as patterns for the names of
            parameters in `model`, such as ``"*lora_*"``. Frozen parameters are ignored.
        optimizer: The optimizer or optimizers of the shared parameters.
        model: The module or modules whose buffers and modes are protected. By default, the modules that the closure
            calls are detected automatically. Required with torch.compile.
        every: The interval between measured calls, a schedule, or ``"auto"`` (see `max_overhead`).
        estimator: ``"lookahead"`` (from the paper), ``"gradient"`` (a cheaper first-order approximation), ``"cosine"``
            (the cosine between gradients), ``"cosine_kernels"`` (the same without biases and norms),
            ``"centered_cosine"`` (the same after subtracting the mean over the tasks), a custom estimator, or a list of
            estimators. ``"streaming"`` and ``"streaming_gradient"`` need no closure but `observe`.
        update: ``"optimizer"`` for the step that the optimizer would take on the task's gradient in its current state,
            or ``"sgd"`` for the plain step −lr·g of the paper. The default is ``"optimizer"`` if an optimizer is given.
        lr: The learning rate for ``update="sgd"``; the optimizer's learning rate by default.
        per_lr: Whether to divide affinities by the learning rate, as the published code does.
        weights: Loss weights by task, which scale the step on the source task. Pass a function if the weights change
            over time.
        scaler: The GradScaler used for mixed-precision training; task gradients are scaled in the backward pass.
        process_group: ``"auto"`` averages over ranks if DistributedDataParallel wraps the shared parameters; a process
            group or None overrides this.
        tasks: All task names, in case a batch lacks some tasks. By default, these are the tasks of the first measured
            call.
        max_overhead: The maximum number of seconds spent measuring per second of training, for ``every="auto"``.
        gradient_memory: The number of bytes available for the task gradients that ``"gradient"`` and ``"cosine"`` keep
            in memory. Gradients that need more memory are computed in blocks, with additional backward passes.
        state_memory: The number of bytes available for copies of the tensors, arrays and containers that the closure
            reaches outside modules, so that they can be restored. Closures that change others are rejected if it can be
            seen.
        history_memory: The number of bytes available for the history of all estimators. Once it takes more, means over
            blocks of consecutive measured steps are kept: means stay exact and standard errors valid, but medians,
            trimmed means and parts of the history become coarser.
        sketch_dimension: The number of numbers to which ``"streaming"`` reduces a gradient. Inner products of unit
            vectors are then accurate to about 1/√dimension. Primes are best, because the columns of a weight matrix do
            not always fall into the same place then.
        seed: The seed for breaking ties between round-robin sources, and for the random signs of ``"streaming"``.
        log: A function that is called with the metrics and the step number of every measurement, or an object with a
            ``log(metrics, step)`` method.

    Example:
        >>> import torch
        >>> encoder, heads = torch.nn.Linear(4, 8), {t: torch.nn.Linear(8, 1) for t in ("age", "weight")}
        >>> optimizer = torch.optim.SGD([*encoder.parameters()], lr=0.1)
        >>> meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=1)
        >>> x, y = torch.randn(32, 4), torch.randn(32, 1)
        >>> losses = meter(lambda: {t: (head(encoder(x)) - y).pow(2).mean() for t, head in heads.items()})
        >>> meter.affinity().tasks
        ('age', 'weight')
    """

    def __init__(
        self,
        shared: Shared,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        model: nn.Module | Iterable[nn.Module] | None = None,
        every: int | str | Schedule = 10,
        estimator: str | Estimator | Sequence[str | Estimator] = "lookahead",
        update: Update | None = None,
        lr: float | None = None,
        per_lr: bool = False,
        weights: Weights | None = None,
        scaler: torch.amp.GradScaler | None = None,
        process_group: Any | Literal["auto"] | None = "auto",
        tasks: Sequence[str] | None = None,
        max_overhead: float = 0.1,
        gradient_memory: float = 4 * 2**30,
        state_memory: float = STATE_MEMORY,
        history_memory: float = HISTORY_MEMORY,
        sketch_dimension: int = 1021,
        seed: int = 0,
        log: Log | Logger | None = None,
    ) -> None:
        problems: list[InvalidInput] = []
        streamed, others = split_estimators(estimator)
        estimators = collect(problems, resolve_estimators, others) if others or not streamed else []
        make = partial(
            make_setup,
            shared,
            optimizer,
            model=model,
            estimators=[Cosine()] if estimators is None else estimators,
            update=update,
            lr=lr,
            per_lr=per_lr,
            weights=weights,
            scaler=scaler,
            process_group=process_group,
            gradient_memory=gradient_memory,
            state_memory=state_memory,
        )
        self._unused_schedule: Schedule = collect(problems, as_schedule, every, max_overhead)
        self._given_tasks: tuple[str, ...] | None = None if tasks is None else collect(problems, task_names, tasks)
        self._log: Log | None = collect(problems, _as_log_function, log)
        self._setup: Setup = collect(problems, make)
        if self._setup is not None:
            collect(problems, check_streaming, self._setup, streamed)
        if not is_positive(history_memory) and history_memory != math.inf:
            problems.append(InvalidInput("history_memory", "must be a positive number of bytes", repr(history_memory)))
        if not is_positive_integer(sketch_dimension):
            problems.append(InvalidInput("sketch_dimension", "must be a positive integer", repr(sketch_dimension)))
        raise_problems(problems)
        self._seed, self._streamed, self._dimension = seed, streamed, sketch_dimension
        self._history_memory = history_memory
        self._replayer = Replayer()
        self._training = TrainingGradient(self._setup)
        self._search = WrapperFinder()
        self.reset()

    @overload
    def __call__(self, closure: Callable[[], T], held_out: Callable[[], Any] | None = None) -> T: ...

    @overload
    def __call__(
        self, closure: Mapping[str, TaskClosure], held_out: Mapping[str, TaskClosure] | None = None
    ) -> LazyLosses: ...

    def __call__(self, closure: Any, held_out: Any = None) -> Any:
        """Runs `closure`, takes a measurement if one is due, and returns the closure's result with its graph intact.

        Args:
            closure: A function that returns ``{task: loss}``, or ``{task: (loss, weight)}`` with a weight such as the
                number of labels, or ``(losses, anything)``. On measured calls, the closure runs once more per task, so
                it must use the same batch each time. What these runs change is restored. A task without labels may be
                absent, None or NaN. Where gradients are disabled, the closure runs and the call does not count. It can
                also be a mapping ``{task: function that returns its loss}``, for tasks that have batches of their own.
                Then only the functions that are needed run, and only one graph is kept at a time. Instead of such a
                function, a pair ``(fetch, loss)`` can be given: ``fetch()`` returns a batch and ``loss(batch)`` its
                loss, and `fetch` runs at most once per call, and only if the loss is needed. In this form, the meter
                returns a mapping that computes each loss when it is first read.
            held_out: A function that returns the losses on other rows, such as a validation batch. Steps are then
                computed from `closure`, and the losses before and after them from `held_out`. If `closure` is a
                mapping, so is `held_out`.
        """
        if is_task_closures(closure):
            functions = TaskFunctions(closure)
            if torch.is_grad_enabled():
                self._measure_tasks(functions, held_out)
            self._training.losses = losses = LazyLosses(functions)
            return losses
        if not callable(closure):
            raise TypeError(
                f"the meter must be called with a function that computes the losses, found {type(closure).__name__}; "
                "pass a closure, e.g. meter(lambda: task_losses(model, batch))"
            )
        if not torch.is_grad_enabled():
            return closure()
        self._require_closure_estimator()
        call = self._begin_call(held_out)
        try:
            returned = self._measure(closure, held_out, call) if self._is_due(call) else closure()
        except TypeError as error:
            raise_if_it_takes_arguments(closure, error)
            raise
        self._training.losses = returned
        return returned

    @overload
    def measure_only(self, closure: Callable[[], Any], held_out: Callable[[], Any] | None = None) -> bool: ...

    @overload
    def measure_only(
        self, closure: Mapping[str, TaskClosure], held_out: Mapping[str, TaskClosure] | None = None
    ) -> bool: ...

    def measure_only(self, closure: Any, held_out: Any = None) -> bool:
        """Takes a measurement if one is due. This method is for trainers that run the training step themselves.

        Buffers, modes and random states are restored afterward. The closure runs only if a measurement is due. A
        measured step therefore needs one more forward pass than with a call to the meter.

        Args:
            closure: A function that returns the losses, or one per task, as in a call to the meter.
            held_out: A function that returns the held-out losses, or one per task, as in a call to the meter.

        Returns:
            Whether this call was measured.
        """
        if is_task_closures(closure):
            return torch.is_grad_enabled() and self._measure_tasks(TaskFunctions(closure), held_out, measure_only=True)
        if not torch.is_grad_enabled():
            return False
        self._require_closure_estimator()
        call = self._begin_call(held_out)
        due = self._is_due(call)
        if due:
            with without_caches():
                self._measure(closure, held_out, call, measure_only=True)
        return due

    def observe(self, task: str, loss: Tensor | float | None = None) -> None:
        """Adds the gradient that training has just computed to the task's running mean, for ``"streaming"``.

        Call this method directly after ``backward()``, before gradients are unscaled, clipped or set to zero. The
        backward pass must be that of a single task. If gradients accumulate, call the method after each backward pass;
        it subtracts what it has seen already. No further forward or backward pass is needed, and nothing is modified.

        Under data parallelism, all ranks must train on the same task in the same step, since ``.grad`` is the average
        over the ranks. Gradients accumulated under ``no_sync()`` are averaged after they have been projected. With
        FSDP2 (``fully_shard``), every rank projects its part of the gradient.

        Args:
            task: The task whose loss was differentiated.
            loss: The loss whose ``backward()`` was called; only ``"streaming_gradient"`` needs it.

        Example:
            >>> encoder, x = torch.nn.Linear(3, 1), torch.randn(8, 3)
            >>> optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
            >>> meter = AffinityMeter(encoder, optimizer, estimator="streaming")
            >>> for step in range(60):
            ...     task = ("a", "b", "c")[step % 3]
            ...     loss = (encoder(x) - x[:, "abc".index(task)]).pow(2).mean()
            ...     loss.backward()
            ...     meter.observe(task)
            ...     optimizer.step()
            ...     optimizer.zero_grad()
            >>> meter.observed, meter.affinity().tasks
            (60, ('a', 'b', 'c'))
        """
        if self._stream is None:
            raise RuntimeError(
                f"`observe` needs one of the estimators {', '.join(map(repr, STREAMING_ESTIMATORS))}; create the meter "
                "with estimator='streaming'"
            )
        if not self._stream.started:
            self._search.search(self._setup.models, self._setup.parameters)
            self._stream.started = True
        self._stream.observe(task, loss, self._search.found)

    def affinity(self, estimator: str | None = None) -> Affinity:
        """Returns the affinities measured so far, with error bars.

        Args:
            estimator: The name of one of the meter's estimators; the first one by default.
        """
        return self._affinity(estimator)

    def latest(self, estimator: str | None = None) -> Affinity:
        """Returns only the affinity of the last measured step, which is fast even when the history is long.

        Args:
            estimator: The name of one of the meter's estimators; the first one by default.
        """
        return self._affinity(estimator, last=True)

    def backward(self, weights: Mapping[str, float | Tensor] | None = None, extra: Tensor | None = None) -> None:
        """Accumulates gradients in every leaf's ``.grad``, just as ``(Σ w_t L_t + extra).backward()`` would.

        From the second measured step on, the task gradients that the step has already computed are reused. This does
        not apply with different `weights` or under data parallelism. Missing tasks are skipped. With a `scaler`, the
        gradients are scaled, as with ``scaler.scale(...).backward()``.

        Args:
            weights: Loss weights by task; the meter's weights by default, or 1 if it has none.
            extra: An additional scalar loss, such as a regularizer.
        """
        self._training.backward(weights, extra)

    @overload
    def check(self, closure: Callable[[], Any], held_out: Callable[[], Any] | None = None) -> Check: ...

    @overload
    def check(self, closure: Mapping[str, TaskClosure], held_out: Mapping[str, TaskClosure] | None = None) -> Check: ...

    def check(self, closure: Any, held_out: Any = None) -> Check:
        """Measures one step without recording it, and reports what would be measured and at what cost.

        Args:
            closure: A function that returns the losses, or one per task, as in a call to the meter. With one per task,
                all of them run, but only the pairs that the schedule would choose are measured.
            held_out: A function that returns the held-out losses, or one per task, as in a call to the meter.
        """
        self._require_closure_estimator()
        if is_task_closures(closure):
            closure, held_out = TaskFunctions(closure), _held_out_functions(held_out)
        elif not callable(closure):
            raise TypeError(
                f"`check` must be called with a function that computes the losses, found {type(closure).__name__}"
            )
        return dry_step(self._setup, self._history.tasks, closure, held_out, self._schedule, self._wrapper())

    def reset(self) -> None:
        """Discards everything measured so far and starts over with the settings of the constructor.

        The history, the counters, the schedule and the timings for `overhead` start from scratch. Task names that were
        not passed to the constructor are determined again. A training step in progress is not affected: `backward`
        still works for the last call. Under data parallelism, reset the meters of all ranks at the same step, since
        they must agree on when to measure.

        Example:
            >>> encoder, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
            >>> meter = AffinityMeter(encoder, lr=0.1, every=1)
            >>> losses = meter(lambda: {"a": encoder(x)[:, 0].pow(2).mean(), "b": encoder(x)[:, 1].pow(2).mean()})
            >>> meter.reset()
            >>> meter.calls, meter.measured, meter.tasks
            (0, 0, None)
        """
        self._schedule = copy.deepcopy(self._unused_schedule)
        self._history = MeterHistory(self._given_tasks, self._setup.estimators, self._history_memory)
        self._stream = (
            GradientStream(self._setup, self._streamed, self._dimension, self._seed, self._given_tasks)
            if self._streamed
            else None
        )
        self._clock = TrainingClock()
        self._calls = self._readings = self._single_tasks = 0
        self._noted: set[str] = set()
        self._held_out: bool | None = None
        self._postponed = False

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """The task names, or None before the first measured call if they were not passed to the constructor."""
        if self._history.tasks is None and self._stream is not None and self._stream.tasks:
            return tuple(self._stream.tasks)
        return self._history.tasks

    @property
    def calls(self) -> int:
        """The number of times the meter has been called."""
        return self._calls

    @property
    def measured(self) -> int:
        """The number of measured calls."""
        return self._history.measured

    @property
    def due(self) -> bool:
        """Whether the next call will be measured, so that batches for it can be fetched only then."""
        return self._schedule.due(self._calls) or self._postponed

    @property
    def observes(self) -> bool:
        """Whether one of the estimators uses the gradients passed to `observe`."""
        return self._stream is not None

    @property
    def observed(self) -> int:
        """The number of times `observe` has been called."""
        return 0 if self._stream is None else self._stream.observed

    @property
    def overhead(self) -> float:
        """The number of seconds spent measuring per second of plain training so far."""
        return self._clock.overhead

    @property
    def unconnected(self) -> list[tuple[str, str]]:
        """Pairs of tasks that do not share any parameters, so a step on one cannot affect the other."""
        return self._history.unconnected

    def state_dict(self) -> dict[str, Any]:
        """Returns the state needed to resume measuring, which ``torch.load(weights_only=True)`` can load."""
        return {
            "version": 1,
            "settings": self._quantities(),
            "calls": self._calls,
            "held_out": self._held_out,
            "ledger": self._history.state_dict(),
            "schedule": self._schedule.state_dict(),
            "clock": self._clock.state_dict(),
            **({} if self._stream is None else {"stream": self._stream.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of another meter that was created with the same settings."""
        needed = {"version", "settings", "calls", "held_out", "ledger", "schedule", "clock"}
        if not isinstance(state, Mapping) or not needed <= set(state) or state["version"] != 1:
            raise InvalidInput("state", "must come from AffinityMeter.state_dict() in the same version of tagalong")
        if state["settings"] != self._quantities():
            raise InvalidInput(
                "state",
                f"must come from a meter with the same settings ({self._quantities()})",
                str(state["settings"]),
                "affinities measured with different settings cannot be combined",
            )
        self._history.load_state_dict(state["ledger"])
        self._calls, self._held_out = int(state["calls"]), state["held_out"]
        self._schedule.load_state_dict(state["schedule"])
        self._clock.load_state_dict(state["clock"])
        if self._stream is not None:
            self._stream.load_state_dict(state["stream"])
        self._single_tasks = -1 if self.measured else 0  # pairs may have been measured before

    def __repr__(self) -> str:
        counts = f"{self.measured} of {self._calls} calls measured"
        if self._stream is not None:
            counts = f"{self.observed} observed" + (f", {counts}" if self._setup.estimators else "")
        return f"AffinityMeter({', '.join(self._names())}; {counts}, tasks={self.tasks})"

    def _names(self) -> list[str]:
        return [*(e.name for e in self._setup.estimators), *self._streamed]

    def _require_closure_estimator(self) -> None:
        if not self._setup.estimators:
            raise RuntimeError(
                "this meter only observes gradients; call meter.observe(task) after backward(), or add an estimator "
                "that uses a closure: estimator=['lookahead', 'streaming']"
            )

    def _begin_call(self, held_out: object) -> int:
        """Starts a call and returns its index. `backward` can no longer be used for the previous call."""
        self._check_held_out(held_out)
        call, self._calls = self._calls, self._calls + 1
        self._clock.tick()
        self._training.clear()
        return call

    def _measure_tasks(self, functions: TaskFunctions, held_out: Any, *, measure_only: bool = False) -> bool:
        """Takes a measurement with one closure per task if one is due.

        Everything is restored afterward, except that random numbers drawn to fetch batches count as drawn if training
        goes on with these batches (not `measure_only`).
        """
        self._require_closure_estimator()
        on = _held_out_functions(held_out)
        call = self._begin_call(held_out)
        due = self._is_due(call)
        if due:
            randomness = ClosureState(0)
            try:
                with without_caches():
                    self._measure(functions, on, call, measure_only=True)
            finally:
                if measure_only:
                    randomness.restore(randomness.start)
        return due

    def _check_held_out(self, held_out: object) -> None:
        if self._held_out is not None and self._held_out != (held_out is not None):
            raise InvalidInput(
                "held_out",
                "must be passed to every call or to none, since affinities measured on training losses and on held-out "
                "losses cannot be combined",
                hint="use a separate meter for each",
            )
        self._held_out = held_out is not None

    def _is_due(self, call: int) -> bool:
        """Whether to measure now. Measurements are postponed while DDP learns its static graph."""
        if not (self._schedule.due(call) or self._postponed):
            return False
        wrapper = self._wrapper()
        if has_uneven_batches(wrapper):
            raise_closure_problems([UNEVEN_BATCHES])
        self._postponed = is_learning_static_graph(wrapper)
        return not self._postponed

    def _wrapper(self) -> DistributedDataParallel | None:
        if self._must_verify():
            self._search.search(self._setup.models, self._setup.parameters)
        return self._search.found

    def _must_verify(self) -> bool:
        """Whether to check the closure now, which is done at the first reading and after 10, 100, … readings."""
        return self._readings in (0, 10, 100, 1000, 10_000, 100_000)

    def _measure(
        self,
        closure: Callable[[], T] | TaskFunctions,
        held_out: Callable[[], Any] | TaskFunctions | None,
        call: int,
        *,
        measure_only: bool = False,
    ) -> T:
        """Runs the closure, measures, and restores the state from after the run (or before it if `measure_only`)."""
        watch = Stopwatch(self._setup.parameters[0].device)
        verify, wrapper = self._must_verify(), self._search.found
        asked = self._choose_tasks(closure, held_out) if isinstance(closure, TaskFunctions) else None
        make = partial(self._setup.replayable, replayer=self._replayer, verify=verify, wrapper=wrapper)
        main = make(closure, needed=None if asked is None else asked[0] + (asked[1] if held_out is None else []))
        if not measure_only:
            watch.stop()  # this run is part of training
        main.run()
        if not measure_only:
            watch.start()
        main.save_end()
        held_out_closure, replicas = None, self._setup.replicas(wrapper)
        try:
            if held_out is not None:
                held_out_closure = make(held_out, needed=asked and asked[1], held_out=True)
                held_out_closure.run()
                held_out_closure.save_end()
            measurement = self._measurement(main, held_out_closure, verify, call, replicas, asked)
            changed = main.changed + ([] if held_out_closure is None else held_out_closure.changed)
            if changed and self._readings and replicas.alone:  # the next call copies what was taken for constant
                self._warn_about([f"a call was not measured, because the closure changed {', '.join(changed)}"])
                reading = None
            else:
                reading = measurement.run()
            if held_out_closure is not None and tracks_unused_parameters(wrapper):
                main.replay()  # the training loop will differentiate this closure, not the held-out one
        finally:
            if held_out_closure is not None:
                held_out_closure.restore_start()
            (main.restore_start if measure_only else main.restore_end)()
        if reading is not None:
            self._readings += 1
            self._single_tasks += (
                len({*reading.sources, *reading.targets}) < 2 and self._single_tasks == self._readings - 1
            )
            is_single = self._single_tasks == self._readings == SINGLE_TASKS_TO_WARN
            self._warn_about([*measurement.notes, *([ONE_TASK_PER_CALL] if is_single else [])])
            self._record(call, reading, measurement)
            self._send_to_log(call)
        self._clock.add_measurement(watch)
        if isinstance(self._schedule, Auto):
            slowest = replicas.maximum  # ranks must agree on when to measure next
            self._schedule.timed(call, slowest(watch.seconds()), slowest(self._clock.plain_step_seconds))
        return main.returned  # type: ignore[no-any-return]

    def _measurement(
        self,
        main: ReplayableClosure,
        held_out_closure: ReplayableClosure | None,
        verify: bool,
        call: int,
        replicas: Replicas,
        asked: tuple[list[str], list[str]] | None,
    ) -> Measurement:
        tasks = agree_on_tasks(self._history.tasks, main, replicas) if verify else self._history.tasks or ()
        if self._history.tasks is None and tasks and not main.losses.problems:
            self._history.tasks = task_names(tasks)
        return Measurement(
            self._setup,
            tasks,
            main,
            held_out_closure,
            choose=self._choose_sources if asked is None else lambda present: [t for t in asked[0] if t in present],
            choose_targets=self._choose_targets
            if asked is None
            else lambda present, _: [t for t in asked[1] if t in present],
            asked=asked,
            replicas=replicas,
            call=call,
            verify=verify,
            # A DDP wrapper synchronizes gradients during a real backward pass.
            keep_training_gradient=self._training.wanted and self._search.found is None and asked is None,
        )

    def _choose_sources(self, present: Sequence[str]) -> Sequence[str]:
        return self._schedule.choose(present, self._history.source_counts, self._seed)

    def _choose_targets(self, present: Sequence[str], sources: Sequence[str]) -> Sequence[str]:
        pairs = self._history.pair_counts
        counts = {task: sum(pairs[source, task] for source in sources) for task in present} if pairs else {}
        return self._schedule.choose_targets(present, counts, self._seed)

    def _choose_tasks(self, closure: TaskFunctions, held_out: Any) -> tuple[list[str], list[str]]:
        """Returns the sources and targets of a measurement with one closure per task."""
        require_single_process(self._setup.replicas(self._search.found))
        if self._history.tasks is None:
            self._history.tasks = task_names(closure.tasks)
        sources = list(self._choose_sources(closure.tasks))
        return sources, list(self._choose_targets((closure if held_out is None else held_out).tasks, sources))

    def _record(self, call: int, reading: Reading, measurement: Measurement) -> None:
        self._history.add(call, reading)
        # `backward` must not reuse a scaled gradient that overflowed, so the flags are read now.
        if not (reading.finite and reading.overflowed()):
            self._training.capture = measurement.capture

    def _warn_about(self, notes: Sequence[str]) -> None:
        """Warns once about each note."""
        for note in notes:
            if note[:40] not in self._noted:  # numbers in a note may change
                self._noted.add(note[:40])
                warnings.warn(note, stacklevel=4)

    def _send_to_log(self, call: int) -> None:
        if self._log is None or self._history.tasks is None:
            return
        self._history.flush()  # loggers expect steps in order, so this reading cannot wait for the next one
        metrics: dict[str, float] = {}
        for name, values in self._history.latest.items():
            metrics |= named_values(name, self._history.tasks, values)
        if metrics:
            self._log(metrics, call)

    def _affinity(self, estimator: str | None, *, last: bool = False) -> Affinity:
        names = self._names()
        name = names[0] if estimator is None else estimator
        if name not in names:
            raise unknown_name("estimator", "estimator of this meter", estimator, names)
        if name in self._streamed:
            return self._streamed_affinity(name, last=last)
        if not self.measured:
            raise RuntimeError(
                f"nothing was measured in {self._calls} calls; call the meter with a closure in the training loop, and "
                "check its `every` argument"
            )
        return self._history.affinity(name, self._settings(name), last=last)

    def _streamed_affinity(self, name: str, *, last: bool) -> Affinity:
        assert self._stream is not None
        if last:
            raise InvalidInput("estimator", f"must not be {name!r}, which measures no single steps")
        if not self._stream.observed:
            raise RuntimeError("nothing was observed; call meter.observe(task) after each backward()")
        settings = {
            "estimator": name,
            "update": self._setup.update if self._setup.optimizers else None,
            "held_out": False,
            "per_lr": self._setup.per_lr and name == "streaming_gradient",
            "observed": self.observed,
        }
        return self._stream.affinity(name, settings)

    def _settings(self, name: str) -> dict[str, Any]:
        steps = next(e for e in self._setup.estimators if e.name == name).of_steps
        return {
            "estimator": name,
            "update": self._setup.update if steps else None,
            "held_out": bool(self._held_out),
            "per_lr": self._setup.per_lr and steps,
            "unconnected": [list(pair) for pair in self.unconnected],
        }

    def _quantities(self) -> dict[str, Any]:
        """Returns the settings that determine what is measured."""
        return {
            "estimators": self._names(),
            "update": self._setup.update if self._setup.uses_steps or self._streamed else None,
            "per_lr": self._setup.per_lr,
            **({"sketch": [self._dimension, self._seed]} if self._streamed else {}),
        }


def _held_out_functions(held_out: Any) -> TaskFunctions | None:
    if held_out is not None and not isinstance(held_out, Mapping):
        expected = "must be a mapping from tasks to closures, like the closures themselves"
        raise InvalidInput("held_out", expected, type(held_out).__name__)
    return None if held_out is None else TaskFunctions(held_out, "held-out closure")


def _as_log_function(log: Log | Logger | None) -> Log | None:
    """Returns the logging function, or None if `log` is None.

    Example:
        >>> _as_log_function(lambda metrics, step: print(step, metrics))({"loss": 1.0}, 3)
        3 {'loss': 1.0}
    """
    found = getattr(log, "log", log)
    if found is not None and not callable(found):
        expected = (
            "must be a function that takes the metrics and the step, or an object with a log(metrics, step) method"
        )
        raise InvalidInput("log", expected, type(log).__name__)
    return found
