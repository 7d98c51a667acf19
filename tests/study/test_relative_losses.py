from dataclasses import replace

import numpy as np
from study_small import small_problem

from tagalong.learn import Task
from tagalong.study import Study


def shifted(down):
    """Returns a loss that is the squared error minus a number, negative like the log-likelihood of a narrow density."""

    def loss(outputs, targets):
        return (outputs.squeeze(1) - targets).square() - down

    problem = small_problem("abc")
    return replace(problem, tasks=tuple(Task(name, kind="custom", loss=loss) for name in problem.names))


def test_a_study_of_negative_losses_chooses_what_the_verdict_compares(tmp_path):
    results = Study(shifted(50.0), tmp_path).run(["stl", "hoa", "optimal"], [1, 2, 3], 2)
    assert all(record.test["a"].loss < 0 for record in results.records)
    plain = {record.seed: record for record in results.records_of(("mtl", None))}
    changes = {}
    for record in results.records:
        pairs = [(record.val[task].loss, plain[record.seed].val[task].loss) for task in "abc"]
        changes.setdefault(record.label, []).append(np.mean([(loss - base) / abs(base) for loss, base in pairs]))
    means = {label: np.mean(some) for label, some in changes.items()}
    assert means["optimal", 3] <= min(means.values()) + 1e-12, "no grouping does better on validation"
    assert means["optimal", 1] == 0
