"""The best constant prediction of each task, which a network must beat to have learned anything."""

from __future__ import annotations

from tagalong.score import Score

from .base_rate import constant_output, has_constant, read_targets
from .problem import Problem
from .scoring import score_outputs


def constant_scores(problem: Problem, part: str, fit_on: str = "train") -> dict[str, Score]:
    """Returns the scores of the best constants, including the loss of each row.

    Tasks without a best constant are left out.

    Args:
        problem: the problem.
        part: the rows to score, "train", "val" or "test".
        fit_on: the rows for whose labels the constants are best.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(100) % 2
        >>> problem = Problem.from_arrays(np.random.default_rng(0).normal(size=(100, 3)), {"ill": labels}, ["ill"])
        >>> round(constant_scores(problem, "test")["ill"].loss, 2)
        0.69
    """
    tasks = [task for task in problem.tasks if has_constant(problem, task)]
    names = [task.name for task in tasks]
    fit_rows, score_rows = problem.splits[fit_on].only(names), problem.splits[part].only(names)
    fitted = read_targets(fit_rows)
    scored = fitted if part == fit_on else read_targets(score_rows)
    scores = {}
    for task in tasks:
        labels, targets = fitted[task.name], scored[task.name]
        if labels.isfinite().any():
            outputs = constant_output(task, labels, fit_rows.weights).expand(len(targets), -1)
            scale = problem.scales.get(task.name)
            scores[task.name] = score_outputs(task, outputs, targets, scale, score_rows.weights)
    return scores
