"""The verdict on records with given changes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from verdict_records import APART, HELPED, TOGETHER, records, results, together

from tagalong.group import Group
from tagalong.report import write_report
from tagalong.report.page.answer import headline
from tagalong.study import ProblemInfo, Results, Score, Verdict, interval_half_width
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
    assert headline(verdict) == "None of them: train each task alone, in two networks."


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
    assert not verdict_on(records("tag", 2, [-0.02] * 3, [-0.06, 0.0, 0.0])).worth_it


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
    assert not verdict.worth_it
    assert results(found, noise=ROWS, settings={"confirming_seeds": [3, 4, 5]}).verdict() == verdict


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
