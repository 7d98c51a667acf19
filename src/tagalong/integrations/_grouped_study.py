"""From the parameters of an estimator to its study: everything is checked at once, then compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong._names import noted, refuse
from tagalong.learn import MLP, Problem, Recipe, Task
from tagalong.study import Best, Results, Store, Study
from tagalong.study._best import keep_best
from tagalong.study._change import TOGETHER, Label, by_label, changes, mean

from ._grouped_labels import Columns

RECIPE = ("optimizer", "lr", "weight_decay", "batch_size", "epochs", "patience")
VERDICT = "verdict"


def compare(
    estimator: Any, inputs: NDArray[Any], tasks: Sequence[Task], targets: Columns, out: Path, seeds: tuple[int, int]
) -> tuple[Results, Best]:
    """Runs the study that the parameters of an estimator describe.

    Args:
        estimator: whose parameters.
        inputs: [rows, features].
        tasks: one per target.
        targets: the labels by task, NaN where missing.
        out: the folder of the run.
        seeds: of the split, and of the first network.

    Returns:
        What was found, and the networks to use: those of the verdict, or of the method that the estimator chooses.
    """
    problems = _problems(estimator)
    recipe = noted(problems, _recipe, estimator)
    problem = noted(problems, _problem, estimator, inputs, tasks, targets, recipe, seeds[0])
    study = noted(problems, partial(Study, executor=estimator.executor, device=estimator.device), problem, out)
    asked = _asked(estimator, seeds[1])
    if problem is not None and study is not None:
        noted(problems, partial(study.check, **asked))
    refuse(problems)
    results = study.run(**asked)
    with Store(out / "run.sqlite") as store:
        weights, width = partial(_weights, store), partial(_width, store)
        return results, keep_best(results, problem, weights, width, _label(results, estimator.choose))


def _problems(estimator: Any) -> list[str]:
    problems = []
    val, test = estimator.validation_fraction, estimator.test_fraction
    if not (val > 0 and test > 0 and val + test < 1):
        found = f"{val!r} and {test!r}"
        problems.append(f"`validation_fraction` and `test_fraction` must leave rows to each part, found {found}")
    methods = [str(getattr(method, "name", method)) for method in _listed(estimator.methods)]
    choices = dict.fromkeys([VERDICT, "mtl", *(name for name in methods if name != "random")])  # which has no groups
    if estimator.choose not in choices:
        problems.append(f"`choose` must be one of {', '.join(map(repr, choices))}, found {estimator.choose!r}")
    sizes = _listed(estimator.hidden_sizes)
    if not sizes or not all(isinstance(size, Integral) and int(size) > 0 for size in sizes):
        found = repr(estimator.hidden_sizes)
        problems.append(f"`hidden_sizes` must be a list of whole numbers from 1, found {found}")
    return problems


def _recipe(estimator: Any) -> Recipe:
    return Recipe(**{name: _plain(getattr(estimator, name)) for name in RECIPE})


def _problem(
    estimator: Any, inputs: NDArray[Any], tasks: Sequence[Task], targets: Columns, recipe: Recipe | None, seed: int
) -> Problem:
    val, test = estimator.validation_fraction, estimator.test_fraction
    return Problem.from_arrays(
        torch.tensor(inputs),
        targets,
        tasks,
        encoder=MLP(inputs.shape[1], _listed(estimator.hidden_sizes)),
        recipe=recipe,
        split=(1 - val - test, val, test),
        seed=seed,
    )


def _asked(estimator: Any, first: int) -> dict[str, Any]:
    budgets, seeds = _plain(estimator.budgets), _plain(estimator.seeds)
    return {
        "methods": estimator.methods,
        "budgets": [budgets] if isinstance(budgets, int) else budgets,
        "seeds": range(first, first + seeds) if isinstance(seeds, int) else seeds,
        "options": estimator.options,
    }


def _label(results: Results, choose: str) -> Label | None:
    """The method and budget to serve, None for the verdict's; of several budgets the best one on validation."""
    if choose == VERDICT:
        return None
    found = by_label(results.records)
    mine = [label for label in found if label[0] == choose]
    known = {label: changes(found[label], found[TOGETHER], "val") for label in mine}
    return min(mine, key=lambda label: mean(known[label]) if known[label] else math.inf)  # none where it diverged


def _weights(store: Store, key: str) -> dict[str, Tensor]:
    found = store.weights(key)
    assert found is not None, "a study keeps the weights of all networks that it reports"
    return found


def _width(store: Store, key: str) -> float:
    return store.rows([key])[key].job.width


def _listed(value: Any) -> list[Any]:
    """The entries of a list; none where something else was given."""
    return [] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _plain(value: Any) -> Any:
    """Numbers of numpy, as searches over parameters draw them, as Python has them."""
    return value.item() if isinstance(value, np.generic) else value
