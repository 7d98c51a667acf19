"""A training that is killed after any epoch and resumed equals an uninterrupted one."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_small import TASKS, encoder, same, small_problem

from tagalong.learn import Job, Problem, Recipe, Trained, train, train_many


class Killed(BaseException):
    pass


def train_killed_after_every_epoch(
    problem: Problem, job: Job, path: Path, meter: dict[str, Any] | None, device: str = "cpu"
) -> Trained:
    def kill(epoch: int) -> None:
        raise Killed

    while True:
        epochs = torch.load(path, weights_only=True)["epoch"] if path.exists() else 0
        if epochs == problem.recipe.epochs - 1:
            return train(problem, job, checkpoint=path, meter=meter, device=device)
        with pytest.raises(Killed):
            train(problem, job, checkpoint=path, meter=meter, device=device, progress=kill)
        torch.rand(3)  # the caller draws meanwhile


def assert_equal(first: Trained, second: Trained) -> None:
    np.testing.assert_array_equal(first.curve, second.curve)
    assert (first.best_epoch, first.steps) == (second.best_epoch, second.steps)
    assert same(dict(first.state or {}), dict(second.state or {}))
    assert {t: s.error for t, s in first.test.items()} == {t: s.error for t, s in second.test.items()}
    if first.affinity is not None and second.affinity is not None:
        np.testing.assert_array_equal(first.affinity.history, second.affinity.history)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("meter", [None, {"every": 3}, {"every": 2, "held_out": True, "estimator": "gradient"}])
def test_resumed_training_equals_uninterrupted_training(
    tmp_path: Path, optimizer: Any, meter: dict[str, Any] | None
) -> None:
    recipe = Recipe(optimizer, lr=0.02, batch_size=8, epochs=4, schedule="cosine")
    problem = small_problem(recipe, make=encoder(dropout=0.3, norm=True))
    resumed = train_killed_after_every_epoch(problem, Job(TASKS, seed=2), tmp_path / "run" / "a.pt", meter)
    assert_equal(train(problem, Job(TASKS, seed=2), meter=meter), resumed)
    assert (resumed.affinity is None) == (meter is None)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_checkpoint_of_another_training_raises_an_error(tmp_path: Path) -> None:
    def kill(epoch: int) -> None:
        raise Killed

    problem, path = small_problem(), tmp_path / "a.pt"
    with pytest.raises(Killed):
        train(problem, Job(TASKS), checkpoint=path, progress=kill)
    others = [(problem, Job(TASKS, seed=1), None), (small_problem(Recipe(lr=0.1)), Job(TASKS), None)]
    for other, job, meter in [*others, (problem, Job(TASKS), {})]:
        with pytest.raises(ValueError, match="`checkpoint`"):
            train(other, job, checkpoint=path, meter=meter)


@pytest.mark.parametrize("rule", ["plain", "uw"])
def test_a_killed_and_resumed_stack_equals_an_unbroken_one(tmp_path: Path, rule: str) -> None:
    """Networks that are trained one by one, because of their rule, also resume."""
    problem = small_problem(Recipe(lr=0.2, batch_size=8, epochs=9, patience=1), make=encoder(0.3, norm=True))
    resample = {"train": torch.arange(41) % 3, "val": torch.ones(24)}
    problem = replace(problem, weightings={"resample": resample})
    jobs = [
        Job(tasks, seed, rule, lr=lr, weighting=weighting)
        for tasks, weighting in ((TASKS, None), (TASKS[:1], "resample"), (TASKS[1:], None))
        for seed, lr in ((0, None), (1, 0.02))
    ]
    unbroken = {trained.job: trained for trained in train_many(problem, jobs)}
    assert len({trained.steps for trained in unbroken.values()}) > 2, "networks should be dropped at different times"
    path, kills, resumed = tmp_path / "run" / "a.pt", 0, {}

    def kill(stopped: int) -> None:
        if any(path.parent.iterdir()):
            raise Killed

    while len(resumed) < len(jobs):
        missing = [job for job in jobs if job not in resumed]
        with suppress(Killed):
            for trained in train_many(problem, missing, checkpoint=path, progress=kill):
                resumed[trained.job] = trained
        kills += len(resumed) < len(jobs)
        torch.rand(3)  # the caller draws meanwhile
    lengths = [len(trained.curve) for trained in unbroken.values()]
    assert kills == (max(lengths) if rule == "plain" else sum(lengths))
    for job, trained in unbroken.items():
        assert_equal(resumed[job], trained)
        assert resumed[job].flattery == trained.flattery
    assert list(path.parent.iterdir()) == []
