"""The verdict on records with given changes."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from verdict_records import (
    APART,
    HELPED,
    ROWS,
    TOGETHER,
    copies,
    larger,
    records,
    results,
    together,
    verdict_on,
    with_scores,
)

from tagalong.group import Group, Taught
from tagalong.report import write_report
from tagalong.study import Change, Cost, LateNetworks, Learning, Record, Results, RowNoise, interval_half_width

GOOD = ([-0.1, -0.12, -0.11], [-0.09, -0.1, -0.11])
STUDENT = (Group("ab", "ab", copy=3, taught=Taught(("key",))),)


def test_a_grouping_better_on_validation_and_test_is_worth_it() -> None:
    verdict = verdict_on(records("tag", 2, *GOOD))
    assert verdict.worth_it
    assert verdict.provisional == ()
    assert verdict.recommended == verdict.candidate == ("tag", 2)
    assert verdict.groups == APART
    assert verdict.estimate == pytest.approx(-0.1)
    assert verdict.seeds == 3
    by_hand = math.hypot(stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3), stats.norm.ppf(0.975) * 0.001)
    assert (verdict.low, verdict.high) == pytest.approx((-0.1 - by_hand, -0.1 + by_hand))
    assert (verdict.training_cost, verdict.size, verdict.deciding_cost) == (2.0, 2.0, 0.0)


def test_the_choice_depends_on_validation_and_never_on_test() -> None:
    lucky = records("stl", None, [-0.01] * 3, [-0.5, -0.5, -0.5], HELPED)
    verdict = verdict_on(records("tag", 2, [-0.02] * 3, [0.1, 0.11, 0.12]), lucky)
    assert (verdict.candidate, verdict.recommended, verdict.groups) == (("tag", 2), ("mtl", None), TOGETHER)
    assert not verdict.worth_it
    assert not verdict_on(records("tag", 2, [0.001] * 3, [-0.5, -0.5, -0.5])).worth_it


def test_groups_found_by_auto_compete_with_copies_but_not_with_the_best_of_many() -> None:
    lucky = records("optimal", 2, [-0.3] * 3, [-0.3] * 3, HELPED)
    auto = records("auto", 2, [-0.1] * 3, [-0.09, -0.1, -0.11])
    verdict = verdict_on(lucky, auto, copies("ensemble", 2, [-0.05] * 3, [-0.05] * 3))
    assert verdict.recommended == verdict.candidate == ("auto", 2)
    assert verdict.tried == 2
    better = verdict_on(lucky, auto, copies("ensemble", 2, [-0.2] * 3, [-0.19, -0.2, -0.21]))
    assert better.candidate == better.recommended == ("ensemble", 2)
    nothing_found = records("auto", 2, [0.0] * 3, [0.0] * 3, TOGETHER)
    assert verdict_on(lucky, nothing_found).candidate == ("optimal", 2)


def test_noise_of_seeds_or_of_rows_alone_can_undo_a_claim() -> None:
    steady = records("tag", 2, [-0.02] * 3, [-0.02, -0.021, -0.019])
    assert verdict_on(steady).worth_it
    assert not verdict_on(steady, noise={("tag", 2): 0.02}).worth_it
    lucky = records("tag", 2, [-0.02] * 3, [-0.06, 0.0, 0.0])
    assert not verdict_on(lucky).recipe.better
    assert not verdict_on(lucky, noise={}).worth_it


@pytest.mark.parametrize(("seeds", "provisional"), [(1, True), (2, True), (3, False), (4, False)])
def test_few_seeds_are_provisional_and_one_never_claims(seeds: int, provisional: bool) -> None:
    verdict = verdict_on(records("tag", 2, [-0.5] * seeds, [-0.5] * seeds))
    assert bool(verdict.provisional) == provisional
    assert verdict.worth_it == (seeds > 1)
    assert (verdict.low is None) == (seeds == 1)


def test_unknown_or_infinite_noise_of_test_rows_makes_the_verdict_provisional() -> None:
    verdicts = [verdict_on(records("tag", 2, *GOOD), noise=noise) for noise in ({}, {("tag", 2): math.inf})]
    for verdict in verdicts:
        assert verdict.row_stderr is None
        assert any("test rows" in reason for reason in verdict.provisional)
    assert verdicts[0].low == verdicts[1].low


def test_only_honest_whole_finite_groupings_without_rules_are_candidates() -> None:
    others = [
        records("oracle", 2, [-0.9] * 3, [-0.9] * 3, honest=False),
        records("random", 2, [-0.9] * 3, [-0.9] * 3, groups=()),
        records("uw", None, [-0.9] * 3, [-0.9] * 3, groups=TOGETHER),
        records("tag+pcgrad", 2, [-0.9] * 3, [-0.9] * 3),
        records("stl", None, [-0.5] * 2, [-0.5] * 2),
        records("hoa", 2, [math.nan] * 3, [-0.5] * 3),
    ]
    assert verdict_on(*others).candidate is None
    assert not verdict_on(*others).worth_it
    assert verdict_on(*others, records("tag", 2, [-0.1] * 3, [-0.1] * 3)).candidate == ("tag", 2)


def test_a_verdict_needs_a_network_for_all_tasks_and_a_sensible_minimum() -> None:
    with pytest.raises(ValueError, match="`records` must include results for 'mtl'"):
        results(records("tag", 2, [0.0], [0.0])).verdict()
    with pytest.raises(ValueError, match="`at_least` must be a non-negative fraction"):
        verdict_on(at_least=-1)


def test_rescaling_a_target_changes_no_verdict() -> None:
    changes = [-0.1, -0.12, -0.08], [-0.1, -0.12, -0.09]
    large = [*records("mtl", None, [0.0] * 3, [0.0] * 3, TOGETHER, base=1e6), *records("tag", 2, *changes, base=1e6)]
    one, other = results(large, noise=ROWS).verdict(), verdict_on(records("tag", 2, *changes))
    assert (one.estimate, one.high) == pytest.approx((other.estimate, other.high))


def test_confirming_seeds_are_the_only_ones_reported() -> None:
    chosen = records("tag", 2, [-0.2] * 3, [-0.2] * 3)
    fresh = records("tag", 2, [0.3] * 3, [0.01, 0.0, 0.02], first=3)
    verdict = verdict_on(chosen, fresh, confirming=[3, 4, 5])
    assert verdict.validation == pytest.approx(-0.2)
    assert verdict.estimate == pytest.approx(0.01)
    assert (verdict.confirmed, verdict.flattered, verdict.recipe.better) == (True, False, False)


def test_the_networks_you_get_may_be_better_than_the_recipe() -> None:
    """The networks of the best seed are better, but fresh seeds show that this was luck."""
    chosen = records("tag", 2, [-0.1, -0.2, -0.1], [-0.1, -0.2, -0.1])
    fresh = records("tag", 2, [0.0] * 3, [0.01, 0.0, 0.02], first=3)
    noise = RowNoise({("tag", 2): 0.001}, networks={("tag", 2): 0.01})
    verdict = verdict_on(chosen, fresh, noise=noise, confirming=[3, 4, 5])
    assert verdict.worth_it
    assert verdict.networks_seed == 1
    half = stats.norm.ppf(0.975) * 0.01
    assert verdict.networks == Change(pytest.approx(-0.2), pytest.approx(-0.2 - half), pytest.approx(-0.2 + half))
    assert not verdict.recipe.better


def test_the_networks_you_get_are_compared_with_the_mean_of_all_plain_networks() -> None:
    plain = records("mtl", None, [0.0] * 3, [0.1, 0.0, -0.1], TOGETHER)
    tag = records("tag", 2, [-0.1, -0.2, -0.1], [0.3, -0.3, 0.2])
    verdict = results([*plain, *tag], noise=ROWS).verdict()
    assert verdict.networks.estimate == pytest.approx(-0.3)
    assert verdict.estimate == pytest.approx(np.mean([1.3 / 1.1, 0.7, 1.2 / 0.9]) - 1)


def test_unknown_noise_of_single_networks_is_bounded_by_that_of_the_mean() -> None:
    noise = RowNoise.of({("tag", 2): 0.01, ("ensemble", 2): 0.02})
    assert noise.of_networks(("tag", 2), seeds=4) == pytest.approx(0.02)
    assert noise.of_copies(("tag", 2), ("ensemble", 2)) == pytest.approx(0.03)
    assert noise.of_networks(("stl", None), seeds=4) is noise.of_copies(("tag", 2), ("best-of", 2)) is None
    known = RowNoise(noise.recipe, {("tag", 2): 0.015}, {("tag", 2): 0.025})
    assert known.of_networks(("tag", 2), seeds=4) == 0.015
    assert known.of_copies(("tag", 2), ("ensemble", 2)) == 0.025


# Copies

QUIET = dict.fromkeys([("tag", 2), ("auto", 1), ("auto", 2), ("ensemble", 2), ("best-of", 1), ("best-of", 2)], 0.001)


def test_groups_matter_only_if_they_beat_copies() -> None:
    groups = records("tag", 2, [-0.2] * 3, [-0.19, -0.2, -0.21])
    alone = verdict_on(groups, copies("ensemble", 3, [-0.1] * 3, [-0.1] * 3), noise=QUIET)
    assert (alone.copies, alone.change_from_copies, alone.better_than_copies) == (None, None, None)
    worse_copies = copies("ensemble", 2, [-0.1] * 3, [-0.09, -0.1, -0.11])
    verdict = verdict_on(groups, worse_copies, noise=QUIET)
    assert (verdict.copies, verdict.better_than_copies) == (("ensemble", 2), True)
    assert verdict.change_from_copies.estimate == pytest.approx(np.mean([0.81 / 0.91, 0.8 / 0.9, 0.79 / 0.89]) - 1)
    equal = copies("best-of", 2, [-0.15] * 3, [-0.2, -0.21, -0.19])
    verdict = verdict_on(groups, worse_copies, equal, noise=QUIET)
    assert verdict.worth_it
    assert (verdict.copies, verdict.better_than_copies) == (("best-of", 2), False)  # the better ones on validation
    verdict = verdict_on(worse_copies, noise=QUIET)
    assert (verdict.recommended, verdict.better_than_copies) == (("ensemble", 2), False)


@pytest.mark.parametrize(
    ("networks", "expected"), [(0, "ensemble"), (1, "ensemble"), (9, "ensemble"), (11, "best-of"), (45, "best-of")]
)
def test_candidates_are_compared_with_copies_of_about_the_same_effort(networks: int, expected: str) -> None:
    def with_effort(method: Sequence[Record], networks: int) -> list[Record]:
        return [replace(record, deciding=Cost(networks, 100 * networks)) for record in method]

    unpicked = copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3)
    picked = with_effort(copies("best-of", 2, [-0.15] * 3, [-0.15] * 3), 20)
    groups = with_effort(records("tag", 2, [-0.2] * 3, [-0.2] * 3), networks)
    verdict = verdict_on(groups, unpicked, picked)
    assert verdict.candidate == ("tag", 2)
    assert verdict.copies == verdict.by_budget[2].copies == (expected, 2)
    loss = {"ensemble": 0.9, "best-of": 0.85}[expected]
    assert verdict.change_from_copies.estimate == pytest.approx(0.8 / loss - 1)


def test_recipes_are_compared_with_recipes_and_very_networks_with_very_networks() -> None:
    """The picked copies are as good as the picked groups, but with fresh seeds, the groups are better."""
    label, best_of = ("tag", 2), ("best-of", 2)
    groups = records(*label, [-0.2, -0.3, -0.2], [-0.2, -0.3, -0.2])
    picked = copies("best-of", 2, [-0.1, -0.1, -0.2], [-0.1, -0.1, -0.3])
    fresh_groups = records(*label, [-0.1] * 3, [-0.19, -0.2, -0.21], first=3)
    fresh_copies = [replace(one, seed=one.seed + 3) for one in copies("best-of", 2, [-0.1] * 3, [-0.11, -0.1, -0.09])]
    noise = RowNoise({label: 0.001, best_of: 0.001}, {label: 0.01}, {label: 0.002}, {label: 0.02})
    verdict = verdict_on(groups, picked, fresh_groups, fresh_copies, noise=noise, confirming=[3, 4, 5])
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


def test_one_network_is_compared_with_the_best_of_several_copies() -> None:
    taught = records("auto", 1, [-0.2] * 3, [-0.2, -0.21, -0.19], STUDENT)
    alone = verdict_on(taught, noise=QUIET)
    assert alone.copies == ("mtl", None)
    assert alone.change_from_copies == alone.recipe
    assert alone.networks_from_copies.estimate == pytest.approx(-0.2)
    assert alone.by_budget[1].networks_from_copies == alone.networks_from_copies
    best = records("best-of", 1, [-0.1] * 3, [-0.1] * 3, (Group("ab", "ab", copy=3),))
    compared = verdict_on(taught, best, noise=QUIET)
    assert compared.copies == compared.by_budget[1].copies == ("best-of", 1)
    assert compared.change_from_copies.estimate == pytest.approx(np.mean([0.8, 0.79, 0.81]) / 0.9 - 1)
    assert compared.networks_from_copies.estimate == pytest.approx(0.8 / 0.9 - 1)
    verdict = verdict_on(best, noise=QUIET)
    assert verdict.recommended == verdict.by_budget[1].label == ("best-of", 1)
    assert verdict.better_than_copies is None


def test_seeds_that_share_teachers_cannot_show_that_teaching_beats_copies() -> None:
    def students(seeds: list[int], own: bool) -> list[Record]:
        found = records("auto", 2, [-0.2] * len(seeds), [-0.2, -0.205, -0.21], first=seeds[0])
        names = [f"key {record.seed}" if own else "key" for record in found]
        lessons = [tuple(Group("ab", "ab", copy=copy, taught=Taught((name,))) for copy in (4, 5)) for name in names]
        return [replace(record, groups=groups) for record, groups in zip(found, lessons, strict=True)]

    ensemble = copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.1, -0.1])
    shared = verdict_on(students([0, 1, 2], own=False), ensemble, noise=QUIET)
    assert (shared.worth_it, shared.same_teachers, shared.change_from_copies.better) == (True, True, True)
    assert shared.better_than_copies is None
    fresh = [replace(one, seed=one.seed + 3) for one in ensemble]
    both = students([0, 1, 2], own=False), ensemble, students([3, 4, 5], own=True), fresh
    confirmed = verdict_on(*both, noise=QUIET, confirming=[3, 4, 5])
    assert not confirmed.same_teachers
    assert confirmed.better_than_copies is True


# Expected losses


def test_every_network_must_be_worth_its_price() -> None:
    two, three = (copies("ensemble", k, [change] * 3, [change] * 3) for k, change in ((2, -0.02), (3, -0.024)))
    noise = {("ensemble", 2): 0.001, ("ensemble", 3): 0.001}
    assert verdict_on(two, three, noise=noise).recommended == ("ensemble", 2)
    assert verdict_on(two, three, noise=noise, at_least=0.001).recommended == ("ensemble", 3)
    assert not verdict_on(two, noise=noise, at_least=0.2).worth_it
    small = copies("ensemble", 2, [-0.004] * 3, [-0.004] * 3)
    assert verdict_on(small, noise={("ensemble", 2): 0.0001}).recommended == ("mtl", None)


def test_networks_that_were_picked_must_be_better_by_a_standard_error() -> None:
    unpicked = copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3)
    val = [-0.05, -0.11, -0.17]
    picked = records("optimal", 2, val, val)
    assert verdict_on(picked, unpicked).candidate == ("ensemble", 2)
    assert verdict_on(records("tag", 2, val, val), unpicked).candidate == ("tag", 2)
    assert verdict_on(records("auto", 2, val, val)).expected == pytest.approx(-0.11), "which shrinks its estimates"
    verdict = verdict_on(picked)
    assert verdict.validation == pytest.approx(-0.11)
    assert verdict.expected == pytest.approx(-0.11 + stats.sem(val))
    assert verdict.flattered
    assert verdict.high - verdict.estimate == pytest.approx(verdict.estimate - verdict.low + stats.sem(val))


def test_the_luck_of_picking_adds_up_over_tasks() -> None:
    """If each task is served by its luckiest network, luck does not average out."""
    val = [-0.1, 0.0, 0.1]
    opposite = with_scores(records("optimal", 2, val, val), "b", val=[2 * (1 - change) for change in val])
    verdict = verdict_on(opposite)
    assert verdict.expected - verdict.validation == pytest.approx(stats.sem(val))
    one_seed = verdict_on(opposite[:1])
    assert one_seed.expected == one_seed.validation


# Budgets


def test_the_best_networks_of_each_budget_are_chosen_on_validation() -> None:
    verdict = verdict_on(
        records("tag", 2, [-0.05] * 3, [-0.9] * 3),
        copies("ensemble", 2, [-0.06] * 3, [-0.05, -0.06, -0.07]),
        larger(3, [-0.07] * 3, [-0.07] * 3),
        copies("ensemble", 3, [-0.065] * 3, [-0.06] * 3),
        noise={("ensemble", 2): 0.001},
    )
    one, two, three = (verdict.by_budget[budget] for budget in (1, 2, 3))
    assert [best.label for best in (one, two, three)] == [("mtl", None), ("ensemble", 2), ("mtl-big3", None)]
    assert [best.kind for best in (one, two, three)] == ["plain", "copies", "larger"]
    others = [[(other.kind, other.label) for other in best.others] for best in (one, two, three)]
    assert others == [[], [("groups", ("tag", 2))], [("copies", ("ensemble", 3))]]
    assert (one.change, one.parameters, one.training_cost) == (Change(0.0, 0.0, 0.0), 1000, 1.0)
    assert two.change.estimate == pytest.approx(-0.06)
    assert two.change.low < -0.06 < two.change.high
    assert (two.copies, two.change_from_copies) == (None, None)
    assert (two.seeds, two.deciding_cost, two.training_cost, two.latency) == (3, 0, 2, None)
    assert two.others[0].change.estimate == pytest.approx(-0.9)
    assert (three.copies, three.size, three.parameters) == (("ensemble", 3), 3, 3060)
    assert three.change_from_copies.estimate == pytest.approx(0.93 / 0.94 - 1)


def test_a_larger_network_costs_as_much_as_the_networks_it_replaces() -> None:
    big, two = larger(2, [-0.05] * 3, [-0.05, -0.051, -0.052]), copies("ensemble", 2, [-0.04] * 3, [-0.04] * 3)
    noise = {("mtl-big2", None): 0.001, ("ensemble", 2): 0.001}
    verdict = verdict_on(big, two, noise=noise)
    assert (verdict.recommended, verdict.groups) == (("mtl-big2", None), TOGETHER)
    assert verdict_on(big, noise=noise, at_least=0.06).recommended == ("mtl", None)
    unknown = [replace(record, parameters=0) for record in big]
    assert verdict_on(unknown, noise=noise).candidate is None


def test_a_method_that_uses_fewer_networks_competes_for_both_numbers() -> None:
    by_budget = verdict_on(records("auto", 3, [-0.1] * 3, [-0.1] * 3)).by_budget
    assert [(best.label, best.size) for best in by_budget.values()] == [
        (("mtl", None), 1), (("auto", 3), 2), (("auto", 3), 2)
    ]  # fmt: skip


# Answers and files


def test_four_questions_are_answered() -> None:
    late = {("mtl", None): LateNetworks(0, 3), ("tag", 2): LateNetworks(1, 6)}
    better = ([-0.2] * 3, [-0.2, -0.21, -0.22])
    groups, ensemble = records("tag", 2, *better), copies("ensemble", 2, [-0.1] * 3, [-0.1, -0.1, -0.1])

    def answers(*methods: Sequence[Record], **more: Any) -> list[str]:
        return [answer.answer for answer in verdict_on(*methods, noise=QUIET, **more).answers()]

    partly, nothing = Learning({"a": 0.0, "b": 0.9}, late), Learning({"a": 0.9, "b": 0.9})
    assert answers(groups, ensemble, learning=partly) == ["Partly.", "No.", "Yes.", "Groups matter."]
    assert answers(groups, ensemble, learning=nothing) == ["No.", "Not known.", "No.", "Not known."]
    assert answers(records("tag", 2, [-0.2], [-0.2]))[2:] == ["Not known.", "Not known."]
    assert answers(ensemble)[3] == "Copies do."
    assert answers(groups, copies("best-of", 2, [-0.1] * 3, [-0.21] * 3))[3] == "Copies would do."
    assert answers(records("auto", 1, *better, STUDENT), ensemble)[3] == "No."


def test_budgets_answers_and_noise_survive_a_file(tmp_path: Path) -> None:
    tag, ensemble = records("tag", 2, [-0.2] * 3, [-0.2, -0.21, -0.22]), copies("ensemble", 2, [-0.1] * 3, [-0.1] * 3)
    noise = RowNoise(QUIET, {("tag", 2): 0.02}, {("tag", 2): 0.015}, {("tag", 2): 0.025})
    learning = Learning({"a": 0.0, "b": 0.01}, {("mtl", None): LateNetworks(1, 3)})
    saved = results([*together(), *tag, *ensemble], noise=noise, learning=learning)
    saved.save(tmp_path)
    loaded = Results.load(tmp_path)
    assert (loaded.row_noise, loaded.learning) == (noise, learning)
    assert loaded.verdict() == saved.verdict()
    verdict = json.loads((tmp_path / "results.json").read_text())["verdict"]
    two = verdict["by_budget"]["2"]
    assert (two["label"], [other["label"] for other in two["others"]]) == (["tag", 2], [["ensemble", 2]])
    assert two["groups"] == [{"trains": ["a"], "serves": ["a"]}, {"trains": ["b"], "serves": ["b"]}]
    assert verdict["better_than_copies"] is True


def test_the_best_of_many_needs_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    tried = rng.normal(size=(8, 3)).tolist()
    pooled = math.sqrt(np.mean([np.var(changes, ddof=1) / 3 for changes in tried]))
    alone = stats.t.ppf(0.975, 2) * stats.sem(tried[0])
    best_of_eight = stats.t.ppf(1 - 0.025 / 8, 16) * pooled
    assert interval_half_width(tried[0], tried) == pytest.approx(max(alone, best_of_eight))
    assert interval_half_width(tried[0]) == pytest.approx(alone)
    assert interval_half_width([0.0, 0.0], row_stderr=1.0) == pytest.approx(stats.norm.ppf(0.975))


@pytest.mark.parametrize("losses", [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [5e-324, 1.0, 1.0], [1e-200, 1.0, 1.0]])
def test_no_change_or_interval_is_shown_as_infinite(tmp_path: Path, losses: list[float]) -> None:
    mtl = with_scores(together(3), "a", test=losses)
    found = results([*mtl, *records("tag", 2, [-0.1, -0.12, -0.11], [-0.1] * 3)])
    verdict = found.verdict()
    assert (verdict.worth_it, verdict.low, verdict.high) == (False, None, None)
    page = write_report(found.save(tmp_path).parent).read_text(encoding="utf-8").partition("<script")[0]
    for text in (str(found), found._repr_html_(), json.dumps(verdict.to_document(), allow_nan=False), page):
        assert not re.search("(inf|nan)%", text)
