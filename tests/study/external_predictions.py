"""Predictions of fictitious networks for three kinds of tasks, and their losses by a slow, obvious computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tagalong.learn import Task
from tagalong.study import ExternalStudy, Results

TASKS = (Task("age", "regression"), Task("ill", class_weights=(1.0, 2.0)), Task("kind", "multiclass", classes=3))
NAMES = tuple(task.name for task in TASKS)
ROWS = {"val": 120, "test": 90}
Arrays = dict[str, np.ndarray]


def _draw(part: str) -> tuple[np.ndarray, Arrays]:
    rng = np.random.default_rng(len(part))
    inputs = rng.normal(size=(ROWS[part], 4))
    age = 40 + 10 * (inputs[:, 0] + 0.3 * rng.normal(size=ROWS[part]))
    age[::7] = np.nan
    ill = (inputs[:, 1] + 0.5 * rng.normal(size=ROWS[part]) > 0).astype(float)
    ill[::11] = np.nan
    return inputs, {"age": age, "ill": ill, "kind": inputs[:, 1:].argmax(1)}


INPUTS = {part: _draw(part)[0] for part in ROWS}
TARGETS = {part: _draw(part)[1] for part in ROWS}


def logits_of(tasks: Sequence[str], seed: int, part: str) -> Arrays:
    """Returns values and logits: what is known about the row, and noise that differs between networks."""
    inputs, found = INPUTS[part], {}
    for task in tasks:
        rng = np.random.default_rng([seed, len(tasks), len(part), NAMES.index(task)])
        if task == "age":
            found[task] = 40 + 10 * inputs[:, 0] + 4 * rng.normal(size=len(inputs))
        elif task == "ill":
            found[task] = 2 * inputs[:, 1] + rng.normal(size=len(inputs))
        else:
            found[task] = 2 * inputs[:, 1:] + rng.normal(size=(len(inputs), 3))
    return found


def predictions_of(tasks: Sequence[str], seed: int, part: str) -> Arrays:
    found = logits_of(tasks, seed, part)
    if "ill" in found:
        found["ill"] = 1 / (1 + np.exp(-found["ill"]))
    if "kind" in found:
        powers = np.exp(found["kind"])
        found["kind"] = powers / powers.sum(1, keepdims=True)
    return found


def expected_losses(members: Sequence[Mapping[str, np.ndarray]], part: str) -> dict[str, float]:
    """Averages the predictions of several networks, and computes the loss of each task."""
    labels, losses = TARGETS[part], {}
    for task in dict.fromkeys(task for member in members for task in member):
        mean = np.mean([member[task] for member in members if task in member], axis=0)
        if task == "age":
            losses[task] = float(np.nanmean((mean - labels["age"]) ** 2))
        elif task == "ill":
            known = ~np.isnan(labels["ill"])
            p, ill = mean[known], labels["ill"][known]
            losses[task] = float(np.mean(np.where(ill > 0, -2 * np.log(p), -np.log(1 - p))))
        else:
            losses[task] = float(np.mean(-np.log(mean[np.arange(len(mean)), labels["kind"]])))
    return losses


def tell_all(study: ExternalStudy, limit: int = 10_000) -> int:
    """Tells the predictions of pending networks, at most `limit`, and returns their number."""
    for told in range(limit):
        if (network := study.ask()) is None:
            return told
        study.tell(*network, val=predictions_of(*network, "val"), test=predictions_of(*network, "test"), steps=10)
    return limit


def losses(results: Results, part: str = "test") -> dict[tuple[str, int | None, int], dict[str, float]]:
    return {
        (record.method, record.budget, record.seed): {task: score.loss for task, score in getattr(record, part).items()}
        for record in results.records
    }
