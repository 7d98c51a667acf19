"""How a problem is shown."""

import numpy as np
import torch

from tagalong import MLP, Problem, Task
from tagalong.learn import StreamedRows


def test_a_problem_is_shown_in_three_lines() -> None:
    inputs = np.random.default_rng(0).normal(size=(1000, 3, 8, 8))
    targets = {"age": inputs[:, 0, 0, 0], "ill": inputs[:, 0, 0, 1] > 0}
    made = Problem.from_arrays(inputs, targets, ["age", "ill"], name="clinic", encoder=lambda: torch.nn.Flatten())
    assert repr(made).splitlines() == [
        "Problem 'clinic'",
        "2 tasks: age (regression), ill (binary)",
        "rows: 700 train, 100 val, 200 test; inputs of shape (3, 8, 8)",
    ]


def test_many_tasks_are_shortened() -> None:
    inputs = np.random.default_rng(0).normal(size=(50, 40))
    made = Problem.from_arrays(inputs, inputs, [f"t{i}" for i in range(40)])
    _, tasks, _ = repr(made).splitlines()
    assert tasks.startswith("40 tasks: t0 (regression), t1 (regression), ")
    assert tasks.endswith("t5 (regression), and 34 more")


def test_rows_in_files_are_not_read_to_be_shown() -> None:
    class Unread:
        tasks = ("a",)

        def __len__(self) -> int:
            return 5

    rows = StreamedRows(Unread(), ("a",))  # type: ignore[arg-type]
    made = Problem("files", (Task("a"),), rows, rows, rows, MLP(3, (4,)))
    assert repr(made).splitlines()[1:] == ["1 task: a (binary)", "rows: 5 train, 5 val, 5 test; read from files"]
