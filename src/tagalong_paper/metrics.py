"""The paper's metric: the sum of the tasks' test errors (in percent) or test losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Diverged
from tagalong.study import Backend, Oracle, Record, TrainingBackend, compare_methods

if TYPE_CHECKING:
    from tagalong.learn import Job, Problem
    from tagalong.study import Score

Label = tuple[str, int | None]  # method and budget
TaskSet = frozenset[str]
MAX_TASKS = 12  # the maximum for training every subset: 4095 networks per seed


class PaperOptimal(Oracle):
    """The paper's "Optimal": the groups with the lowest total on test data."""

    def table(
        self, backend: Backend, subsets: Sequence[TaskSet], seeds: Sequence[int]
    ) -> dict[TaskSet, dict[str, float]]:
        """Returns the test results of every subset, which the paper uses to choose groups."""
        assert isinstance(backend, TrainingBackend)
        return subset_table(backend, seeds)


def is_error_rate(problem: Problem) -> bool:
    """Returns whether results are error rates in percent (CelebA) rather than losses (Taskonomy)."""
    return all(task.error_name == "error rate" for task in problem.tasks)


def metric_noun(problem: Problem) -> str:
    """Returns the noun for the metric: "error" or "loss"."""
    return "error" if is_error_rate(problem) else "loss"


def metric_name(problem: Problem) -> str:
    """Returns the name of the metric: "test error" or "test loss"."""
    return f"test {metric_noun(problem)}"


def metric_label(problem: Problem, split: str = "test") -> str:
    """Returns a label for the metric with its unit, such as "test error, %"."""
    return f"{split} {metric_noun(problem)}{', %' if is_error_rate(problem) else ''}"


def metric_digits(problem: Problem) -> int:
    """Returns the number of decimal places that the paper prints."""
    return 2 if is_error_rate(problem) else 4


def task_result(problem: Problem, score: Score) -> float:
    """Returns the result of one task, in the unit of the paper's tables."""
    return 100 * score.error if is_error_rate(problem) else score.loss


def total_result(problem: Problem, scores: Mapping[str, Score]) -> float:
    """Returns the sum of the results of all tasks."""
    return sum(task_result(problem, score) for score in scores.values())


def error_per_row(problem: Problem) -> float:
    """Returns how much one misclassified test row adds to a total error, in percent, or 0 for losses."""
    return 100 / len(problem.splits["test"]) if is_error_rate(problem) else 0.0


def totals_by_method(problem: Problem, records: Iterable[Record], split: str = "test") -> dict[Label, list[float]]:
    """Returns the totals for all seeds, by method and budget."""
    found: dict[Label, list[float]] = {}
    for record in records:
        found.setdefault((record.method, record.budget), []).append(total_result(problem, getattr(record, split)))
    return found


def check_task_count(problem: Problem) -> None:
    """Raises an error if there are too many tasks to train every subset."""
    count = len(problem.names)
    if count > MAX_TASKS:
        raise InvalidInput(
            "tasks",
            f"must contain at most {MAX_TASKS} tasks",
            str(count),
            f"training every subset would require {2**count - 1:,} networks per seed",
        )


def train_all_subsets(backend: TrainingBackend, seeds: Sequence[int]) -> None:
    """Trains a network for every subset of tasks, as the paper does for CelebA (511 networks)."""
    backend.networks(all_subset_jobs(backend, seeds), "all subsets", diverged=True)


def all_subset_jobs(backend: TrainingBackend, seeds: Sequence[int]) -> list[Job]:
    """Returns the networks for every subset of tasks with every seed."""
    check_task_count(backend.problem)
    return [backend.job(subset, seed) for seed in seeds for subset in backend.subsets()]


def network_results(
    backend: TrainingBackend, subset: Iterable[str], seeds: Sequence[int], split: str = "test"
) -> dict[str, list[float]]:
    """Returns the results of a subset's network by task and seed, with NaN for seeds that diverged."""
    jobs = [backend.job(subset, seed) for seed in seeds]
    rows = backend.networks(jobs, diverged=True)
    return {
        task: [task_result(backend.problem, getattr(rows[job], split)[task]) for job in jobs] for task in jobs[0].tasks
    }


def subset_table(backend: TrainingBackend, seeds: Sequence[int]) -> dict[TaskSet, dict[str, float]]:
    """Returns the mean test results of every subset, except for subsets that diverged.

    Raises:
        Diverged: If all networks trained on one of the tasks diverged.
    """
    found = {subset: network_results(backend, subset, seeds) for subset in backend.subsets()}
    means = {subset: {task: sum(v) / len(v) for task, v in results.items()} for subset, results in found.items()}
    finite = {subset: results for subset, results in means.items() if all(map(math.isfinite, results.values()))}
    if lost := set(backend.problem.names) - set().union(*finite):
        raise Diverged(f"every network of {', '.join(sorted(lost))} diverged; lower `recipe.lr`")
    return finite


def grouping_totals(
    backend: TrainingBackend, groups: Iterable[Group], seeds: Sequence[int], split: str = "test"
) -> list[float]:
    """Returns the total for each seed, where each task's result comes from the network that serves it."""
    sums = [0.0] * len(seeds)
    for group in groups:
        found = network_results(backend, group.trains, seeds, split)
        sums = [total + sum(found[task][i] for task in group.serves) for i, total in enumerate(sums)]
    return sums


def random_totals(backend: TrainingBackend, budgets: Sequence[int], seeds: Sequence[int]) -> dict[int, list[float]]:
    """Returns the expected total of random groups for each budget, computed exactly over all partitions."""
    records = compare_methods(backend, ["random"], budgets, seeds, {"random": {"exact": True}})
    found = totals_by_method(backend.problem, records)
    return {budget: found["random", budget] for budget in budgets}
