"""Seeds with which the network for all tasks diverges, so that there is nothing to compare with."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diverging_small import diverges, diverging_problem
from torch import nn

from tagalong.learn import Diverged, Problem, Split
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


def in_single_precision(rows: Split) -> Split:
    return replace(rows, inputs=rows.inputs.float(), targets={name: own.float() for name, own in rows.targets.items()})


@pytest.fixture(scope="module")
def problem() -> Problem:
    problem = replace(diverging_problem(), encoder=lambda width=1.0: UnluckyEncoder()).only(["a", "b"])
    return replace(problem, **{part: in_single_precision(rows) for part, rows in problem.splits.items()})


@pytest.fixture(scope="module")
def diverging(problem: Problem) -> list[bool]:
    """Says of each seed whether the network for all tasks diverges."""
    return [diverges(problem, "a", "b", seed=seed) for seed in range(12)]


METHODS = ["stl", "tag", "auto"]
SEARCH: dict[str, Any] = {"effort": 6, "options": {"auto": {"average": False}}}  # copies have seeds of their own


def test_seeds_with_which_all_tasks_together_diverge_are_left_out_and_named(
    problem: Problem, diverging: list[bool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = diverging.index(True), [seed for seed in range(12) if not diverging[seed]][:3]
    with caplog.at_level(logging.WARNING):
        results = Study(problem, tmp_path).run(METHODS, budgets=[2], seeds=[bad, *good], **SEARCH)
    assert {record.seed for record in results.records} == set(good)
    assert results.settings["seeds"] == [bad, *good]
    assert results.settings["diverged_seeds"] == [bad]
    assert f"with seed {bad} diverged" in caplog.text
    assert str(Results.load(tmp_path)) == str(results)
    assert not list(tmp_path.glob("partial/*"))
    without = Study(problem, tmp_path / "without").run(METHODS, budgets=[2], seeds=good, **SEARCH)
    assert [record.test for record in without.records] == [record.test for record in results.records]


def test_a_fresh_seed_with_which_all_tasks_together_diverge_is_left_out(
    problem: Problem, diverging: list[bool], tmp_path: Path
) -> None:
    first = next(seed for seed in range(10) if diverging[seed : seed + 3] == [False, True, False])
    results = Study(problem, tmp_path).run(["stl"], seeds=[first], confirm=2)
    assert [record.seed for record in results.records_of(("stl", None))] == [first, first + 2]
    assert results.settings["diverged_seeds"] == [first + 1]
    assert results.verdict().seeds == 1


@pytest.mark.parametrize("methods", [["mtl"], ["tag", "auto"]])
def test_if_every_network_for_all_tasks_diverges_nothing_can_be_compared(
    problem: Problem, diverging: list[bool], methods: list[str], tmp_path: Path
) -> None:
    bad = [seed for seed in range(12) if diverging[seed]][:2]
    with pytest.raises(Diverged, match=rf"{bad[0]}, {bad[1]}"):
        Study(problem, tmp_path).run(methods, budgets=[2], seeds=bad)
