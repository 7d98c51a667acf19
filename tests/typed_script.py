"""A script that a user might write, which tests/test_wheel.py checks with mypy and runs."""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong import Affinity, AffinityMeter, Grouping, Problem, Recipe, Results, Study, Verdict, select_groups
from tagalong.study import Best


def measure(x: Tensor, targets: dict[str, Tensor]) -> Affinity:
    encoder, heads = nn.Linear(x.shape[1], 8), {task: nn.Linear(8, 1) for task in targets}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=2)

    def task_losses() -> dict[str, Tensor]:
        features = encoder(x)
        return {task: (heads[task](features).squeeze(1) - y).pow(2).mean() for task, y in targets.items()}

    for _ in range(4):
        losses = meter(task_losses)
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return meter.affinity()


def compare(x: NDArray[np.float64], y: dict[str, NDArray[np.float64]], folder: Path) -> Best:
    problem = Problem.from_arrays(x, y, list(y), recipe=Recipe(epochs=2))
    results: Results = Study(problem, folder).run(methods=["mtl", "tag"], budgets=[2], seeds=2)
    verdict: Verdict = results.verdict()
    worth_it: bool = verdict.worth_it
    skills: list[float | None] = [row.skill for row in results.table()]
    print(verdict, worth_it, skills)
    return results.best()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    x = np.random.default_rng(0).normal(size=(200, 4))
    y = {"a": x[:, :2].sum(1), "b": x[:, 0] - x[:, 1], "c": x[:, 2:].sum(1)}
    affinity = measure(torch.tensor(x, dtype=torch.float32), {task: torch.tensor(v).float() for task, v in y.items()})
    matrix: NDArray[np.float64] = affinity.mean
    grouping: Grouping = select_groups(affinity, budget=2, max_size=2)
    groups: list[list[str]] = [sorted(group.serves) for group in grouping.groups]
    best = compare(x, y, folder)
    best.save(folder / "deployed")
    answers: dict[str, NDArray[np.generic]] = best.predict(x[:5])
    repeated = Best.load(folder / "deployed").predict(x[:5])
    print(matrix.shape, groups, all((repeated[task] == answers[task]).all() for task in y))
