"""Does an estimator keep the promises of `tagalong.measure.Estimator`?"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.affinity import Affinity
from tagalong.measure import AffinityMeter, Estimator, Observed, Quantity, make_estimator

from .promises import Promises, expect, name_of, reseeded

TASKS = ("a", "b", "c")
STEPS, ROWS, FEATURES, LR = 4, 12, 4, 0.1
OTHERS = ("lookahead", "gradient", "cosine")
CLOSE = 1e-9  # relative, in float64
FACTOR = 7.0  # of a loss that is rescaled
Make = Callable[[nn.Module], Estimator]
Losses = dict[str, Tensor | None]
ABSENT = object()


def check_estimator(estimator: str | Estimator | Callable[[nn.Module], Estimator]) -> None:
    """Measures with an estimator on a small network in float64, and checks what `Estimator` promises.

    Affinities are finite, [source, target], and follow the tasks wherever these are listed; missing tasks are skipped
    and counted; `ratio` and `of_steps` are as declared; a measurement changes nothing that it is given, and training
    stays bit for bit as it was; a resumed meter and one with several estimators find the same.

    Args:
        estimator: a registered name, an estimator, or a function that makes one from the network, whose shared part
            is its `encoder`.

    Raises:
        BrokenPromises: lists every promise that is not kept.

    Example:
        >>> check_estimator("cosine")
    """
    make = _maker(estimator)
    promises = Promises(f"estimator {name_of(estimator)!r}")
    with reseeded(0):
        with promises.that("it describes itself"):
            made = make(_Network())
            _check_description(made)
            _check_alone(promises, made)
        with promises.that("it can be measured"):
            plain = _Run(make).steps().meter.affinity()
            _check_in_a_meter(promises, make, plain)
    promises.settle()


def _maker(estimator: str | Estimator | Callable[[nn.Module], Estimator]) -> Make:
    """Fresh ones each time: what an estimator remembers of one run must not help it in the next."""
    if isinstance(estimator, str | Estimator):
        found = copy.deepcopy(make_estimator(estimator) if isinstance(estimator, str) else estimator)
        return lambda model: copy.deepcopy(found)
    return estimator


def _check_description(made: Any) -> None:
    expect(isinstance(made, Estimator), f"it must be an Estimator, found {type(made).__name__}")
    expect(isinstance(getattr(made, "name", None), str) and bool(made.name), "`name` must be a text")
    unknown = set(getattr(made, "needs", ())) - set(get_args(Quantity))
    expect(bool(getattr(made, "needs", ())) and not unknown, f"`needs` must be some of {get_args(Quantity)}")
    for flag in ("ratio", "of_steps"):
        expect(isinstance(getattr(made, flag), bool), f"`{flag}` must be True or False")


# What one call of an estimator does with made-up quantities.


def _check_alone(promises: Promises, made: Estimator) -> None:
    sources = 3 if "gram" in made.needs else 2  # inner products are among the targets, so these must be the sources
    rectangle = _observed(made, sources, targets=3)
    with promises.that("it gives affinities [source, target]"):
        found = made(_copy(rectangle))
        expect(isinstance(found, Tensor), f"it must give a tensor, found {type(found).__name__}")
        shape = list(found.shape)
        expected = f"for {sources} sources and 3 targets it gave the shape {shape}, expected [{sources}, 3]"
        expect(shape == [sources, 3], expected)
    if "gram" not in made.needs:
        with promises.that("rows are sources and columns are targets"):
            _check_places(made)
    with promises.that("it changes nothing of what was observed"):
        given, kept = _copy(rectangle), _copy(rectangle)
        made(given)
        changed = [name for name, value in vars(kept).items() if not _same(value, vars(given)[name])]
        expect(not changed, f"it wrote into `{'`, `'.join(changed)}`")
    if not made.ratio:
        with promises.that("without `ratio` a target's loss may be zero or negative"):
            zero = _observed(made, 3, 3)
            zero.before[0], zero.before[1] = 0.0, -1.0
            expect(bool(made(zero).isfinite().all()), "affinities onto a loss of 0 or -1 must be finite")


def _check_places(made: Estimator) -> None:
    square = _observed(made, 3, 3)
    found = made(_copy(square))
    for axis, word in ((0, "sources"), (1, "targets")):
        turned = _copy(square)
        for name in made.needs:
            setattr(turned, name, getattr(square, name).roll(1, axis))
        turned.before = square.before.roll(1) if axis else square.before
        same = torch.allclose(made(turned), found.roll(1, axis), rtol=CLOSE, equal_nan=True)
        expect(same, f"listing the {word} in another order must list the {'columns' if axis else 'rows'} likewise")


def _observed(made: Estimator, sources: int, targets: int) -> Observed:
    draw = torch.Generator().manual_seed(1)

    def positive(*shape: int) -> Tensor:
        return 0.5 + torch.rand(*shape, generator=draw, dtype=torch.float64)

    seen = Observed(positive(targets))
    for name in made.needs:
        setattr(seen, name, positive(*((targets, targets) if name == "gram" else (sources, targets))))
    return seen


def _copy(seen: Observed) -> Observed:
    return copy.deepcopy(seen)


# What it does inside a meter.


class _Network(nn.Module):
    """A shared part with everything that a measurement must leave alone: BatchNorm statistics and dropout masks."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({task: nn.Linear(6, 1) for task in TASKS})
        self.double()
        for parameter in self.parameters():
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)


class _Run:
    """A training with a meter.

    Args:
        make: gives the estimator; None: train without a meter.
        order: in which the closure lists its losses.
        scales: of the losses, by task; the weights of the meter take them out of the steps again.
        missing: by step and task, a factor of the loss, None, or `ABSENT`.
        others: estimators that measure at the same steps.
        held_out: look at the losses of other rows.
    """

    def __init__(
        self,
        make: Make | None,
        *,
        order: Sequence[str] = TASKS,
        scales: Mapping[str, float] | None = None,
        missing: Mapping[int, Mapping[str, Any]] | None = None,
        others: Sequence[str] = (),
        held_out: bool = False,
    ) -> None:
        torch.manual_seed(5)
        self.model = _Network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9)
        self._make, self._order, self._others = make, order, others
        self._scales, self._missing, self._held_out = scales or {}, missing or {}, held_out
        self._done = 0
        if make is not None:
            self.watched = _Watched(make(self.model), self.trace)
            self.meter = self._meter()

    def _meter(self) -> AffinityMeter:
        weights = {task: 1 / self._scales.get(task, 1.0) for task in TASKS}
        return AffinityMeter(
            self.model.encoder,
            self.optimizer,
            every=1,
            tasks=self._order,
            weights=weights if self._scales else None,
            estimator=[self.watched, *self._others],
        )

    def resume(self) -> None:
        """Goes on with another meter and another estimator, from a saved state."""
        assert self._make is not None
        saved = io.BytesIO()
        torch.save(self.meter.state_dict(), saved)
        saved.seek(0)
        self.watched = _Watched(self._make(self.model), self.trace)
        self.meter = self._meter()
        self.meter.load_state_dict(torch.load(saved, weights_only=True))

    def steps(self, number: int = STEPS) -> _Run:
        for _ in range(number):
            self._step()
        return self

    def _step(self) -> None:
        x, y = _batch(self._done)
        held = _batch(self._done + 100)

        def closure() -> Losses:
            return self._losses(x, y)

        self.optimizer.zero_grad()
        if self._make is None:
            losses = closure()
        else:
            looked = [lambda: self._losses(*held)] if self._held_out else []
            losses = self.meter(closure, *looked)
        present = [loss for loss in losses.values() if loss is not None and bool(loss.isfinite())]
        torch.stack(present).sum().backward()
        self.optimizer.step()
        self._done += 1

    def _losses(self, x: Tensor, y: Tensor) -> Losses:
        features = self.model.encoder(x)
        found: Losses = {}
        for task in self._order:
            instead = self._missing.get(self._done, {}).get(task, 1.0)
            if instead is not ABSENT:
                error = self.model.heads[task](features).squeeze(1) - y[:, TASKS.index(task)]
                loss = error.square().mean() * self._scales.get(task, 1.0)
                found[task] = None if instead is None else loss * instead
        return found

    def trace(self) -> dict[str, Any]:
        """Everything that a measurement must leave as it is, by name."""
        model, optimizer = self.model, self.optimizer
        found: dict[str, Any] = {f"parameter {name}": p.detach().clone() for name, p in model.named_parameters()}
        found |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
        found |= {f"gradient of {n}": p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        for name, p in model.named_parameters():
            state = optimizer.state.get(p, {}).items()
            found |= {f"optimiser state {k} of {name}": v.clone() if isinstance(v, Tensor) else v for k, v in state}
        found |= {f"mode of {name or 'the network'}": m.training for name, m in model.named_modules()}
        legacy = np.random.get_state()  # noqa: NPY002
        found |= {"torch's random numbers": torch.get_rng_state(), "Python's random numbers": random.getstate()}
        return found | {"numpy's random numbers": repr(legacy)}


class _Watched(Estimator):
    """An estimator that is looked at while it estimates; what it moves is noted before the meter puts it back."""

    def __init__(self, inner: Estimator, trace: Callable[[], dict[str, Any]]) -> None:
        self.inner, self._trace = inner, trace
        self.name, self.needs, self.ratio, self.of_steps = inner.name, inner.needs, inner.ratio, inner.of_steps
        self.moved: dict[str, None] = {}

    def __call__(self, seen: Observed) -> Tensor:
        before = self._trace()
        found = self.inner(seen)
        self.moved |= dict.fromkeys(_differences(before, self._trace()))
        return found


def _check_in_a_meter(promises: Promises, make: Make, plain: Affinity) -> None:
    with promises.that("affinities are finite"):
        _expect_finite(plain, "in a meter")
        _expect_finite(_Run(make, held_out=True).steps().meter.affinity(), "onto held-out losses")
    with promises.that("permuting the tasks permutes the affinities"):
        turned = _Run(make, order=("c", "a", "b")).steps().meter.affinity()
        _expect_close(turned.only(TASKS).mean, plain.mean, "with the losses listed in another order")
    with promises.that("missing tasks are skipped and counted"):
        _check_missing(make)
    if make(_Network()).ratio:
        with promises.that("with `ratio`, rescaling a target's loss changes no affinity (else `ratio = False`)"):
            scaled = _Run(make, scales={"b": FACTOR}).steps(1).meter.affinity()
            others = [task != "b" for task in TASKS]
            first = _Run(make).steps(1).meter.affinity()
            _expect_close(scaled.mean[others], first.mean[others], f"with one loss times {FACTOR:g}")
    with promises.that("it leaves no trace"):
        _check_no_trace(make)
    with promises.that("a resumed meter finds the same affinity"):
        run = _Run(make).steps(STEPS // 2)
        run.resume()
        resumed = run.steps(STEPS - STEPS // 2).meter.affinity()
        same = np.array_equal(resumed.history, plain.history, equal_nan=True)
        expect(same, "steps after resuming differ; what it remembers of earlier steps is not in the meter's state")
    with promises.that("several estimators at once find the same as alone"):
        _check_together(make, plain)


def _check_missing(make: Make) -> None:
    """Of four steps `b` is missing in the second (NaN) and in the third (absent), `c` in the third (None)."""
    missing: dict[int, dict[str, Any]] = {1: {"b": torch.nan}, 2: {"b": ABSENT, "c": None}}
    affinity = _Run(make, missing=missing).steps().meter.affinity()
    counts = affinity.count
    expected = np.array([[4, 2, 3], [2, 2, 2], [3, 2, 3]])
    expect(np.array_equal(counts, expected), f"pairs must be counted {expected.tolist()}, found {counts.tolist()}")
    _expect_finite(affinity, "where losses are missing")


def _check_no_trace(make: Make) -> None:
    run = _Run(make).steps()
    moved = list(run.watched.moved)
    expect(not moved, f"while estimating it changed {_some(moved)}")
    moved = _differences(run.trace(), _Run(None).steps().trace())
    expect(not moved, f"training with and without it differs in {_some(moved)}")


def _check_together(make: Make, plain: Affinity) -> None:
    name = make(_Network()).name
    others = [other for other in OTHERS if other != name]
    together = _Run(make, others=others).steps().meter
    _expect_close(together.affinity(name).mean, plain.mean, f"beside {', '.join(others)} its affinities")
    for other in others:
        found = make_estimator(other)
        alone = _Run(lambda model, found=found: found).steps().meter.affinity()  # type: ignore[misc]
        _expect_close(together.affinity(other).mean, alone.mean, f"beside it the affinities of {other!r}")


def _batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, FEATURES, generator=draw, dtype=torch.float64)
    return x, torch.randn(ROWS, len(TASKS), generator=draw, dtype=torch.float64)


def _expect_finite(affinity: Affinity, where: str) -> None:
    shape = list(affinity.mean.shape)
    expect(shape == [3, 3], f"{where} the affinities of 3 tasks have the shape {shape}, expected [3, 3]")
    bad = [f"{TASKS[i]} → {TASKS[j]}" for i, j in np.argwhere(~np.isfinite(affinity.mean)).tolist()]
    expect(not bad, f"{where} they are not finite for {', '.join(bad)}")


def _expect_close(found: NDArray[np.float64], expected: NDArray[np.float64], what: str) -> None:
    scale = max(float(np.abs(expected).max()), 1e-300)
    gap = float(np.abs(found - expected).max()) / scale
    expect(gap <= CLOSE, f"{what} differ by {gap:.1e} of the largest")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
