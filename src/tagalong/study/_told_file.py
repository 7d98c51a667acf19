"""What has been told, as files: JSON for plan and losses, an archive per network for the losses of rows."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity._atomic import write_atomic
from tagalong.group import Group

from ._document import read_document
from ._plan import Plan
from ._record import Cost, Outcome
from ._relative import Subset
from ._told import Ledger, Told

FORMAT, VERSION, FILE, ROWS = "tagalong-told", 1, "told.json", "told"


def has_plan(out: Path) -> bool:
    """Whether a plan is stored in this folder."""
    return (out / FILE).exists()


def write(out: Path, plan: Plan, told: Mapping[tuple[Subset, int], Told]) -> None:
    """Losses of rows first, the JSON that names them last."""
    entries = []
    for (subset, seed), one in told.items():
        tasks = plan.ordered(subset)
        archive = None if one.rows is None else _write_rows(out, tasks, seed, one.rows)
        entries.append({"tasks": list(tasks), "seed": seed, "rows": archive, **_told_document(one)})
    document = {"format": FORMAT, "version": VERSION, "plan": plan_document(plan), "told": entries}
    write_atomic(out / FILE, (json.dumps(document, allow_nan=False, indent=1) + "\n").encode())


def read(out: Path) -> Ledger:
    """The plan and everything told so far."""
    ledger: Ledger = read_document(out / FILE, FORMAT, VERSION, lambda document: _ledger(document, out))
    return ledger


def _ledger(document: Mapping[str, Any], out: Path) -> Ledger:
    entry = document["plan"]
    groupings = {
        (one["method"], one["budget"]): tuple(Group(group["trains"], group["serves"]) for group in one["groups"])
        for one in entry["groupings"]
    }
    plain = {name: tuple(entry[name]) for name in ("tasks", "methods", "budgets", "seeds")}
    ledger = Ledger(Plan(**plain, groupings=groupings))
    for one in document["told"]:
        ledger.told[frozenset(one["tasks"]), one["seed"]] = _told(out, one)
    return ledger


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as JSON can hold it."""
    document: dict[str, Any] = {name: list(getattr(plan, name)) for name in ("tasks", "methods", "budgets", "seeds")}
    document["groupings"] = [
        {"method": method, "budget": budget, "groups": [_group(group) for group in groups]}
        for (method, budget), groups in plan.groupings.items()
    ]
    return document


def _group(group: Group) -> dict[str, list[str]]:
    return {"trains": sorted(group.trains), "serves": sorted(group.serves)}


def _told_document(told: Told) -> dict[str, Any]:
    document: dict[str, Any] = {
        part: {task: [outcome.loss, _or_none(outcome.error)] for task, outcome in getattr(told, part).items()}
        for part in ("val", "test")
    }
    return document | {"steps": told.cost.steps, "seconds": told.cost.seconds, "parameters": told.parameters}


def _told(out: Path, entry: Mapping[str, Any]) -> Told:
    outcomes = {
        part: {task: Outcome(loss, math.nan if error is None else error) for task, (loss, error) in entry[part].items()}
        for part in ("val", "test")
    }
    rows: dict[str, NDArray[Any]] | None = None
    if entry["rows"] is not None:
        with np.load(out / entry["rows"], allow_pickle=False) as archive:
            rows = {task: archive[f"rows_{number}"] for number, task in enumerate(entry["tasks"])}
    cost = Cost(1, entry["steps"], entry["seconds"])
    return Told(outcomes["val"], outcomes["test"], rows, cost, entry["parameters"])


def _write_rows(out: Path, tasks: tuple[str, ...], seed: int, rows: Mapping[str, NDArray[Any]]) -> str:
    name = f"{ROWS}/{hashlib.sha256(repr((tasks, seed)).encode()).hexdigest()[:16]}.npz"
    if not (out / name).exists():  # a network is told once
        content = io.BytesIO()
        named: dict[str, Any] = {f"rows_{number}": rows[task] for number, task in enumerate(tasks)}
        np.savez_compressed(content, **named)
        write_atomic(out / name, content.getvalue())
    return name


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
