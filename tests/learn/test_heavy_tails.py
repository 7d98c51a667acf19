"""Numbers with heavy tails, or far outside the training rows, make no model explode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tagalong.group import Group
from tagalong.learn import Job, Problem, constant_scores, score_outputs, train
from tagalong.learn.preparation import NumberColumn
from tagalong.study.best import Best, ServedTask

TARGETS = ["size", "ill"]
NETWORKS = [None, "tabm", "ridge", "boosting"]


def heavy_table(seed: int) -> pd.DataFrame:
    """Five inputs that are lognormal with σ = 2, so that the largest of 500 is about a thousand times the median."""
    draw = np.random.default_rng(seed)
    logs = 2 * draw.normal(size=(500, 5))
    table = {f"dose {number}": np.exp(own) for number, own in enumerate(logs.T)}
    table["height"] = draw.normal(170, 10, 500)
    table["size"] = logs[:, 0] - 0.5 * logs[:, 1] + 0.1 * table["height"] + draw.normal(size=500)
    table["ill"] = (logs[:, 0] + logs[:, 2] + 2 * draw.normal(size=500) > 0).astype(int)
    return pd.DataFrame(table)


def heavy_problem(seed: int, encoder: str = "mlp") -> Problem:
    problem = Problem.from_table(heavy_table(seed), TARGETS, encoder=encoder)
    return replace(problem, recipe=replace(problem.recipe, epochs=40))


@pytest.mark.parametrize("network", NETWORKS)
def test_no_model_is_much_worse_than_a_constant(network: str | None) -> None:
    for seed in range(2):
        problem = heavy_problem(seed)
        constants, scores = constant_scores(problem, "test"), train(problem, Job(problem.names, network=network)).test
        for task in TARGETS:
            assert scores[task].loss < 1.2 * constants[task].loss, (task, seed)
        assert scores["size"].loss < 0.8 * constants["size"].loss, "there is something to learn"


@pytest.mark.parametrize("network", NETWORKS)
def test_rows_far_outside_are_flagged_and_change_no_other_answer(network: str | None) -> None:
    problem = heavy_problem(0)
    group = Group(set(TARGETS), set(TARGETS), network=network)
    best = Best.build(problem, [group], [train(problem, Job(problem.names, network=network)).state or {}], 0)
    names = problem.table.names
    rows = heavy_table(1)[list(names)].head(100)
    changed = rows.copy()
    far = [17]  # 1% of the test rows
    changed.loc[far, "height"] *= 100
    answers, others = best.predict(rows), best.predict(changed)
    for task in TARGETS:
        np.testing.assert_array_equal(np.delete(others[task], far), np.delete(answers[task], far))
    labels = problem.train.targets["size"].numpy() * problem.scales["size"][1] + problem.scales["size"][0]
    margin = 0.1 * np.ptp(labels)
    assert problem.scales["size"][2:] == pytest.approx((labels.min() - margin, labels.max() + margin), rel=1e-5)
    for extreme in (1e8, -1e8, 1e150):
        changed.loc[far, list(names)] = extreme
        answer = best.predict(changed)["size"]
        assert labels.min() - 1.001 * margin < answer.min() <= answer.max() < labels.max() + 1.001 * margin
        assert np.isfinite(best.predict(changed)["ill"]).all()
        flags, plain = best.outside(changed), best.outside(rows)
        for name in names:
            assert flags[name][far].all()
            np.testing.assert_array_equal(np.delete(flags[name], far), np.delete(plain[name], far))
    assert not plain["height"].any()


def test_answers_are_clipped_when_scored_and_served_unless_told_otherwise() -> None:
    table = {"x": np.random.default_rng(0).normal(size=50), "y": np.linspace(10, 20, 50)}
    split = (np.arange(40), np.arange(40, 45), np.arange(45, 50))
    high = table["y"][39] + 0.1 * np.ptp(table["y"][:40])
    for clip in (True, False):
        problem = Problem.from_table(table, ["y"], split=split, clip=clip)
        scale = problem.scales["y"]
        outputs = torch.tensor([[0.0], [100.0]])
        answers = [scale[0], high if clip else 100 * scale[1] + scale[0]]
        expected = np.square(np.subtract(answers, 15) / scale[1])
        targets = torch.tensor([(15 - scale[0]) / scale[1]] * 2)
        assert score_outputs(problem.tasks[0], outputs, targets, scale).rows == pytest.approx(expected, rel=1e-5)
        served = ServedTask("y", "regression", scale).prediction(outputs)
        assert served == pytest.approx(answers, rel=1e-5)


@pytest.mark.parametrize("ones", [1, 50, 99])
def test_columns_with_two_values_are_equally_loud_however_rare_one_is(ones: int) -> None:
    bits = NumberColumn.fitted("bit", pd.Series([5.0] * ones + [3.0] * (100 - ones)))
    assert bits is not None
    np.testing.assert_allclose(bits.inputs(np.array([3.0, 5.0]))[:, 0], [0, 2], atol=1e-12)
    assert bits.inputs(np.array([1e6]))[0, 0] < 4, "clipped smoothly, as other numbers are"
