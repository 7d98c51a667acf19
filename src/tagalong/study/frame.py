"""The records of a study as a pandas DataFrame with one row per method, budget, seed and task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .records import TOGETHER, Cost, ProblemInfo, Record
from .relative_losses import relative_change
from .summary import mean_cost, relative_cost


def make_frame(records: Sequence[Record], problem: ProblemInfo) -> Any:
    """Builds the DataFrame described in `Results.to_frame`.

    Args:
        records: the records of a study.
        problem: the problem that was studied.
    """
    from pandas import DataFrame

    together = {record.seed: record for record in records if record.label == TOGETHER}
    unit = mean_cost([record.training for record in together.values()])
    rows = [
        _task_cells(task, record, together.get(record.seed), problem) | _record_cells(record, unit)
        for record in records
        for task in problem.tasks
    ]
    return DataFrame(rows).astype({"budget": "Int64"})  # nullable integers, since some methods have no budget


def _task_cells(task: str, record: Record, mtl: Record | None, problem: ProblemInfo) -> dict[str, Any]:
    val, test = record.val[task], record.test[task]
    return {
        "method": record.method,
        "budget": record.budget,
        "seed": record.seed,
        "task": task,
        "val_loss": val.loss,
        "test_loss": test.loss,
        "val_error": val.error,
        "test_error": test.error,
        "error_measure": problem.errors.get(task),
        "val_change": math.nan if mtl is None else relative_change(val.loss, mtl.val[task].loss),
        "test_change": math.nan if mtl is None else relative_change(test.loss, mtl.test[task].loss),
        "network": next((tuple(sorted(group.trains)) for group in record.groups if task in group.serves), None),
        "members": sum(task in group.serves for group in record.groups),
    }


def _record_cells(record: Record, mtl_cost: Cost) -> dict[str, Any]:
    return {
        "networks": len(record.groups),
        "honest": record.honest,
        "diverged": record.diverged,
        "deciding_cost": relative_cost(record.deciding, mtl_cost),
        "training_cost": relative_cost(record.training, mtl_cost),
        "parameters": record.parameters,
        "latency": record.latency,
    }
