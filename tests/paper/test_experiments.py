"""Every experiment at small size on drawn faces, end to end: checks that hold for any data."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.cli import main
from tagalong.group import select_groups
from tagalong.learn import Capacity, Recipe, train
from tagalong.study import Chunk, NetworkResult, Results
from tagalong.study.executors import Advance, Serial
from tagalong_paper import EXPERIMENTS, ExperimentSetup, PublishedMatrix, Report, Value, run_experiment
from tagalong_paper.affinities import measure_every_step
from tagalong_paper.claims import claim_all_lower
from tagalong_paper.experiments import (
    capacity,
    frequency,
    hyperparameters,
    matrix,
    over_time,
    partner,
    task_sets,
    tune,
    validation,
)
from tagalong_paper.measurement_cost import SCHEDULES, speed_up
from tagalong_paper.metrics import error_per_row, grouping_totals, network_results, subset_table
from tagalong_paper.printed import HYPERPARAMETERS

pytestmark = pytest.mark.slow

Reports = Callable[..., Report]
WEAKEST_FIRST = ("no", "not tested", "within noise", "yes")  # a claim of several parts is as weak as the weakest
TRAINED = [experiment.name for experiment in EXPERIMENTS if experiment.trains]


class NothingToTrain:
    """Progress that fails if any network is trained."""

    def start(self, total: int, what: str) -> None:
        raise AssertionError(f"{total} networks were to be trained: {what}")

    def advance(self, n: int) -> None:
        raise AssertionError

    def done(self) -> None:
        pass


def means(report: Report, table: str, column: str) -> list[float]:
    return [cell.mean for cell in report.table(table).column(column) if isinstance(cell, Value)]


@pytest.mark.parametrize("name", TRAINED)
def test_every_experiment_runs_end_to_end_and_judges_its_claims(
    name: str, report: Reports, setup: ExperimentSetup
) -> None:
    found = report(name)
    assert found.claims
    assert {claim.reproduced for claim in found.claims} != {"not tested"}
    for claim in found.claims:
        assert claim.because
        answers = [part.rpartition("(")[2].removesuffix(")") for part in claim.parts]
        assert claim.reproduced == min(answers, key=WEAKEST_FIRST.index, default=claim.reproduced), claim.text
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    document = json.loads((setup.out / f"{name}.json").read_text())
    assert document["experiment"] == name
    assert [entry["reproduced"] for entry in document["claims"]] == [claim.reproduced for claim in found.claims]
    assert found.figures
    for figure in found.figures:
        assert "plotly" in (setup.out / f"{figure}.html").read_text(encoding="utf-8")
    assert (setup.out / "plotly.min.js").stat().st_size > 1e6


def test_the_small_size_has_at_least_five_tasks_and_two_seeds(setup: ExperimentSetup) -> None:
    assert len(setup.chosen.names) >= 5
    assert len(setup.seeds) >= 2
    assert setup.budgets == (2, 3, 4)


@pytest.mark.parametrize("name", ["partner", "frequency", "hyperparameters", "task-sets"])
def test_a_second_run_trains_nothing_and_gives_the_same_report(
    name: str, report: Reports, setup: ExperimentSetup
) -> None:
    first = report(name).to_document()
    idle = ExperimentSetup(setup.problem, setup.out, setup.tasks, setup.seeds, setup.size, "cpu", NothingToTrain())
    assert run_experiment(name, idle).to_document() == first


@pytest.mark.parametrize("key", ["celeba_tag", "taskonomy_tag"])
def test_share_range_is_the_range_in_which_the_fitted_rule_holds(key: str) -> None:
    affinity, groups = PublishedMatrix(key).affinity, matrix.PAPER_GROUPS[key]
    wanted = {frozenset(group) for group in groups}
    holds = matrix.threshold_range(affinity, groups)
    assert holds is not None
    low, high = holds
    assert low < matrix.THRESHOLD <= high
    for share in (low + 1e-6, (low + high) / 2, high):
        assert set(matrix.natural_groups(affinity, share)) == wanted
    for share in (low - 1e-6, high + 1e-6):
        assert set(matrix.natural_groups(affinity, share)) != wanted
    assert matrix.threshold_range(affinity, groups[:1]) is None


def test_the_margin_is_above_zero_exactly_for_natural_groups() -> None:
    affinity = PublishedMatrix("celeba_tag").affinity
    found = matrix.natural_groups(affinity)
    for size in (2, 3, 4):
        for group in map(frozenset, combinations(affinity.tasks, size)):
            assert (matrix.group_margin(affinity, group) > 0) == (group in found)


def test_groups_of_the_paper_are_judged_on_our_matrices_seed_by_seed(report: Reports) -> None:
    texts = [claim.text for claim in report("matrix").claims]
    assert all("by a rule fitted to them" in text for text in texts[:2])
    assert texts[2:] == ["in our matrix the group {a1, a7} forms by the same rule"], "a4 and a6 are not trained"
    clear = Affinity.from_matrix([[0, 9, 1], [9, 0, 1], [1, 2, 0]], ["a", "b", "c"])
    other = Affinity.from_matrix([[0, 1, 9], [1, 0, 1], [9, 2, 0]], ["a", "b", "c"])

    def judged(*each: Affinity) -> list[str]:
        return [claim.reproduced for claim in matrix.judge_own_matrices([{"a", "b"}, {"a", "z"}], each)]

    assert judged(clear, clear, clear) == ["yes"]
    assert judged(other, other, other) == ["no"]
    assert judged(clear, other) == judged(clear) == ["within noise"]


def test_the_gain_of_the_chosen_partner_is_between_best_and_worst(report: Reports) -> None:
    title = "Less test error"
    best, chosen, worst = (means(report("partner"), title, kind) for kind in ("best", "chosen", "worst"))
    for high, middle, low in zip(best, chosen, worst, strict=True):
        assert high >= middle >= low or math.isnan(high)


def test_a_gain_over_random_partners_must_be_clear_over_seeds() -> None:
    def judged(*chosen: list[float], per_row: float = 0.0) -> str:
        return partner.claim_better_than_random(chosen, [per_row] * len(chosen)).reproduced

    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1]) == "yes"
    assert judged([9.0, -8.0], [1.0, 0.5], [2.0, 1.0]) == "within noise"
    assert judged([-1.0, -1.1], [-0.8, -0.9], [-1.2, -1.1]) == "no"
    assert judged([1.0], [2.0], [1.5]) == "within noise", "one seed"
    assert judged([0.0, 0.0], [0.0, 0.0]) == "not tested", "two tasks: no choice"
    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1], per_row=1.0) == "within noise", "a test row for each task"
    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1], per_row=0.1) == "yes", "ten for each"


def test_the_worst_partner_is_the_one_with_the_lowest_gain_whatever_its_name() -> None:
    low, high, unsure = [-3.0, -3.1], [2.0, 2.1], [-3.0, 2.8]
    assert partner.judge_worst_chosen(high, list(low), low) == "yes", "a tie with the worst is as bad"
    assert partner.judge_worst_chosen(high, high, low) == "no"
    assert partner.judge_worst_chosen(high, unsure, low) == "within noise"
    assert partner.judge_worst_chosen([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]) == "not tested", "two tasks"
    assert partner.judge_worst_chosen(high, high, low, per_row=3.0) == "within noise", "not two test rows"


def test_one_test_row_adds_the_same_to_a_gain_and_to_its_row(setup: ExperimentSetup) -> None:
    task, *others = setup.chosen.names
    row = error_per_row(setup.chosen)
    added = {other: [4.0, 6.0] for other in others} | {others[0]: [4.0 + row, 6.0 + row]}
    less = np.subtract(partner.gain(added, others[1]), partner.gain(added, others[0]))
    assert less == pytest.approx(partner._gains_per_row(setup, {task: added})[task])


def test_partner_shows_every_published_spread_and_the_noise_of_every_gain(
    report: Reports, setup: ExperimentSetup
) -> None:
    found = report("partner")
    spreads = found.table("Highest less lowest")
    assert spreads.column("task") == [f"a{number}" for number in range(1, 10)]
    assert None not in spreads.column("printed")
    ours = dict(zip(spreads.column("task"), spreads.column("ours / median"), strict=True))
    assert {task for task, cell in ours.items() if cell is not None} == set(map(setup.short_name, setup.chosen.names))
    assert all(any(bar.error_y.array) for bar in found.figures["partner"].data)


def test_a_sparser_schedule_is_what_a_meter_with_it_measures(setup: ExperimentSetup) -> None:
    with setup.open_backend() as backend:
        full = measure_every_step(backend, [0])[0]
        job = backend.job(setup.chosen.names, 0)
    metered = train(setup.chosen, job, meter={"estimator": "lookahead", "update": "sgd", "every": 5}).affinity
    assert metered is not None
    read = frequency.apply_schedule(full, SCHEDULES["every 5"])
    assert read.steps.tolist() == metered.steps.tolist()
    np.testing.assert_array_equal(read.history, metered.history)


def test_windows_are_quarters_of_the_training(setup: ExperimentSetup) -> None:
    with setup.open_backend() as backend:
        full = measure_every_step(backend, [0])[0]
    steps = len(full.steps)
    parts = {name: frequency.apply_schedule(full, SCHEDULES[name]).steps for name in SCHEDULES if "%" in name}
    assert parts["first 25%"].tolist() == list(range(round(steps / 4)))
    assert parts["last 25%"][-1] == steps - 1
    assert parts["middle 25%"][0] == round(0.375 * steps)


def test_measuring_every_step_has_correlation_and_speed_up_one(report: Reports) -> None:
    found = report("frequency")
    title = "Quality and speed"
    assert means(found, title, "Pearson")[0] == pytest.approx(1)
    assert means(found, title, "speed-up")[0] == means(found, title, "printed, model")[0] == 1
    assert all(-1 <= value <= 1 for value in means(found, title, "Pearson"))
    assert frequency._measurement_cost({"every 1": 3.0, "never": 1.0}) == 2


def test_speed_ups_are_timed_except_for_windows_and_modeled_for_all(report: Reports) -> None:
    found = report("frequency")
    timed = found.tables[0].column("speed-up")
    assert [cell is None for cell in timed] == ["%" in name for name in SCHEDULES]
    cost = found.numbers["measurement_in_plain_steps"]
    modeled = means(found, "Quality and speed", "model")
    assert modeled == pytest.approx([speed_up(schedule, cost) for schedule in SCHEDULES.values()])
    assert [cell.mean for cell in timed[1:6] if isinstance(cell, Value)] != pytest.approx(modeled[1:6], rel=1e-12)


def test_only_columns_headed_printed_hold_numbers_of_the_paper(
    report: Reports, setup: ExperimentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = report("frequency").tables[0]
    monkeypatch.setattr(frequency, "PAPER_COST", 7.0)
    monkeypatch.setattr(frequency, "SPEED", dict.fromkeys(SCHEDULES, frequency.SPEED["every 1"]))
    after = run_experiment("frequency", replace(setup, progress=NothingToTrain())).tables[0]
    changed = [name for name in before.columns if before.column(name) != after.column(name)]
    assert changed == ["printed less error", "printed speed-up", "printed, model"]


def test_measuring_less_often_is_as_good_only_if_there_are_gains_to_lose() -> None:
    assert frequency.judge_not_worse([5.0, 5.1], [5.1, 5.2]) == "no", "clearly worse, by little"
    assert frequency.judge_not_worse([5.0, 5.3], [5.1, 5.2]) == "yes"
    assert frequency.judge_not_worse([0.0, 0.0], [0.0, 0.0]) == "within noise", "as bad as random groups"
    assert frequency.judge_not_worse([9.0, -4.0], [5.1, 5.2]) == "within noise", "nothing is known about it"
    assert frequency.judge_not_worse([5.0], [5.0]) == "within noise", "one seed"
    assert frequency.judge_not_worse([5.0, 5.1], [5.1, 5.2], per_row=0.1) == "yes", "worse by one test row"
    assert frequency.judge_not_worse([5.0, 5.3], [5.1, 5.2], per_row=3.0) == "within noise", (
        "two test rows better than random"
    )


def test_nothing_is_gained_where_random_groups_make_no_errors(
    setup: ExperimentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        frequency, "random_totals", lambda backend, budgets, seeds: {k: [0.0] * len(seeds) for k in budgets}
    )
    found = run_experiment("frequency", setup)
    assert all(math.isnan(cell.mean) for cell in found.tables[0].column("less error, %") if isinstance(cell, Value))
    assert {claim.reproduced for claim in found.claims} == {"not tested"}


def test_printed_columns_follow_ours(report: Reports) -> None:
    columns = report("frequency").tables[0].columns
    for ours, printed in (("less error, %", "printed less error"), ("speed-up", "printed speed-up")):
        assert columns.index(printed) == columns.index(ours) + 1
    columns = report("hyperparameters").tables[0].columns
    for name in ("half the batch", "twice the lr"):
        assert columns.index(f"printed {name}") == columns.index(f"{name}, %") + 1


def test_groups_from_train_loss_hold_no_single_task(report: Reports, setup: ExperimentSetup) -> None:
    rows = report("validation").table("Groups from either").rows
    networks = [str(row[3]) for row in rows if row[0] == "train" and row[3]]
    assert len(networks) == len(setup.budgets)
    assert all("," in network for line in networks for network in line.split("} {"))


def test_two_losses_group_equally_well_only_if_both_groupings_gain() -> None:
    assert validation.judge_equally_good([5.0, 5.2], [5.1, 5.0], [7.0, 7.2]) == "yes"
    assert validation.judge_equally_good([5.0, 5.2], [6.0, 6.2], [7.0, 7.2]) == "no"
    assert validation.judge_equally_good([5.0, 9.2], [7.1, 6.0], [7.0, 7.2]) == "within noise"
    assert validation.judge_equally_good([5.0], [5.0], [7.0]) == "within noise", "one seed"
    assert validation.judge_equally_good([5.0, 5.0], [5.1, 5.1], [7.0, 7.0]) == "no"
    assert validation.judge_equally_good([5.0, 5.0], [5.1, 5.1], [7.0, 7.0], per_row=0.1) == "yes", (
        "one row is not clear"
    )


def test_the_claim_about_single_tasks_is_about_validation(report: Reports) -> None:
    (claim,) = [claim for claim in report("validation").claims if "one task" in claim.text]
    assert claim.text.startswith("affinity on validation")


def test_other_settings_never_beat_the_best_groups_of_the_base_where_both_are_scored_alike(report: Reports) -> None:
    found = report("hyperparameters")
    for name in ("half the batch, %", "twice the lr, %"):
        assert all(value <= 1e-9 for value in means(found, "Groups of other settings", name))


def test_out_of_sample_groups_are_chosen_without_the_seed_that_scores_them(
    report: Reports, setup: ExperimentSetup
) -> None:
    shown = means(report("hyperparameters"), "Out of sample", "base total test error, %")
    with setup.open_backend() as backend:
        for k, found in zip(setup.budgets, shown, strict=True):
            slow = []
            for seed in setup.seeds:
                others = [other for other in setup.seeds if other != seed]
                best = select_groups(subset_table(backend, others), k, objective="min")
                slow += grouping_totals(backend, best.groups, [seed])
            assert found == pytest.approx(np.mean(slow))


def test_the_figure_of_settings_has_errors_over_seeds_and_the_printed_numbers(
    report: Reports, setup: ExperimentSetup
) -> None:
    figure = report("hyperparameters").figures["hyperparameters"]
    assert figure.layout.yaxis.title.text.startswith("less error than")
    drawn = {bar.name: bar for bar in figure.data}
    for name in ("half the batch", "twice the lr"):
        assert list(drawn[f"{name}, printed"].y) == [HYPERPARAMETERS[k][name] for k in setup.budgets]
        assert any(drawn[name].error_y.array)
        assert len(drawn[f"{name}, out of sample"].error_y.array) == len(setup.budgets)


def carried(base: list[float], batch: list[float], rate: list[float], per_row: float = 0.0) -> list[str]:
    scores = {("base", 2): base, ("half the batch", 2): batch, ("twice the lr", 2): rate}
    return [claim.reproduced for claim in hyperparameters.judge_claims(scores, per_row)]


def test_groups_change_with_the_setting_only_if_left_out_seeds_are_clear() -> None:
    assert carried([5.0, 5.1, 5.2], [6.0, 6.1, 6.2], [7.0, 7.1, 7.2]) == ["yes", "yes"]
    assert carried([5.0, 5.1, 5.2], [6.0, 6.1, 6.2], [7.0, 7.1, 7.2], per_row=0.5) == ["within noise"] * 2, "two rows"
    assert carried([5.0, 5.1, 5.2], [5.0, 5.3, 5.1], [5.1, 4.9, 5.3]) == ["within noise", "within noise"]
    more = {"base": 0, "half the batch": 2, "twice the lr": 4}
    thrice = {
        (name, k): [5 + 0.1 * (rows + seed) for seed in range(3)] for name, rows in more.items() for k in (2, 3, 4)
    }
    claims = hyperparameters.judge_claims(thrice, per_row=0.1)
    assert {claim.reproduced for claim in claims} == {"within noise"}, "two rows of a network that serves three times"
    assert carried([6.0, 6.1, 6.2], [5.0, 5.1, 5.2], [4.0, 4.1, 4.2]) == ["no", "no"]
    assert carried([5.0, math.nan], [6.0, 6.1], [7.0, 7.1]) == ["not tested"] * 2
    assert carried([], [], []) == ["not tested"] * 2, "one seed: none is left out"
    assert [claim.reproduced for claim in hyperparameters.judge_claims({})] == ["not tested"] * 2, "no budgets"


def test_hyperparameters_tests_nothing_with_one_seed(report: Reports, setup: ExperimentSetup) -> None:
    report("hyperparameters")
    alone = run_experiment("hyperparameters", replace(setup, seeds=range(1), progress=NothingToTrain()))
    assert {claim.reproduced for claim in alone.claims} == {"not tested"}
    assert not alone.table("Out of sample").rows


def test_epochs_add_up_to_the_whole_training(setup: ExperimentSetup) -> None:
    with setup.open_backend() as backend:
        affinity = measure_every_step(backend, [0])[0]
    steps = -(-len(setup.chosen.train) // setup.chosen.recipe.batch_size)
    epochs = over_time.epoch_sums(affinity, steps)
    np.testing.assert_allclose(epochs.sum(0), affinity.history.sum(0))
    assert len(epochs) == len(affinity.steps) // steps


def test_reversals_are_counted_over_all_targets_and_pairs() -> None:
    random = np.random.default_rng(0)
    epochs = random.standard_normal((6, 4, 4))
    slow = 0
    for before, after in pairwise(epochs):
        for target in range(4):
            for one, other in combinations(set(range(4)) - {target}, 2):
                slow += (before[one, target] < before[other, target]) != (after[one, target] < after[other, target])
    assert over_time.count_reversals(epochs) == slow


def test_reversals_are_reported_with_their_share_of_all_comparisons(report: Reports, setup: ExperimentSetup) -> None:
    random = np.random.default_rng(0)
    epochs = random.standard_normal((400, 4, 4))
    assert over_time.count_comparisons(epochs) == 4 * 3 * 399
    assert over_time.count_reversals(epochs) / over_time.count_comparisons(epochs) == pytest.approx(0.5, abs=0.03)
    claim = report("over-time").claims[-1]
    numbers = report("over-time").numbers
    n, steps = len(setup.chosen.names), -(-len(setup.chosen.train) // setup.chosen.recipe.batch_size)
    with setup.open_backend() as backend:
        count = len(measure_every_step(backend, [0])[0].steps) // steps
    assert numbers["comparisons"] == n * (n - 1) * (n - 2) // 2 * (count - 1)
    assert f"{numbers['reversals'] / numbers['comparisons']:.0%}" in claim.because
    assert over_time.claim_order_changes(epochs[:1], [epochs[:1, None]]).reproduced == "not tested"


def test_the_order_changes_only_if_noise_does_not_explain_it() -> None:
    def answer(moves: float, noise: float, seeds: int = 3) -> str:
        found = []
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            true = np.repeat(
                np.repeat(np.arange(16.0).reshape(1, 4, 4), 5, 0) + moves * random.normal(size=(5, 4, 4)), 8, 0
            )
            history = true + noise * random.normal(size=(40, 4, 4))
            found.append(Affinity.from_history(history, list("abcd")))
        epochs = over_time.epoch_sums(found[0], 8)
        return over_time.claim_order_changes(epochs, [over_time.half_epoch_sums(one, 8) for one in found]).reproduced

    assert answer(moves=100.0, noise=1.0) == "yes"
    assert answer(moves=0.0, noise=100.0) == "within noise", "the same order all the time"
    assert answer(moves=0.0, noise=0.0) == "no"
    assert answer(moves=100.0, noise=1.0, seeds=1) == "within noise", "one seed"


def test_halves_of_epochs_add_up_to_the_epochs(setup: ExperimentSetup) -> None:
    with setup.open_backend() as backend:
        affinity = measure_every_step(backend, [0])[0]
    steps = -(-len(setup.chosen.train) // setup.chosen.recipe.batch_size)
    halves = over_time.half_epoch_sums(affinity, steps)
    np.testing.assert_allclose(halves.sum(1), over_time.epoch_sums(affinity, steps))
    assert np.abs(halves).sum(axis=(2, 3)).all(), "steps in either half"


def test_the_first_steps_are_compared_with_all_later_ones(setup: ExperimentSetup) -> None:
    with setup.open_backend() as backend:
        affinity = measure_every_step(backend, [0])[0]
    start, later = over_time.split_first_steps(affinity)
    assert later is not None
    assert start.steps.tolist() == affinity.steps[:3].tolist()
    assert later.steps.tolist() == affinity.steps[3:].tolist()
    assert over_time.split_first_steps(start) == (start, None)
    assert over_time.claim_more_alike([start], [None]).reproduced == "not tested"


def test_first_steps_are_more_alike_only_if_seeds_agree() -> None:
    alike, unlike = (
        Affinity.from_matrix(1 + far * np.arange(9.0).reshape(3, 3), ["a", "b", "c"]) for far in (0.01, 1.0)
    )
    assert over_time.claim_more_alike([alike] * 3, [unlike] * 3).reproduced == "yes"
    assert over_time.claim_more_alike([unlike] * 3, [alike] * 3).reproduced == "no"
    assert over_time.claim_more_alike([alike, unlike], [unlike, alike]).reproduced == "within noise"
    assert over_time.claim_more_alike([alike], [unlike]).reproduced == "within noise", "one seed"


def test_noise_alone_refutes_no_claim_with_many_comparisons() -> None:
    noise = np.random.default_rng(0).standard_normal((500, 2, 20, 3))
    answers = [
        claim_all_lower("each is lower", {str(i): (mine[i].tolist(), other[i].tolist()) for i in range(20)}).reproduced
        for mine, other in noise
    ]
    assert answers.count("no") / len(answers) < 0.07
    assert answers.count("yes") == 0
    refuted = {"a": ([2.0, 2.1, 2.05], [1.0, 1.0, 1.0]), "b": ([0.0, 0.1, 0.05], [1.0, 1.0, 1.0])}
    assert claim_all_lower("each is lower", refuted).reproduced == "no"


def test_a_single_negative_mean_is_not_a_clear_sign() -> None:
    def start(seed: int, shift: float) -> Affinity:
        steps = np.random.default_rng(seed).standard_normal((7, 3, 3)) + shift
        return Affinity.from_history(steps, list("abc"))

    assert over_time.claim_positive([start(0, 0.1), start(1, 0.1)]).reproduced == "within noise"
    assert over_time.claim_positive([start(seed, 50.0) for seed in range(3)]).reproduced == "yes"
    assert over_time.claim_positive([start(seed, -50.0) for seed in range(3)]).reproduced == "no"


def test_over_time_draws_the_totals_of_its_tables(report: Reports) -> None:
    found = report("over-time")
    figure = found.figures["over-time"]
    for panel, table in enumerate(found.tables[:-1]):
        assert table.title.startswith(f"Total affinity × 1000 {figure.layout.annotations[panel].text}")
        lines = {line.name: line.y for line in figure.data if line.xaxis == ("x" if not panel else f"x{panel + 1}")}
        assert set(lines) == set(table.columns[1:])
        for source, values in lines.items():
            assert means(found, table.title, source) == pytest.approx(values)


def test_the_two_sets_of_the_paper_and_random_sets_are_measured(report: Reports, setup: ExperimentSetup) -> None:
    names = (
        [setup.short_name(task) for task in task_sets.FIRST_PAPER_SET],
        [setup.short_name(task) for task in task_sets.SECOND_PAPER_SET],
    )
    assert names == (["a1", "a2", "a3", "a4", "a7"], ["a1", "a5", "a7", "a8", "a9"])
    onto = report("task-sets").table("Affinity × 1000 onto a1")
    assert onto.column("trained with") == [" ".join(some) for some in names]
    drawn = task_sets.random_sets(setup.problem.names, 8, seed=0)
    assert {len(tasks) for tasks in drawn} == {5}
    assert all(list(tasks) == [name for name in setup.problem.names if name in tasks] for tasks in drawn)


def test_notes_of_task_sets_name_every_task_and_describe_the_data(report: Reports, setup: ExperimentSetup) -> None:
    notes = report("task-sets").notes
    assert notes[1] == replace(setup, tasks=None).notes[1]
    assert "a8 Rosy_Cheeks" in notes[1]
    assert set(setup.problem.notes) <= set(notes)


def test_sets_are_drawn_from_the_chosen_tasks(setup: ExperimentSetup) -> None:
    assert task_sets.candidate_tasks(setup) == setup.problem.names, "the default tasks of the small size do not count"
    assert task_sets.candidate_tasks(replace(setup, tasks=None)) == setup.problem.names
    requested = replace(setup, tasks=list(setup.chosen.names))
    assert task_sets.candidate_tasks(requested) == setup.chosen.names
    found = run_experiment("task-sets", replace(setup, tasks=setup.problem.names[:4]))
    assert "sets of 3 tasks, drawn from 4" in found.notes[-1]


def test_too_few_tasks_for_sets_are_an_error_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["paper", "task-sets", "--tasks", "Goatee,Mustache,No_Beard", "--out", str(tmp_path / "run")]
    assert main([*command, "--device", "cpu"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tagalong: --tasks must name at least 4 tasks")
    assert "found 3: Goatee, Mustache, No_Beard" in message
    assert not (tmp_path / "run" / "run.sqlite").exists()


def test_the_effect_of_the_destructive_task_is_only_tested_if_it_harms(report: Reports, setup: ExperimentSetup) -> None:
    found = report("task-sets").table("Does the destructive task harm")
    first = setup.problem.only(task_sets.FIRST_PAPER_SET)
    with setup.open_backend(first) as backend:
        rows = network_results(backend, first.names, setup.seeds)
    without = found.rows[0][0]
    assert isinstance(without, Value)
    assert without.mean == pytest.approx(sum(np.mean(values) for values in rows.values()))
    less_alike = [(0.9, 0.5), (0.92, 0.51)]
    judged = {
        harms: task_sets.claim_affinities_change(less_alike, harms).reproduced
        for harms in ("yes", "within noise", "no")
    }
    assert judged == {"yes": "yes", "within noise": "within noise", "no": "not tested"}
    assert (
        task_sets.claim_affinities_change([(alone, together) for together, alone in less_alike], "yes").reproduced
        == "no"
    )


def test_affinities_must_clearly_change_over_seeds() -> None:
    assert task_sets.claim_affinities_change([(0.9, 0.8), (0.9, 0.3)], "yes").reproduced == "within noise"
    assert task_sets.claim_affinities_change([(0.9, 0.5)], "yes").reproduced == "within noise", "one seed"
    assert task_sets.claim_affinities_change([(0.9, math.nan), (0.9, 0.5)], "yes").reproduced == "not tested"


def test_the_destructive_task_has_shuffled_labels(setup: ExperimentSetup) -> None:
    harmful = task_sets.with_destructive_task(setup.chosen)
    assert harmful.names == (*setup.chosen.names, "destructive")
    first = setup.chosen.names[0]
    for split in harmful.splits.values():
        assert split.targets["destructive"].sum() == split.targets[first].sum()
    assert (harmful.train.targets["destructive"] != harmful.train.targets[first]).any()
    assert harmful.task("destructive").weight == task_sets.WEIGHT


def test_without_early_stopping_every_epoch_is_trained(report: Reports, setup: ExperimentSetup) -> None:
    report("no-early-stopping")
    recipe = setup.chosen.recipe
    steps = -(-len(setup.chosen.train) // recipe.batch_size)
    with setup.open_backend(patience=None, keep="last") as backend:
        jobs = [
            backend.job(setup.chosen.names, seed, rule) for seed in setup.seeds for rule in ("plain", "uw", "pcgrad")
        ]
        assert not backend.missing(jobs)
        for row in backend.networks(jobs).values():
            assert row.steps == steps * recipe.epochs
            assert row.best_epoch == recipe.epochs - 1


def test_tune_tries_the_learning_rates_of_the_paper_and_chooses_the_best(
    report: Reports, setup: ExperimentSetup
) -> None:
    assert [5e-4 * times for times in tune.LEARNING_RATE_FACTORS] == pytest.approx([5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2])
    found = report("tune")
    totals = dict(zip(tune.ALPHAS, means(found, "GradNorm", "total"), strict=True))
    assert found.numbers["alpha"] == tune.best_alpha(totals)
    grid = found.table("MTL")
    cells = [cell.mean for row in grid.rows for cell in row if isinstance(cell, Value)]
    assert len(cells) == len(tune.LEARNING_RATE_FACTORS) * len(tune.BATCH_SIZE_FACTORS)
    size = setup.chosen.recipe.batch_size
    assert [f"batches of {round(size * times)}" for times in tune.BATCH_SIZE_FACTORS] == list(grid.columns[1:])


class RecordingExecutor(Serial):
    """Records the recipes of each request."""

    def __init__(self) -> None:
        self.requests: list[list[Recipe | None]] = []

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        self.requests.append([chunk.recipe for chunk in chunks])
        yield from super().map(chunks, advance)


@pytest.mark.parametrize(("name", "settings"), [("tune", 18 + 1), ("hyperparameters", 3)])
def test_settings_are_trained_side_by_side(setup: ExperimentSetup, tmp_path: Path, name: str, settings: int) -> None:
    recording = RecordingExecutor()
    brief = replace(setup.problem, recipe=replace(setup.problem.recipe, epochs=1))
    tasks = (setup.tasks or setup.problem.names)[:3]
    small = replace(setup, problem=brief, tasks=tasks, seeds=(0,), out=tmp_path / "out", executor=recording)
    run_experiment(name, small)
    (request,) = recording.requests
    assert len(set(request)) == settings
    alone = small.chosen.recipe
    for lr, size in ((2 * alone.lr, alone.batch_size), (alone.lr, alone.batch_size // 2)):
        there = replace(small, out=tmp_path / f"{lr}-{size}", executor="serial")
        with small.open_backend(lr=lr, batch_size=size) as found, there.open_backend(lr=lr, batch_size=size) as own:
            job = own.job(tasks, 0)
            assert not found.missing([job]), "trained as one of the settings"
            mine, theirs = found.networks([job])[job], own.networks([job])[job]
            assert {t: s.loss for t, s in mine.val.items()} == pytest.approx({t: s.loss for t, s in theirs.val.items()})


def test_a_tie_on_validation_does_not_count_against_the_recipe() -> None:
    rates, found = [1e-4, 5e-4], {128: [9.0, 8.0], 256: [8.5, 8.0 + 1e-12]}
    assert tune.best_setting(rates, found, 5e-4, 256)[1:] == (256, 5e-4)
    assert tune.best_setting(rates, found, 1e-4, 256)[1:] == (128, 5e-4)
    assert tune.claim_recipe_is_best(5e-4, 256, (8.0, 256, 5e-4)).reproduced == "yes"
    assert tune.claim_recipe_is_best(1e-4, 256, (8.0, 128, 5e-4)).reproduced == "within noise", "lower with one seed"
    assert tune.claim_recipe_is_best(1e-4, 256, (math.inf, 128, 5e-4)).reproduced == "not tested"


def test_capacity_draws_no_point_for_a_total_that_is_not_finite() -> None:
    sizes = [Capacity("channels", n, n, 10, n) for n in (1.0, 2.0)]
    found = {("mtl", "channels", 1.0): [5.0, 6.0], ("mtl", "channels", 2.0): [5.0, math.nan]}
    drawn = capacity.figure_points(
        sizes, found, {("tag", 2): [math.inf, 4.0], ("hoa", 2): [4.0, 4.0]}, {("tag", 2): 1.6, ("hoa", 2): 1.5}
    )
    assert [(point.method, point.cost, point.error) for point in drawn] == [("mtl, channels", 1, 5.5), ("hoa", 1.5, 4)]


def test_capacity_with_some_methods_only(report: Reports, setup: ExperimentSetup) -> None:
    report("capacity")
    idle = ExperimentSetup(setup.problem, setup.out, setup.tasks, setup.seeds, setup.size, "cpu", NothingToTrain())
    table = run_experiment("capacity", idle, methods=["gradnorm", "mtl"]).table("One larger network")
    every = [row for row in report("capacity").table("One larger network").rows if row[0] != "uw"]
    assert sorted(map(str, table.rows)) == sorted(map(str, every))
    with pytest.raises(ValueError, match="`methods` must be one or more of 'mtl', 'uw', 'gradnorm', found 'pcgrad'"):
        run_experiment("capacity", idle, methods=["mtl", "pcgrad"])


def test_a_difference_of_a_few_test_rows_is_never_clear(report: Reports, setup: ExperimentSetup) -> None:
    per_row = error_per_row(setup.chosen)
    assert per_row == 100 / len(setup.problem.splits["test"])
    for count, answer in ((1, "within noise"), (3, "within noise"), (4, "yes"), (40, "yes")):
        claim = claim_all_lower("lower", {"one": ([5.0] * 3, [5.0 + count * per_row] * 3)}, per_row=per_row)
        assert claim.reproduced == answer, f"z = 1.96 makes a difference clear from four rows on, found {count}"
    assert claim_all_lower("lower", {"one": ([5.0] * 3, [5.0 + per_row] * 3)}).reproduced == "yes", (
        "losses do not count rows"
    )
    shown = [cell for line in report("no-early-stopping").table("Total").rows for cell in line[1:]]
    counts = [len(setup.seeds) * cell.mean / per_row for cell in shown if isinstance(cell, Value)]
    assert counts == pytest.approx([round(count) for count in counts]), "errors are whole numbers of rows"


def test_no_early_stopping_with_some_methods_only(report: Reports, setup: ExperimentSetup) -> None:
    every = report("no-early-stopping").table("Total").rows
    idle = ExperimentSetup(setup.problem, setup.out, setup.tasks, setup.seeds, setup.size, "cpu", NothingToTrain())
    rows = run_experiment("no-early-stopping", idle, methods=["gradnorm", "pcgrad"]).table("Total").rows
    assert list(map(str, rows)) == [str(row) for row in every if row[0] in ("mtl", "gradnorm", "pcgrad")]
    with pytest.raises(ValueError, match=r"`methods` must be one or more of 'mtl', 'uw', .*, found 'tag'"):
        run_experiment("no-early-stopping", idle, methods=["tag"])


def test_the_figure_of_capacity_shows_the_true_parameters_of_groups(report: Reports, setup: ExperimentSetup) -> None:
    found = report("capacity")
    table = found.table("Groups of networks")
    weights = means(found, "Groups of networks", "parameters, ×")
    report("main")
    records = Results.load(setup.out / "main-results.json").records
    usual = next(record.parameters for record in records if record.method == "mtl")
    for (method, budget, *_), weight in zip(table.rows, weights, strict=True):
        (real,) = {one.parameters for one in records if (one.method, one.budget) == (method, budget)}
        assert weight == pytest.approx(real / usual)
        assert weight < float(str(budget)), "no group has a head for every task"
    figure = found.figures["capacity"]
    assert "are side by side" in figure.layout.title.text, "points are moved"
    drawn = {line.name: list(line.customdata) for line in figure.data}
    assert drawn["tag"] + drawn["hoa"] == pytest.approx(weights)


def test_n_times_the_channels_are_more_than_n_times_the_parameters(report: Reports) -> None:
    table = report("capacity").table("One larger network")
    sizes = {str(row[1]): row[2].mean for row in table.rows if isinstance(row[2], Value)}
    assert sizes["1× channels"] == 1
    assert all(sizes[f"{n}× channels"] > n for n in (2, 3, 4))
    assert all(abs(sizes[f"{n}× parameters"] - n) < abs(sizes[f"{n}× channels"] - n) for n in (2, 3, 4))


def test_two_tasks_are_too_few_to_correlate(setup: ExperimentSetup, tmp_path: Path) -> None:
    pair = ExperimentSetup(setup.problem, tmp_path, ("Goatee", "No_Beard"), setup.seeds, setup.size, "cpu")
    found = run_experiment("validation", pair)
    assert found.claims[0].reproduced == "not tested", "two points are always on a line"
    assert found.numbers["pearson"] is None
    assert "too few to correlate" in found.figures["validation"].layout.title.text
