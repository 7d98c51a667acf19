"""Totals as the paper has them: the sum of test errors in percent, or of test losses, over tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.group import Group
from tagalong.learn import Diverged
from tagalong.study import Lab, Oracle, Record, compare_methods

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.study import Outcome

Label = tuple[str, int | None]
Subset = frozenset[str]
MOST_TASKS = 12  # of which every subset is trained: 4095 networks a seed


class PaperOptimal(Oracle):
    """The paper's "Optimal": the groups with the lowest total on test data."""

    def table(self, lab: Lab, subsets: Sequence[Subset], seeds: Sequence[int]) -> dict[Subset, dict[str, float]]:
        """Test results of every subset; the paper chooses on them."""
        return subset_table(lab, seeds)


def in_percent(problem: Problem) -> bool:
    """Whether results are error rates in percent (CelebA) rather than losses (Taskonomy)."""
    return all(task.error_name == "error rate" for task in problem.tasks)


def noun_of(problem: Problem) -> str:
    """What results are, in a word."""
    return "error" if in_percent(problem) else "loss"


def kind_of(problem: Problem) -> str:
    """What results are."""
    return f"test {noun_of(problem)}"


def measure_of(problem: Problem, part: str = "test") -> str:
    """What a total is, with its unit."""
    return f"{part} {noun_of(problem)}{', %' if in_percent(problem) else ''}"


def digits_of(problem: Problem) -> int:
    """After the point, as the paper prints results."""
    return 2 if in_percent(problem) else 4


def result(problem: Problem, outcome: Outcome) -> float:
    """Of one task, as the paper's tables have it."""
    return 100 * outcome.error if in_percent(problem) else outcome.loss


def total(problem: Problem, outcomes: Mapping[str, Outcome]) -> float:
    """Of all tasks."""
    return sum(result(problem, outcome) for outcome in outcomes.values())


def one_row(problem: Problem) -> float:
    """What one wrong test row adds to a total of errors in percent; 0 for losses, of which it adds any amount."""
    return 100 / len(problem.splits["test"]) if in_percent(problem) else 0.0


def totals(problem: Problem, records: Iterable[Record], part: str = "test") -> dict[Label, list[float]]:
    """By method and budget, the total of every seed."""
    found: dict[Label, list[float]] = {}
    for record in records:
        found.setdefault((record.method, record.budget), []).append(total(problem, getattr(record, part)))
    return found


def refuse_many(problem: Problem) -> None:
    """Before anything is trained: every subset of many tasks is more than anybody waits for."""
    count = len(problem.names)
    if count > MOST_TASKS:
        raise ValueError(
            f"`tasks` must be {MOST_TASKS} at most, since every subset of them is trained, found {count}: "
            f"{2**count - 1:,} networks a seed"
        )


def train_subsets(lab: Lab, seeds: Sequence[int]) -> None:
    """Every subset of tasks, as the paper does for CelebA (511 networks) and its ablations."""
    refuse_many(lab.problem)
    lab.networks([lab.job(subset, seed) for seed in seeds for subset in lab.subsets()], "all subsets", diverged=True)


def results_of(lab: Lab, subset: Iterable[str], seeds: Sequence[int], part: str = "test") -> dict[str, list[float]]:
    """Of one plain network, for each of its tasks the result of every seed; NaN where it diverged."""
    jobs = [lab.job(subset, seed) for seed in seeds]
    rows = lab.networks(jobs, diverged=True)
    return {task: [result(lab.problem, getattr(rows[job], part)[task]) for job in jobs] for task in jobs[0].tasks}


def subset_table(lab: Lab, seeds: Sequence[int]) -> dict[Subset, dict[str, float]]:
    """Test results of every subset, means over seeds, as `select_groups` takes them; without those that diverged.

    Raises:
        Diverged: all networks of a task did.
    """
    found = {subset: results_of(lab, subset, seeds) for subset in lab.subsets()}
    means = {subset: {task: sum(v) / len(v) for task, v in of.items()} for subset, of in found.items()}
    there = {subset: of for subset, of in means.items() if all(map(math.isfinite, of.values()))}
    if lost := set(lab.problem.names) - set().union(*there):
        raise Diverged(f"every network of {', '.join(sorted(lost))} diverged; lower `recipe.lr`")
    return there


def grouping_totals(lab: Lab, groups: Iterable[Group], seeds: Sequence[int], part: str = "test") -> list[float]:
    """The total of every seed, each task where it is served."""
    sums = [0.0] * len(seeds)
    for group in groups:
        found = results_of(lab, group.trains, seeds, part)
        sums = [so_far + sum(found[task][i] for task in group.serves) for i, so_far in enumerate(sums)]
    return sums


def random_totals(lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> dict[int, list[float]]:
    """The exact expectation over all partitions into so many groups."""
    found = totals(lab.problem, compare_methods(lab, ["random"], budgets, seeds, {"random": {"exact": True}}))
    return {budget: found["random", budget] for budget in budgets}
