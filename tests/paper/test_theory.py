"""The paper's lemma and proposition, and the statements that hold instead."""

import numpy as np
import pytest

from tagalong_paper import run_experiment
from tagalong_paper.theory import (
    BOUNDS,
    COUNTEREXAMPLE,
    PANELS,
    cosines,
    lemma_gap,
    logistic_cases,
    losses_after_steps,
    quadratic_cases,
    search_lemma,
    search_margin,
    search_proposition,
)

CASE_COUNT = 20_000
BY_NAME = {bound.name: bound for bound in BOUNDS}


def test_lemma_1_holds_on_quadratics_and_logistic_regressions() -> None:
    for seed in (0, 1):
        for kind, found in search_lemma(CASE_COUNT, seed).items():
            assert found.met > CASE_COUNT / 4, kind
            assert found.broken == 0, kind


def test_the_counterexample_meets_every_condition_and_breaks_the_proposition() -> None:
    cases = COUNTEREXAMPLE.cases
    np.testing.assert_allclose(cases.g_a, [[0.33962, 3.96208]], atol=5e-5)
    lengths = [np.linalg.norm(g) for g in (cases.g_a, cases.g_b, cases.g_c)]
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-4)
    assert cases.eta[0] <= 1 / cases.beta[0]
    assert COUNTEREXAMPLE.cosine == pytest.approx(-0.9928, abs=5e-5)
    assert COUNTEREXAMPLE.cosine <= float(BOUNDS[0].value(cases.alpha, cases.beta, cases.eta)[0])
    alone = [cases.loss_after(g).item() for g in (cases.g_b, cases.g_c)]
    joint = [cases.loss_after(cases.g_a + g).item() for g in (cases.g_b, cases.g_c)]
    assert alone == pytest.approx([2.0362, 2.0428], abs=5e-5)
    assert joint == pytest.approx([0.8922, 0.8910], abs=5e-5)
    assert lemma_gap(cases).item() > 0


@pytest.mark.parametrize("version", ["main text", "proof", "example", "proof's last inequality"])
def test_every_printed_version_of_the_bound_is_broken(version: str) -> None:
    found = search_proposition(BY_NAME[version], CASE_COUNT)
    assert found.met > CASE_COUNT / 4
    assert found.broken > 0


def test_no_gradients_meet_the_corrected_condition() -> None:
    assert search_proposition(BY_NAME["corrected"], CASE_COUNT).met == 0
    eta_beta = np.linspace(0.01, 1, 100)
    assert (BY_NAME["corrected"].value(np.ones(100), np.full(100, 2.0), eta_beta / 2) <= -1).all()


def test_a_large_enough_advantage_carries_over() -> None:
    for kind, found in search_margin(CASE_COUNT).items():
        assert found.met > CASE_COUNT / 20, kind
        assert found.broken == 0, kind


def test_drawn_losses_have_the_stated_convexity_and_smoothness() -> None:
    random = np.random.default_rng(0)
    for cases in (quadratic_cases(500, random), logistic_cases(500, random)):
        start = cases.loss(cases.theta)
        for length in (0.1, 1.0):
            step = length * random.standard_normal(cases.theta.shape)
            size = (step * step).sum(1)
            rest = cases.loss(cases.theta + step) - start - (cases.g_a * step).sum(1)
            assert (rest >= cases.alpha / 2 * size * (1 - 1e-9) - 1e-9).all()
            assert (rest <= cases.beta / 2 * size * (1 + 1e-9) + 1e-9).all()


def test_gradients_of_quadratics_have_equal_lengths_and_stay_below_the_bound() -> None:
    bound = BY_NAME["main text"]
    cases = quadratic_cases(1000, np.random.default_rng(0), max_cosine=bound.value)
    for gradient in (cases.g_b, cases.g_c):
        np.testing.assert_allclose(np.linalg.norm(gradient, axis=1), np.linalg.norm(cases.g_a, axis=1))
    limit = bound.value(cases.alpha, cases.beta, cases.eta)
    assert (cosines(cases.g_a, cases.g_c) <= np.clip(limit, -1, 1) + 1e-9).all()


def test_the_example_is_reproduced_with_unit_gradients_only() -> None:
    found = [losses_after_steps(panel) for panel in PANELS]
    assert found[0] == pytest.approx((6.9625, 6.9754), abs=5e-5)
    assert found[1] == pytest.approx((6.1015, 6.0852), abs=5e-5)
    assert found[2][1] == pytest.approx(7.938, abs=5e-4)
    assert found[3][1] == pytest.approx(6.9799, abs=5e-5)
    as_stated = [losses_after_steps(panel, unit=False) for panel in PANELS]
    printed = np.array([panel.printed for panel in PANELS])
    np.testing.assert_allclose(found, printed, rtol=0, atol=0.03)
    assert (np.abs(np.array(as_stated) - printed) > 0.1).all(), "every number differs"
    for ours in (found, as_stated):
        assert [with_b < with_c for with_b, with_c in ours] == [with_b < with_c for with_b, with_c in printed]


def test_the_report_judges_lemma_and_proposition(tmp_path) -> None:
    report = run_experiment("theory", count=5000)
    answers = [claim.reproduced for claim in report.claims]
    assert answers == ["yes", "yes", "no", "no"]
    figure = report.figures["theory-counterexample"]
    assert sum(trace.type == "contour" for trace in figure.data) == 4
    assert {file.name for file in report.save(tmp_path)} == {"theory.json", "theory-counterexample.html"}
