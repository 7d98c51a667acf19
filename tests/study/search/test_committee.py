"""Committees, compared with enumeration."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tagalong.learn import Task
from tagalong.study.search.answers import ALL, FIRST, SECOND, Answers
from tagalong.study.search.committee import (
    best_set,
    cross_fitted_rows,
    select_committee,
    select_teachers,
    teachers_flattery,
)

TASKS = [Task("a", kind="regression"), Task("b"), Task("c", kind="multiclass", classes=3)]
ROWS, NETWORKS, WHOLE = 60, 7, 4  # rows, networks, and networks for all tasks
WORTH = (1.0, 2.0, 0.5)


def some_answers(seed: int, order: tuple[int, ...] = (0, 1, 2)) -> Answers:
    """Returns the answers of four networks for all tasks and of three that lack one task each."""
    draw = torch.Generator().manual_seed(seed)
    targets = {
        "a": torch.randn(ROWS, generator=draw),
        "b": (torch.rand(ROWS, generator=draw) < 0.4).float(),
        "c": torch.randint(3, (ROWS,), generator=draw).float(),
    }
    signal = {"a": 0.5 * targets["a"][:, None], "b": targets["b"][:, None], "c": torch.zeros(ROWS, 3)}
    noise = [{name: torch.randn(some.shape, generator=draw) for name, some in signal.items()} for _ in range(NETWORKS)]
    targets["a"][:5] = torch.nan
    answers = Answers([TASKS[place] for place in order], targets)
    for number, own in enumerate(noise):
        lacking = "abc"[number - WHOLE] if number >= WHOLE else None
        answers.add({name: signal[name] + some for name, some in own.items() if name != lacking})
    answers.worth = np.array([WORTH[place] for place in order])
    return answers


def value(answers: Answers, members: tuple[int, ...], passes: int | None) -> float:
    """Returns the weighted sum of losses, from the best network for each task or from all of them."""
    total = 0.0
    for task, worth in enumerate(answers.worth):
        able = tuple(member for member in members if answers.trained[member, task])
        averages = [able] if passes is None else [(member,) for member in able]
        if not able:
            return np.inf
        total += worth * answers.losses(averages)[:, task, ALL].min()
    return float(total)


@pytest.mark.parametrize("passes", [None, 1])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("many", [False, True])
def test_committees_are_nearly_as_good_as_those_of_enumeration(
    size: int, passes: int | None, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:  # for enumeration
        monkeypatch.setattr("tagalong.study.search.committee.MAX_ENUMERATED", 0)
    optimal = 0
    for seed in range(12):
        answers = some_answers(seed)
        chosen = select_committee(answers, range(NETWORKS), size, passes=passes)
        best = min(value(answers, some, passes) for some in combinations(range(NETWORKS), size))
        assert value(answers, chosen.members, passes) == pytest.approx(chosen.value)
        assert len(chosen.members) == size
        assert best - 1e-9 <= chosen.value <= 1.05 * best
        optimal += chosen.value <= best + 1e-9
    assert optimal >= (11 if many else 12), "of 12"


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([None, 1]), st.sampled_from([ALL, FIRST, SECOND]))
def test_every_task_is_answered_by_members_that_were_trained_on_it(
    seed: int, size: int, passes: int | None, part: int
) -> None:
    answers = some_answers(seed)
    chosen = select_committee(answers, range(NETWORKS), size, part=part, passes=passes)
    assert list(chosen.members) == sorted(set(chosen.members))
    for task, some in enumerate(chosen.answers):
        able = {member for member in chosen.members if answers.trained[member, task]}
        assert some
        assert set(some) <= able
        assert set(some) == able if passes is None else len(some) == 1


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.permutations([0, 1, 2]), st.sampled_from([None, 1]))
def test_permuting_the_tasks_permutes_the_answers(seed: int, order: list[int], passes: int | None) -> None:
    plain, permuted = some_answers(seed), some_answers(seed, tuple(order))
    found = select_committee(plain, range(NETWORKS), 2, passes=passes)
    other = select_committee(permuted, range(NETWORKS), 2, passes=passes)
    assert other.members == found.members
    assert other.answers == tuple(found.answers[place] for place in order)


def test_committees_have_at_most_as_many_members_as_the_pool_or_fewer_if_that_is_better() -> None:
    answers = some_answers(0)
    assert select_committee(answers, [3, 1], 9).members == (1, 3)
    assert select_committee(answers, [2], 9, passes=1).answers == ((2,),) * 3
    targets = torch.linspace(-1, 1, ROWS)
    answers = Answers(TASKS[:1], {"a": targets})
    for error in (0.1, 0.5):
        answers.add({"a": (targets + error)[:, None]})
    assert select_committee(answers, range(2), 2).members == (0, 1)
    assert select_committee(answers, range(2), 2, fewer=True).members == (0,)


def test_rows_are_judged_by_committees_that_other_rows_chose() -> None:
    answers = some_answers(3)
    rows = cross_fitted_rows(answers, range(NETWORKS), 2)
    for part, judged in ((SECOND, answers.first), (FIRST, ~answers.first)):
        chosen = select_committee(answers, range(NETWORKS), 2, part=part)
        for number, task in enumerate(answers.tasks):
            own = answers.row_losses(number, chosen.answers[number])
            np.testing.assert_array_equal(rows[task.name][judged], own[judged])


def test_choosing_among_equal_networks_flatters_only_the_rows_that_choose() -> None:
    ratios = {"chosen": [], "cross-fitted": []}
    for seed in range(30):
        draw = torch.Generator().manual_seed(seed)
        answers = Answers(TASKS[:1], {"a": torch.randn(ROWS, generator=draw)})
        for _ in range(20):
            answers.add({"a": torch.randn(ROWS, 1, generator=draw)})
        base = answers.losses([(number,) for number in range(20)]).mean(0)
        chosen = select_committee(answers, range(20), 1).members
        rows = cross_fitted_rows(answers, range(20), 1)["a"]
        ratios["chosen"].append(answers.losses([chosen])[0, 0, ALL] / base[0, ALL])
        ratios["cross-fitted"].append(rows.mean() / base[0, ALL])
    assert np.mean(ratios["chosen"]) < 0.75
    assert abs(np.mean(ratios["cross-fitted"]) - 1) < 0.06


def test_teachers_are_at_least_as_good_as_any_network_and_may_repeat() -> None:
    for seed in range(10):
        answers = some_answers(seed)
        teachers = select_teachers(answers, range(NETWORKS), 6)
        assert 1 <= len(teachers) <= 6
        assert (answers.trained[list(teachers)].any(0)).all()
        alone = answers.weigh(answers.losses([(one,) for one in range(WHOLE)])[:, :, ALL])
        together = answers.weigh(answers.losses([teachers])[:, :, ALL])
        assert together[0] <= alone.min()


def test_the_flattery_of_selected_teachers_is_that_on_other_rows() -> None:
    """All networks are equally good, and those are selected whose errors happen to cancel on the rows."""
    estimates, found = [], []
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        seen, other = (Answers(TASKS[:1], {"a": torch.zeros(rows)}) for rows in (ROWS, 20 * ROWS))
        for _ in range(8):
            for answers in (seen, other):
                answers.add({"a": torch.randn(len(answers.first), 1, generator=draw)})
        teachers = select_teachers(seen, range(8), 10)
        estimates.append(teachers_flattery(seen, range(8), 10))
        found.append(float(other.losses([teachers])[0, 0, ALL] - seen.losses([teachers])[0, 0, ALL]))
    assert np.mean(found) > 0.02
    assert np.mean(estimates) == pytest.approx(np.mean(found), rel=0.3)


def test_flattery_is_added_to_the_losses_of_the_networks_that_answer() -> None:
    answers, flattery = some_answers(0), np.zeros((NETWORKS, 3))
    flattery[3] = 0.3, 0.6, 0.9
    for pool, share in (((3,), 1.0), ((1, 3), 0.5), ((1, 2), 0.0)):
        plain = cross_fitted_rows(answers, pool, 2)
        rows = cross_fitted_rows(answers, pool, 2, flattery=flattery)
        for number, task in enumerate(answers.tasks):
            added = np.where(np.isnan(plain[task.name]), np.nan, share * flattery[3, number])
            np.testing.assert_allclose(rows[task.name] - plain[task.name], added)


def test_a_much_better_teacher_counts_more() -> None:
    targets = torch.linspace(-1, 1, ROWS)
    answers = Answers(TASKS[:1], {"a": targets})
    for error in (0.1, -0.4):  # two and four times as far off: 4 · 0.1 - 1 · 0.4 = 0
        answers.add({"a": (targets + error)[:, None]})
    assert select_teachers(answers, range(2), 5) == (0, 0, 0, 0, 1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_a_set_of_additive_values_is_the_best(seed: int, count: int) -> None:
    weights = np.random.default_rng(seed).normal(size=40)
    found, members = best_set(lambda own, others: weights[[*own]].sum() + weights[[*others]], range(40), count)
    assert set(members) == set(np.argsort(weights)[:count].tolist())
    assert found == pytest.approx(np.sort(weights)[:count].sum())


def test_tasks_without_labels_say_nothing_but_must_be_answered() -> None:
    targets = {"a": torch.full((ROWS,), torch.nan), "b": (torch.arange(ROWS) % 2).float()}
    answers = Answers(TASKS[:2], targets)
    answers.add({"b": 4 * targets["b"][:, None] - 2})
    answers.add({"a": torch.zeros(ROWS, 1), "b": torch.zeros(ROWS, 1)})
    assert select_committee(answers, [0, 1], 1).members == (1,)
    for passes in (None, 1):
        both = select_committee(answers, [0, 1], 2, passes=passes)
        assert both.members == (0, 1)
        assert both.answers[0] == (1,)
