"""What was measured so far, step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.affinity import Affinity


class Record:
    """The history of one estimator's affinities."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tuple(tasks)
        self._steps: list[int] = []
        self._values: list[NDArray[np.float64]] = []
        self._null: list[NDArray[np.float64]] = []
        self._skipped: dict[str, NDArray[np.int64]] = {}

    def add(self, step: int, values: NDArray[np.float64], null: NDArray[np.float64]) -> None:
        """Adds one measured step: affinities (NaN where not measured) and the null step subtracted from them."""
        self._steps.append(step)
        self._values.append(values)
        self._null.append(null)

    def skip(self, reason: str, pairs: NDArray[np.bool_]) -> None:
        if pairs.any():
            count = self._skipped.setdefault(reason, np.zeros(pairs.shape, dtype=np.int64))
            count += pairs

    def affinity(self, settings: Mapping[str, Any], *, last: bool = False) -> Affinity:
        """Everything measured, or the last step only (without the counts of what was skipped)."""
        n, kept = len(self._tasks), slice(-1 if last else None, None)
        return Affinity.from_history(
            np.array(self._values[kept]).reshape(-1, n, n),
            self._tasks,
            np.array(self._steps[kept], dtype=np.int64),
            null=np.array(self._null[kept]).reshape(-1, n),
            skipped={} if last else self._skipped,
            settings=dict(settings),
        )

    def state_dict(self) -> dict[str, Any]:
        n = len(self._tasks)
        return {
            "steps": list(self._steps),
            "values": torch.from_numpy(np.array(self._values, dtype=np.float64).reshape(-1, n, n)),
            "null": torch.from_numpy(np.array(self._null, dtype=np.float64).reshape(-1, n)),
            "skipped": {reason: torch.from_numpy(count.copy()) for reason, count in self._skipped.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = [int(step) for step in state["steps"]]
        self._values = list(state["values"].numpy().copy())
        self._null = list(state["null"].numpy().copy())
        self._skipped = {reason: count.numpy().copy() for reason, count in state["skipped"].items()}
