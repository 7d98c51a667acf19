from dataclasses import replace

import pytest
from study_small import small_problem

from tagalong.learn import Task
from tagalong.study import Study
from tagalong.study.relative_losses import MAX_RATIO, relative_loss_table

PAIR, ALL = frozenset("ab"), frozenset("abc")


def shifted(down):
    """Returns a loss that is the squared error minus a number, negative like the log-likelihood of a narrow density."""

    def loss(outputs, targets):
        return (outputs.squeeze(1) - targets).square() - down

    problem = small_problem("abc")
    return replace(problem, tasks=tuple(Task(name, kind="custom", loss=loss) for name in problem.names))


def test_a_study_of_negative_losses_chooses_what_the_verdict_compares(tmp_path):
    results = Study(shifted(50.0), tmp_path).run(["stl", "hoa", "optimal"], [1, 2, 3], 2)
    by_label = {(line.method, line.budget): line for line in results.table()}
    assert all(line.loss["a"] < 0 for line in by_label.values())
    others = [line.validation for label, line in by_label.items() if label != ("optimal", 3)]
    assert by_label["optimal", 3].validation <= min(others) + 1e-12, "no grouping does better on validation"
    assert by_label["optimal", 1].validation == 0
    grouped = {label: line.validation for label, line in by_label.items() if label != ("mtl", None)}
    assert grouped[results.verdict(at_least=0.0).candidate] <= min(grouped.values()) + 1e-12


def test_lower_is_better_on_both_sides_of_zero():
    for base, better in ((2.0, 1.0), (-1.0, -2.0), (1.0, -1.0)):
        losses = {PAIR: better, ALL: base}
        table = relative_loss_table(
            [PAIR, ALL], "abc", [0], lambda subset, task, seed, of=losses: of[subset], "together"
        )
        assert table[PAIR]["a"] < table[ALL]["a"] == 1


def test_a_reference_with_zero_loss_gives_finite_relative_losses():
    losses = {PAIR: 1.0, ALL: 0.0}
    table = relative_loss_table([PAIR, ALL], "abc", [0], lambda subset, task, seed: losses[subset], "together")
    assert table[ALL]["a"] == 1
    assert table[PAIR]["a"] == pytest.approx(MAX_RATIO)
