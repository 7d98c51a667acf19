"""The rule that recommends, and what test rows report."""

from typing import Any

import numpy as np
import pytest

from tagalong.group import Group
from tagalong.study.evidence import join_folds
from tagalong.study.records import SkillScale
from tagalong.study.rule import Evidence, Way, decide
from tagalong.study.verdict import ServingCost, Verdict

ROWS = 400
PLAIN, APART = (Group("ab", "ab"),), (Group("a", "a"), Group("b", "b"))


def drawn(skill: float, number: int, seeds: int = 3, noise: float = 0.3) -> tuple[dict[str, np.ndarray], ...]:
    """Skills of two tasks on rows, whose mean is exactly the given one; rows are alike for all ways."""
    shared = np.random.default_rng(0).normal(size=(2, ROWS))
    by_seed = []
    for seed in range(seeds):
        rows = shared + noise * np.random.default_rng([number, seed]).normal(size=(2, ROWS))
        rows += skill - rows.mean(1, keepdims=True)
        by_seed.append({"a": rows[0], "b": rows[1]})
    return tuple(by_seed)


def way(
    name: str, val: float, test: float, operations: float, groups: Any = PLAIN, number: int = 1, **more: Any
) -> Way:
    errors = ({"a": 1 - test, "b": 1 - test},) * 3
    label = (name, None)
    rows = drawn(val, number), drawn(test, number + 50)
    return Way(label, (0, 1, 2), len(groups), (groups,) * 3, *rows, errors, ServingCost(operations), **more)


def evidence(*ways: Way, weights: Any = None, **more: Any) -> Evidence:
    scale = SkillScale({}, {}, weights or {"a": 1.0, "b": 1.0})
    return Evidence(ways, ("mtl", None), scale, **more)


def judge(*ways: Way, **more: Any) -> Verdict:
    return decide(evidence(way("mtl", 0.4, 0.4, 1, number=0), *ways, **more))


def test_the_cheapest_way_within_the_tolerance_is_recommended() -> None:
    good, cheap = way("good", 0.5, 0.5, 10, APART, number=1), way("cheap", 0.498, 0.6, 2, number=2)
    assert judge(good, cheap).recommended == ("cheap", None)
    assert judge(good, way("worse", 0.45, 0.6, 2, number=2)).recommended == ("good", None), "test rows do not choose"
    near = way("near", 0.489, 0.5, 2, number=2)
    assert judge(good, near).recommended == ("good", None), "the tolerance is at most a point"
    alike = judge(good, way("other", 0.499, 0.6, 2, APART, number=2))
    assert (alike.recommended, alike.by_budget[2].label) == (("other", None), ("other", None)), "of as many models, too"
    searched = way("searched", 0.501, 0.5, 10, APART, number=1, deciding=60.0)
    assert judge(good, searched).recommended == ("good", None), "training counts what choosing took"


def test_the_gain_is_that_of_paired_rows_and_the_seeds_of_the_reference() -> None:
    verdict = judge(way("stl", 0.5, 0.47, 2, APART))
    reference, mine = drawn(0.4, 50), drawn(0.47, 51)
    picked = verdict.chosen.seed
    difference = np.mean([mine[picked][task] - np.mean([rows[task] for rows in reference], 0) for task in "ab"], 0)
    assert verdict.gain.estimate == pytest.approx(0.07)
    half = 1.959964 * difference.std(ddof=1) / np.sqrt(ROWS)
    assert verdict.gain.high - verdict.gain.estimate == pytest.approx(half, rel=1e-3), "all seeds are equally good"
    assert verdict.worth_it
    assert verdict.chosen.relative_cost == 2
    assert {answer.task: answer.after.estimate for answer in verdict.per_task} == pytest.approx({"a": 0.47, "b": 0.47})
    assert all(answer.learnt for answer in verdict.per_task)


def test_a_way_that_went_wrong_on_a_voting_task_is_out() -> None:
    bad = way("bad", 0.6, 0.6, 2, number=3)
    for rows in bad.val:
        rows["b"] = rows["b"] - 2.0
        rows["a"] = rows["a"] + 9.0
    assert judge(bad).recommended == ("mtl", None)
    few = {"a": (100, 50), "b": (100, 4)}
    assert judge(bad, labels=few).recommended == ("bad", None)
    assert judge(bad, labels=few).left_out == ("b",)


def test_weights_decide_between_tasks() -> None:
    one_sided = way("one", 0.4, 0.4, 2, number=4)
    for rows in (*one_sided.val, *one_sided.test):
        rows["a"], rows["b"] = rows["a"] + 0.1, rows["b"] - 0.2
    assert judge(one_sided).recommended == ("mtl", None)
    verdict = judge(one_sided, weights={"a": 9.0, "b": 1.0})
    assert verdict.recommended == ("one", None)
    assert verdict.gain.estimate == pytest.approx(0.9 * 0.1 - 0.1 * 0.2)
    assert verdict.worse == ("b",)


def test_missing_labels_weigh_tasks_not_rows() -> None:
    """A task with few labels counts as much as others; the interval is that of resampled rows."""
    few = way("few", 0.5, 0.5, 2, number=5)
    reference = way("mtl", 0.4, 0.4, 1, number=0, varies=False)
    for rows in (*few.test, *reference.test):
        rows["b"][100:] = np.nan
    verdict = decide(evidence(reference, few))
    mine = few.test[verdict.chosen.seed]
    differences = {task: mine[task] - np.mean([rows[task] for rows in reference.test], axis=0) for task in "ab"}
    assert verdict.gain.estimate == pytest.approx(np.mean([np.nanmean(own) for own in differences.values()]))
    assert verdict.per_task[1].labels == 100
    draws = np.random.default_rng(0).integers(0, ROWS, (4000, ROWS))
    resampled = np.mean([np.nanmean(own[draws], axis=1) for own in differences.values()], axis=0)
    assert verdict.gain.high - verdict.gain.estimate == pytest.approx(1.96 * resampled.std(), rel=0.07)


def test_groups_are_compared_with_copies_and_cheaper_ways_are_named() -> None:
    copies = (Group("ab", "ab"), Group("ab", "ab", copy=1))
    verdict = judge(way("stl", 0.5, 0.5, 2, APART), way("ensemble", 0.45, 0.52, 2, copies, number=7))
    assert (verdict.recommended, verdict.copies) == (("stl", None), ("ensemble", None))
    assert verdict.over_copies.estimate == pytest.approx(-0.02)
    assert verdict.better_than_copies is False
    assert {models: one.label[0] for models, one in verdict.by_budget.items()} == {1: "mtl", 2: "stl"}
    ahead = judge(way("stl", 0.5, 0.5, 2, APART), way("small", 0.3, 0.7, 0.5, number=8))
    assert (ahead.cheaper, ahead.own_error) == (("small", None), ("small", None))
    assert ahead.recommended == ("stl", None)


def test_fresh_seeds_judge_the_recipe() -> None:
    fresh = evidence(way("mtl", 0.4, 0.4, 1, number=10), way("stl", 0.5, 0.45, 2, APART, number=11))
    verdict = decide(evidence(way("mtl", 0.4, 0.4, 1, number=0), way("stl", 0.5, 0.5, 2, APART)), fresh)
    assert verdict.recipe.estimate == pytest.approx(0.05)
    assert verdict.recipe.above_zero


def test_the_answer_names_the_families_that_are_averaged() -> None:
    families = tuple(Group("ab", "ab", network=name) for name in (None, "boosting", "ridge"))
    answer = str(judge(way("blend", 0.6, 0.6, 3, families)))
    assert all(name in answer for name in ("network", "boosting", "ridge"))


def test_pure_noise_is_seldom_worth_it() -> None:
    worth_it = 0
    for repetition in range(300):
        draw = np.random.default_rng(repetition)
        ways = []
        for name, groups in (("mtl", PLAIN), ("stl", APART), ("tag", APART), ("uw", PLAIN)):
            parts = [[{task: draw.normal(size=80) for task in "ab"} for _ in range(3)] for _ in range(2)]
            errors = ({"a": 1.0, "b": 1.0},) * 3
            cost = ServingCost(len(groups))
            label = (name, None)
            ways.append(Way(label, (0, 1, 2), len(groups), (groups,) * 3, *map(tuple, parts), errors, cost))
        worth_it += decide(evidence(*ways)).worth_it
    assert worth_it <= 0.05 * 300


def test_folds_with_other_models_give_those_of_the_first_at_their_mean_cost() -> None:
    plans = PLAIN, APART
    folds = [
        evidence(way("mtl", 0.4, 0.4, 1, number=0), way("auto", 0.5, 0.5, cost, plan))
        for cost, plan in zip((2, 6), plans, strict=True)
    ]
    joined = join_folds(folds).way(("auto", None))
    assert joined is not None
    assert (joined.models, joined.groups[0], joined.cost.operations) == (1, PLAIN, 4)
    assert len(joined.val[0]["a"]) == 2 * ROWS
