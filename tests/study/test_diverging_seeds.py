"""Seeds with which the network for all tasks diverges, so that there is nothing to compare with."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diverging_small import diverges, diverging_problem
from torch import nn

from tagalong.learn import Diverged, Problem
from tagalong.study import Results, Study


class UnluckyEncoder(nn.Module):
    """An encoder whose initial weights are far too large for half of the seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        if torch.rand(()) < 0.5:
            self.linear.weight.data *= 1e30

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs)


def unlucky_problem() -> tuple[Problem, list[int], list[int]]:
    problem = replace(diverging_problem(), encoder=lambda width=1.0: UnluckyEncoder()).only(["a", "b"])
    problem = replace(problem, train=_single(problem.train), val=_single(problem.val), test=_single(problem.test))
    luck = {seed: diverges(problem, "a", "b", seed=seed) for seed in range(12)}
    return problem, [seed for seed in luck if luck[seed]], [seed for seed in luck if not luck[seed]]


def _single(rows: object) -> object:
    return replace(rows, inputs=rows.inputs.float(), targets={name: own.float() for name, own in rows.targets.items()})


METHODS = ["stl", "tag", "auto"]
SEARCH: dict[str, Any] = {"effort": 6, "options": {"auto": {"average": False}}}  # copies have seeds of their own


def test_seeds_with_which_all_tasks_together_diverge_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem, bad, good = unlucky_problem()
    seeds = [bad[0], *good[:3]]
    with caplog.at_level(logging.WARNING):
        results = Study(problem, tmp_path).run(METHODS, budgets=[2], seeds=seeds, **SEARCH)
    assert {record.seed for record in results.records} == set(seeds[1:])
    assert results.settings["seeds"] == seeds
    assert results.settings["diverged_seeds"] == seeds[:1]
    verdict = results.verdict()
    assert verdict.provisional[-1] == f"one network for all tasks diverged with seed {bad[0]}, excluded here"
    assert not verdict.diverged
    assert f"a, b with seed {bad[0]} diverged" in caplog.text
    assert str(Results.load(tmp_path)) == str(results)
    assert not list(tmp_path.glob("partial/*"))
    without = Study(problem, tmp_path / "without").run(METHODS, budgets=[2], seeds=seeds[1:], **SEARCH)
    assert [record.test for record in without.records] == [record.test for record in results.records]


def test_a_fresh_seed_with_which_all_tasks_together_diverge_is_left_out(tmp_path: Path) -> None:
    problem, bad, good = unlucky_problem()
    first = next(seed for seed in good if seed + 1 in bad and seed + 2 in good)
    results = Study(problem, tmp_path).run(["stl"], seeds=[first], confirm=2)
    assert [record.seed for record in results.records_of(("stl", None))] == [first, first + 2]
    assert results.settings["diverged_seeds"] == [first + 1]
    assert results.verdict().seeds == 1


@pytest.mark.parametrize("methods", [["mtl"], ["tag", "auto"]])
def test_if_every_network_for_all_tasks_diverges_nothing_can_be_compared(methods: list[str], tmp_path: Path) -> None:
    problem, bad, _ = unlucky_problem()
    with pytest.raises(
        Diverged,
        match=rf"one network for all tasks diverged with seeds {bad[0]}, {bad[1]}, and everything is compared with it; "
        r"lower `recipe.lr`",
    ):
        Study(problem, tmp_path).run(methods, budgets=[2], seeds=bad[:2])
