"""`AffinityMeter`: measures affinities with two extra lines in a training loop.

When a call is due, the meter runs the closure as training would, and hands it to `measurement.measure_step`, whose
module explains the order of one measured step. Afterward, it restores the state in which training goes on.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tagalong.affinity import Affinity, named_values
from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.registry import unknown_name

from .backward import TrainingGradient
from .check import Check, plain_step_seconds, summarize
from .closure import (
    ClosureError,
    ReplayableClosure,
    raise_closure_problems,
    raise_if_it_takes_arguments,
    returned_losses,
)
from .distributed import (
    UNEVEN_BATCHES,
    WrapperFinder,
    agree_on_tasks,
    is_learning_static_graph,
)
from .estimators import Estimator, resolve_estimators
from .gradients import GradientSum
from .history import HISTORY_MEMORY, MeterHistory, task_names
from .isolation import Replayer, without_caches
from .measurement import Chosen, measure_step
from .objects import STATE_MEMORY, ClosureState
from .schedules import Auto, Every, Schedule, Stopwatch, TrainingClock, as_schedule
from .setup import Setup, Shared, Update, Weights
from .streaming import STREAMING_ESTIMATORS, GradientStream, check_streaming, split_estimators
from .task_closures import LazyLosses, ReplayableTasks, TaskClosure, TaskFunctions, is_task_closures

SINGLE_TASKS_TO_WARN = 3  # measured calls
CHECK_REPEATS = 3  # timings of which `check` reports the fastest
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
        self._log: Any = getattr(log, "log", log)
        if self._log is not None and not callable(self._log):
            raise ValueError(f"`log` must be a function or have a log(metrics, step) method, found {log!r}")
        if not is_positive_integer(sketch_dimension):
            raise ValueError(f"`sketch_dimension` must be a positive integer, found {sketch_dimension!r}")
        self._streamed, others = split_estimators(estimator)
        self._setup = Setup(
            shared,
            optimizer,
            model=model,
            estimators=resolve_estimators(others) if others or not self._streamed else [],
            update=update,
            lr=lr,
            per_lr=per_lr,
            weights=weights,
            scaler=scaler,
            process_group=process_group,
            gradient_memory=gradient_memory,
            state_memory=state_memory,
        )
        check_streaming(self._setup, self._streamed)
        self._unused_schedule = as_schedule(every, max_overhead)
        self._given_tasks = None if tasks is None else task_names(tasks)
        self._seed, self._dimension = seed, sketch_dimension
        self._history_memory = history_memory
        self._replayer, self._warns = Replayer(), True
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
        if not torch.is_grad_enabled():
            return LazyLosses(TaskFunctions(closure)) if is_task_closures(closure) else closure()
        closure, held_out = self._read_closures(closure, held_out)
        call = self._begin_call(held_out)
        due = self._is_due(call)
        if isinstance(closure, TaskFunctions):
            if due:
                with without_caches():
                    self._measure(closure, held_out, call, self._stopwatch(), measure_only=True)
            returned: Any = LazyLosses(closure)
        else:
            try:
                returned = self._measure(closure, held_out, call, self._stopwatch()) if due else closure()
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
        if not torch.is_grad_enabled():
            return False
        closure, held_out = self._read_closures(closure, held_out)
        call = self._begin_call(held_out)
        due = self._is_due(call)
        if due:
            generators = ClosureState(0)  # fetching batches may draw random numbers
            with without_caches():
                try:
                    self._measure(closure, held_out, call, self._stopwatch(), measure_only=True)
                finally:
                    generators.restore(generators.start)
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
        closure, held_out = self._read_closures(closure, held_out)
        if is_learning_static_graph(self._wrapper()):
            raise_closure_problems(
                ["DistributedDataParallel learns its static graph in the first two steps; call `check` after them."]
            )
        # A copy of this meter, which has measured nothing yet, records the step.
        trial = copy.copy(self)
        trial._given_tasks, trial._streamed, trial._log, trial._warns = self._history.tasks, (), None, False
        trial._replayer, trial._training = Replayer(), TrainingGradient(self._setup)
        trial.reset()

        generators = ClosureState(0)  # fetching batches may draw random numbers
        main = self._replayable(closure, verify=True)
        plain, measuring = [], []
        with without_caches():
            try:
                main.run()
                main.save_end()
                sources: Sequence[str] = [*main.losses.losses]
                targets, plain_step = sources, closure
                if isinstance(closure, TaskFunctions):
                    raise_closure_problems(main.losses.problems)
                    sources, targets = trial._choose_functions(closure, held_out)
                    plain_step = lambda: {task: closure.loss(task) for task in sources[:1]}  # noqa: E731
                else:
                    trial._schedule = Every(1)  # at first, all pairs are measured
                for _ in range(1 + CHECK_REPEATS):
                    main.restore_start()
                    plain.append(plain_step_seconds(self._setup, plain_step))
                    main.restore_start()
                    watch = self._stopwatch()
                    trial._measure(closure, held_out, 0, watch, measure_only=plain_step is not closure)
                    measuring.append(watch.seconds())
                    trial._schedule = copy.deepcopy(self._unused_schedule)
            finally:
                main.restore_start()
                generators.restore(generators.start)

        parameters = list(enumerate(self._setup.parameters))
        touched = {task: {k for k, p in parameters if id(p) in graph.leaves} for task, graph in main.graphs.items()}
        ratio = min(measuring[1:]) / min(plain[1:])
        return summarize(
            self._setup,
            trial.tasks or (),
            touched | trial._history.touched,
            main,
            trial._noted.values(),
            rows=len({*sources, *targets}) if held_out is None else len(sources) + len(targets),
            ratio=ratio,
            schedule=self._schedule,
        )

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
        self._calls = self._readings = 0
        self._has_measured = self._has_measured_pairs = self._postponed = False
        self._held_out: bool | None = None
        self._noted: dict[str, str] = {}  # by the first words, since numbers in a note may change
        self._late_tasks: Counter[str] = Counter()

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
            "late_tasks": dict(self._late_tasks),
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
        self._late_tasks = Counter(state["late_tasks"])
        self._has_measured = self._has_measured_pairs = self.measured > 0

    def __repr__(self) -> str:
        counts = f"{self.measured} of {self._calls} calls measured"
        if self._stream is not None:
            counts = f"{self.observed} observed" + (f", {counts}" if self._setup.estimators else "")
        return f"AffinityMeter({', '.join(self._names())}; {counts}, tasks={self.tasks})"

    def _names(self) -> list[str]:
        return [*(e.name for e in self._setup.estimators), *self._streamed]

    def _read_closures(self, closure: Any, held_out: Any) -> tuple[Any, Any]:
        """Returns the closures; those of individual tasks as `TaskFunctions`."""
        if not self._setup.estimators:
            raise RuntimeError(
                "this meter only observes gradients; call meter.observe(task) after backward(), or add an estimator "
                "that uses a closure: estimator=['lookahead', 'streaming']"
            )
        if is_task_closures(closure):
            if held_out is not None and not isinstance(held_out, Mapping):
                raise ValueError("`held_out` must be a mapping from tasks to closures, like the closures themselves")
            return TaskFunctions(closure), None if held_out is None else TaskFunctions(held_out)
        if not callable(closure):
            raise TypeError(
                f"the meter must be called with a function that computes the losses, found {type(closure).__name__}; "
                "pass a closure, e.g. meter(lambda: task_losses(model, batch))"
            )
        return closure, held_out

    def _begin_call(self, held_out: object) -> int:
        """Starts a call and returns its index. `backward` can no longer be used for the previous call."""
        if self._held_out is not None and self._held_out != (held_out is not None):
            raise ValueError(
                "`held_out` must be passed to every call or to none, since affinities measured on training losses and "
                "on held-out losses cannot be combined; use a separate meter for each"
            )
        self._held_out = held_out is not None
        call, self._calls = self._calls, self._calls + 1
        self._clock.tick()
        self._training.clear()
        return call

    def _is_due(self, call: int) -> bool:
        """Whether to measure now. Measurements are postponed while DDP learns its static graph."""
        if not (self._schedule.due(call) or self._postponed):
            return False
        wrapper = self._wrapper()
        if wrapper is not None and wrapper._join_config.enable:
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

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self._setup.parameters[0].device)

    def _replayable(self, closure: Any, needed: Sequence[str] | None = None, **options: Any) -> ReplayableClosure:
        options |= {"wrapper": self._search.found}
        if isinstance(closure, TaskFunctions):
            return ReplayableTasks(closure, self._setup, self._replayer, needed=needed or closure.tasks, **options)
        return ReplayableClosure(closure, self._setup, self._replayer, **options)

    def _measure(self, closure: Any, held_out: Any, call: int, watch: Stopwatch, *, measure_only: bool = False) -> Any:
        """Runs the closure, measures, and restores the state from after the run (or before it if `measure_only`)."""
        verify, wrapper = self._must_verify(), self._search.found
        replicas = self._setup.replicas(wrapper)
        ran = self._choose_functions(closure, held_out) if isinstance(closure, TaskFunctions) else None
        needed = None if ran is None else [*ran[0], *(ran[1] if held_out is None else ())]
        main = self._replayable(closure, needed, verify=verify)
        if not measure_only:
            watch.stop()  # this run is part of training
        main.run()
        if not measure_only:
            watch.start()
        main.save_end()

        target_closure: ReplayableClosure | None = None
        keeps_gradients = self._training.wanted and wrapper is None and replicas.alone and ran is None
        capture = GradientSum() if keeps_gradients else None
        try:
            if held_out is not None:
                target_closure = self._replayable(held_out, ran and ran[1], held_out=True, verify=verify)
                target_closure.run()
                target_closure.save_end()
            tasks = self._history.tasks or (tuple(closure.tasks) if isinstance(closure, TaskFunctions) else ())
            if verify and ran is None:
                tasks = agree_on_tasks(self._history.tasks, main, replicas)
            names = returned_losses(main.returned) if ran is None else closure.tasks
            self._warn_about(self._changed_task_notes(names) if replicas.alone else [])
            try:
                reading, notes = measure_step(
                    self._setup, tasks, main, target_closure, self._choose, replicas,
                    ran=ran, call=call, first=not self._has_measured, verify=verify, capture=capture,
                )  # fmt: skip
            except ClosureError as error:
                if not self._has_measured:
                    raise
                reading, notes = None, [f"{problem} This call was not measured." for problem in error.problems]
            if target_closure is not None and wrapper is not None and wrapper.find_unused_parameters:
                # The next backward pass, that of training, expects gradients for the parameters used in the last run.
                main.replay()
        finally:
            if target_closure is not None:
                target_closure.restore_start()
            (main.restore_start if measure_only else main.restore_end)()

        if reading is not None:
            self._readings += 1
            self._has_measured = True
            self._has_measured_pairs |= len({*reading.sources, *reading.targets}) > 1
            if self._readings == SINGLE_TASKS_TO_WARN and not self._has_measured_pairs:
                notes.append(ONE_TASK_PER_CALL)
            self._history.tasks = task_names(tasks)
            self._history.add(call, reading)
            # `backward` must not reuse a scaled gradient that overflowed, so the flags are read now.
            if not (reading.finite and reading.overflowed()):
                self._training.capture = capture
            self._send_to_log(call)
        self._warn_about(notes)
        self._clock.add_measurement(watch)
        if isinstance(self._schedule, Auto):
            # Ranks must agree on when to measure next.
            durations = replicas.gather((watch.seconds(), self._clock.plain_step_seconds))
            self._schedule.timed(call, *map(max, zip(*durations, strict=True)))
        return main.returned

    def _choose(self, sources: Sequence[str], targets: Sequence[str]) -> Chosen:
        """Returns the sources and targets that the schedule chooses from those that can be measured."""
        sources = self._schedule.choose(sources, self._history.source_counts, self._seed)
        pairs = self._history.pair_counts
        counts = {target: sum(pairs[source, target] for source in sources) for target in targets} if pairs else {}
        return sources, self._schedule.choose_targets(targets, counts, self._seed)

    def _choose_functions(self, closure: TaskFunctions, held_out: TaskFunctions | None) -> Chosen:
        """Returns the sources and targets of a measurement with one closure per task, before any of them has run."""
        if not self._setup.replicas(self._search.found).alone:  # ranks would have to agree on which closures to run
            raise_closure_problems(
                [
                    "one closure per task is not supported under data parallelism; pass one closure that returns the "
                    "losses of all tasks."
                ]
            )
        known = self._history.tasks if self._has_measured else None
        names = (closure.tasks, (held_out or closure).tasks)
        sources, targets = ([t for t in tasks if known is None or t in known] for tasks in names)
        return self._choose(sources, targets)

    def _changed_task_notes(self, names: Iterable[str] | None) -> list[str]:
        """Counts the tasks that the closure has returned for the first time after the first measured call."""
        if not self._has_measured or names is None:
            return []
        tasks = self._history.tasks or ()
        late = [name for name in names if name not in tasks]
        self._late_tasks.update(late)
        advice = "Pass the names of all tasks to the meter with `tasks=[...]`."
        notes = [
            f"{name!r} is a new task, which is not measured, as it had no loss when measuring began. {advice}"
            for name in late
        ]
        if self._given_tasks is None:
            notes += [
                f"{name!r} is no longer returned by the closure; its pairs are skipped. {advice}"
                for name in tasks
                if name not in names
            ]
        return notes

    def _warn_about(self, notes: Iterable[str]) -> None:
        """Warns once about each note."""
        for note in notes:
            if note[:40] not in self._noted:
                self._noted[note[:40]] = note
                if self._warns:
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
        settings: dict[str, Any] = {"estimator": name}
        if self._stream is not None and name in self._streamed:
            if last:
                raise ValueError(f"`estimator` must not be {name!r}, which measures no single steps")
            if not self._stream.observed:
                raise RuntimeError("nothing was observed; call meter.observe(task) after each backward()")
            settings["update"] = self._setup.update if self._setup.optimizers else None
            settings |= {"held_out": False, "per_lr": self._setup.per_lr and name == "streaming_gradient"}
            return self._stream.affinity(name, settings | {"observed": self.observed})
        if not self.measured:
            raise RuntimeError(
                f"nothing was measured in {self._calls} calls; call the meter with a closure in the training loop, and "
                "check its `every` argument"
            )
        of_steps = next(e.of_steps for e in self._setup.estimators if e.name == name)
        settings["update"] = self._setup.update if of_steps else None
        settings |= {"held_out": bool(self._held_out), "per_lr": self._setup.per_lr and of_steps}
        settings["unconnected"] = [list(pair) for pair in self.unconnected]
        if self._late_tasks:
            settings["late_tasks"] = dict(self._late_tasks)
        return self._history.affinity(name, settings, last=last)

    def _quantities(self) -> dict[str, Any]:
        """Returns the settings that determine what is measured."""
        uses_steps = self._setup.uses_steps or self._streamed
        return {
            "estimators": self._names(),
            "update": self._setup.update if uses_steps else None,
            "per_lr": self._setup.per_lr,
            "sketch": [self._dimension, self._seed] if self._streamed else None,
        }
