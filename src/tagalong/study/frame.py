"""The records of a study as a pandas DataFrame with one row per method, budget, seed and task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .records import TOGETHER, ProblemInfo, Record, SkillScale
from .summary import mean_cost, relative_cost


def make_frame(records: Sequence[Record], problem: ProblemInfo, scale: SkillScale | None) -> Any:
    """Builds the DataFrame described in `Results.to_frame`.

    Args:
        records: the records of a study.
        problem: the problem that was studied.
        scale: what turns losses into skills, or None if there is nothing to compare with.
    """
    from pandas import DataFrame

    unit = mean_cost([record.training for record in records if record.label == TOGETHER])
    rows = []
    for record in records:
        skills = {part: {} if scale is None else scale.skills(record, part) for part in ("val", "test")}
        about_record = {
            "networks": len(record.groups),
            "honest": record.honest,
            "diverged": record.diverged,
            "deciding_cost": relative_cost(record.deciding, unit),
            "training_cost": relative_cost(record.training, unit),
            "parameters": record.parameters,
            "latency": record.latency,
        }
        for task in problem.tasks:
            val, test = record.val[task], record.test[task]
            serving = [group for group in record.groups if task in group.serves]
            about_task = {
                "method": record.method,
                "budget": record.budget,
                "seed": record.seed,
                "task": task,
                "val_skill": skills["val"].get(task, math.nan),
                "test_skill": skills["test"].get(task, math.nan),
                "val_loss": val.loss,
                "test_loss": test.loss,
                "val_error": val.error,
                "test_error": test.error,
                "error_measure": problem.errors.get(task),
                "network": tuple(sorted(serving[0].trains)) if serving else None,
                "members": len(serving),
            }
            rows.append(about_task | about_record)
    return DataFrame(rows).astype({"budget": "Int64"})  # nullable integers, since some methods have no budget
