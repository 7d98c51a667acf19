"""What one measured step found, read from the device when it is asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._arriving import Arriving
from ._estimators import Estimator

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Entry:
    """One estimator's part of a reading, over all tasks: NaN where nothing was measured.

    Attributes:
        name: The estimator's.
        values: Affinities [source, target], relative to `null` where that is finite.
        null: What the step on a zero gradient did to each target.
        skipped: Pairs that have no value, by reason.
    """

    name: str
    values: Floats
    null: Floats
    skipped: dict[str, Mask]


@dataclass
class Reading:
    """The affinities of one step, still where they were computed: training need not wait for them.

    Attributes:
        tasks: All task names.
        estimators: In the order of `estimates`.
        sources: Tasks whose steps were looked at.
        targets: Tasks onto which.
        estimates: Estimators × sources (and the null step, if `with_null`) × targets.
        with_null: Whether the last row is the null step's.
        idle: Whether a null step would not move anything.
        lr: Divisor of the estimates.
        own: The closure's losses.
        before: Those of the closure that was looked at.
        finite: Whether each gradient was finite, if that was watched.
        touched: The shared parameters that each source depends on, by number.
    """

    tasks: Sequence[str]
    estimators: Sequence[Estimator]
    sources: Sequence[str]
    targets: Sequence[str]
    estimates: Arriving
    with_null: bool
    idle: bool
    lr: float
    own: Floats
    before: Floats
    finite: Sequence[Tensor]
    touched: dict[str, set[int]]

    def overflowed(self) -> bool:
        return bool(self.finite) and not bool(torch.stack(list(self.finite)).all())

    def tried(self) -> Mask:
        """Pairs that this step looked at."""
        tried = np.zeros((len(self.tasks), len(self.tasks)), dtype=bool)
        tried[self._pairs()] = True
        return tried

    def entries(self) -> Iterator[Entry]:
        """Waits for the device, once."""
        for estimator, estimate in zip(self.estimators, self.estimates.numbers(), strict=True):
            yield self._entry(estimator, estimate)

    def _entry(self, estimator: Estimator, estimate: Floats) -> Entry:
        n = len(self.tasks)
        null = np.full(n, 0.0 if self.idle or not estimator.of_steps else np.nan)
        if self.with_null:
            if estimator.of_steps:
                null[[self.tasks.index(t) for t in self.targets]] = estimate[-1]
                estimate = estimate - estimate[-1]
            estimate = estimate[:-1]
        if estimator.of_steps:
            lr = self.lr or np.nan  # a warm-up may start at 0, where nothing moves
            estimate, null = estimate / lr, null / lr
        values = np.full((n, n), np.nan)
        values[self._pairs()] = estimate
        bad = self.tried() & ~np.isfinite(values)
        values[bad] = np.nan
        return Entry(estimator.name, values, np.where(np.isfinite(null), null, np.nan), self._skips(bad, estimator))

    def _pairs(self) -> tuple[NDArray[np.intp], ...]:
        rows, columns = ([self.tasks.index(t) for t in names] for names in (self.sources, self.targets))
        return np.ix_(rows, columns)

    def _skips(self, bad: Mask, estimator: Estimator) -> dict[str, Mask]:
        """Why pairs have no value at this step; sources whose turn it was not are no skips."""
        own, before = self.own[:, None], self.before[None, :]
        missing = np.isnan(own) | np.isnan(before)
        infinite = ~missing & (np.isinf(own) | np.isinf(before))
        zero = bad & (before == 0) & estimator.ratio
        other = "non-finite after the step" if estimator.of_steps else "zero gradient"
        if estimator.of_steps and not self.lr:
            other = "zero learning rate"
        return {"missing": missing, "non-finite loss": infinite, "zero loss": zero, other: bad & ~zero}
