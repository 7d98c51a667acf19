"""Every experiment at small size on drawn faces, and the rules by which claims are judged."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.learn import train
from tagalong_paper import EXPERIMENTS, ExperimentSetup, PublishedMatrix, Report, Value, run_experiment
from tagalong_paper.experiments import (
    frequency,
    hyperparameters,
    matrix,
    over_time,
    partner,
    task_sets,
    tune,
    validation,
)
from tagalong_paper.report import claim_all_lower

Reports = Callable[..., Report]
TRAINED = [experiment.name for experiment in EXPERIMENTS if experiment.trains]
CLEAR, OTHER, NOISE = [1.0, 1.1, 1.05], [2.0, 2.1, 2.05], [1.0, 3.0, 2.0]


def means(report: Report, table: str, column: str) -> list[float]:
    return [cell.mean for cell in report.table(table).column(column) if isinstance(cell, Value)]


class NothingToTrain:
    """Progress that fails if any network is trained."""

    def start(self, total: int, what: str) -> None:
        raise AssertionError(f"{total} networks were to be trained: {what}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["partner", "frequency", "hyperparameters", "task-sets", "capacity"])
def test_a_second_run_trains_nothing_and_gives_the_same_report(
    name: str, report: Reports, setup: ExperimentSetup
) -> None:
    first = report(name).to_document()
    assert run_experiment(name, replace(setup, progress=NothingToTrain())).to_document() == first


@pytest.mark.slow
def test_without_early_stopping_every_epoch_is_trained(report: Reports, setup: ExperimentSetup) -> None:
    report("no-early-stopping")
    recipe = setup.chosen.recipe
    steps = -(-len(setup.chosen.train) // recipe.batch_size)
    with setup.open_runner(patience=None, keep="last") as full:
        jobs = [full.job(setup.chosen.names, seed, rule) for seed in setup.seeds for rule in ("plain", "uw", "pcgrad")]
        assert not full.missing(jobs)
        assert {(row.steps, row.best_epoch) for row in full.networks(jobs).values()} == {
            (steps * recipe.epochs, recipe.epochs - 1)
        }


@pytest.fixture(scope="module")
def every_step(setup: ExperimentSetup) -> Affinity:
    with setup.open_runner() as runner:
        return setup.measure(runner, every=1)[0]


def test_a_sparser_schedule_is_what_a_meter_with_it_measures(setup: ExperimentSetup, every_step: Affinity) -> None:
    with setup.open_runner() as runner:
        job = runner.job(setup.chosen.names, 0)
    metered = train(setup.chosen, job, meter={"estimator": "lookahead", "update": "sgd", "every": 5}).affinity
    assert metered is not None
    read = frequency.SCHEDULES["every 5"].apply(every_step)
    assert read.steps.tolist() == metered.steps.tolist()
    np.testing.assert_array_equal(read.history, metered.history)


@pytest.mark.parametrize("dataset", ["celeba", "taskonomy"])
def test_the_range_of_thresholds_is_where_the_fitted_rule_holds(dataset: str) -> None:
    affinity, groups = PublishedMatrix(f"{dataset}_tag").affinity, matrix.PAPER_GROUPS[dataset]
    wanted = {frozenset(group) for group in groups}
    holds = matrix.threshold_range(affinity, groups)
    assert holds is not None
    low, high = holds
    assert low < matrix.THRESHOLD <= high
    for share, same in ((low - 1e-6, False), (low + 1e-6, True), (high, True), (high + 1e-6, False)):
        assert (set(matrix.natural_groups(affinity, share)) == wanted) == same
    assert matrix.threshold_range(affinity, groups[:1]) is None
    for size in (2, 3, 4):
        for group in map(frozenset, combinations(affinity.tasks, size)):
            assert (matrix.group_margin(affinity, group) > 0) == (group in wanted)


def test_groups_of_the_paper_are_judged_on_our_matrices_seed_by_seed() -> None:
    clear = Affinity.from_matrix([[0, 9, 1], [9, 0, 1], [1, 2, 0]], ["a", "b", "c"])
    other = Affinity.from_matrix([[0, 1, 9], [1, 0, 1], [9, 2, 0]], ["a", "b", "c"])

    def judged(*each: Affinity) -> list[str]:
        return [claim.reproduced for claim in matrix.judge_own_matrices([{"a", "b"}, {"a", "z"}], each)]

    assert judged(clear, clear, clear) == ["yes"]
    assert judged(other, other, other) == ["no"]
    assert judged(clear, other) == judged(clear) == ["within noise"]


def test_epochs_and_their_halves_add_up_to_the_whole_training(setup: ExperimentSetup, every_step: Affinity) -> None:
    steps = -(-len(setup.chosen.train) // setup.chosen.recipe.batch_size)
    halves = over_time.half_epoch_sums(every_step, steps)
    assert len(halves) == len(every_step.steps) // steps
    np.testing.assert_allclose(halves.sum((0, 1)), every_step.history.sum(0))
    assert np.abs(halves).sum(axis=(2, 3)).all(), "steps in either half"
    start, later = over_time.split_first_steps(every_step)
    assert later is not None
    assert start.steps.tolist() + later.steps.tolist() == every_step.steps.tolist()
    assert (len(start.steps), over_time.split_first_steps(start)) == (3, (start, None))


def test_reversals_are_counted_over_all_targets_and_pairs() -> None:
    epochs = np.random.default_rng(0).standard_normal((400, 4, 4))
    slow = 0
    for before, after in pairwise(epochs[:6]):
        for target in range(4):
            for one, other in combinations(set(range(4)) - {target}, 2):
                slow += (before[one, target] < before[other, target]) != (after[one, target] < after[other, target])
    assert over_time.count_reversals(epochs[:6]) == slow
    assert over_time.count_comparisons(epochs) == 4 * 3 * 399
    assert over_time.count_reversals(epochs) / over_time.count_comparisons(epochs) == pytest.approx(0.5, abs=0.03)
    assert over_time.claim_order_changes(epochs[:1], [epochs[:1, None]]).reproduced == "not tested"


@pytest.mark.parametrize(
    ("moves", "noise", "seeds", "answer"),
    [(100, 1, 3, "yes"), (0, 100, 3, "within noise"), (0, 0, 3, "no"), (100, 1, 1, "within noise")],
)
def test_the_order_changes_only_if_noise_does_not_explain_it(moves: int, noise: int, seeds: int, answer: str) -> None:
    halves = []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        true = np.arange(16.0).reshape(1, 4, 4) + moves * random.normal(size=(5, 4, 4))
        history = np.repeat(true, 8, 0) + noise * random.normal(size=(40, 4, 4))
        halves.append(over_time.half_epoch_sums(Affinity.from_history(history, list("abcd")), 8))
    assert over_time.claim_order_changes(halves[0].sum(1), halves).reproduced == answer


def test_first_steps_are_positive_or_more_alike_only_if_seeds_agree() -> None:
    def start(seed: int, shift: float) -> Affinity:
        steps = np.random.default_rng(seed).standard_normal((7, 3, 3)) + shift
        return Affinity.from_history(steps, list("abc"))

    for shift, answer in ((0.1, "within noise"), (50.0, "yes"), (-50.0, "no")):
        assert over_time.claim_positive([start(seed, shift) for seed in range(3)]).reproduced == answer
    alike, unlike = (
        Affinity.from_matrix(1 + far * np.arange(9.0).reshape(3, 3), ["a", "b", "c"]) for far in (0.01, 1.0)
    )
    for first, later, answer in (
        ([alike] * 3, [unlike] * 3, "yes"),
        ([unlike] * 3, [alike] * 3, "no"),
        ([alike, unlike], [unlike, alike], "within noise"),
        ([alike], [unlike], "within noise"),
        ([alike], [None], "not tested"),
    ):
        assert over_time.claim_more_alike(first, later).reproduced == answer


def test_noise_alone_refutes_no_claim_with_many_comparisons() -> None:
    noise = np.random.default_rng(0).standard_normal((500, 2, 20, 3))
    answers = [
        claim_all_lower("each is lower", {str(i): (mine[i], other[i]) for i in range(20)}).reproduced
        for mine, other in noise
    ]
    assert answers.count("no") / len(answers) < 0.07
    assert answers.count("yes") == 0
    assert claim_all_lower("each is lower", {"a": (OTHER, CLEAR), "b": (CLEAR, OTHER)}).reproduced == "no"


@pytest.mark.parametrize(("rows", "answer"), [(1, "within noise"), (3, "within noise"), (4, "yes"), (40, "yes")])
def test_a_difference_of_a_few_test_rows_is_never_clear(rows: int, answer: str, setup: ExperimentSetup) -> None:
    per_row = setup.per_row
    assert per_row == 100 / len(setup.problem.splits["test"])
    pairs = {"one": ([5.0] * 3, [5.0 + rows * per_row] * 3)}  # z = 1.96 makes a difference clear from four rows on
    assert claim_all_lower("lower", pairs, per_row=per_row).reproduced == answer
    assert claim_all_lower("lower", pairs).reproduced == "yes", "losses do not count rows"


@pytest.mark.parametrize(
    ("chosen", "per_row", "answer"),
    [
        ([[1.0, 1.1], [0.8, 0.9], [1.2, 1.1]], 0.0, "yes"),
        ([[9.0, -8.0], [1.0, 0.5], [2.0, 1.0]], 0.0, "within noise"),
        ([[-1.0, -1.1], [-0.8, -0.9], [-1.2, -1.1]], 0.0, "no"),
        ([[1.0], [2.0], [1.5]], 0.0, "within noise"),  # one seed
        ([[0.0, 0.0], [0.0, 0.0]], 0.0, "not tested"),  # two tasks: no choice
        ([[1.0, 1.1], [0.8, 0.9], [1.2, 1.1]], 1.0, "within noise"),  # a test row for each task
    ],
)
def test_a_gain_over_random_partners_must_be_clear(chosen: list[list[float]], per_row: float, answer: str) -> None:
    rows = np.full(len(chosen), per_row)
    assert partner.claim_better_than_random(np.array(chosen), rows).reproduced == answer


def test_the_worst_partner_is_the_one_with_the_lowest_gain() -> None:
    low, high, unsure = [-3.0, -3.1], [2.0, 2.1], [-3.0, 2.8]
    assert partner.judge_worst_chosen(high, list(low), low) == "yes", "a tie with the worst is as bad"
    assert partner.judge_worst_chosen(high, unsure, low) == "within noise"
    assert partner.judge_worst_chosen([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]) == "not tested", "two tasks"
    assert partner.judge_worst_chosen(high, high, low, per_row=3.0) == "within noise", "not two test rows"


@pytest.mark.parametrize(
    ("values", "baseline", "per_row", "answer"),
    [
        ([5.0, 5.1], [5.1, 5.2], 0.0, "no"),  # clearly worse, by little
        ([5.0, 5.3], [5.1, 5.2], 0.0, "yes"),
        ([0.0, 0.0], [0.0, 0.0], 0.0, "within noise"),  # as bad as random groups
        ([9.0, -4.0], [5.1, 5.2], 0.0, "within noise"),
        ([5.0], [5.0], 0.0, "within noise"),  # one seed
        ([5.0, 5.1], [5.1, 5.2], 0.1, "yes"),  # worse by one test row
        ([5.0, 5.3], [5.1, 5.2], 3.0, "within noise"),  # two test rows better than random
        ([math.nan, 5.3], [5.1, 5.2], 0.0, "not tested"),
    ],
)
def test_measuring_less_often_is_as_good_only_if_there_are_gains_to_lose(
    values: list[float], baseline: list[float], per_row: float, answer: str
) -> None:
    assert frequency.judge_not_worse(values, baseline, per_row) == answer


def test_two_losses_group_equally_well_only_if_both_groupings_gain() -> None:
    assert validation.judge_equally_good([5.0, 5.2], [6.0, 6.2], [7.0, 7.2]) == "no"
    assert validation.judge_equally_good([5.0, 9.2], [7.1, 6.0], [7.0, 7.2]) == "within noise"
    assert validation.judge_equally_good([5.0], [5.0], [7.0]) == "within noise", "one seed"
    assert validation.judge_equally_good([5.0, 5.0], [5.1, 5.1], [7.0, 7.0]) == "no"
    assert validation.judge_equally_good([5.0, 5.0], [5.1, 5.1], [7.0, 7.0], per_row=0.1) == "yes", "one row"


@pytest.mark.parametrize(
    ("settings", "per_row", "answers"),
    [
        ([CLEAR, OTHER, [3.0, 3.1, 3.05]], 0.0, ["yes", "yes"]),
        ([CLEAR, OTHER, [3.0, 3.1, 3.05]], 0.5, ["within noise"] * 2),  # two rows
        ([CLEAR, NOISE, NOISE[::-1]], 0.0, ["within noise"] * 2),
        ([[3.0, 3.1, 3.05], OTHER, CLEAR], 0.0, ["no", "no"]),
        ([[5.0, math.nan], [6.0, 6.1], [7.0, 7.1]], 0.0, ["not tested"] * 2),
        ([[], [], []], 0.0, ["not tested"] * 2),  # one seed: none is left out
    ],
)
def test_groups_change_with_the_setting_only_if_left_out_seeds_are_clear(
    settings: list[list[float]], per_row: float, answers: list[str]
) -> None:
    totals = np.array(settings)[:, None]  # [setting, budget, seed]
    assert [claim.reproduced for claim in hyperparameters.judge_claims(totals, per_row)] == answers


def test_a_tie_on_validation_does_not_count_against_the_recipe() -> None:
    totals = {(128, 1e-4): 9.0, (128, 5e-4): 8.0, (256, 1e-4): 8.5, (256, 5e-4): 8.0 + 1e-12}
    assert tune.lowest(totals, preferred=(256, 5e-4)) == (256, 5e-4)
    assert tune.lowest(totals, preferred=(256, 1e-4)) == (128, 5e-4)
    for own, answer in (((128, 5e-4), "yes"), ((128, 1e-4), "within noise")):
        assert tune.claim_recipe_is_best(totals, (128, 5e-4), own).reproduced == answer
    lost = dict.fromkeys(totals, math.inf)
    assert tune.claim_recipe_is_best(lost, (128, 5e-4), (128, 5e-4)).reproduced == "not tested"


def test_affinities_change_only_if_the_destructive_task_harms_and_seeds_agree() -> None:
    less_alike = [(0.9, 0.5), (0.92, 0.51)]
    for correlations, harms, answer in (
        (less_alike, "yes", "yes"),
        (less_alike, "within noise", "within noise"),
        (less_alike, "no", "not tested"),
        ([(together, alone) for alone, together in less_alike], "yes", "no"),
        ([(0.9, 0.8), (0.9, 0.3)], "yes", "within noise"),
        ([(0.9, math.nan), (0.9, 0.5)], "yes", "not tested"),
    ):
        assert task_sets.claim_affinities_change(correlations, harms).reproduced == answer


def test_the_destructive_task_has_shuffled_labels(setup: ExperimentSetup) -> None:
    harmful = task_sets.with_destructive_task(setup.chosen)
    first = setup.chosen.names[0]
    for split in harmful.splits.values():
        assert split.targets["destructive"].sum() == split.targets[first].sum()
    assert (harmful.train.targets["destructive"] != harmful.train.targets[first]).any()
    assert harmful.task("destructive").weight == task_sets.WEIGHT


def test_three_tasks_are_too_few_for_sets_that_share_a_pair(setup: ExperimentSetup) -> None:
    with pytest.raises(ValueError, match="`tasks`"):
        task_sets.candidate_tasks(replace(setup, tasks=setup.problem.names[:3]))
