"""Networks that diverge: an experiment continues without them if it can, and otherwise says what to do."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tagalong.learn import Diverged, Problem, Recipe, Task
from tagalong.study import Score
from tagalong_paper import ExperimentSetup, Report, Value, run_experiment
from tagalong_paper.claims import claim_all_lower
from tagalong_paper.experiments import capacity, hyperparameters, partner
from tagalong_paper.metrics import subset_table


def backend_with_diverged(diverged_sets: set[frozenset[str]]) -> Any:
    """A backend in which these sets of tasks have diverged."""
    names = ("a", "b", "c")
    subsets = [frozenset(names[place] for place in range(3) if number >> place & 1) for number in range(1, 8)]

    def networks(jobs: list[frozenset[str]], what: str = "", *, diverged: bool) -> dict[frozenset[str], Any]:
        assert diverged
        value = {job: math.nan if job in diverged_sets else float(len(job)) for job in jobs}
        outcomes = {job: {task: Score(value[job], value[job]) for task in job} for job in jobs}
        return {job: SimpleNamespace(test=outcomes[job]) for job in jobs}

    class Job(frozenset[str]):
        tasks = property(lambda self: tuple(sorted(self)))

    problem = SimpleNamespace(names=names, tasks=[SimpleNamespace(error_name="mae") for _ in names])

    def subsets_by_size(smallest: int = 1, largest: int = 3) -> list[frozenset[str]]:
        return [subset for subset in subsets if smallest <= len(subset) <= largest]

    return SimpleNamespace(
        subsets=subsets_by_size, job=lambda subset, seed: Job(subset), networks=networks, problem=problem
    )


def test_a_diverged_subset_is_never_chosen() -> None:
    diverged_sets = {frozenset("a"), frozenset("ab")}
    found = subset_table(backend_with_diverged(diverged_sets), [0, 1])
    assert len(found) == 5
    assert not diverged_sets & set(found)
    assert found[frozenset("ac")] == {"a": 2.0, "c": 2.0}


def test_the_error_names_a_task_without_a_network() -> None:
    diverged_sets = {frozenset(names) for names in ("a", "ab", "ac", "abc")}
    with pytest.raises(Diverged, match=r"every network of a diverged; lower `recipe.lr`"):
        subset_table(backend_with_diverged(diverged_sets), [0])


def test_too_few_networks_to_cover_all_tasks_are_reported_as_divergence() -> None:
    diverged_sets = {frozenset(names) for names in ("ab", "ac", "bc", "abc")}  # one network for each task is left
    backend = backend_with_diverged(diverged_sets)
    backend.problem.recipe = Recipe(lr=0.5, batch_size=8)
    setup: Any = SimpleNamespace(budgets=(2, 3))
    with pytest.raises(Diverged, match=r"4 of 7 subsets diverged .* 0.5 .* 8, and no 2 .* lower `recipe.lr`"):
        hyperparameters._best_groupings(setup, backend, [0])
    setup.budgets = (3,)
    assert set(hyperparameters._best_groupings(setup, backend, [0])) == {3}


def test_a_claim_with_a_diverged_comparison_is_not_tested_but_can_be_refuted() -> None:
    diverged_sets, better, worse = ([1.0, math.nan], [2.0, 2.1]), ([1.0, 1.1], [2.0, 2.1]), ([3.0, 3.1], [2.0, 2.1])
    assert claim_all_lower("better", {"a": better, "b": diverged_sets}).reproduced == "not tested"
    assert claim_all_lower("better", {"a": worse, "b": diverged_sets}).reproduced == "no"


def test_a_diverged_pair_has_no_gain() -> None:
    found = partner.pair_errors(backend_with_diverged({frozenset("ab")}), [0, 1])
    assert found == {"a": {"c": [2.0, 2.0]}, "b": {"c": [2.0, 2.0]}, "c": {"a": [2.0, 2.0], "b": [2.0, 2.0]}}
    with pytest.raises(Diverged, match=r"every pair with a diverged; lower `recipe.lr`"):
        partner.pair_errors(backend_with_diverged({frozenset("ab"), frozenset("ac")}), [0])


def exploding(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.exp(1000 * (outputs[:, 0] - targets) ** 2)


@pytest.fixture
def diverging_setup(tmp_path: Path) -> ExperimentSetup:
    """A setup whose networks all diverge."""
    rows = torch.randn(90, 3, generator=torch.manual_seed(0))
    names = ("a", "b", "c")
    labels = {name: 5 + rows[:, place].numpy() for place, name in enumerate(names)}
    tasks = [Task(name, "custom", loss=exploding) for name in names]
    recipe = Recipe(lr=1.0, batch_size=32, epochs=2)
    return ExperimentSetup(
        Problem.from_arrays(rows, labels, tasks, recipe=recipe), tmp_path, seeds=(0, 1), device="cpu"
    )


def cells(report: Report, table: str, column: str) -> list[float]:
    return [cell.mean for cell in report.table(table).column(column) if isinstance(cell, Value)]


def test_claims_about_diverged_methods_are_not_tested(diverging_setup: ExperimentSetup) -> None:
    report = run_experiment("no-early-stopping", diverging_setup)
    assert all(map(math.isnan, cells(report, "Total", "last weights")))
    assert {claim.reproduced for claim in report.claims} == {"not tested"}


def test_no_larger_networks_are_trained_if_mtl_diverges(
    diverging_setup: ExperimentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def larger(*_: object) -> None:
        raise AssertionError("larger networks were trained")

    monkeypatch.setattr(capacity, "_totals", larger)
    with pytest.raises(Diverged, match=r"all tasks together: .* lower `recipe.lr`"):
        run_experiment("capacity", diverging_setup, methods=["mtl"])


def test_tune_has_no_best_setting_if_all_diverged(diverging_setup: ExperimentSetup) -> None:
    found = run_experiment("tune", diverging_setup)
    assert found.numbers == {"lr": None, "batch_size": None, "alpha": None}
    assert all(map(math.isinf, cells(found, "GradNorm", "total")))
    assert {table.note for table in found.tables} == {"-: diverged"}


def test_the_error_says_what_to_do_if_all_networks_diverge(diverging_setup: ExperimentSetup) -> None:
    with pytest.raises(Diverged, match=r"lower `recipe.lr`"):
        run_experiment("hyperparameters", diverging_setup)
