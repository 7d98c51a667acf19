"""`AffinityMeter`: measures affinities with two extra lines in a training loop.

When a call is due, the meter runs the closure as training would, and hands it to `measurement.measure_step`, whose
module explains the order of one measured step. Afterward, it restores the state in which training goes on.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tagalong.affinity import Affinity
from tagalong.registry import unknown_name

from .check import Check, plain_step_seconds, summarize
from .closure import (
    ClosureError,
    LazyLosses,
    ReplayableClosure,
    ReplayableTasks,
    is_task_closures,
)
from .estimators import Estimator, resolve_estimators
from .gradients import TrainingGradient
from .history import MeterHistory, Reading, task_names
from .isolation import Replayer, without_caches
from .measurement import measure_step
from .objects import STATE_MEMORY
from .schedules import Auto, Schedule, Stopwatch, TrainingClock, as_schedule
from .setup import Setup, Shared, Update, Weights
from .streaming import GradientStream

CHECK_REPEATS = 3  # timings of which `check` reports the fastest
TaskClosures = Mapping[str, Callable[[], Any]]
Closures = Callable[[], Any] | TaskClosures
T = TypeVar("T")


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
            estimators. ``"streaming"`` needs no closure but `observe`.
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
        state_memory: The number of bytes available for copies of the tensors, arrays and containers that the closure
            reaches outside modules, so that they can be restored. Closures that change others are rejected if it can be
            seen.
        sketch_dimension: The number of numbers to which ``"streaming"`` reduces a gradient. Inner products of unit
            vectors are then accurate to about 1/√dimension. Primes are best, because the columns of a weight matrix do
            not always fall into the same place then.
        seed: The seed for breaking ties between round-robin sources, and for the random signs of ``"streaming"``.

    Attributes:
        calls: The number of times the meter has been called.

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
        state_memory: float = STATE_MEMORY,
        sketch_dimension: int = 1021,
        seed: int = 0,
    ) -> None:
        estimators: list[Any] = list(estimator) if isinstance(estimator, list | tuple) else [estimator]
        self._streamed = ["streaming"] if "streaming" in estimators else []
        others = [item for item in estimators if item != "streaming"]
        self._setup = Setup(
            shared,
            optimizer,
            model=model,
            estimators=[] if self._streamed and not others else resolve_estimators(others),
            update=update,
            lr=lr,
            per_lr=per_lr,
            weights=weights,
            scaler=scaler,
            process_group=process_group,
            state_memory=state_memory,
            sketch_dimension=sketch_dimension,
            seed=seed,
        )
        self._unused_schedule = as_schedule(every, max_overhead)
        self._given_tasks = None if tasks is None else task_names(tasks)
        self._replayer, self._is_trial = Replayer(), False
        self._training = TrainingGradient(self._setup)
        self.reset()

    @overload
    def __call__(self, closure: Callable[[], T], held_out: Callable[[], Any] | None = None) -> T: ...

    @overload
    def __call__(self, closure: TaskClosures, held_out: TaskClosures | None = None) -> LazyLosses: ...

    def __call__(self, closure: Any, held_out: Any = None) -> Any:
        """Runs `closure`, takes a measurement if one is due, and returns the closure's result with its graph intact.

        Args:
            closure: A function that returns ``{task: loss}``, or ``{task: (loss, weight)}`` with a weight such as the
                number of labels, or ``(losses, anything)``. On measured calls, the closure runs once more per task, so
                it must use the same batch each time. What these runs change is restored. A task without labels may be
                absent, None or NaN. Where gradients are disabled, the closure runs and the call does not count. It can
                also be a mapping ``{task: function that returns its loss}``, for tasks that have batches of their own.
                Then only one graph is kept at a time, and the meter returns a mapping that computes each loss when it
                is first read.
            held_out: A function that returns the losses on other rows, such as a validation batch. Steps are then
                computed from `closure`, and the losses before and after them from `held_out`. If `closure` is a
                mapping, so is `held_out`.
        """
        if not torch.is_grad_enabled():
            return LazyLosses(closure) if is_task_closures(closure) else closure()
        closure, held_out = self._read_closures(closure, held_out)
        is_due = self._begin_call(held_out)
        returned: Any = closure
        if isinstance(closure, LazyLosses):
            if is_due:
                with without_caches():
                    self._measured_call(closure, held_out)
        elif is_due:
            returned = self._measured_call(closure, held_out, is_training_run=True).returned
        else:
            returned = closure()
        self._training.losses = returned
        return returned

    def measure_only(self, closure: Closures, held_out: Closures | None = None) -> bool:
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
        is_due = self._begin_call(held_out)
        if is_due:
            with without_caches():
                self._measured_call(closure, held_out)
        return is_due

    def observe(self, task: str) -> None:
        """Adds the gradient that training has just computed to the task's running mean, for ``"streaming"``.

        Call this method directly after ``backward()``, before gradients are unscaled, clipped or set to zero. The
        backward pass must be that of a single task. If gradients accumulate, call the method after each backward pass;
        it subtracts what it has seen already. No further forward or backward pass is needed, and nothing is modified.

        Under data parallelism, all ranks must train on the same task in the same step, since ``.grad`` is the average
        over the ranks. Gradients accumulated under ``no_sync()`` are averaged after they have been projected. With
        FSDP2 (``fully_shard``), every rank projects its part of the gradient. Shared parameters that are frozen at the
        first call are left out from then on.

        Args:
            task: The task whose loss was differentiated.

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
            raise RuntimeError("`observe` needs a meter that was created with estimator='streaming'")
        self._stream.observe(task)

    def affinity(self, estimator: str | None = None, *, last: bool = False) -> Affinity:
        """Returns the affinities measured so far, with error bars.

        Args:
            estimator: The name of one of the meter's estimators; the first one by default.
            last: Whether to return only the last measured step, which is fast even when the history is long.
        """
        names = self._names()
        name = names[0] if estimator is None else estimator
        if name not in names:
            raise unknown_name("estimator", "estimator of this meter", estimator, names)
        setup = self._setup
        settings: dict[str, Any] = {"estimator": name, "update": None, "held_out": False, "per_lr": False}
        if self._stream is not None and name in self._streamed:
            if last:
                raise ValueError(f"`last` cannot be used with {name!r}, which measures no single steps")
            if not self._stream.observed:
                raise RuntimeError("nothing was observed; call meter.observe(task) after each backward()")
            settings |= {"update": setup.update} if setup.optimizers else {}
            settings |= {"observed": self.observed}
            return self._stream.affinity(settings)
        if not self.measured:
            raise RuntimeError(
                f"nothing was measured in {self.calls} calls; call the meter with a closure in the training loop, and "
                "check its `every` argument"
            )
        if next(e.of_steps for e in setup.estimators if e.name == name):
            settings |= {"update": setup.update, "per_lr": setup.per_lr}
        settings |= {"held_out": bool(self._held_out), "unconnected": [list(pair) for pair in self.unconnected]}
        if self._history.late_tasks:
            settings["late_tasks"] = dict(self._history.late_tasks)
        return self._history.affinity(name, settings, last=last)

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

    def check(self, closure: Closures, held_out: Closures | None = None) -> Check:
        """Measures one step without recording it, and reports what would be measured and at what cost.

        Args:
            closure: A function that returns the losses, or one per task, as in a call to the meter.
            held_out: A function that returns the held-out losses, or one per task, as in a call to the meter.
        """
        main, target = self._read_closures(closure, held_out)
        # A copy of this meter, which has measured nothing yet, records the step.
        trial = copy.copy(self)
        trial._given_tasks, trial._streamed, trial._is_trial = self._history.tasks, [], True
        trial._replayer = Replayer()
        trial.reset()
        self._setup.find_wrapper()
        is_training_run = not isinstance(main, LazyLosses)
        plain, measuring = [], []
        with without_caches():
            replayable = trial._measured_call(main, target, is_training_run=is_training_run)
            for _ in range(CHECK_REPEATS):
                plain.append(plain_step_seconds(self._setup, main))
                replayable.restore_start()
                trial._measured_call(main, target, is_training_run=is_training_run)
                measuring.append(trial._stopwatch.seconds())
        ratio, notes = min(measuring) / min(plain), trial._noted.values()
        return summarize(self._setup, trial._history, replayable, notes, target is not None, ratio, self._schedule)

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
        self._history = MeterHistory(self._given_tasks, self._setup.estimators)
        self._stream = GradientStream(self._setup, self._given_tasks) if self._streamed else None
        self._clock = TrainingClock()
        self.calls = 0
        self._steps = 0  # that were taken, even if their gradients overflowed so that they do not count as measured
        self._held_out: bool | None = None
        self._noted: dict[str, str] = {}  # by the first words, since numbers in a note may change

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """The task names, or None before the first measured call if they were not passed to the constructor."""
        if self._history.tasks is None and self._stream is not None and self._stream.tasks:
            return tuple(self._stream.tasks)
        return self._history.tasks

    @property
    def measured(self) -> int:
        """The number of measured calls."""
        return self._history.measured

    @property
    def due(self) -> bool:
        """Whether the next call will be measured, so that batches for it can be fetched only then."""
        return self._schedule.due(self.calls)

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
        touched = self._history.touched
        return [(a, b) for a, b in combinations(touched, 2) if not touched[a] & touched[b]]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state needed to resume measuring, which ``torch.load(weights_only=True)`` can load."""
        return {
            "settings": self._settings_that_count(),
            "calls": self.calls,
            "held_out": self._held_out,
            "ledger": self._history.state_dict(),
            **({} if self._stream is None else {"stream": self._stream.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of another meter that was created with the same settings.

        The timings for `overhead` and ``every="auto"`` start over.
        """
        if not isinstance(state, Mapping) or state.get("settings") != self._settings_that_count():
            raise ValueError("`state` must come from state_dict() of a meter with the same estimators and settings")
        self._history.load_state_dict(state["ledger"])
        self.calls, self._held_out = int(state["calls"]), state["held_out"]
        if self._stream is not None:
            self._stream.load_state_dict(state["stream"])

    def __repr__(self) -> str:
        counts = f"{self.measured} of {self.calls} calls measured"
        if self._stream is not None:
            counts += f", {self.observed} gradients observed"
        return f"AffinityMeter({', '.join(self._names())}; {counts}, tasks={self.tasks})"

    def _names(self) -> list[str]:
        return [*(e.name for e in self._setup.estimators), *self._streamed]

    def __getstate__(self) -> dict[str, Any]:
        # Graphs can neither be copied nor pickled.
        return {**vars(self), "_training": TrainingGradient(self._setup)}

    def _read_closures(self, closure: Any, held_out: Any) -> tuple[Any, Any]:
        if not self._setup.estimators:
            raise RuntimeError(
                "this meter only observes gradients; call meter.observe(task) after backward(), or add an estimator "
                "that uses a closure: estimator=['lookahead', 'streaming']"
            )
        if is_task_closures(closure):
            if held_out is not None and not isinstance(held_out, Mapping):
                raise ValueError("`held_out` must be a mapping from tasks to closures, like the closures themselves")
            return LazyLosses(closure), None if held_out is None else LazyLosses(held_out)
        if not callable(closure):
            raise TypeError(
                f"the meter must be called with a function that computes the losses, found {type(closure).__name__}; "
                "pass a closure, e.g. meter(lambda: task_losses(model, batch))"
            )
        return closure, held_out

    def _begin_call(self, held_out: object) -> bool:
        # Returns whether this call is measured.
        if self._held_out is not None and self._held_out != (held_out is not None):
            raise ValueError(
                "`held_out` must be passed to every call or to none, since affinities measured on training losses and "
                "on held-out losses cannot be combined; use a separate meter for each"
            )
        self._held_out = held_out is not None
        self._clock.tick()
        self._training.clear()  # `backward` can no longer be used for the previous call
        is_due = self.due
        self.calls += 1
        if is_due and self._verifies():
            self._setup.find_wrapper()
        return is_due

    def _verifies(self) -> bool:
        # Closures are checked at the first step that is measured and after 10, 100, … steps.
        return self._steps in (0, 10, 100, 1000, 10_000, 100_000)

    def _measured_call(self, closure: Any, held_out: Any, *, is_training_run: bool = False) -> ReplayableClosure:
        """Runs the closure, measures a step, restores the state, and records what was measured.

        Args:
            closure: The closure, or one per task.
            held_out: The closure that computes the held-out losses, if any.
            is_training_run: Whether the first run of the closure is part of training: it does not count as time spent
                measuring, and training goes on from the state after it.
        """
        setup, verify, call = self._setup, self._verifies(), self.calls - 1
        self._stopwatch = Stopwatch(setup.parameters[0].device)

        # The first run, whose losses and graph are also those of training if `is_training_run`
        replayable = ReplayableTasks if isinstance(closure, LazyLosses) else ReplayableClosure
        main = replayable(closure, setup, self._replayer, verify=verify)
        main.run(self._stopwatch if is_training_run else None)

        # `backward` can reuse the task gradients if one process has computed all of them.
        can_reuse = is_training_run and self._training.wanted and setup.wrapper is None and setup.replicas.alone
        training = self._training if can_reuse else None

        # The measurement. Only at the first one, a closure that cannot be measured is an error.
        other, reading, notes = None, None, list[str]()
        try:
            if held_out is not None:
                other = replayable(held_out, setup, self._replayer, verify=verify, held_out=True)
                other.run()
            reading, notes = measure_step(setup, self._history, main, other, self._schedule, call, training)
        except ClosureError as error:
            if not self._history.source_counts:
                raise
            notes = [f"{problem} This call was not measured." for problem in error.problems]
        finally:
            if other is not None and setup.wrapper is not None and setup.wrapper.find_unused_parameters:
                main.replay()  # the backward pass of training expects gradients for the parameters of the last run
            if other is not None:
                other.restore_start()
            (main.restore_end if is_training_run and not self._is_trial else main.restore_start)()
        self._record(call, reading, notes)
        return main

    def _record(self, call: int, reading: Reading | None, notes: list[str]) -> None:
        if reading is None or (reading.finite and reading.overflowed()):
            self._training.forget()  # `backward` must not reuse a scaled gradient that overflowed
        if reading is not None:
            self._steps += 1
            self._history.add(call, reading)
        for note in notes:  # once each; those of a trial are part of its report instead
            if note[:40] not in self._noted:
                self._noted[note[:40]] = note
                if not self._is_trial:
                    warnings.warn(note, stacklevel=4)
        self._clock.add_measurement(self._stopwatch)
        if isinstance(self._schedule, Auto):
            # Ranks must agree on when to measure next.
            durations = self._setup.replicas.gather((self._stopwatch.seconds(), self._clock.plain_step_seconds))
            self._schedule.timed(call, *map(max, zip(*durations, strict=True)))

    def _settings_that_count(self) -> dict[str, Any]:
        # Affinities that were measured with other settings cannot be combined.
        uses_steps = self._setup.uses_steps or self._streamed
        return {
            "estimators": self._names(),
            "update": self._setup.update if uses_steps else None,
            "per_lr": self._setup.per_lr,
            "sketch": [self._setup.sketch_dimension, self._setup.seed] if self._streamed else None,
        }
