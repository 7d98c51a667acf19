"""`blend` averages the families that are best together on validation rows."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, average_outputs, build_network, train
from tagalong.study import Study, make_method

TASKS = (Task("a", "regression", weight=2.0), Task("b"))


def make_problem(own_loss: bool = False) -> Problem:
    """A line and a step: no family is best for both."""
    draw = torch.Generator().manual_seed(1)

    def split(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw)
        noise = torch.randn(rows, 2, generator=draw)
        line = inputs @ torch.tensor([1.0, -1.0, 0.5, 0.0])
        targets = {"a": line + 2 * (inputs[:, 3] > 0.3) + noise[:, 0], "b": (line + noise[:, 1] > 0.5).float()}
        targets["a"][::5] = torch.nan
        return Split(inputs, targets)

    recipe = Recipe(lr=0.02, batch_size=32, epochs=6, patience=3)
    tasks = (Task("a", "custom", loss=torch.nn.functional.mse_loss), TASKS[1]) if own_loss else TASKS
    return Problem("mixed", tasks, split(200), split(120), split(120), MLP(4, (6,)), recipe=recipe)


def slow_skill(problem: Problem, part: str, outputs: list[dict[str, torch.Tensor]]) -> float:
    """The mean skill of an average, from sums over labelled rows in double precision."""
    skills = {}
    for task in TASKS:
        labels = {name: rows.targets[task.name].double() for name, rows in problem.splits.items()}
        known = {name: own[own.isfinite()] for name, own in labels.items()}
        average = average_outputs([own[task.name] for own in outputs], task.averaging).double().squeeze(1)
        right, center = labels[part], known["train"].mean()
        rows, every = right.isfinite(), torch.cat([*known.values()])
        if task.kind == "regression":
            gained = (right - center).square()[rows].mean() - (right - average).square()[rows].mean()
            unit = (every - center).square().mean()
        else:
            loss = torch.nn.functional.binary_cross_entropy
            gained = loss(center.expand(int(rows.sum())), right[rows]) - loss(average.sigmoid()[rows], right[rows])
            unit = loss(center.expand(len(every)), every)
        skills[task.name] = float(gained / unit)
    return (2 * skills["a"] + skills["b"]) / 3


@pytest.mark.parametrize(("library", "boosting"), [("scikit-learn", "boosting"), ("xgboost", "xgboost")])
def test_the_best_set_of_each_size_is_chosen_by_mean_skill(library: str, boosting: str, tmp_path: Path) -> None:
    problem, seeds, families = make_problem(), (0, 1), (None, boosting, "ridge")
    options = {"blend": {"boosting": library}}
    study = Study(problem, tmp_path, device="cpu")
    results = study.run(methods=["mtl", "blend"], budgets=[1, 2, 3], seeds=2, options=options)
    outputs = {}
    for seed in seeds:
        for family in families:
            trained = train(problem, Job(problem.names, seed, network=family))
            network = build_network(problem.with_network(family), problem.names, seed)
            network.load_state_dict(dict(trained.state))
            network.eval()
            with torch.no_grad():
                outputs[seed, family] = network(problem.val.inputs)
    skills = {
        chosen: np.mean([slow_skill(problem, "val", [outputs[seed, name] for name in chosen]) for seed in seeds])
        for size in (1, 2, 3)
        for chosen in combinations(families, size)
    }
    for budget in (1, 2, 3):
        best = max((chosen for chosen in skills if len(chosen) <= budget), key=skills.get)
        (first, second) = (record for record in results.records if (record.method, record.budget) == ("blend", budget))
        assert {group.network for group in first.groups} == {group.network for group in second.groups} == set(best)
        assert all(group.serves == {"a", "b"} for group in first.groups)


def test_a_blend_needs_a_table() -> None:
    problem = make_problem(own_loss=True)
    (wrong,) = make_method("blend").problems(problem.names, problem)
    assert "blend" in str(wrong)
