"""The results of networks trained elsewhere: checks losses and predictions, and computes the scores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, is_nonnegative, is_number, raise_problems
from tagalong.learn import Job, Trained, halve_rows
from tagalong.score import Score

from .external_backend import ExternalResult
from .external_targets import ExternalTargets, Parts, check_predictions

MAX_LOSS = 1e150
Losses = Mapping[str, float | Sequence[float]]


def check_result(
    job: Job,
    val: Losses | None,
    test: Losses | None,
    rows: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
    *,
    val_rows: Mapping[str, Any] | None = None,
) -> Trained:
    """Returns the validated result of a network, or raises a single error that lists every problem.

    A network without losses diverged.
    """
    problems = _cost_problems(steps, seconds, parameters)
    if val is None and test is None:
        raise_problems(problems)
        return diverged_result(job, *_costs(steps, seconds, parameters))
    row_losses = {
        "val": _row_losses(problems, "val_rows", val_rows, job.tasks),
        "test": _row_losses(problems, "rows", rows, job.tasks),
    }
    scores: dict[str, dict[str, Score]] = {}
    for part, given in (("val", val), ("test", test)):
        losses = _by_task(problems, part, given, job.tasks)
        known = row_losses[part] if part == "test" else {}
        scores[part] = {task: _score(problems, part, task, losses[task], known.get(task)) for task in losses}
    raise_problems(problems)
    costs = _costs(steps, seconds, parameters)
    return Trained(job, scores["val"], scores["test"], *costs, halves=halve_rows(row_losses["val"]))


def check_told_predictions(
    job: Job,
    targets: ExternalTargets,
    val: Any,
    test: Any,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
) -> Trained:
    """Returns the result of a network computed from its predictions, or raises an error that lists every problem.

    A network without predictions diverged.
    """
    problems = _cost_problems(steps, seconds, parameters)
    if val is None and test is None:
        raise_problems(problems)
        return replace(diverged_result(job, *_costs(steps, seconds, parameters)), key=job_hash(job))
    given = {"val": val, "test": test}
    predictions = {part: check_predictions(problems, targets, part, one, job.tasks) for part, one in given.items()}
    raise_problems(problems)
    return _score_predictions(job, targets, predictions, *_costs(steps, seconds, parameters))


def _score_predictions(
    job: Job, targets: ExternalTargets, predictions: Parts, steps: int, seconds: float, parameters: int
) -> Trained:
    scores = {part: targets.average_scores([targets.outputs(one)], part) for part, one in predictions.items()}
    halves = halve_rows({task: score.rows for task, score in scores["val"].items()})
    costs = steps, seconds, parameters
    return ExternalResult(
        job, scores["val"], scores["test"], *costs, halves=halves, key=job_hash(job), predictions=predictions
    )


def job_hash(job: Job) -> str:
    """Returns a short name for the files of a network."""
    return hashlib.sha256(repr((job.tasks, job.seed)).encode()).hexdigest()[:16]


def _cost_problems(steps: Any, seconds: Any, parameters: Any) -> list[InvalidInput]:
    return [
        InvalidInput(name, "must be a non-negative number", short(number))
        for name, number in (("steps", steps), ("seconds", seconds), ("parameters", parameters))
        if number is not None and not (is_number(number) and is_nonnegative(number))
    ]


def _costs(steps: int | None, seconds: float | None, parameters: int | None) -> tuple[int, float, int]:
    return int(steps or 0), float(seconds or 0.0), int(parameters or 0)


def diverged_result(job: Job, steps: int, seconds: float, parameters: int) -> Trained:
    """Returns the result of a network that diverged."""
    unknown = {task: Score(math.nan, math.nan) for task in job.tasks}
    return Trained(job, unknown, unknown, steps, seconds, parameters, best_epoch=-1)


def _row_losses(
    problems: list[InvalidInput], argument: str, given: Mapping[str, Any] | None, tasks: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    if given is None:
        return {}
    expected = "must contain one loss per row for every task (NaN for rows without a label)"
    rows = {}
    for task, values in _by_task(problems, argument, given, tasks).items():
        try:
            rows[task] = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):  # noqa: PERF203 - the message names the task
            problems.append(InvalidInput(f"`{argument}`: {task!r}", "must be a list of numbers", short(values)))
            return {}
    lengths = {values.shape for values in rows.values()}
    if len(lengths) > 1 or any(len(shape) != 1 or not shape[0] for shape in lengths):
        problems.append(
            InvalidInput(argument, expected, " and ".join(sorted(f"an array of shape {shape}" for shape in lengths)))
        )
        return {}
    return rows


def _by_task(problems: list[InvalidInput], argument: str, given: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the network's tasks, and reports missing and unknown ones."""
    if not isinstance(given, Mapping):
        hint = "if the network diverged, pass None for both `val` and `test`" if given is None else ""
        expected = f"must be a mapping with a value for each of {', '.join(tasks)}"
        problems.append(InvalidInput(argument, expected, short(given), hint))
        return {}
    missing = [task for task in tasks if task not in given]
    extra = [task for task in given if task not in tasks]
    if missing or extra:
        found = [f"none for {name!r}" for name in missing] + [f"one for the unknown task {name!r}" for name in extra]
        expected = f"must have a value for each of {', '.join(tasks)}"
        problems.append(InvalidInput(argument, expected, ", ".join(found)))
    return {task: given[task] for task in tasks if task in given}


def _score(
    problems: list[InvalidInput],
    part: str,
    task: str,
    given: float | Sequence[float],
    rows: NDArray[np.float32] | None,
) -> Score:
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        loss, *error = (float(value) for value in pair)
        if len(error) > 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        problems.append(InvalidInput(f"`{part}`: {task!r}", "must be a loss or a pair (loss, error)", short(given)))
        return Score(math.nan, math.nan)
    if not math.isfinite(loss):
        hint = "if the network diverged, pass None for both `val` and `test`"
        problems.append(InvalidInput(f"`{part}`: the loss of {task!r}", "must be a finite number", str(loss), hint))
    elif abs(loss) > MAX_LOSS:
        expected = f"must be at most {MAX_LOSS:g} in magnitude, so that sums of losses and their squares are finite"
        problems.append(InvalidInput(f"`{part}`: the loss of {task!r}", expected, str(loss)))
    return Score(loss, error[0] if error else math.nan, rows)
