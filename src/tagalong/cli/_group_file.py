"""Groupings for other programs: JSON on standard output, JSON and YAML in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tagalong._caution import caution
from tagalong.affinity._atomic import write_atomic
from tagalong.group import Comparison, Grouping

from ._group_answer import Answer


def to_json(answer: Answer, several: bool, explain: Sequence[str]) -> str:
    """One grouping as `Grouping.to_json` writes it, with what is known of the input; several in a list."""
    documents = [document(grouping) for grouping in answer.groupings]
    whole: dict[str, Any] = {"groupings": documents} if several else documents[0]
    table = answer.table
    whole["caution"] = caution(table.tasks)
    whole["input"] = {"file": str(answer.file), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
    whole["interrupted"] = answer.interrupted
    if explain:
        grouping = answer.groupings[0]
        names = grouping.tasks if "all" in explain else explain
        whole["explanations"] = {task: grouping.explain(task) for task in names}
    if answer.comparison is not None:
        whole["comparison"] = _compared(answer.comparison)
    return json.dumps(whole, indent=1, allow_nan=False)


def document(grouping: Grouping) -> dict[str, Any]:
    """The grouping with what scripts would have to compute."""
    known: dict[str, Any] = json.loads(grouping.to_json())
    known["gap"] = grouping.gap if grouping.gap < float("inf") else None
    known["cost"] = sum(group.cost for group in grouping.groups)
    if grouping.resampled is not None:
        known["resampled"]["unsettled"] = list(grouping.resampled.unsettled)
    return known


def save(answer: Answer, path: Path, several: bool) -> None:
    """Writes the grouping, or all of them, as the suffix says."""
    first, in_yaml = answer.groupings[0], path.suffix.lower() != ".json"
    if several:
        whole: dict[str, Any] = {"caution": caution(answer.table.tasks)}
        whole["groupings"] = [json.loads(grouping.to_json()) for grouping in answer.groupings]
        text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True) if in_yaml else json.dumps(whole, indent=1)
    else:
        text = first.to_yaml() if in_yaml else first.to_json()
    write_atomic(path, (text.rstrip("\n") + "\n").encode())


def _compared(comparison: Comparison) -> dict[str, Any]:
    mine, best = comparison.spent
    return {
        "mine": json.loads(comparison.mine.to_json()),
        "loss": comparison.loss,
        "per_task": comparison.per_task,
        "spent": {"mine": mine, "best": best},
    }
