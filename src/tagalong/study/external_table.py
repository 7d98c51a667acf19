"""The verdict on a table of networks that were trained elsewhere, without a plan."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tagalong.tabular import TableError

from .external import ExternalStudy, tell_networks
from .external_files import read_results, read_targets
from .methods import Decision, Optimal
from .relative_losses import Subset
from .results import Results
from .runner import Runner


class BestInTable(Optimal):
    """Chooses the groups with the lowest validation losses from the networks in a table.

    Args:
        subsets: the tasks of each network.
    """

    name = "chosen"

    def __init__(self, subsets: Collection[Subset]) -> None:
        super().__init__(max_tasks=sys.maxsize)  # which limits what is trained, and here nothing is
        self._listed, self._complete = list(subsets), list[Subset]()

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        jobs = {subset: [runner.job(subset, seed) for seed in seeds] for subset in self._listed}
        self._complete = [subset for subset in self._listed if not runner.missing(jobs[subset])]
        return replace(super().decide(runner, budgets, seeds), deciding={})  # no networks were trained just to decide

    def subsets(self, runner: Runner) -> list[Subset]:
        return self._complete


def verdict_from_csv(
    path: str | Path,
    *,
    budgets: Sequence[int] | None = None,
    targets_file: str | Path | None = None,
    kinds: Mapping[str, str] | None = None,
    logits: bool = False,
) -> Results:
    """Compares the networks in a table: all tasks together, each alone, and the groups that are best on validation.

    Args:
        path: a table or JSON file with the results of networks (see `external_files.read_results`).
        budgets: the limits on the number of networks. Defaults to 2, 3 and 4, up to the number of tasks.
        targets_file: a file with the labels, if the table names files with predictions instead of losses.
        kinds: the kinds of tasks in that file: "binary", "multiclass" or "regression". By default, a task with
            predictions for several classes is multiclass, a task whose labels are 0 and 1 is binary, and any other is
            regression.
        logits: whether predictions for classes are logits instead of probabilities.

    Raises:
        InvalidInput: If the table is incomplete or invalid. The message lists everything that is missing or wrong.
    """
    study, networks = read_networks(Path(path), targets_file=targets_file, kinds=kinds, logits=logits)
    return compare_networks(study, networks, budgets, Path(path).stem)


def read_networks(
    path: Path,
    *,
    targets_file: str | Path | None = None,
    kinds: Mapping[str, str] | None = None,
    logits: bool = False,
) -> tuple[ExternalStudy, list[dict[str, Any]]]:
    """Returns a study in memory for the networks in a table, and their results (see `verdict_from_csv`)."""
    networks = read_results(path, predictions=targets_file is not None)
    tasks = list(dict.fromkeys(task for network in networks for task in network["tasks"]))
    if targets_file is None:
        return ExternalStudy(tasks, logits=logits), networks
    predictions = {task: values for network in networks for task, values in (network["val"] or {}).items()}
    classes = {task: np.shape(values)[1] for task, values in predictions.items() if np.ndim(values) == 2}
    known_tasks, labels = read_targets(Path(targets_file), tasks, kinds, classes)
    return ExternalStudy(known_tasks, targets=labels, logits=logits), networks


def compare_networks(
    study: ExternalStudy, networks: Sequence[Mapping[str, Any]], budgets: Sequence[int] | None, name: str
) -> Results:
    """Compares the networks of a table, given the arguments of `ExternalStudy.tell` for each."""
    subsets = [frozenset(network["tasks"]) for network in networks]
    all_tasks = frozenset(study.tasks)
    seeds = {network["seed"] for network, subset in zip(networks, subsets, strict=True) if subset == all_tasks}
    if not seeds:
        expected = f"must include a network that trains all tasks ({', '.join(study.tasks)}) as a baseline"
        raise TableError(name, expected, "none")
    tell_networks(study, networks)
    study.plan(methods=["mtl", "stl", BestInTable(dict.fromkeys(subsets))], budgets=budgets, seeds=sorted(seeds))
    results = study.results_so_far()
    assert results is not None
    results.problem = replace(results.problem, name=name)
    return results
