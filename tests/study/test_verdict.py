"""The verdict on records with given changes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from verdict_records import APART, HELPED, TOGETHER, records, results, together

from tagalong.group import Group, Taught
from tagalong.report import write_report
from tagalong.report.page.answer import headline
from tagalong.study import (
    Change,
    Cost,
    LateNetworks,
    Learning,
    ProblemInfo,
    Results,
    RowNoise,
    Score,
    Verdict,
    interval_half_width,
)
from tagalong.study.best import recommended_record
from tagalong.study.candidates import luck_of_picking
from tagalong.study.verdict import decide

ROWS = {("tag", 2): 0.001, ("stl", None): 0.001, ("hoa", 2): 0.001}


def verdict_on(*found: list, noise: dict | None = None, **more: object) -> Verdict:
    mtl = together(len(found[0]) if found else 3)
    return decide([*mtl, *(record for some in found for record in some)], ROWS if noise is None else noise, **more)


def test_a_grouping_better_on_validation_and_test_is_worth_it() -> None:
    verdict = verdict_on(records("tag", 2, [-0.1, -0.12, -0.11], [-0.09, -0.1, -0.11]))
    assert verdict.worth_it
    assert verdict.provisional == ()
    assert verdict.recommended == verdict.candidate == ("tag", 2)
    assert verdict.groups == APART
    assert verdict.estimate == pytest.approx(-0.1)
    assert verdict.seeds == 3
    by_hand = math.hypot(stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3), stats.norm.ppf(0.975) * 0.001)
    assert (verdict.low, verdict.high) == pytest.approx((-0.1 - by_hand, -0.1 + by_hand))
    assert (verdict.training_cost, verdict.size, verdict.deciding_cost) == (2.0, 2.0, 0.0)
    assert "Grouping is worth it" in str(verdict)


def test_one_network_per_task_is_not_a_grouping() -> None:
    verdict = verdict_on(records("stl", None, [-0.1, -0.12, -0.11], [-0.09, -0.1, -0.11]))
    assert verdict.worth_it
    assert str(verdict).startswith("Verdict: Training each task alone is worth it: the 2 networks of stl ")
    assert headline(verdict) == "Train each task alone, in two networks."


def test_the_choice_depends_on_validation_and_never_on_test() -> None:
    lucky = records("stl", None, [-0.01] * 3, [-0.5, -0.5, -0.5], HELPED)
    verdict = verdict_on(records("tag", 2, [-0.02] * 3, [0.1, 0.11, 0.12]), lucky)
    assert verdict.candidate == ("tag", 2)
    assert not verdict.worth_it
    assert verdict.recommended == ("mtl", None)
    assert verdict.groups == TOGETHER


def test_groups_found_by_auto_are_preferred_to_the_best_of_many() -> None:
    lucky = records("optimal", 2, [-0.2] * 3, [0.1, 0.11, 0.12], HELPED)
    verdict = verdict_on(lucky, records("auto", 2, [-0.1] * 3, [-0.09, -0.1, -0.11]))
    assert verdict.recommended == verdict.candidate == ("auto", 2)
    assert verdict.tried == 1
    assert verdict_on(lucky, records("auto", 2, [0.0] * 3, [0.0] * 3, TOGETHER)).candidate == ("optimal", 2)


def test_copies_that_nobody_picked_compete_with_the_groups_of_auto() -> None:
    copies = (*TOGETHER, Group("ab", "ab", copy=1))
    lucky = records("optimal", 2, [-0.3] * 3, [-0.3] * 3)
    found = records("auto", 2, [-0.1] * 3, [-0.1] * 3)
    better = verdict_on(lucky, found, records("ensemble", 2, [-0.2] * 3, [-0.19, -0.2, -0.21], copies))
    assert better.candidate == better.recommended == ("ensemble", 2)
    assert better.groups == copies
    assert "Averaging networks is worth it: the 2 networks of ensemble (budget 2)" in " ".join(str(better).split())
    worse = verdict_on(lucky, found, records("ensemble", 2, [-0.05] * 3, [-0.05] * 3, copies))
    assert worse.candidate == ("auto", 2)


def test_not_better_on_validation_is_never_worth_it() -> None:
    verdict = verdict_on(records("tag", 2, [0.001] * 3, [-0.5, -0.5, -0.5]))
    assert not verdict.worth_it
    assert "no grouping did better on validation" in str(verdict)


def test_noise_of_seeds_or_of_rows_alone_can_undo_a_claim() -> None:
    steady = records("tag", 2, [-0.02] * 3, [-0.02, -0.021, -0.019])
    assert verdict_on(steady).worth_it
    assert not verdict_on(steady, noise={("tag", 2): 0.02}).worth_it
    lucky = verdict_on(records("tag", 2, [-0.02] * 3, [-0.06, 0.0, 0.0]))
    assert lucky.recipe is not None
    assert not lucky.recipe.better
    assert not verdict_on(records("tag", 2, [-0.02] * 3, [-0.06, 0.0, 0.0]), noise={}).worth_it


@pytest.mark.parametrize(("seeds", "provisional"), [(1, True), (2, True), (3, False), (4, False)])
def test_few_seeds_are_provisional_and_one_never_claims(seeds: int, provisional: bool) -> None:
    verdict = verdict_on(records("tag", 2, [-0.5] * seeds, [-0.5] * seeds))
    assert bool(verdict.provisional) == provisional
    assert verdict.worth_it == (seeds > 1)
    assert (verdict.low is None) == (seeds == 1)
    assert str(verdict).startswith("Provisional" if provisional else "Verdict")


def test_unknown_row_noise_is_reported() -> None:
    verdict = verdict_on(records("tag", 2, [-0.5] * 3, [-0.5] * 3), noise={})
    assert verdict.row_stderr is None
    assert "the noise of the test rows is unknown" in verdict.provisional


def test_dishonest_expected_single_and_rule_records_are_not_candidates() -> None:
    verdict = verdict_on(
        records("oracle", 2, [-0.9] * 3, [-0.9] * 3, honest=False),
        records("random", 2, [-0.9] * 3, [-0.9] * 3, groups=()),
        records("uw", None, [-0.9] * 3, [-0.9] * 3, groups=TOGETHER),
        records("tag+pcgrad", 2, [-0.9] * 3, [-0.9] * 3),
    )
    assert verdict.candidate is None
    assert not verdict.worth_it
    assert "no grouping was tried" in str(verdict)


def test_a_grouping_without_all_seeds_or_finite_losses_is_not_a_candidate() -> None:
    fine = records("tag", 2, [-0.1] * 3, [-0.1] * 3)
    short = records("stl", None, [-0.5] * 2, [-0.5] * 2)
    lost = records("hoa", 2, [math.nan] * 3, [-0.5] * 3)
    assert verdict_on(fine, short, lost).candidate == ("tag", 2)


def test_without_a_network_for_all_tasks_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ValueError, match="`records` must include results for 'mtl'"):
        decide(records("tag", 2, [0.0], [0.0]), {})
    with pytest.raises(ValueError, match="`at_least` must be a non-negative fraction, found -1"):
        verdict_on(at_least=-1)


def test_at_least_requires_a_minimum_improvement() -> None:
    found = records("tag", 2, [-0.1] * 3, [-0.1, -0.1001, -0.0999])
    assert verdict_on(found).worth_it
    verdict = verdict_on(found, at_least=0.2)
    assert not verdict.worth_it
    assert "less than the 20% asked for" in " ".join(str(verdict).split())


def test_rescaling_a_target_changes_no_verdict() -> None:
    changes = [-0.1, -0.12, -0.08], [-0.1, -0.12, -0.09]
    large = [*records("mtl", None, [0.0] * 3, [0.0] * 3, TOGETHER, base=1e6), *records("tag", 2, *changes, base=1e6)]
    small = [*together(), *records("tag", 2, *changes)]
    one, other = decide(large, ROWS), decide(small, ROWS)
    assert one.estimate == pytest.approx(other.estimate)
    assert one.high == pytest.approx(other.high)


def test_confirming_seeds_are_the_only_ones_reported() -> None:
    chosen = records("tag", 2, [-0.2] * 3, [-0.2] * 3)
    fresh = records("tag", 2, [0.3] * 3, [0.01, 0.0, 0.02], first=3)
    found = [*together(6), *chosen, *fresh]
    verdict = decide(found, ROWS, confirming=[3, 4, 5])
    assert verdict.validation == pytest.approx(-0.2)
    assert verdict.estimate == pytest.approx(0.01)
    assert verdict.confirmed
    assert not verdict.flattered
    assert not verdict.recipe.better
    assert results(found, noise=ROWS, settings={"confirming_seeds": [3, 4, 5]}).verdict() == verdict


def test_the_networks_you_get_may_be_better_than_the_recipe() -> None:
    """The networks of the best seed are better, but fresh seeds show that this was luck."""
    chosen = records("tag", 2, [-0.1, -0.2, -0.1], [-0.1, -0.2, -0.1])
    fresh = records("tag", 2, [0.0] * 3, [0.01, 0.0, 0.02], first=3)
    noise = RowNoise({("tag", 2): 0.001}, networks={("tag", 2): 0.01})
    verdict = decide([*together(6), *chosen, *fresh], noise, confirming=[3, 4, 5])
    assert verdict.worth_it
    assert verdict.networks_seed == 1
    half = stats.norm.ppf(0.975) * 0.01
    assert verdict.networks == Change(pytest.approx(-0.2), pytest.approx(-0.2 - half), pytest.approx(-0.2 + half))
    assert not verdict.recipe.better
    text = " ".join(str(verdict).split())
    assert "change the test losses by -20.0% (95% interval -22.0% to -18.0% over test rows)" in text
    assert "Trained anew with 3 fresh seeds, the same plan changes them by +1.0%" in text
    assert "so the gain may be the luck of these networks." in text


def test_the_networks_you_get_are_compared_with_the_mean_of_all_plain_networks() -> None:
    plain = records("mtl", None, [0.0] * 3, [0.1, 0.0, -0.1], TOGETHER)
    found = records("tag", 2, [-0.1, -0.2, -0.1], [0.3, -0.3, 0.2])
    verdict = decide([*plain, *found], ROWS)
    assert verdict.networks is not None
    assert verdict.networks.estimate == pytest.approx(-0.3)
    assert verdict.estimate == pytest.approx(np.mean([1.3 / 1.1, 0.7, 1.2 / 0.9]) - 1)


def test_the_recommended_record_is_the_one_that_the_verdict_judges() -> None:
    found = results([*together(), *records("tag", 2, [-0.1, -0.2, -0.3], [-0.1, -0.1, -0.2])], noise=ROWS)
    verdict = found.verdict()
    assert verdict.recommended == ("tag", 2)
    assert recommended_record(found).seed == verdict.networks_seed == 2


def test_unknown_noise_of_single_networks_is_bounded_by_that_of_the_mean() -> None:
    noise = RowNoise.of({("tag", 2): 0.01, ("ensemble", 2): 0.02})
    assert noise.of_networks(("tag", 2), seeds=4) == pytest.approx(0.02)
    assert noise.of_copies(("tag", 2), ("ensemble", 2)) == pytest.approx(0.03)
    assert noise.of_networks(("stl", None), seeds=4) is None
    assert noise.of_copies(("tag", 2), ("best-of", 2)) is None
    known = RowNoise(noise.recipe, {("tag", 2): 0.015}, {("tag", 2): 0.025})
    assert known.of_networks(("tag", 2), seeds=4) == 0.015
    assert known.of_copies(("tag", 2), ("ensemble", 2)) == 0.025


# Copies


def copies(method: str, count: int, val: list[float], test: list[float]) -> list:
    return records(method, count, val, test, tuple(Group("ab", "ab", copy=copy) for copy in range(count)))


def larger(times: int, val: list[float], test: list[float]) -> list:
    found = records(f"mtl-big{times}", None, val, test, TOGETHER)
    return [replace(record, parameters=1020 * times) for record in found]


def test_groups_matter_only_if_they_beat_copies() -> None:
    groups = records("tag", 2, [-0.2] * 3, [-0.19, -0.2, -0.21])
    noise = {("tag", 2): 0.001, ("ensemble", 2): 0.001, ("best-of", 2): 0.001}
    alone = verdict_on(groups, noise=noise)
    assert (alone.copies, alone.change_from_copies, alone.better_than_copies) == (None, None, None)
    worse_copies = copies("ensemble", 2, [-0.1] * 3, [-0.09, -0.1, -0.11])
    verdict = verdict_on(groups, worse_copies, noise=noise)
    assert verdict.copies == ("ensemble", 2)
    assert verdict.better_than_copies is True
    assert verdict.change_from_copies.estimate == pytest.approx(np.mean([0.81 / 0.91, 0.8 / 0.9, 0.79 / 0.89]) - 1)
    assert "Groups matter: compared with ensemble (budget 2), the change is -11.1%" in " ".join(str(verdict).split())
    equal = copies("best-of", 2, [-0.15] * 3, [-0.2, -0.21, -0.19])
    verdict = verdict_on(groups, worse_copies, equal, noise=noise)
    assert verdict.worth_it
    assert verdict.copies == ("best-of", 2)  # the better ones on validation
    assert verdict.better_than_copies is False
    assert "Copies would do: compared with best-of (budget 2)" in " ".join(str(verdict).split())


def with_effort(found: list, networks: int) -> list:
    return [replace(record, deciding=Cost(networks, 100 * networks)) for record in found]


def test_candidates_are_compared_with_copies_of_about_the_same_effort() -> None:
    unpicked = copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3)
    picked = with_effort(copies("best-of", 2, [-0.15] * 3, [-0.15] * 3), 20)
    for networks, expected in ((0, "ensemble"), (1, "ensemble"), (9, "ensemble"), (11, "best-of"), (45, "best-of")):
        groups = with_effort(records("tag", 2, [-0.2] * 3, [-0.2] * 3), networks)
        verdict = verdict_on(groups, unpicked, picked)
        assert verdict.candidate == ("tag", 2)
        assert verdict.copies == verdict.by_budget[2].copies == (expected, 2)
        gain = {"ensemble": 0.9, "best-of": 0.85}[expected]
        assert verdict.change_from_copies.estimate == pytest.approx(0.8 / gain - 1)


def test_recipes_are_compared_with_recipes_and_very_networks_with_very_networks() -> None:
    """The picked copies are as good as the picked groups, but with fresh seeds, the groups are better."""
    label, best_of = ("tag", 2), ("best-of", 2)
    groups = records(*label, [-0.2, -0.3, -0.2], [-0.2, -0.3, -0.2])
    picked = copies("best-of", 2, [-0.1, -0.1, -0.2], [-0.1, -0.1, -0.3])
    fresh_groups = records(*label, [-0.1] * 3, [-0.19, -0.2, -0.21], first=3)
    fresh_copies = [replace(one, seed=one.seed + 3) for one in copies("best-of", 2, [-0.1] * 3, [-0.11, -0.1, -0.09])]
    found = [*together(6), *groups, *picked, *fresh_groups, *fresh_copies]
    noise = RowNoise({label: 0.001, best_of: 0.001}, {label: 0.01}, {label: 0.002}, {label: 0.02})
    verdict = decide(found, noise, confirming=[3, 4, 5])
    assert (verdict.candidate, verdict.copies) == (label, best_of)
    assert verdict.change_from_copies.estimate == pytest.approx(np.mean([0.81 / 0.89, 0.8 / 0.9, 0.79 / 0.91]) - 1)
    assert verdict.better_than_copies is True
    half = stats.norm.ppf(0.975) * 0.02
    assert verdict.networks_from_copies == Change(pytest.approx(0.0), pytest.approx(-half), pytest.approx(half))
    two = verdict.by_budget[2]
    assert (two.networks, two.networks_from_copies) == (verdict.networks, verdict.networks_from_copies)
    (other,) = two.others
    assert other.label == best_of
    assert other.networks.estimate == pytest.approx(-0.3)
    assert other.networks_from_copies is None
    text = " ".join(str(verdict).split())
    assert "Groups matter: compared with best-of (budget 2), the change is -11.1% (95% interval" in text
    assert "for the same plan and +0.0% (95% interval -3.9% to +3.9%) for the networks you get." in text


def test_one_network_is_compared_with_the_best_of_several_copies() -> None:
    student = (Group("ab", "ab", copy=3, taught=Taught(("key",))),)
    taught = records("auto", 1, [-0.2] * 3, [-0.2, -0.21, -0.19], student)
    alone = verdict_on(taught, noise={("auto", 1): 0.001})
    assert alone.copies == ("mtl", None)
    assert alone.change_from_copies == alone.recipe
    assert alone.networks_from_copies.estimate == pytest.approx(-0.2)
    assert alone.by_budget[1].networks_from_copies == alone.networks_from_copies
    assert "Compared with the best plain network on validation, the change is -20.0%" in alone.answers()[3].detail
    best = records("best-of", 1, [-0.1] * 3, [-0.1] * 3, (Group("ab", "ab", copy=3),))
    compared = verdict_on(taught, best, noise={("auto", 1): 0.001, ("best-of", 1): 0.001})
    assert compared.copies == compared.by_budget[1].copies == ("best-of", 1)
    assert compared.change_from_copies.estimate == pytest.approx(np.mean([0.8, 0.79, 0.81]) / 0.9 - 1)
    assert compared.networks_from_copies.estimate == pytest.approx(0.8 / 0.9 - 1)
    assert compared.answers()[3].answer == "No."
    assert "Compared with best-of (budget 1), the change is -11.1%" in compared.answers()[3].detail


def test_seeds_that_share_teachers_cannot_show_that_teaching_beats_copies() -> None:
    def students(seeds: list[int], own: bool) -> list:
        found = records("auto", 2, [-0.2] * len(seeds), [-0.2, -0.205, -0.21], first=seeds[0])
        names = [f"key {record.seed}" if own else "key" for record in found]
        lessons = [tuple(Group("ab", "ab", copy=copy, taught=Taught((name,))) for copy in (4, 5)) for name in names]
        return [replace(record, groups=groups) for record, groups in zip(found, lessons, strict=True)]

    noise = {("auto", 2): 0.001, ("ensemble", 2): 0.001}
    ensemble = copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.1, -0.1])
    shared = verdict_on(students([0, 1, 2], own=False), ensemble, noise=noise)
    assert shared.worth_it
    assert shared.same_teachers
    assert shared.change_from_copies.better
    assert shared.better_than_copies is None
    assert shared.answers()[3].answer == "Not known."
    warning = "All seeds have the same teachers, so the interval does not account for the luck of these; `confirm`"
    assert warning in shared.answers()[2].detail
    assert warning in shared.answers()[3].detail
    fresh = [replace(one, seed=one.seed + 3) for one in ensemble]
    found = [*together(6), *students([0, 1, 2], own=False), *ensemble, *students([3, 4, 5], own=True), *fresh]
    confirmed = decide(found, noise, confirming=[3, 4, 5])
    assert not confirmed.same_teachers
    assert confirmed.better_than_copies is True
    assert confirmed.answers()[3].answer == "Groups do not matter, but teaching does."
    assert "same teachers" not in str(confirmed)


def test_recommended_copies_are_not_better_than_copies() -> None:
    verdict = verdict_on(copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.11, -0.12]), noise={("ensemble", 2): 0.001})
    assert verdict.recommended == ("ensemble", 2)
    assert verdict.better_than_copies is False
    assert verdict.answers()[3].answer == "Copies do."


def test_copies_with_another_number_of_networks_are_no_comparison() -> None:
    verdict = verdict_on(records("tag", 2, [-0.2] * 3, [-0.2] * 3), copies("ensemble", 3, [-0.1] * 3, [-0.1] * 3))
    assert verdict.candidate == ("tag", 2)
    assert verdict.better_than_copies is None
    assert "add `ensemble` or `best-of` to the methods" in verdict.answers()[3].detail


# Expected losses


def test_every_network_must_be_worth_its_price() -> None:
    two, three = (copies("ensemble", k, [change] * 3, [change] * 3) for k, change in ((2, -0.02), (3, -0.024)))
    noise = {("ensemble", 2): 0.001, ("ensemble", 3): 0.001}
    assert verdict_on(two, three, noise=noise).recommended == ("ensemble", 2)
    assert verdict_on(two, three, noise=noise, at_least=0.001).recommended == ("ensemble", 3)
    small = copies("ensemble", 2, [-0.004] * 3, [-0.004] * 3)
    verdict = verdict_on(small, noise={("ensemble", 2): 0.0001})
    assert verdict.recommended == ("mtl", None)
    assert "less than the 0.5% asked for" in " ".join(str(verdict).split())


def test_networks_that_were_picked_must_be_better_by_a_standard_error() -> None:
    unpicked = copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3)
    val = [-0.05, -0.11, -0.17]
    picked = records("optimal", 2, val, val)
    measured = records("tag", 2, val, val)
    assert verdict_on(picked, unpicked).candidate == ("ensemble", 2)
    assert verdict_on(measured, unpicked).candidate == ("tag", 2)
    verdict = verdict_on(picked)
    assert verdict.validation == pytest.approx(-0.11)
    assert verdict.expected == pytest.approx(-0.11 + stats.sem(val))
    assert verdict.flattered
    assert verdict.high - verdict.estimate == pytest.approx(verdict.estimate - verdict.low + stats.sem(val))


def test_the_luck_of_picking_adds_up_over_tasks() -> None:
    """If each task is served by its luckiest network, luck does not average out."""
    val = [-0.1, 0.0, 0.1]
    found = records("optimal", 2, val, val)
    opposite = [
        replace(record, val={**record.val, "b": Score(2 * (1 - change), 0.5)})
        for record, change in zip(found, val, strict=True)
    ]
    assert luck_of_picking(opposite, together()) == pytest.approx(stats.sem(val))
    assert luck_of_picking(records("auto", 2, val, val), together()) == 0
    assert luck_of_picking(found[:1], together()) == 0


# Budgets


def test_the_best_networks_of_each_budget_are_chosen_on_validation() -> None:
    verdict = verdict_on(
        records("tag", 2, [-0.05] * 3, [-0.9] * 3),
        copies("ensemble", 2, [-0.06] * 3, [-0.05, -0.06, -0.07]),
        larger(3, [-0.07] * 3, [-0.07] * 3),
        copies("ensemble", 3, [-0.065] * 3, [-0.06] * 3),
        noise={("ensemble", 2): 0.001},
    )
    found = verdict.by_budget
    assert {budget: one.label for budget, one in found.items()} == {
        1: ("mtl", None), 2: ("ensemble", 2), 3: ("mtl-big3", None),
    }  # fmt: skip
    assert found[1].change == Change(0.0, 0.0, 0.0)
    assert (found[1].parameters, found[1].training_cost) == (1000, 1.0)
    assert found[2].change.estimate == pytest.approx(-0.06)
    assert found[2].change.low < -0.06 < found[2].change.high
    assert (found[2].copies, found[2].change_from_copies) == (None, None)
    assert (found[3].copies, found[3].size, found[3].parameters) == (("ensemble", 3), 3, 3060)
    assert found[3].change_from_copies.estimate == pytest.approx(0.93 / 0.94 - 1)
    assert (found[2].seeds, found[2].deciding_cost, found[2].training_cost, found[2].latency) == (3, 0, 2, None)
    kinds = {budget: (one.kind, [(other.kind, other.label) for other in one.others]) for budget, one in found.items()}
    assert kinds == {
        1: ("plain", []), 2: ("copies", [("groups", ("tag", 2))]), 3: ("larger", [("copies", ("ensemble", 3))]),
    }  # fmt: skip
    assert found[2].others[0].change.estimate == pytest.approx(-0.9)


def test_a_larger_network_costs_as_much_as_the_networks_it_replaces() -> None:
    big, two = larger(2, [-0.05] * 3, [-0.05, -0.051, -0.052]), copies("ensemble", 2, [-0.04] * 3, [-0.04] * 3)
    noise = {("mtl-big2", None): 0.001, ("ensemble", 2): 0.001}
    verdict = verdict_on(big, two, noise=noise)
    assert verdict.recommended == ("mtl-big2", None)
    assert verdict.groups == TOGETHER
    text = " ".join(str(verdict).split())
    assert "A larger network is worth it: the network of mtl-big2 changes the test losses by" in text
    assert headline(verdict) == "Use one wider network for all tasks."
    assert verdict_on(big, noise=noise, at_least=0.06).recommended == ("mtl", None)
    unknown = [replace(record, parameters=0) for record in big]
    assert verdict_on(unknown, noise=noise).candidate is None


def test_a_method_that_uses_fewer_networks_competes_for_both_numbers() -> None:
    verdict = verdict_on(records("auto", 3, [-0.1] * 3, [-0.1] * 3))
    assert {budget: (one.label, one.size) for budget, one in verdict.by_budget.items()} == {
        1: (("mtl", None), 1), 2: (("auto", 3), 2), 3: (("auto", 3), 2),
    }  # fmt: skip


def test_the_best_of_several_copies_is_one_network() -> None:
    best = records("best-of", 1, [-0.1] * 3, [-0.1] * 3, (Group("ab", "ab", copy=3),))
    verdict = verdict_on(best, noise={("best-of", 1): 0.001})
    assert verdict.recommended == verdict.by_budget[1].label == ("best-of", 1)
    assert verdict.better_than_copies is None
    assert "Picking the best copy is worth it: the network of best-of (budget 1)" in " ".join(str(verdict).split())
    assert headline(verdict) == "Use one network for all tasks, the best of several copies."


# Answers and files


def test_four_questions_are_answered() -> None:
    late = {("mtl", None): LateNetworks(0, 3), ("tag", 2): LateNetworks(1, 6)}
    learning = Learning({"a": 0.0, "b": 0.9}, late)
    found = records("tag", 2, [-0.2] * 3, [-0.2, -0.21, -0.22]), copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.1, -0.1])
    verdict = verdict_on(*found, learning=learning, noise={("tag", 2): 0.001, ("ensemble", 2): 0.001})
    assert [answer for _, answer, _ in verdict.answers()] == ["Partly.", "No.", "Yes.", "Groups matter."]
    learnt, enough, worth, groups = (detail for _, _, detail in verdict.answers())
    assert learnt.startswith("b is not counted")
    assert enough == "1 of 9 networks was best in one of the last 3 epochs and might improve; raise `epochs`."
    assert worth.startswith(verdict.sentence)
    assert "Over 3 seeds, the same plan changes them by -21.0%" in worth
    assert "picking flatters" in worth
    assert groups in " ".join(str(verdict).split())
    assert str(verdict).count(". ") <= 6
    unlearnt = verdict_on(*found, learning=Learning({"a": 0.9, "b": 0.9}))
    assert [answer for _, answer, _ in unlearnt.answers()] == ["No.", "Not known.", "No.", "Not known."]
    assert unlearnt.by_budget == {}
    one_seed = verdict_on(records("tag", 2, [-0.2], [-0.2]))
    assert one_seed.answers()[2].answer == "Not known."


def test_copies_and_students_of_auto_are_not_called_groups() -> None:
    better, noise = ([-0.2] * 3, [-0.2, -0.21, -0.22]), {("auto", 2): 0.001, ("ensemble", 2): 0.001, ("auto", 1): 0.001}
    averaged, divided = (
        (Group("ab", "ab", copy=4), Group("ab", "ab", copy=5)),
        (Group("ab", "a"), Group("ab", "b", copy=1)),
    )
    ensemble = copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.1, -0.1])
    verdict = verdict_on(records("auto", 2, *better, averaged), ensemble, noise=noise)
    assert verdict.answers()[3].answer == "Groups do not matter, but the choice of copies does."
    verdict = verdict_on(records("auto", 2, *better, divided), ensemble, noise=noise)
    assert verdict.sentence.startswith("Picking the best copy for each task is worth it: the 2 networks of auto")
    student = (Group("ab", "ab", copy=3, taught=Taught(("key",))),)
    verdict = verdict_on(records("auto", 1, *better, student), ensemble, noise=noise)
    assert verdict.answers()[3].answer == "No."
    assert verdict.answers()[3].detail.startswith(
        "auto (budget 1) is one network for all tasks, so there are no groups."
    )
    verdict = verdict_on(records("auto", 1, [0.1] * 3, better[1], student), noise=noise)
    assert "no taught network did better on validation" in verdict.sentence


def test_budgets_answers_and_noise_survive_a_file(tmp_path: Path) -> None:
    found = [
        *together(),
        *records("tag", 2, [-0.2] * 3, [-0.2, -0.21, -0.22]),
        *copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3),
    ]
    tag = ("tag", 2)
    noise = RowNoise({tag: 0.01, ("ensemble", 2): 0.01}, {tag: 0.02}, {tag: 0.015}, {tag: 0.025})
    saved = results(found, noise=noise)
    saved.save(tmp_path)
    loaded = Results.load(tmp_path)
    assert loaded.row_noise == noise
    assert loaded.verdict() == saved.verdict()
    document = json.loads((tmp_path / "results.json").read_text())
    verdict = document["verdict"]
    assert verdict["by_budget"]["2"]["label"] == ["tag", 2]
    assert verdict["by_budget"]["2"]["groups"] == [
        {"trains": ["a"], "serves": ["a"]},
        {"trains": ["b"], "serves": ["b"]},
    ]
    assert [one["label"] for one in verdict["by_budget"]["2"]["others"]] == [["ensemble", 2]]
    assert verdict["better_than_copies"] is True
    assert [one["answer"] for one in verdict["answers"]] == ["Not checked.", "Not known.", "Yes.", "Groups matter."]


def test_the_best_of_many_needs_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    tried = rng.normal(size=(8, 3)).tolist()
    pooled = math.sqrt(np.mean([np.var(changes, ddof=1) / 3 for changes in tried]))
    alone = stats.t.ppf(0.975, 2) * stats.sem(tried[0])
    best_of_eight = stats.t.ppf(1 - 0.025 / 8, 16) * pooled
    assert interval_half_width(tried[0], tried) == pytest.approx(max(alone, best_of_eight))
    assert interval_half_width(tried[0]) == pytest.approx(alone)
    assert interval_half_width([0.0, 0.0], row_stderr=1.0) == pytest.approx(stats.norm.ppf(0.975))


def test_every_field_is_machine_readable() -> None:
    verdict = verdict_on(records("tag", 2, [-0.1] * 3, [-0.1, -0.11, math.inf]))
    document = json.loads(json.dumps(verdict.to_document(), allow_nan=False))
    assert document["recommended"] == ["mtl", None]
    assert document["candidate_groups"] == [{"trains": ["a"], "serves": ["a"]}, {"trains": ["b"], "serves": ["b"]}]
    assert document["estimate"] is None
    assert document["worth_it"] is False
    assert all(len(line) <= 100 for line in document["text"].split("\n"))


def with_test_losses(found: list, losses: list[float]) -> list:
    """Returns the records with the given test losses of task a, one per seed."""
    return [
        replace(record, test={**record.test, "a": Score(loss, 0.25)})
        for record, loss in zip(found, losses, strict=True)
    ]


@pytest.mark.parametrize("losses", [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [5e-324, 1.0, 1.0], [1e-200, 1.0, 1.0]])
def test_no_change_or_interval_is_shown_as_infinite(losses: list[float]) -> None:
    mtl = with_test_losses(together(3), losses)
    found = Results(
        [*mtl, *records("tag", 2, [-0.1, -0.12, -0.11], [-0.1] * 3)], problem=ProblemInfo.from_tasks(["a", "b"])
    )
    verdict = found.verdict()
    assert not verdict.worth_it
    assert verdict.low is verdict.high is None
    assert "cannot be computed, since a test loss" in verdict.sentence or "differ too much" in verdict.sentence
    for text in (str(found), found._repr_html_(), str(verdict), json.dumps(found.to_document(), allow_nan=False)):
        assert "inf%" not in text
        assert "nan%" not in text


def test_infinite_noise_of_the_test_rows_is_unknown_noise() -> None:
    tag = records("tag", 2, [-0.1, -0.12, -0.11], [-0.09, -0.1, -0.11])
    verdict = verdict_on(tag, noise={("tag", 2): math.inf})
    assert verdict.row_stderr is None
    assert "the noise of the test rows is unknown" in verdict.provisional
    assert verdict.low == verdict_on(tag, noise={}).low


def test_no_change_is_shown_as_infinite_in_a_report(tmp_path: Path) -> None:
    mtl = with_test_losses(together(3), [0.0, 1.0, 1.0])
    found = [*mtl, *records("tag", 2, [-0.1, -0.12, -0.11], [-0.1] * 3)]
    Results(found, problem=ProblemInfo.from_tasks(["a", "b"])).save(tmp_path / "results.json")
    visible = write_report(tmp_path).read_text(encoding="utf-8").partition("<script")[0]
    assert "unknown" in visible
    assert "inf%" not in visible
