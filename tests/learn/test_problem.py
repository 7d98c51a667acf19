"""How a problem is shown."""

import torch
from learn_small import small_problem, stream

from tagalong import MLP, Problem, Task
from tagalong.learn import Split


def test_a_problem_is_shown_in_three_lines() -> None:
    assert repr(small_problem()).splitlines() == [
        "Problem 'small'",
        "3 tasks: age (regression), weight (regression), ill (binary)",
        "rows: 41 train, 24 val, 24 test; inputs of shape (4,)",
    ]
    assert "read from files" in repr(stream(small_problem()))  # which are not read to be shown
    tasks = tuple(Task(f"t{number}") for number in range(40))
    split = Split(torch.zeros(5, 3), {task.name: torch.zeros(5) for task in tasks})
    assert "and 34 more" in repr(Problem("many", tasks, split, split, split, MLP(3, (4,))))
