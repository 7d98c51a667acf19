"""What every problem that ships with the library must do."""

import math
from dataclasses import replace
from typing import Any

import cloudpickle
import torch

from tagalong.learn import Job, train
from tagalong.problems import load_problem


def assert_problem_is_sound(name: str, **options: Any) -> None:
    """Asserts that a problem is the same whenever it is loaded and in workers, and that networks learn from it."""
    problem, again = (load_problem(name, **options) for _ in range(2))
    problem = replace(problem, recipe=replace(problem.recipe, epochs=1))
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert problem.fingerprint == again.fingerprint == sent.fingerprint

    for rows in problem.splits.values():
        assert tuple(rows.tasks) == problem.names
        assert all(bool(rows.labelled(task).any()) for task in problem.names)

    job = Job(problem.names)
    here, there = train(problem, job), train(sent, job)
    assert all(math.isfinite(score.loss) for score in (*here.val.values(), *here.test.values()))
    assert here.state is not None
    assert there.state is not None
    assert all(torch.equal(weights, there.state[key]) for key, weights in here.state.items())
