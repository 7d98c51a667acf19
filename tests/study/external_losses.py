"""Losses of fictitious networks: a and b help each other, as do c and d; all other pairs hurt."""

from __future__ import annotations

import numpy as np

from tagalong.study import ExternalStudy

TASKS = ("a", "b", "c", "d")
PAIRS = ({"a", "b"}, {"c", "d"})
ROWS = 50


def rows_of(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, np.ndarray]:
    """Returns the loss of every row: higher with unrelated tasks; the same rows are hard for every network."""
    losses = {}
    for task in tasks:
        friends = next(pair for pair in PAIRS if task in pair)
        level = 1.0 + 0.2 * len(set(tasks) - friends) - 0.1 * (friends <= set(tasks))
        difficulty = np.random.default_rng([len(part), ord(task)]).gamma(5.0, 0.2, size=ROWS)
        losses[task] = (level * difficulty * (1 + 0.01 * seed)).astype(np.float32)
    return losses


def losses_of(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, float]:
    """Returns the mean loss of each task."""
    return {task: float(rows.mean()) for task, rows in rows_of(tasks, seed, part).items()}


def tell(study: ExternalStudy, network: tuple[tuple[str, ...], int], rows: bool = True) -> None:
    """Tells the losses of a network."""
    val, test = losses_of(*network, "val"), losses_of(*network, "test")
    more = {"rows": rows_of(*network, "test")} if rows else {}
    study.tell(*network, val=val, test=test, steps=10, seconds=1.0, parameters=100, **more)


def tell_all(study: ExternalStudy, limit: int = 10_000, rows: bool = True) -> int:
    """Tells the losses of pending networks, at most `limit`, and returns their number."""
    for told in range(limit):
        if (network := study.ask()) is None:
            return told
        tell(study, network, rows)
    return limit
