"""Whether networks learned anything: the test against a constant, and what the verdict says about it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from verdict_records import (
    APART,
    TASKS,
    TOGETHER,
    records,
    together,
    verdict_on,
    with_scores,
)

from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.study import LateNetworks, Learning, Results, Study
from tagalong.study.candidates import comparable_records
from tagalong.study.learning import combine_p_values, constant_p_values, gain_p_value
from tagalong.study.uncertainty import row_noise

RECIPE = Recipe(lr=0.02, batch_size=50, epochs=40, patience=4)


def make_problem(learned: tuple[str, ...] = (), kind: str = "regression", recipe: Recipe = RECIPE) -> Problem:
    """Three tasks, of which only the named ones depend on the inputs."""
    rng = torch.Generator().manual_seed(0)
    names = ("a", "b", "c")
    weights = torch.stack([torch.randn(4, generator=rng) * (name in learned) for name in names], 1)

    def split(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=rng)
        targets = inputs @ weights + torch.randn(rows, 3, generator=rng)
        targets = targets if kind == "regression" else (targets > 1.3).float()
        targets[torch.rand(rows, 3, generator=rng) < 0.1] = torch.nan
        return Split(inputs, {name: targets[:, column].contiguous() for column, name in enumerate(names)})

    tasks = tuple(Task(name, kind=kind) for name in names)
    return Problem("planted", tasks, split(400), split(200), split(200), MLP(4, (8,)), recipe=recipe)


def run(problem: Problem, out: Path, *methods: str, seeds: int = 2, **more: object) -> Results:
    return Study(problem, out, device="cpu").run(methods=["mtl", *methods], budgets=[2], seeds=seeds, **more)


# The test against a constant


def test_the_p_value_is_that_of_a_one_sided_t_test() -> None:
    gains = np.random.default_rng(0).normal(0.1, size=40)
    expected = stats.ttest_1samp(gains, 0, alternative="greater").pvalue
    assert gain_p_value(gains) == pytest.approx(expected)
    missing = np.insert(gains, [3, 20], np.nan)
    assert gain_p_value(missing) == pytest.approx(expected)
    assert gain_p_value(-gains) == pytest.approx(1 - expected)


def test_rows_of_a_cluster_count_as_one() -> None:
    gains = np.random.default_rng(0).normal(0.1, size=40)
    clusters = np.repeat(np.arange(40), 5)
    assert gain_p_value(np.repeat(gains, 5), clusters) == pytest.approx(gain_p_value(gains))
    assert gain_p_value(np.repeat(gains, 5)) < gain_p_value(gains)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [([], 1.0), ([np.nan], 1.0), ([5.0], 1.0), ([1.0, 1.0], 0.0), ([0.0, 0.0], 1.0), ([1.0, 2.0, -np.inf], 1.0)],
)
def test_too_few_equal_or_infinite_gains_have_a_p_value(gains: list[float], expected: float) -> None:
    assert gain_p_value(np.array(gains)) == expected
    assert gain_p_value(np.array([1.0, 1.1, 0.9]), np.zeros(3)) == 1.0, "one cluster proves nothing"


def combined_by_hand(p_values: list[float]) -> float:
    """Returns the combined p-value from the distribution that the method is named after."""
    return float(stats.cauchy.sf(np.mean(stats.cauchy.isf(np.minimum(p_values, 0.99)))))


def test_losses_are_averaged_over_seeds_and_groupings_are_combined() -> None:
    rng = np.random.default_rng(0)
    constant = {"a": rng.gamma(2.0, size=30), "b": rng.gamma(2.0, size=30)}
    groupings = [
        [{task: losses - gain + 0.3 * rng.normal(size=30) for task, losses in constant.items()} for _ in range(3)]
        for gain in (0.0, 0.1)
    ]
    found = constant_p_values(groupings, constant)
    for task in constant:
        means = [np.mean([seed[task] for seed in seeds], axis=0) for seeds in groupings]
        by_hand = [stats.ttest_rel(constant[task], losses, alternative="greater").pvalue for losses in means]
        assert found[task] == pytest.approx(combined_by_hand(by_hand))


@pytest.mark.parametrize("p_values", [[0.3], [0.0], [1.0, 1e-6], [0.02, 0.03, 0.9], [0.01] * 5, [1.0, 1.0]])
def test_combined_p_values_lie_between_the_smallest_and_that_of_bonferroni(p_values: list[float]) -> None:
    found = combine_p_values(p_values)
    assert found == pytest.approx(combined_by_hand(p_values), abs=1e-12)
    assert min(p_values) * 0.99 <= found + 1e-12
    assert found <= 1.1 * len(p_values) * min(p_values) + 1e-12


def test_combined_p_values_of_dependent_tests_are_seldom_small() -> None:
    rng = np.random.default_rng(0)
    for shared in (0.0, 0.5, 0.95):
        draws = math.sqrt(shared) * rng.normal(size=(4000, 1)) + math.sqrt(1 - shared) * rng.normal(size=(4000, 4))
        found = [combine_p_values(p_values) for p_values in stats.norm.sf(draws)]
        assert np.mean(np.array(found) <= 0.05) <= 0.06


def adjusted_by_hand(p_values: dict[str, float]) -> dict[str, float]:
    """Returns p-values adjusted by Benjamini and Hochberg, in the words of their paper."""
    ordered, number = sorted(p_values, key=p_values.get), len(p_values)
    return {
        task: min(p_values[later] * number / (rank + 1) for rank, later in enumerate(ordered) if rank >= place)
        for place, task in enumerate(ordered)
    }


def test_many_tasks_are_corrected_by_benjamini_and_hochberg() -> None:
    rng = np.random.default_rng(0)
    for number in (1, 3, 20):
        for power in (1, 3, 8):
            p_values = {f"t{place}": float(p) for place, p in enumerate(rng.random(number) ** power)}
            adjusted = adjusted_by_hand(p_values)
            assert Learning(p_values).unlearnt == tuple(task for task in p_values if adjusted[task] > 0.05)


def test_one_learnt_task_among_many_noisy_ones_is_found_and_seldom_another() -> None:
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        p_values = {"real": 1e-5} | {f"t{number}": float(p) for number, p in enumerate(rng.random(200))}
        unlearnt = Learning(p_values).unlearnt
        assert "real" not in unlearnt
        false += 200 - len(unlearnt)
    assert false / 200 < 0.15  # noisy tasks per study


# The verdict


TAG = records("tag", 2, [-0.1, -0.12, -0.11], [-0.1, -0.12, -0.11])


def test_unlearnt_tasks_are_left_out_of_the_change() -> None:
    worse = with_scores(TAG, "b", val=[20.0] * 3, test=[20.0] * 3)
    assert not verdict_on(worse, learning=Learning({"a": 0.0, "b": 0.0})).worth_it
    for learning in (Learning({"a": 0.0, "b": 0.6}), Learning({"b": 0.6})):  # without a constant, a task counts
        verdict = verdict_on(worse, learning=learning)
        assert (verdict.worth_it, verdict.unlearnt, verdict.nothing_learnt) == (True, ("b",), False)
        assert verdict.estimate == pytest.approx(-0.11)


def test_if_no_task_is_left_nothing_was_learnt() -> None:
    verdict = verdict_on(TAG, learning=Learning({"a": 0.3, "b": 0.6}))
    assert (verdict.nothing_learnt, verdict.worth_it) == (True, False)
    assert (verdict.recommended, verdict.groups, verdict.candidate) == (("mtl", None), TOGETHER, None)
    assert verdict.by_budget == {}


def test_a_network_that_diverged_on_an_unlearnt_task_is_still_no_candidate() -> None:
    lost = with_scores(TAG, "b", val=[math.nan] * 3)
    verdict = verdict_on(lost, learning=Learning({"a": 0.0, "b": 0.6}))
    assert (verdict.candidate, verdict.diverged) == (None, (("tag", 2),))


def test_networks_best_in_their_last_epochs_make_the_verdict_provisional() -> None:
    late = {("mtl", None): LateNetworks(0, 3), ("tag", 2): LateNetworks(2, 6), ("hoa", 2): LateNetworks(6, 6)}
    verdict = verdict_on(TAG, learning=Learning({}, late))
    assert verdict.late == LateNetworks(2, 9), "of the candidate and mtl only"
    assert len(verdict.provisional) == 1
    assert verdict_on(TAG, learning=Learning({}, late | {("tag", 2): LateNetworks(0, 6)})).provisional == ()


def test_only_groupings_that_may_be_recommended_are_compared_with_the_constant() -> None:
    found = [
        *together(),
        *TAG,
        *records("hoa", 2, [-0.2] * 3, [-0.2] * 3),  # the same groups
        *records("oracle", 2, [-0.9] * 3, [-0.9] * 3, honest=False),
        *records("random", 2, [-0.9] * 3, [-0.9] * 3, groups=()),
    ]
    assert [some[0].groups for some in comparable_records(found)] == [TOGETHER, APART]


def test_the_noise_of_test_rows_is_that_of_the_counted_tasks() -> None:
    found = [*together(), *TAG]
    rng = np.random.default_rng(0)
    rows = {id(record): {task: rng.gamma(2.0, size=20) for task in TASKS} for record in found}
    counted = row_noise(found, lambda record: rows[id(record)], unlearnt=["b"])
    assert counted == row_noise(found, lambda record: {"a": rows[id(record)]["a"]})
    assert row_noise(found, lambda record: rows[id(record)], unlearnt=TASKS) == {}


# Studies


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_pure_noise_is_not_learnt(kind: str, tmp_path: Path) -> None:
    found = run(make_problem(kind=kind), tmp_path, "stl", "constant")
    assert found.verdict().nothing_learnt
    assert Results.load(tmp_path).verdict() == found.verdict()


def test_one_learnt_task_among_noise_is_the_only_one_that_counts(tmp_path: Path) -> None:
    problem = make_problem(("b",))
    found, again = (run(problem, tmp_path, "stl", "constant", confirm=1) for _ in range(2))
    assert again.learning == found.learning
    assert found.verdict().unlearnt == ("a", "c")
    assert found.verdict().candidate == ("stl", None)
    stl, mtl = (found.records_of(label)[-1] for label in (("stl", None), ("mtl", None)))
    assert found.verdict().estimate == pytest.approx(stl.test["b"].loss / mtl.test["b"].loss - 1)
    row = next(row for row in found.table() if row.method == "constant")
    assert (row.groups, row.training.networks, row.training_cost, row.diverged) == ((), 0, 0.0, 0)
    train, test = (split.targets["b"].double() for split in (problem.train, problem.test))
    assert row.loss["b"] == pytest.approx(float((test - train.nanmean()).square().nanmean()))


def test_learnt_tasks_all_count(tmp_path: Path) -> None:
    found = run(make_problem(("a", "b", "c"), kind="binary"), tmp_path, "stl")
    assert found.verdict().unlearnt == ()
    assert set(found.learning.p_values) == {"a", "b", "c"}


def test_two_epochs_are_provisional_and_enough_epochs_are_not(tmp_path: Path) -> None:
    short = run(make_problem(("a",), recipe=replace(RECIPE, epochs=2)), tmp_path / "short", "stl", seeds=3)
    assert short.learning.late == {("mtl", None): LateNetworks(3, 3), ("stl", None): LateNetworks(9, 9)}
    assert short.verdict().late == LateNetworks(12, 12)
    long = run(make_problem(("a",)), tmp_path / "long", "stl", seeds=3)
    assert long.verdict().provisional == ()
    last = replace(RECIPE, epochs=2, patience=None, keep="last")
    assert run(make_problem(recipe=last), tmp_path / "last").learning.late == {}


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square()


def test_the_constant_needs_labels_and_networks_for_its_rules(tmp_path: Path) -> None:
    own = replace(make_problem(), tasks=tuple(Task(name, kind="custom", loss=squared) for name in ("a", "b", "c")))
    with pytest.raises(ValueError, match="'constant' requires tasks with one label per row"):
        run(own, tmp_path, "constant")
    with pytest.raises(ValueError, match="'constant' trains no networks"):
        run(make_problem(), tmp_path, "constant+pcgrad")
    assert run(own, tmp_path).learning.p_values == {}


def test_rows_of_a_group_count_once_in_a_study(tmp_path: Path) -> None:
    """Copies of the same few rows are no evidence."""
    problem = make_problem(("b",))

    def copied(split: Split, groups: bool) -> Split:
        rows = torch.arange(40).repeat_interleave(5)
        inputs, targets = split.batch(rows)
        return Split(inputs, targets, rows if groups else None)

    naive, grouped = (replace(problem, val=copied(problem.val, groups)) for groups in (False, True))
    one, other = (run(some, tmp_path / name) for some, name in ((naive, "naive"), (grouped, "grouped")))
    assert one.learning.p_values["b"] < other.learning.p_values["b"]
