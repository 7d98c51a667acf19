"""Running means of each task's gradients, and their cosines and inner products with standard errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BLOCKS = 8  # parts of each task's visits, whose differences show the noise
RECENT = 100  # visits, or twice the number of tasks, after which the gradient of a task is out of date

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


class RunningMeans:
    """The running mean of each task's gradient, relative to the mean gradient over the tasks at the same time.

    The mean over the tasks moves during training, and tasks are visited at different times and unequally often.
    Therefore, what is added for a visit is the difference between the gradient and the mean of the most recent
    gradients of all tasks, each counted once. A task counts as recent for 2n visits (at least 100), where n is the
    number of tasks. Pairs of tasks that were never recent at the same time have no affinity.

    A task's visits are dealt out to blocks in turn. The products between different blocks estimate the squared norm of
    a mean without the noise of single batches, and the differences between blocks show the standard errors.

    Args:
        dimension: The length of the vectors.
        unit_length: Whether gradients are scaled to unit length, so that all visits have equal weight.
    """

    def __init__(self, dimension: int, *, unit_length: bool) -> None:
        self._unit_length = unit_length
        # The first axis of these has a row per task, and more for tasks to come.
        self._sums = np.zeros((0, BLOCKS, dimension), dtype=np.float32)
        self._counts = np.zeros((0, BLOCKS), dtype=np.int64)
        self._latest = np.zeros((0, dimension), dtype=np.float32)
        self._last_visit = np.zeros(0, dtype=np.int64)  # 0 if it is not recent
        self._losses = np.zeros((0, 2))  # sum and number
        self._shares = np.zeros(0)
        self._together = np.zeros((0, 0), dtype=np.int32)
        self._center, self._center_sum = np.zeros(dimension), np.zeros(dimension)
        self._tasks = self._visits = self._centered = self._layout = 0
        self._skipped: dict[str, Counter[int]] = {}

    def add(self, task: int, gradient: Floats, loss: float, layout: int) -> None:
        """Adds the gradient of one visit. A new `layout` means that it cannot be compared with earlier ones."""
        self._make_room(task)
        norm = math.sqrt(gradient @ gradient)
        if not math.isfinite(norm) or norm == 0.0:
            self.skip(task, "zero gradient" if norm == 0.0 else "non-finite gradient")
            return
        value = (gradient / norm if self._unit_length else gradient).astype(np.float32)

        # The mean of the most recent gradients of all tasks, without those that are out of date.
        self._visits += 1
        last = self._visits - max(RECENT, 2 * self._tasks) if layout == self._layout else self._visits
        self._layout = layout
        expired = (self._last_visit > 0) & (self._last_visit <= last)
        if expired.any():
            self._latest[expired], self._last_visit[expired] = 0.0, 0
            self._center = self._latest.sum(axis=0, dtype=np.float64)  # also removes accumulated rounding errors
        self._center += value
        self._center -= self._latest[task]
        self._latest[task], self._last_visit[task] = value, self._visits
        recent = self._last_visit > 0
        number = np.count_nonzero(recent)
        if number < max(2, min(3, self._tasks)):
            self.skip(task, "no other task nearby")
            return
        mean = self._center / number

        block = int(self._counts[task].sum()) % BLOCKS
        self._sums[task, block] += value - mean
        self._counts[task, block] += 1
        self._shares[task] += 1.0 / number
        self._together[task] += recent
        self._center_sum += mean
        self._centered += 1
        if math.isfinite(loss):
            self._losses[task] += loss, 1

    def skip(self, task: int, reason: str) -> None:
        self._make_room(task)
        self._skipped.setdefault(reason, Counter())[task] += 1

    def skipped_pairs(self) -> dict[str, Counts]:
        """Returns for each pair the number of skipped visits of its tasks, by reason."""
        tasks = range(self._tasks)
        by_task = {reason: np.array([counts[task] for task in tasks]) for reason, counts in self._skipped.items()}
        return {reason: n[:, None] + n * ~np.eye(len(n), dtype=bool) for reason, n in by_task.items()}

    def estimate(self, *, first_order: bool) -> tuple[Floats, Floats, Counts]:
        """Returns the affinities [source, target], their standard errors, and the number of visits behind them."""
        n = self._tasks
        sums, counts, shares = self._sums[:n].astype(np.float64), self._counts[:n], self._shares[:n]
        if first_order or n < 3:
            # The mean gradient over all tasks and visits, which is the same for each task, is added again.
            sums += counts[:, :, None] * (self._center_sum / max(1, self._centered))
            shares = np.zeros(n)
        else:
            # What is left of the mean over the tasks is subtracted.
            visits = counts.sum(axis=1)
            visited = visits > 0
            means = sums.sum(axis=1)[visited] / visits[visited, None]
            sums -= counts[:, :, None] * means.sum(axis=0) / max(1, len(means))
            shares = shares / np.maximum(1, visits)

        if first_order:
            values, errors = _loss_fractions(sums, counts, self._losses[:n])
        else:
            values, errors = _cosines(sums, counts, shares)
        together = np.minimum(self._together, self._together.T)[:n, :n].astype(np.int64)
        known = (together > 0) & np.isfinite(values)
        return np.where(known, values, np.nan), np.where(known, errors, np.nan), np.where(known, together, 0)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(x.copy()) for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        return {**vars(self), **arrays, "_skipped": {reason: dict(n) for reason, n in self._skipped.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays = {name: x.numpy().copy() for name, x in state.items() if isinstance(x, torch.Tensor)}
        skipped = {reason: Counter(n) for reason, n in state["_skipped"].items()}
        vars(self).update({**state, **arrays, "_skipped": skipped})

    def _make_room(self, task: int) -> None:
        self._tasks = max(self._tasks, task + 1)
        if task >= len(self._counts):
            added = (0, task + 1)
            for name in ("_sums", "_counts", "_latest", "_last_visit", "_losses", "_shares"):
                array = getattr(self, name)
                setattr(self, name, np.pad(array, [added] + [(0, 0)] * (array.ndim - 1)))
            self._together = np.pad(self._together, added)


# In what follows, sums are [tasks, blocks, dimension], and counts, the numbers of visits behind them, [tasks, blocks].
# Shares [tasks] say how much of each task's own gradient is in the mean that was subtracted from it.


def _cosines(sums: Floats, counts: Counts, shares: Floats) -> tuple[Floats, Floats]:
    """Returns cosines, and their standard errors from leaving out one block at a time.

    Their norms are corrected for noise, so that few visits do not shrink them.
    """
    grams, squares = _jackknife(sums, counts, shares)
    squares = np.where(np.isfinite(squares), squares, squares[0])

    # A norm that cannot be told from noise is taken to be as large as its standard error, and one whose standard error
    # is unknown, because there are only two visits, is not corrected.
    uncorrected = (_means(sums, counts) ** 2).sum(axis=1)
    floor = np.fmax(_jackknife_error(squares), 0.01 * uncorrected)
    floor = np.where((counts > 0).sum(axis=1) > 2, floor, uncorrected)
    norms = np.sqrt(np.maximum(squares, np.where(floor > 0, floor, np.nan)))

    cosines = grams / (norms[:, :, None] * norms[:, None, :])
    values = np.clip(cosines[0], -1.0, 1.0)
    errors = np.hypot(_jackknife_error(cosines), (1.0 - values**2) / sums.shape[2] ** 0.5)
    diagonal = np.eye(len(values), dtype=bool) & np.isfinite(squares[0])
    return np.where(diagonal, 1.0, values), np.where(diagonal, 0.0, errors)


def _loss_fractions(sums: Floats, counts: Counts, losses: Floats) -> tuple[Floats, Floats]:
    """Returns inner products as fractions of the target's mean loss, given sums and numbers of losses."""
    grams, squares = _jackknife(sums, counts, np.zeros(len(sums)))
    tasks = np.arange(len(sums))
    grams[:, tasks, tasks] = squares
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_losses = losses[:, 0] / losses[:, 1]
    norms = np.sqrt(np.maximum(squares[0], 0.0))
    projecting = np.outer(norms, norms) / mean_losses / sums.shape[2] ** 0.5
    return grams[0] / mean_losses, np.hypot(_jackknife_error(grams / mean_losses), projecting)


def _jackknife(sums: Floats, counts: Counts, shares: Floats) -> tuple[Floats, Floats]:
    """Returns `_products` of all blocks, followed by those without each of the blocks."""
    subsets = [slice(None), *(np.arange(BLOCKS) != block for block in range(BLOCKS))]
    grams, squares = zip(*(_products(sums[:, kept], counts[:, kept], shares) for kept in subsets), strict=True)
    return np.stack(grams), np.stack(squares)


def _jackknife_error(samples: Floats) -> Floats:
    return np.asarray(np.sqrt((BLOCKS - 1) * samples[1:].var(axis=0)))


def _products(sums: Floats, counts: Counts, shares: Floats) -> tuple[Floats, Floats]:
    """Returns the inner products of the tasks' means [tasks, tasks], and their squared norms [tasks], without noise.

    The squared norms are NaN for tasks with visits in one block only.
    """
    means, visits = _means(sums, counts), counts.sum(axis=1)
    gram = means @ means.T

    # The mean product of different blocks of a task, whose noise is independent.
    pairs = visits**2 - (counts**2).sum(axis=1)
    products = (sums.sum(axis=1) ** 2).sum(axis=1) - np.einsum("ibd,ibd->i", sums, sums)
    squares = products / np.where(pairs > 0, pairs, np.nan)
    if not shares.any():
        return gram, squares

    # The mean that was subtracted contains the noise of each task, so the noise of two tasks is negatively correlated:
    # with P = 1 − s·1ᵀ, where s are the shares, and D the noise of the means before centering, it is P D Pᵀ. If another
    # task is visited less often, the same gradient of it is subtracted from several blocks.
    noise = np.nan_to_num((means**2).sum(axis=1) - squares)
    repeated = np.maximum(0.0, 1.0 - visits / np.maximum(visits, 1.0)[:, None])  # [i, j]: how often j's repeats
    of_blocks = np.zeros(len(shares))
    for _ in range(3):  # the noise of rarely visited tasks hides in the products of blocks at first
        total = (noise + of_blocks).sum() / (1.0 - shares.mean())
        own = (noise + of_blocks - shares**2 * total) / np.maximum(1.0 - 2.0 * shares, 0.2)
        of_blocks = shares**2 * (repeated @ np.maximum(own, 0.0))
    common = np.outer(shares, own) + np.outer(own, shares) - np.outer(shares, shares) * total
    return gram + common, squares - of_blocks


def _means(sums: Floats, counts: Counts) -> Floats:
    visits = counts.sum(axis=1, keepdims=True)
    return np.asarray(sums.sum(axis=1) / np.where(visits > 0, visits, np.nan))
