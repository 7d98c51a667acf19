"""What every method promises: each task is served within the budget, and only seeds and validation rows decide."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_small import small_problem

from tagalong.learn import Problem
from tagalong.study import Decision, Runner, Store, make_method, method_names
from tagalong.study.executors import Serial

pytestmark = pytest.mark.slow

SEEDS, BUDGETS = (0, 1), (1, 2, 3)
TASKS = ("b.c", "x+y", "ä, ö")
SHIPPED = [name for name in method_names() if type(make_method(name)).__module__.startswith("tagalong.")]
OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {"effort": 16},  # enough for copies, sets and students
    "best-of": {"effort": 8},
}


def decide(name: str, problem: Problem, folder: Path, global_seed: int) -> tuple[Decision, int]:
    """Returns the decision of a method, and how many networks it added to the folder."""
    random.seed(global_seed)
    np.random.seed(global_seed)  # noqa: NPY002 - a method must not draw from it
    torch.manual_seed(global_seed)
    method = make_method(name, {name: OPTIONS.get(name, {})})
    with Store(folder / "run.sqlite") as store, Runner(problem, store, executor=Serial()) as runner:
        before = len(store)
        method.begin(runner, SEEDS)
        decision = method.decide(runner, BUDGETS, runner.converged_seeds(SEEDS))
        return decision, len(store) - before


def groups_of(decision: Decision) -> dict[Any, Counter[Any]]:
    return {at: Counter(choice.groups) for at, choice in decision.choices.items()}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [*SHIPPED, "tag+pcgrad", "hoa+uw", "mtl-wide2", "mtl-big2"])
def test_a_method_serves_every_task_and_decides_by_seeds_and_validation_rows(name: str, tmp_path: Path) -> None:
    problem, method = small_problem(TASKS), make_method(name)
    decision, _ = decide(name, problem, tmp_path / "first", 0)

    budgets = BUDGETS if method.budgeted else (None,)
    assert set(decision.choices) == {(budget, seed) for budget in budgets for seed in SEEDS}
    for (budget, _), choice in decision.choices.items():
        shares = choice.shares or [1.0] * len(choice.groups)
        assert all(group.serves <= group.trains <= set(TASKS) for group in choice.groups)
        used = math.fsum(share * group.size for group, share in zip(choice.groups, shares, strict=True))
        assert budget is None or used <= budget + 1e-9
        for task in TASKS if choice.scores is None else ():
            served = [share for group, share in zip(choice.groups, shares, strict=True) if task in group.serves]
            assert served if method.averages else math.isclose(sum(served), 1)
    json.dumps(dict(decision.about), allow_nan=False)

    again, trained = decide(name, problem, tmp_path / "first", 8)
    assert groups_of(again) == groups_of(decision)
    assert trained == 0

    if method.honest:
        other_test_rows = replace(problem, test=small_problem(TASKS, seed=5).test)
        elsewhere, _ = decide(name, other_test_rows, tmp_path / "other", 13)
        assert groups_of(elsewhere) == groups_of(decision)
