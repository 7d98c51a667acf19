"""Checks that an estimator does what `tagalong.measure.Estimator` specifies."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.affinity import Affinity
from tagalong.errors import first_few
from tagalong.measure import AffinityMeter, Estimator, Observed, Quantity, make_estimator

from .checks import Checks, display_name, expect, temporary_seed

TASKS = ("a", "b", "c")
STEPS, ROWS, FEATURES, LR = 4, 12, 4, 0.1
BUILT_IN_ESTIMATORS = ("lookahead", "gradient", "cosine")
TOLERANCE = 1e-9  # relative, in float64
LOSS_FACTOR = 7.0  # applied to the loss that is rescaled
EstimatorFactory = Callable[[nn.Module], Estimator]
Losses = dict[str, Tensor | None]
ABSENT = object()


def check_estimator(estimator: str | Estimator | Callable[[nn.Module], Estimator]) -> None:
    """Measures affinities with an estimator on a small float64 network, and checks the results.

    Affinities must be finite, must have the shape [source, target], and must not depend on the order of the tasks.
    Missing tasks must be skipped and counted. The estimator must behave as `ratio` and `of_steps` declare. A
    measurement must not modify its inputs, and training must be bit-for-bit identical with and without it. A resumed
    meter, and a meter with multiple estimators, must measure the same affinities.

    Args:
        estimator: a registered name, an estimator, or a function that creates one for a given network. The shared part
            of the network is its `encoder`.

    Raises:
        FailedChecks: If at least one check fails; the error message lists all failed checks.

    Example:
        >>> check_estimator("cosine")
    """
    make = _estimator_factory(estimator)
    checks = Checks(f"estimator {display_name(estimator)!r}")
    with temporary_seed(0):
        with checks.check("its attributes are valid"):
            instance = make(_SmallNetwork())
            _check_attributes(instance)
            _check_single_call(checks, instance)
        with checks.check("it can be measured"):
            reference = _TrainingRun(make).steps().meter.affinity()
            _check_in_meter(checks, make, reference)
    checks.raise_failures()


def _estimator_factory(estimator: str | Estimator | Callable[[nn.Module], Estimator]) -> EstimatorFactory:
    """Returns a function that creates a new estimator, so that no state is carried over from one run to the next."""
    if isinstance(estimator, str | Estimator):
        found = copy.deepcopy(make_estimator(estimator) if isinstance(estimator, str) else estimator)
        return lambda model: copy.deepcopy(found)
    return estimator


def _check_attributes(instance: Any) -> None:
    expect(isinstance(instance, Estimator), f"it must be an Estimator, found {type(instance).__name__}")
    expect(
        isinstance(getattr(instance, "name", None), str) and bool(instance.name), "`name` must be a non-empty string"
    )
    unknown = set(getattr(instance, "needs", ())) - set(get_args(Quantity))
    expect(
        bool(getattr(instance, "needs", ())) and not unknown,
        f"`needs` must be a non-empty subset of {get_args(Quantity)}",
    )
    for flag in ("ratio", "of_steps"):
        expect(isinstance(getattr(instance, flag), bool), f"`{flag}` must be True or False")


# A single call of the estimator, on random quantities.


def _check_single_call(checks: Checks, instance: Estimator) -> None:
    sources = 3 if "gram" in instance.needs else 2  # a Gram matrix is square, so sources and targets are the same tasks
    rectangle = _random_observation(instance, sources, targets=3)
    with checks.check("it returns affinities [source, target]"):
        found = instance(copy.deepcopy(rectangle))
        expect(isinstance(found, Tensor), f"it must return a tensor, found {type(found).__name__}")
        shape = list(found.shape)
        expected = f"for {sources} sources and 3 targets the shape is {shape}, expected [{sources}, 3]"
        expect(shape == [sources, 3], expected)
    if "gram" not in instance.needs:
        with checks.check("rows are sources and columns are targets"):
            _check_axes(instance)
    with checks.check("it does not modify its inputs"):
        given, kept = copy.deepcopy(rectangle), copy.deepcopy(rectangle)
        instance(given)
        changed = [name for name, value in vars(kept).items() if not _is_equal(value, vars(given)[name])]
        expect(not changed, f"it modified `{'`, `'.join(changed)}`")
    if not instance.ratio:
        with checks.check("without `ratio`, a target's loss may be zero or negative"):
            zero = _random_observation(instance, 3, 3)
            zero.before[0], zero.before[1] = 0.0, -1.0
            expect(bool(instance(zero).isfinite().all()), "affinities onto a loss of 0 or -1 must be finite")


def _check_axes(instance: Estimator) -> None:
    square = _random_observation(instance, 3, 3)
    found = instance(copy.deepcopy(square))
    for axis, (tasks, lines) in enumerate((("sources", "rows"), ("targets", "columns"))):
        rolled = copy.deepcopy(square)
        for name in instance.needs:
            setattr(rolled, name, getattr(square, name).roll(1, axis))
        rolled.before = square.before.roll(1) if axis else square.before
        same = torch.allclose(instance(rolled), found.roll(1, axis), rtol=TOLERANCE, equal_nan=True)
        expect(same, f"permuting the {tasks} must permute the {lines} in the same way")


def _random_observation(instance: Estimator, sources: int, targets: int) -> Observed:
    draw = torch.Generator().manual_seed(1)

    def random_positive(*shape: int) -> Tensor:
        return 0.5 + torch.rand(*shape, generator=draw, dtype=torch.float64)

    observed = Observed(random_positive(targets))
    for name in instance.needs:
        setattr(observed, name, random_positive(*((targets, targets) if name == "gram" else (sources, targets))))
    return observed


# The estimator inside a meter.


class _SmallNetwork(nn.Module):
    """A network whose shared part has BatchNorm statistics and dropout masks, which a measurement must not change."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({task: nn.Linear(6, 1) for task in TASKS})
        self.double()
        for parameter in self.parameters():
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)


class _TrainingRun:
    """A training run with a meter.

    Args:
        make: a function that creates the estimator, or None to train without a meter.
        order: the order in which the closure lists its losses.
        scales: factors for the losses by task, which the meter's weights cancel out in the steps.
        missing: factors for the losses by step and task; NaN, None or `ABSENT` makes a task missing.
        others: additional estimators that measure at the same steps.
        held_out: whether to measure the losses on held-out rows.
    """

    def __init__(
        self,
        make: EstimatorFactory | None,
        *,
        order: Sequence[str] = TASKS,
        scales: Mapping[str, float] | None = None,
        missing: Mapping[int, Mapping[str, Any]] | None = None,
        others: Sequence[str] = (),
        held_out: bool = False,
    ) -> None:
        torch.manual_seed(5)
        self.model = _SmallNetwork()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9)
        self._make, self._order, self._others = make, order, others
        self._scales, self._missing, self._held_out = scales or {}, missing or {}, held_out
        self._done = 0
        if make is not None:
            self.recorder = _SideEffectRecorder(make(self.model), self.state)
            self.meter = self._make_meter()

    def _make_meter(self) -> AffinityMeter:
        weights = {task: 1 / self._scales.get(task, 1.0) for task in TASKS}
        return AffinityMeter(
            self.model.encoder,
            self.optimizer,
            every=1,
            tasks=self._order,
            weights=weights if self._scales else None,
            estimator=[self.recorder, *self._others],
        )

    def resume(self) -> None:
        """Continues from the meter's saved state with a new meter and a new estimator."""
        assert self._make is not None
        saved = io.BytesIO()
        torch.save(self.meter.state_dict(), saved)
        saved.seek(0)
        self.recorder = _SideEffectRecorder(self._make(self.model), self.state)
        self.meter = self._make_meter()
        self.meter.load_state_dict(torch.load(saved, weights_only=True))

    def steps(self, number: int = STEPS) -> _TrainingRun:
        for _ in range(number):
            self._step()
        return self

    def _step(self) -> None:
        # The closures must not reach the estimator through `self`, or the meter would restore what it changes.
        missing = self._missing.get(self._done, {})
        losses_of = partial(_task_losses, self.model, tuple(self._order), dict(self._scales), missing)
        closure = partial(losses_of, *_random_batch(self._done))
        self.optimizer.zero_grad()
        if self._make is None:
            losses = closure()
        else:
            held_out = [partial(losses_of, *_random_batch(self._done + 100))] if self._held_out else []
            losses = self.meter(closure, *held_out)
        present = [loss for loss in losses.values() if loss is not None and bool(loss.isfinite())]
        torch.stack(present).sum().backward()
        self.optimizer.step()
        self._done += 1

    def state(self) -> dict[str, Any]:
        """Returns everything that a measurement must not change, by name."""
        model, optimizer = self.model, self.optimizer
        found: dict[str, Any] = {f"parameter {name}": p.detach().clone() for name, p in model.named_parameters()}
        found |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
        found |= {f"gradient of {n}": p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        for name, p in model.named_parameters():
            state = optimizer.state.get(p, {}).items()
            found |= {f"optimizer state {k} of {name}": v.clone() if isinstance(v, Tensor) else v for k, v in state}
        found |= {f"mode of {name or 'the network'}": m.training for name, m in model.named_modules()}
        legacy = np.random.get_state()  # noqa: NPY002
        found |= {"torch's random numbers": torch.get_rng_state(), "Python's random numbers": random.getstate()}
        return found | {"numpy's random numbers": repr(legacy)}


def _task_losses(
    model: _SmallNetwork,
    order: Sequence[str],
    scales: Mapping[str, float],
    factors: Mapping[str, Any],
    x: Tensor,
    y: Tensor,
) -> Losses:
    features = model.encoder(x)
    found: Losses = {}
    for task in order:
        factor = factors.get(task, 1.0)
        if factor is not ABSENT:
            error = model.heads[task](features).squeeze(1) - y[:, TASKS.index(task)]
            loss = error.square().mean() * scales.get(task, 1.0)
            found[task] = None if factor is None else loss * factor
    return found


class _SideEffectRecorder(Estimator):
    """Wraps an estimator and records what it changes, before the meter restores the original state."""

    def __init__(self, inner: Estimator, state: Callable[[], dict[str, Any]]) -> None:
        self.inner, self._state = inner, state
        self.name, self.needs, self.ratio, self.of_steps = inner.name, inner.needs, inner.ratio, inner.of_steps
        self.changed: dict[str, None] = {}

    def __call__(self, seen: Observed) -> Tensor:
        before = self._state()
        found = self.inner(seen)
        self.changed |= dict.fromkeys(_differences(before, self._state()))
        return found


def _check_in_meter(checks: Checks, make: EstimatorFactory, reference: Affinity) -> None:
    with checks.check("affinities are finite"):
        _expect_finite(reference, "in a meter")
        _expect_finite(_TrainingRun(make, held_out=True).steps().meter.affinity(), "onto held-out losses")
    with checks.check("permuting the tasks permutes the affinities"):
        permuted = _TrainingRun(make, order=("c", "a", "b")).steps().meter.affinity()
        _expect_close(permuted.only(TASKS).mean, reference.mean, "with the losses in another order, affinities")
    with checks.check("missing tasks are skipped and counted"):
        _check_missing(make)
    if make(_SmallNetwork()).ratio:
        with checks.check("with `ratio`, rescaling a target's loss changes no affinity (or set `ratio = False`)"):
            scaled = _TrainingRun(make, scales={"b": LOSS_FACTOR}).steps(1).meter.affinity()
            others = [task != "b" for task in TASKS]
            first = _TrainingRun(make).steps(1).meter.affinity()
            _expect_close(
                scaled.mean[others], first.mean[others], f"with one loss scaled by {LOSS_FACTOR:g}, affinities"
            )
    with checks.check("it has no side effects"):
        _check_side_effects(make)
    with checks.check("a resumed meter measures the same affinity"):
        run = _TrainingRun(make).steps(STEPS // 2)
        run.resume()
        resumed = run.steps(STEPS - STEPS // 2).meter.affinity()
        same = np.array_equal(resumed.history, reference.history, equal_nan=True)
        expect(same, "steps after resuming differ, since the estimator has internal state that the meter does not save")
    with checks.check("an estimator measures the same with and without other estimators"):
        _check_with_others(make, reference)


def _check_missing(make: EstimatorFactory) -> None:
    """Trains for four steps; `b` is missing in the second and third steps, and `c` in the third."""
    missing: dict[int, dict[str, Any]] = {1: {"b": torch.nan}, 2: {"b": ABSENT, "c": None}}
    affinity = _TrainingRun(make, missing=missing).steps().meter.affinity()
    counts = affinity.count
    expected = np.array([[4, 2, 3], [2, 2, 2], [3, 2, 3]])
    expect(np.array_equal(counts, expected), f"`count` must be {expected.tolist()}, found {counts.tolist()}")
    _expect_finite(affinity, "with missing losses")


def _check_side_effects(make: EstimatorFactory) -> None:
    run = _TrainingRun(make).steps()
    changed = list(run.recorder.changed)
    expect(not changed, f"a call changed {first_few(changed, 3)}")
    changed = _differences(run.state(), _TrainingRun(None).steps().state())
    expect(not changed, f"training with and without it differs in {first_few(changed, 3)}")


def _check_with_others(make: EstimatorFactory, reference: Affinity) -> None:
    name = make(_SmallNetwork()).name
    others = [other for other in BUILT_IN_ESTIMATORS if other != name]
    together = _TrainingRun(make, others=others).steps().meter
    _expect_close(together.affinity(name).mean, reference.mean, f"together with {', '.join(others)}, its affinities")
    for other in others:
        found = make_estimator(other)
        alone = _TrainingRun(lambda model, found=found: found).steps().meter.affinity()  # type: ignore[misc]
        _expect_close(together.affinity(other).mean, alone.mean, f"together with it, the affinities of {other!r}")


def _random_batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, FEATURES, generator=draw, dtype=torch.float64)
    return x, torch.randn(ROWS, len(TASKS), generator=draw, dtype=torch.float64)


def _expect_finite(affinity: Affinity, context: str) -> None:
    shape = list(affinity.mean.shape)
    expect(shape == [3, 3], f"{context}, the affinities of 3 tasks have shape {shape}, expected [3, 3]")
    bad = [f"{TASKS[i]} → {TASKS[j]}" for i, j in np.argwhere(~np.isfinite(affinity.mean)).tolist()]
    expect(not bad, f"{context}, they are not finite for {', '.join(bad)}")


def _expect_close(found: NDArray[np.float64], expected: NDArray[np.float64], description: str) -> None:
    scale = max(float(np.abs(expected).max()), 1e-300)
    gap = float(np.abs(found - expected).max()) / scale
    expect(gap <= TOLERANCE, f"{description} differ by {gap:.1e}, relative to the largest")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name in {**before, **after} if not _is_equal(before.get(name), after.get(name))]


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)
