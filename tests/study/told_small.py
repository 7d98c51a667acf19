"""Losses of made-up networks: {a, b} and {c, d} help each other, the rest hurts."""

from __future__ import annotations

import numpy as np

TASKS = ("a", "b", "c", "d")
PAIRS = ({"a", "b"}, {"c", "d"})
ROWS = 50


def rows_of(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, np.ndarray]:
    """The loss of every row: harder in company of strangers, the same rows hard in every network."""
    found = {}
    for task in tasks:
        friends = next(pair for pair in PAIRS if task in pair)
        level = 1.0 + 0.2 * len(set(tasks) - friends) - 0.1 * (friends <= set(tasks))
        hard = np.random.default_rng([len(part), ord(task)]).gamma(5.0, 0.2, size=ROWS)
        found[task] = (level * hard * (1 + 0.01 * seed)).astype(np.float32)
    return found


def losses_of(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, float]:
    """Their means."""
    return {task: float(rows.mean()) for task, rows in rows_of(tasks, seed, part).items()}
