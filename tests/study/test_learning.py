"""Whether networks learned anything: the test against a constant, and what the verdict says about it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from verdict_records import APART, TASKS, TOGETHER, records, results, together

from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.report import write_report
from tagalong.report.page.answer import headline
from tagalong.study import LateNetworks, Learning, Results, Score, Study, Verdict
from tagalong.study.candidates import comparable_records
from tagalong.study.learning import combine_p_values, constant_p_values, gain_p_value
from tagalong.study.uncertainty import row_noise
from tagalong.study.verdict import decide
from tagalong.study.verdict_text import not_counted_sentence

ROWS = {("tag", 2): 0.001}
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


def test_rows_of_one_cluster_prove_nothing() -> None:
    assert gain_p_value(np.array([1.0, 1.1, 0.9]), np.zeros(3)) == 1.0


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


def test_without_p_values_every_task_counts() -> None:
    assert Learning().unlearnt == ()


# The verdict


def learning_of(late: dict | None = None, **p_values: float) -> Learning:
    return Learning(p_values, late or {})


def verdict_on(learning: Learning, *found: list, **more: object) -> Verdict:
    return decide([*together(), *(record for some in found for record in some)], ROWS, learning=learning, **more)


def with_loss(some: list, task: str, change: float) -> list:
    """Replaces the losses of one task."""

    def changed(scores: dict) -> dict:
        return scores | {task: Score(scores[task].loss * (1 + change), scores[task].error)}

    return [replace(record, val=changed(record.val), test=changed(record.test)) for record in some]


def test_unlearnt_tasks_are_left_out_of_the_change() -> None:
    found = with_loss(records("tag", 2, [-0.1, -0.12, -0.11], [-0.1, -0.12, -0.11]), "b", 10.0)
    assert not verdict_on(learning_of(a=0.0, b=0.0), found).worth_it
    verdict = verdict_on(learning_of(a=0.0, b=0.6), found)
    assert verdict.worth_it
    assert verdict.unlearnt == ("b",)
    assert not verdict.nothing_learnt
    assert verdict.estimate == pytest.approx(-0.11)
    text = " ".join(str(verdict).split())
    assert "b is not counted: on validation data, no network beats a constant" in text


def test_if_no_task_is_left_nothing_was_learnt() -> None:
    verdict = verdict_on(learning_of(a=0.3, b=0.6), records("tag", 2, [-0.5] * 3, [-0.5] * 3))
    assert verdict.nothing_learnt
    assert not verdict.worth_it
    assert (verdict.recommended, verdict.groups, verdict.candidate) == (("mtl", None), TOGETHER, None)
    assert str(verdict).startswith("Verdict: Nothing was learnt: on validation data, no network beats a constant")
    assert "1. a, b" not in str(verdict)
    assert not_counted_sentence(verdict) == ""
    assert headline(verdict) == "Nothing was learnt: no network beats a constant."


def test_tasks_without_a_constant_always_count() -> None:
    verdict = verdict_on(learning_of(b=0.6), records("tag", 2, [-0.1] * 3, [-0.1, -0.11, -0.12]))
    assert verdict.unlearnt == ("b",)
    assert not verdict.nothing_learnt
    assert verdict.worth_it


def test_a_network_that_diverged_on_an_unlearnt_task_is_still_no_candidate() -> None:
    lost = with_loss(records("tag", 2, [-0.1] * 3, [-0.1] * 3), "b", math.nan)
    verdict = verdict_on(learning_of(a=0.0, b=0.6), lost)
    assert verdict.candidate is None
    assert verdict.diverged == (("tag", 2),)


def test_several_unlearnt_tasks_are_named() -> None:
    verdict = replace(verdict_on(Learning()), unlearnt=tuple(f"t{number}" for number in range(8)))
    assert not_counted_sentence(verdict).startswith("t0, t1, t2, t3, t4 and 3 more are not counted: ")


def test_networks_best_in_their_last_epochs_make_the_verdict_provisional() -> None:
    late = {("mtl", None): LateNetworks(0, 3), ("tag", 2): LateNetworks(2, 6), ("hoa", 2): LateNetworks(6, 6)}
    found = records("tag", 2, [-0.1] * 3, [-0.1, -0.11, -0.12])
    verdict = verdict_on(learning_of(late), found)
    assert verdict.provisional == ("2 of 9 networks were best in the last 3 epochs, so raise `epochs`",)
    assert str(verdict).startswith("Provisional verdict: ")
    assert verdict_on(learning_of(late | {("tag", 2): LateNetworks(0, 6)}), found).provisional == ()
    alone = verdict_on(learning_of({("mtl", None): LateNetworks(1, 3)}, a=1.0, b=1.0))
    assert alone.provisional == ("1 of 3 networks was best in the last 3 epochs, so raise `epochs`",)


def test_only_groupings_that_may_be_recommended_are_compared_with_the_constant() -> None:
    found = [
        *together(),
        *records("tag", 2, [-0.1] * 3, [-0.1] * 3),
        *records("hoa", 2, [-0.2] * 3, [-0.2] * 3),  # the same groups
        *records("oracle", 2, [-0.9] * 3, [-0.9] * 3, honest=False),
        *records("random", 2, [-0.9] * 3, [-0.9] * 3, groups=()),
    ]
    assert [some[0].groups for some in comparable_records(found)] == [TOGETHER, APART]


def test_the_noise_of_test_rows_is_that_of_the_counted_tasks() -> None:
    found = [*together(), *records("tag", 2, [0.0] * 3, [0.0] * 3)]
    rng = np.random.default_rng(0)
    rows = {id(record): {task: rng.gamma(2.0, size=20) for task in TASKS} for record in found}
    only_a = {key: {"a": losses["a"]} for key, losses in rows.items()}
    counted = row_noise(found, lambda record: rows[id(record)], unlearnt=["b"])
    assert counted == row_noise(found, lambda record: only_a[id(record)])
    assert row_noise(found, lambda record: rows[id(record)], unlearnt=TASKS) == {}


def test_documents_keep_what_was_learnt(tmp_path: Path) -> None:
    late = {("mtl", None): LateNetworks(1, 3)}
    found = [*together(), *records("tag", 2, [-0.1] * 3, [-0.1, -0.11, -0.12])]
    saved = results(found, noise=ROWS, learning=learning_of(late, a=0.0, b=0.6))
    saved.save(tmp_path)
    loaded = Results.load(tmp_path)
    assert loaded.learning == saved.learning
    assert loaded.verdict() == saved.verdict()
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["verdict"]["unlearnt"] == ["b"]
    assert "b is not counted" in " ".join(document["verdict"]["text"].split())


def test_documents_with_unknown_tasks_are_rejected(tmp_path: Path) -> None:
    results(together(), learning=learning_of(z=0.0)).save(tmp_path)
    with pytest.raises(ValueError, match="must only refer to tasks of the problem, but also has z"):
        Results.load(tmp_path)


# Studies


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_pure_noise_is_not_learnt(kind: str, tmp_path: Path) -> None:
    found = run(make_problem(kind=kind), tmp_path, "stl", "constant")
    assert found.verdict().nothing_learnt
    assert "Nothing was learnt" in str(found)
    assert "Nothing was learnt" in (tmp_path / "report.html").read_text()
    assert Results.load(tmp_path).verdict() == found.verdict()


def test_one_learnt_task_among_noise_is_the_only_one_that_counts(tmp_path: Path) -> None:
    found = run(make_problem(("b",)), tmp_path, "stl", confirm=1)
    assert found.verdict().unlearnt == ("a", "c")
    stl, mtl = (found.records_of(label)[-1] for label in (("stl", None), ("mtl", None)))
    by_hand = stl.test["b"].loss / mtl.test["b"].loss - 1
    assert found.verdict().estimate == pytest.approx(by_hand)
    page = write_report(tmp_path).read_text()
    assert page.count("not learnt</span>") >= 2
    assert "a, c are not counted" in page


def test_learnt_tasks_all_count(tmp_path: Path) -> None:
    found = run(make_problem(("a", "b", "c"), kind="binary"), tmp_path, "stl")
    assert found.verdict().unlearnt == ()
    assert set(found.learning.p_values) == {"a", "b", "c"}


def test_two_epochs_are_provisional_and_enough_epochs_are_not(tmp_path: Path) -> None:
    short = run(make_problem(("a",), recipe=replace(RECIPE, epochs=2)), tmp_path / "short", "stl", seeds=3)
    assert "12 of 12 networks were best in the last 3 epochs, so raise `epochs`" in short.verdict().provisional
    assert short.learning.late == {("mtl", None): LateNetworks(3, 3), ("stl", None): LateNetworks(9, 9)}
    long = run(make_problem(("a",)), tmp_path / "long", "stl", seeds=3)
    assert long.verdict().provisional == ()
    last = replace(RECIPE, epochs=2, patience=None, keep="last")
    assert run(make_problem(recipe=last), tmp_path / "last").learning.late == {}


def test_a_continued_study_trains_nothing_and_says_the_same(tmp_path: Path) -> None:
    first = run(make_problem(("b",)), tmp_path, "stl")
    again = run(make_problem(("b",)), tmp_path, "stl")
    assert again.learning == first.learning
    assert again.settings["spent"] == first.settings["spent"]


def test_the_constant_is_a_method_without_networks(tmp_path: Path) -> None:
    problem = make_problem(("b",))
    found = run(problem, tmp_path, "constant")
    row = next(row for row in found.table() if row.method == "constant")
    assert (row.groups, row.training.networks, row.training_cost, row.diverged) == ((), 0, 0.0, 0)
    train, test = (split.targets["b"].double() for split in (problem.train, problem.test))
    assert row.loss["b"] == pytest.approx(float((test - train.nanmean()).square().nanmean()))
    assert row.change is not None
    assert row.change > 0
    assert found.verdict().candidate is None
    assert "constant" in str(found)
    assert found.to_frame().query("method == 'constant'")["networks"].eq(0).all()


def test_the_constant_needs_labels_and_networks_for_its_rules(tmp_path: Path) -> None:
    own = replace(make_problem(), tasks=tuple(Task(name, kind="custom", loss=squared) for name in ("a", "b", "c")))
    with pytest.raises(ValueError, match="'constant' requires tasks with one label per row"):
        run(own, tmp_path, "constant")
    with pytest.raises(ValueError, match="'constant' trains no networks"):
        run(make_problem(), tmp_path, "constant+pcgrad")
    assert run(own, tmp_path).learning.p_values == {}


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square()


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
