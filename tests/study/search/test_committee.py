"""Committees, compared with enumeration."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tagalong.learn import Task
from tagalong.study.search.answers import ALL, FIRST, SECOND, Answers
from tagalong.study.search.committee import (
    cross_fitted_rows,
    mean_relative_loss,
    select_committee,
    select_teachers,
    teachers_flattery,
)

TASKS = [Task("a", kind="regression"), Task("b"), Task("c", kind="multiclass", classes=3)]
ROWS, NETWORKS, WHOLE = 60, 7, 4  # rows, networks, and networks for all tasks


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
    return answers


def base_of(answers: Answers) -> np.ndarray:
    return answers.losses([(number,) for number in range(WHOLE)]).mean(0)


def value(answers: Answers, members: tuple[int, ...], passes: int | None, part: int = ALL) -> float:
    """Returns the mean relative loss, with the best of all allowed averages for each task."""
    base, ratios = base_of(answers), []
    for task in range(len(answers.tasks)):
        able = [member for member in members if answers.trained[member, task]]
        sizes = [len(able)] if passes is None else range(1, min(passes, len(able)) + 1)
        sets = [some for size in sizes for some in combinations(able, size) if some]
        if not sets:
            return np.inf
        ratios.append(answers.losses(sets)[:, task, part].min() / base[task, part])
    return float(np.mean(ratios))


@pytest.mark.parametrize("passes", [None, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_committees_are_nearly_as_good_as_those_of_enumeration(size: int, passes: int | None) -> None:
    limit = None if passes is None or passes >= size else passes
    optimal = 0
    for seed in range(12):
        answers = some_answers(seed)
        chosen = select_committee(answers, size, base_of(answers), pool=range(NETWORKS), passes=passes)
        best = min(value(answers, some, limit) for some in combinations(range(NETWORKS), size))
        found = value(answers, chosen.members, limit)
        assert len(chosen.members) == size
        assert best - 1e-9 <= found <= 1.05 * best
        optimal += found <= best + 1e-9
    assert optimal >= 11, "of 12"


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([None, 1, 2, 9]), st.sampled_from([ALL, FIRST, SECOND])
)
def test_every_task_is_answered_by_members_that_were_trained_on_it(
    seed: int, size: int, passes: int | None, part: int
) -> None:
    answers = some_answers(seed)
    chosen = select_committee(answers, size, base_of(answers), pool=range(NETWORKS), part=part, passes=passes)
    assert list(chosen.members) == sorted(set(chosen.members))
    for task, some in enumerate(chosen.answers):
        able = {member for member in chosen.members if answers.trained[member, task]}
        assert some
        assert set(some) <= able
        assert len(some) <= (passes or size)
        if passes is None or passes >= size:
            assert set(some) == able


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.permutations([0, 1, 2]), st.sampled_from([None, 1]))
def test_permuting_the_tasks_permutes_the_answers(seed: int, order: list[int], passes: int | None) -> None:
    plain, permuted = some_answers(seed), some_answers(seed, tuple(order))
    found = select_committee(plain, 2, base_of(plain), pool=range(NETWORKS), passes=passes)
    other = select_committee(permuted, 2, base_of(permuted), pool=range(NETWORKS), passes=passes)
    assert other.members == found.members
    assert other.answers == tuple(found.answers[place] for place in order)


def test_committees_have_at_most_as_many_members_as_the_pool() -> None:
    answers = some_answers(0)
    assert select_committee(answers, 9, base_of(answers), pool=[3, 1]).members == (1, 3)
    assert select_committee(answers, 9, base_of(answers), pool=[2], passes=1).answers == ((2,),) * 3


def test_networks_of_the_same_size_share_the_budget() -> None:
    answers, sizes = some_answers(0), (1, 1, 2, 2, 1, 1, 3)
    base = base_of(answers)
    for budget in (1, 2, 3, 4, 6):
        some = [n for n in range(WHOLE) if sizes[n] <= budget]
        chosen = select_committee(answers, budget, base, pool=range(WHOLE), sizes=sizes)
        assert len({sizes[member] for member in chosen.members}) == 1
        assert sum(sizes[member] for member in chosen.members) <= budget
        options = [
            select_committee(answers, budget // size, base, pool=[n for n in some if sizes[n] == size])
            for size in {sizes[n] for n in some}
        ]
        assert chosen in options
        assert chosen.value == min(one.value for one in options)
        assert chosen.value == pytest.approx(value(answers, chosen.members, None))


def test_a_large_committee_with_many_passes_is_found_quickly() -> None:
    draw = torch.Generator().manual_seed(0)
    answers = Answers(TASKS[:1], {"a": torch.randn(ROWS, generator=draw)})
    for _ in range(40):
        answers.add({"a": torch.randn(ROWS, 1, generator=draw)})
    chosen = select_committee(answers, 30, np.ones((1, 3)), pool=range(40), passes=12)
    assert len(chosen.members) == 30
    assert 1 < len(chosen.answers[0]) <= 12


def test_rows_are_judged_by_committees_that_other_rows_chose() -> None:
    answers = some_answers(3)
    rows = cross_fitted_rows(answers, 2, base_of(answers), pool=range(NETWORKS))
    for part, judged in ((SECOND, answers.first), (FIRST, ~answers.first)):
        chosen = select_committee(answers, 2, base_of(answers), pool=range(NETWORKS), part=part)
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
        chosen = select_committee(answers, 1, base, pool=range(20)).members
        rows = cross_fitted_rows(answers, 1, base, pool=range(20))["a"]
        ratios["chosen"].append(answers.losses([chosen])[0, 0, ALL] / base[0, ALL])
        ratios["cross-fitted"].append(rows.mean() / base[0, ALL])
    assert np.mean(ratios["chosen"]) < 0.75
    assert abs(np.mean(ratios["cross-fitted"]) - 1) < 0.06


def test_teachers_are_at_least_as_good_as_any_network_and_may_repeat() -> None:
    for seed in range(10):
        answers = some_answers(seed)
        base = base_of(answers)
        teachers = select_teachers(answers, 6, base, pool=range(NETWORKS))
        assert 1 <= len(teachers) <= 6
        assert (answers.trained[list(teachers)].any(0)).all()
        alone = mean_relative_loss(answers.losses([(one,) for one in range(WHOLE)])[:, :, ALL], base[:, ALL])
        together = mean_relative_loss(answers.losses([teachers])[:, :, ALL], base[:, ALL])
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
        base = np.ones((1, 3))
        teachers = select_teachers(seen, 10, base, pool=range(8))
        estimates.append(teachers_flattery(seen, 10, base, pool=range(8)))
        found.append(float(other.losses([teachers])[0, 0, ALL] - seen.losses([teachers])[0, 0, ALL]))
    assert np.mean(found) > 0.02
    assert np.mean(estimates) == pytest.approx(np.mean(found), rel=0.3)


def test_flattery_is_added_to_the_losses_of_the_networks_that_answer() -> None:
    answers, flattery = some_answers(0), [0.0, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0]
    base = base_of(answers)
    for pool, share in (((3,), 1.0), ((1, 3), 0.5), ((1, 2), 0.0)):
        plain = cross_fitted_rows(answers, 2, base, pool=pool)
        rows = cross_fitted_rows(answers, 2, base, pool=pool, flattery=flattery)
        for number, task in enumerate(answers.tasks):
            np.testing.assert_allclose(
                rows[task.name] - plain[task.name], 0.3 * share * base[number, ALL] + 0 * plain[task.name]
            )


def test_a_much_better_teacher_counts_more() -> None:
    targets = torch.linspace(-1, 1, ROWS)
    answers = Answers(TASKS[:1], {"a": targets})
    for error in (0.1, -0.4):  # two and four times as far off: 4 · 0.1 - 1 · 0.4 = 0
        answers.add({"a": (targets + error)[:, None]})
    base = answers.losses([(0,)])[0]
    assert select_teachers(answers, 5, base, pool=range(2)) == (0, 0, 0, 0, 1)


def test_lower_losses_are_better_for_any_sign_and_for_a_base_of_zero() -> None:
    for base in (2.0, 0.0, -2.0):
        worse, better = mean_relative_loss(np.array([[base + 0.5], [base - 0.5]]), np.array([base]))
        assert better < 1 < worse


def test_tasks_without_labels_say_nothing_but_must_be_answered() -> None:
    targets = {"a": torch.full((ROWS,), torch.nan), "b": (torch.arange(ROWS) % 2).float()}
    answers = Answers(TASKS[:2], targets)
    answers.add({"b": 4 * targets["b"][:, None] - 2})
    answers.add({"a": torch.zeros(ROWS, 1), "b": torch.zeros(ROWS, 1)})
    base = answers.losses([(1,)])[0]
    assert select_committee(answers, 1, base, pool=[0, 1]).members == (1,)
    for passes in (None, 1):
        both = select_committee(answers, 2, base, pool=[0, 1], passes=passes)
        assert both.members == (0, 1)
        assert both.answers[0] == (1,)
