"""Every experiment at small size on drawn faces, end to end: what must hold whatever the data."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.cli import main
from tagalong.group import select_groups
from tagalong.learn import Capacity, train
from tagalong.study import Results
from tagalong_paper import EXPERIMENTS, Bench, Published, Report, Value, run_experiment
from tagalong_paper.affinities import every_step
from tagalong_paper.claims import all_lower
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
from tagalong_paper.printed import HYPERPARAMETERS
from tagalong_paper.speed import SCHEDULES, speed_up
from tagalong_paper.totals import grouping_totals, one_row, results_of, subset_table

Reports = Callable[..., Report]
WEAKEST_FIRST = ("no", "not tested", "within noise", "yes")  # a claim of several parts is as weak as the weakest
TRAINED = [experiment.name for experiment in EXPERIMENTS if experiment.trains]


class NothingToTrain:
    """Progress that must not be told of any network."""

    def start(self, total: int, what: str) -> None:
        raise AssertionError(f"{total} networks were to be trained: {what}")

    def advance(self, n: int) -> None:
        raise AssertionError

    def done(self) -> None:
        pass


def means(report: Report, sheet: str, column: str) -> list[float]:
    return [cell.mean for cell in report.sheet(sheet).column(column) if isinstance(cell, Value)]


@pytest.mark.parametrize("name", TRAINED)
def test_it_runs_end_to_end_and_says_what_appeared(name: str, report: Reports, bench: Bench) -> None:
    found = report(name)
    assert found.claims
    assert {claim.appeared for claim in found.claims} != {"not tested"}
    for claim in found.claims:
        assert claim.because
        answers = [part.rpartition("(")[2].removesuffix(")") for part in claim.parts]
        assert claim.appeared == min(answers, key=WEAKEST_FIRST.index, default=claim.appeared), claim.text
    assert all(len(row) == len(sheet.columns) for sheet in found.sheets for row in sheet.rows)
    document = json.loads((bench.out / f"{name}.json").read_text())
    assert document["experiment"] == name
    assert [entry["appeared"] for entry in document["claims"]] == [claim.appeared for claim in found.claims]
    assert found.figures
    for figure in found.figures:
        assert "plotly" in (bench.out / f"{figure}.html").read_text(encoding="utf-8")
    assert (bench.out / "plotly.min.js").stat().st_size > 1e6


def test_small_is_at_least_five_tasks_and_two_seeds(bench: Bench) -> None:
    assert len(bench.chosen.names) >= 5
    assert len(bench.seeds) >= 2
    assert bench.budgets == (2, 3, 4)


@pytest.mark.parametrize("name", ["partner", "frequency", "hyperparameters", "task-sets"])
def test_again_it_trains_nothing_and_finds_the_same(name: str, report: Reports, bench: Bench) -> None:
    first = report(name).to_document()
    idle = Bench(bench.problem, bench.out, bench.tasks, bench.seeds, bench.size, "cpu", NothingToTrain())
    assert run_experiment(name, idle).to_document() == first


@pytest.mark.parametrize("key", ["celeba_tag", "taskonomy_tag"])
def test_the_fitted_rule_tells_for_which_shares_it_holds(key: str) -> None:
    affinity, groups = Published(key).affinity, matrix.NAMED[key]
    wanted = {frozenset(group) for group in groups}
    holds = matrix.shares_giving(affinity, groups)
    assert holds is not None
    low, high = holds
    assert low < matrix.SHARE <= high
    for share in (low + 1e-6, (low + high) / 2, high):
        assert set(matrix.natural_groups(affinity, share)) == wanted
    for share in (low - 1e-6, high + 1e-6):
        assert set(matrix.natural_groups(affinity, share)) != wanted
    assert matrix.shares_giving(affinity, groups[:1]) is None


def test_the_margin_is_above_zero_exactly_for_natural_groups() -> None:
    affinity = Published("celeba_tag").affinity
    found = matrix.natural_groups(affinity)
    for size in (2, 3, 4):
        for group in map(frozenset, combinations(affinity.tasks, size)):
            assert (matrix.margin(affinity, group) > 0) == (group in found)


def test_the_paper_s_groups_are_judged_on_our_matrices_seed_by_seed(report: Reports) -> None:
    texts = [claim.text for claim in report("matrix").claims]
    assert all("by a rule fitted to them" in text for text in texts[:2])
    assert texts[2:] == ["in our matrix the group {a1, a7} forms by the same rule"], "a4 and a6 are not trained"
    clear = Affinity.from_matrix([[0, 9, 1], [9, 0, 1], [1, 2, 0]], ["a", "b", "c"])
    other = Affinity.from_matrix([[0, 1, 9], [1, 0, 1], [9, 2, 0]], ["a", "b", "c"])

    def judged(*each: Affinity) -> list[str]:
        return [claim.appeared for claim in matrix.own_claims([{"a", "b"}, {"a", "z"}], each)]

    assert judged(clear, clear, clear) == ["yes"]
    assert judged(other, other, other) == ["no"]
    assert judged(clear, other) == judged(clear) == ["within noise"]


def test_in_partner_no_partner_beats_the_best_or_falls_below_the_worst(report: Reports) -> None:
    title = "Less test error"
    best, chosen, worst = (means(report("partner"), title, kind) for kind in ("best", "chosen", "worst"))
    for high, middle, low in zip(best, chosen, worst, strict=True):
        assert high >= middle >= low or math.isnan(high)


def test_a_gain_over_random_partners_must_be_clear_over_seeds() -> None:
    def judged(*chosen: list[float], row: float = 0.0) -> str:
        return partner.better_than_random(chosen, [row] * len(chosen)).appeared

    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1]) == "yes"
    assert judged([9.0, -8.0], [1.0, 0.5], [2.0, 1.0]) == "within noise"
    assert judged([-1.0, -1.1], [-0.8, -0.9], [-1.2, -1.1]) == "no"
    assert judged([1.0], [2.0], [1.5]) == "within noise", "one seed"
    assert judged([0.0, 0.0], [0.0, 0.0]) == "not tested", "two tasks: no choice"
    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1], row=1.0) == "within noise", "a test row for each task"
    assert judged([1.0, 1.1], [0.8, 0.9], [1.2, 1.1], row=0.1) == "yes", "ten for each"


def test_the_worst_partner_is_the_one_with_the_lowest_gain_whatever_its_name() -> None:
    low, high, unsure = [-3.0, -3.1], [2.0, 2.1], [-3.0, 2.8]
    assert partner.worst_chosen(high, list(low), low) == "yes", "a tie with the worst is as bad"
    assert partner.worst_chosen(high, high, low) == "no"
    assert partner.worst_chosen(high, unsure, low) == "within noise"
    assert partner.worst_chosen([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]) == "not tested", "two tasks"
    assert partner.worst_chosen(high, high, low, row=3.0) == "within noise", "not two test rows"


def test_one_test_row_adds_the_same_to_a_gain_and_to_its_row(bench: Bench) -> None:
    task, *others = bench.chosen.names
    row = one_row(bench.chosen)
    added = {other: [4.0, 6.0] for other in others} | {others[0]: [4.0 + row, 6.0 + row]}
    less = np.subtract(partner.gain(added, others[1]), partner.gain(added, others[0]))
    assert less == pytest.approx(partner._rows(bench, {task: added})[task])


def test_partner_shows_every_published_spread_and_the_noise_of_every_gain(report: Reports, bench: Bench) -> None:
    found = report("partner")
    spreads = found.sheet("Highest less lowest")
    assert spreads.column("task") == [f"a{number}" for number in range(1, 10)]
    assert None not in spreads.column("printed")
    ours = dict(zip(spreads.column("task"), spreads.column("ours / median"), strict=True))
    assert {task for task, cell in ours.items() if cell is not None} == set(map(bench.short, bench.chosen.names))
    assert all(any(bar.error_y.array) for bar in found.figures["partner"].data)


def test_a_sparser_schedule_is_what_a_meter_with_it_measures(bench: Bench) -> None:
    with bench.lab() as lab:
        full = every_step(lab, [0])[0]
        job = lab.job(bench.chosen.names, 0)
    metered = train(bench.chosen, job, meter={"estimator": "lookahead", "update": "sgd", "every": 5}).affinity
    assert metered is not None
    read = frequency.scheduled(full, SCHEDULES["every 5"])
    assert read.steps.tolist() == metered.steps.tolist()
    np.testing.assert_array_equal(read.history, metered.history)


def test_windows_are_quarters_of_the_training(bench: Bench) -> None:
    with bench.lab() as lab:
        full = every_step(lab, [0])[0]
    steps = len(full.steps)
    parts = {name: frequency.scheduled(full, SCHEDULES[name]).steps for name in SCHEDULES if "%" in name}
    assert parts["first 25 %"].tolist() == list(range(round(steps / 4)))
    assert parts["last 25 %"][-1] == steps - 1
    assert parts["middle 25 %"][0] == round(0.375 * steps)


def test_every_step_agrees_with_itself_and_speed_ups_start_at_one(report: Reports) -> None:
    found = report("frequency")
    title = "Quality and speed"
    assert means(found, title, "Pearson")[0] == pytest.approx(1)
    assert means(found, title, "speed-up")[0] == means(found, title, "printed, model")[0] == 1
    assert all(-1 <= value <= 1 for value in means(found, title, "Pearson"))
    assert frequency._cost_of_a_measurement({"every 1": 3.0, "never": 1.0}) == 2


def test_speed_ups_are_timed_but_for_windows_and_modelled_for_all(report: Reports) -> None:
    found = report("frequency")
    timed = found.sheets[0].column("speed-up")
    assert [cell is None for cell in timed] == ["%" in name for name in SCHEDULES]
    cost = found.numbers["measurement_in_plain_steps"]
    modelled = means(found, "Quality and speed", "model")
    assert modelled == pytest.approx([speed_up(schedule, cost) for schedule in SCHEDULES.values()])
    assert [cell.mean for cell in timed[1:6] if isinstance(cell, Value)] != pytest.approx(modelled[1:6], rel=1e-12)


def test_only_columns_headed_printed_hold_what_the_paper_gives(
    report: Reports, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = report("frequency").sheets[0]
    monkeypatch.setattr(frequency, "PAPER_COST", 7.0)
    monkeypatch.setattr(frequency, "SPEED", dict.fromkeys(SCHEDULES, frequency.SPEED["every 1"]))
    after = run_experiment("frequency", replace(bench, progress=NothingToTrain())).sheets[0]
    changed = [name for name in before.columns if before.column(name) != after.column(name)]
    assert changed == ["printed less error", "printed speed-up", "printed, model"]


def test_measuring_less_is_as_good_only_where_something_could_be_lost() -> None:
    assert frequency.as_good([5.0, 5.1], [5.1, 5.2]) == "no", "clearly worse, by little"
    assert frequency.as_good([5.0, 5.3], [5.1, 5.2]) == "yes"
    assert frequency.as_good([0.0, 0.0], [0.0, 0.0]) == "within noise", "as bad as random groups"
    assert frequency.as_good([9.0, -4.0], [5.1, 5.2]) == "within noise", "nothing is known about it"
    assert frequency.as_good([5.0], [5.0]) == "within noise", "one seed"
    assert frequency.as_good([5.0, 5.1], [5.1, 5.2], row=0.1) == "yes", "worse by one test row"
    assert frequency.as_good([5.0, 5.3], [5.1, 5.2], row=3.0) == "within noise", "two test rows better than random"


def test_nothing_is_gained_where_random_groups_make_no_errors(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        frequency, "random_totals", lambda lab, budgets, seeds: {k: [0.0] * len(seeds) for k in budgets}
    )
    found = run_experiment("frequency", bench)
    assert all(math.isnan(cell.mean) for cell in found.sheets[0].column("less error, %") if isinstance(cell, Value))
    assert {claim.appeared for claim in found.claims} == {"not tested"}


def test_printed_numbers_stand_right_beside_ours(report: Reports) -> None:
    columns = report("frequency").sheets[0].columns
    for ours, printed in (("less error, %", "printed less error"), ("speed-up", "printed speed-up")):
        assert columns.index(printed) == columns.index(ours) + 1
    columns = report("hyperparameters").sheets[0].columns
    for name in ("half the batch", "twice the lr"):
        assert columns.index(f"printed {name}") == columns.index(f"{name}, %") + 1


def test_groups_from_train_loss_hold_no_single_task(report: Reports, bench: Bench) -> None:
    rows = report("validation").sheet("Groups from either").rows
    networks = [str(row[3]) for row in rows if row[0] == "train" and row[3]]
    assert len(networks) == len(bench.budgets)
    assert all("," in network for line in networks for network in line.split("} {"))


def test_two_losses_group_equally_well_only_where_both_groupings_gain() -> None:
    assert validation.equally_well([5.0, 5.2], [5.1, 5.0], [7.0, 7.2]) == "yes"
    assert validation.equally_well([5.0, 5.2], [6.0, 6.2], [7.0, 7.2]) == "no"
    assert validation.equally_well([5.0, 9.2], [7.1, 6.0], [7.0, 7.2]) == "within noise"
    assert validation.equally_well([5.0], [5.0], [7.0]) == "within noise", "one seed"
    assert validation.equally_well([5.0, 5.0], [5.1, 5.1], [7.0, 7.0]) == "no"
    assert validation.equally_well([5.0, 5.0], [5.1, 5.1], [7.0, 7.0], row=0.1) == "yes", "one row is not clear"


def test_the_claim_about_single_tasks_says_whose_choice_it_is(report: Reports) -> None:
    (claim,) = [claim for claim in report("validation").claims if "one task" in claim.text]
    assert claim.text.startswith("affinity on validation")


def test_other_settings_never_beat_the_best_groups_of_the_base_where_both_are_scored_alike(report: Reports) -> None:
    found = report("hyperparameters")
    for name in ("half the batch, %", "twice the lr, %"):
        assert all(value <= 1e-9 for value in means(found, "Groups of other settings", name))


def test_out_of_sample_groups_are_chosen_without_the_seed_that_scores_them(report: Reports, bench: Bench) -> None:
    shown = means(report("hyperparameters"), "Out of sample", "base total test error, %")
    with bench.lab() as lab:
        for k, found in zip(bench.budgets, shown, strict=True):
            slow = []
            for seed in bench.seeds:
                others = [other for other in bench.seeds if other != seed]
                best = select_groups(subset_table(lab, others), k, objective="min")
                slow += grouping_totals(lab, best.groups, [seed])
            assert found == pytest.approx(np.mean(slow))


def test_the_figure_of_settings_has_errors_over_seeds_and_the_printed_numbers(report: Reports, bench: Bench) -> None:
    figure = report("hyperparameters").figures["hyperparameters"]
    assert figure.layout.yaxis.title.text.startswith("less error than")
    drawn = {bar.name: bar for bar in figure.data}
    for name in ("half the batch", "twice the lr"):
        assert list(drawn[f"{name}, printed"].y) == [HYPERPARAMETERS[k][name] for k in bench.budgets]
        assert any(drawn[name].error_y.array)
        assert len(drawn[f"{name}, out of sample"].error_y.array) == len(bench.budgets)


def carried(base: list[float], batch: list[float], rate: list[float], row: float = 0.0) -> list[str]:
    scores = {("base", 2): base, ("half the batch", 2): batch, ("twice the lr", 2): rate}
    return [claim.appeared for claim in hyperparameters.claims(scores, row)]


def test_groups_change_with_the_setting_only_where_seeds_left_out_are_clear() -> None:
    assert carried([5.0, 5.1, 5.2], [6.0, 6.1, 6.2], [7.0, 7.1, 7.2]) == ["yes", "yes"]
    assert carried([5.0, 5.1, 5.2], [6.0, 6.1, 6.2], [7.0, 7.1, 7.2], row=0.5) == ["within noise"] * 2, "two rows"
    assert carried([5.0, 5.1, 5.2], [5.0, 5.3, 5.1], [5.1, 4.9, 5.3]) == ["within noise", "within noise"]
    more = {"base": 0, "half the batch": 2, "twice the lr": 4}
    thrice = {
        (name, k): [5 + 0.1 * (rows + seed) for seed in range(3)] for name, rows in more.items() for k in (2, 3, 4)
    }
    claims = hyperparameters.claims(thrice, row=0.1)
    assert {claim.appeared for claim in claims} == {"within noise"}, "two rows of a network that serves three times"
    assert carried([6.0, 6.1, 6.2], [5.0, 5.1, 5.2], [4.0, 4.1, 4.2]) == ["no", "no"]
    assert carried([5.0, math.nan], [6.0, 6.1], [7.0, 7.1]) == ["not tested"] * 2
    assert carried([], [], []) == ["not tested"] * 2, "one seed: none is left out"
    assert [claim.appeared for claim in hyperparameters.claims({})] == ["not tested"] * 2, "no budgets"


def test_with_one_seed_carrying_over_is_not_tested(report: Reports, bench: Bench) -> None:
    report("hyperparameters")
    alone = run_experiment("hyperparameters", replace(bench, seeds=range(1), progress=NothingToTrain()))
    assert {claim.appeared for claim in alone.claims} == {"not tested"}
    assert not alone.sheet("Out of sample").rows


def test_epochs_add_up_to_the_whole_training(bench: Bench) -> None:
    with bench.lab() as lab:
        affinity = every_step(lab, [0])[0]
    steps = -(-len(bench.chosen.train) // bench.chosen.recipe.batch_size)
    epochs = over_time.per_epoch(affinity, steps)
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
    assert over_time.reversals(epochs) == slow


def test_reversals_are_told_with_their_share_of_all_comparisons(report: Reports, bench: Bench) -> None:
    random = np.random.default_rng(0)
    epochs = random.standard_normal((400, 4, 4))
    assert over_time.comparisons(epochs) == 4 * 3 * 399
    assert over_time.reversals(epochs) / over_time.comparisons(epochs) == pytest.approx(0.5, abs=0.03)
    claim = report("over-time").claims[-1]
    numbers = report("over-time").numbers
    n, steps = len(bench.chosen.names), -(-len(bench.chosen.train) // bench.chosen.recipe.batch_size)
    with bench.lab() as lab:
        count = len(every_step(lab, [0])[0].steps) // steps
    assert numbers["comparisons"] == n * (n - 1) * (n - 2) // 2 * (count - 1)
    assert f"{numbers['reversals'] / numbers['comparisons']:.0%}" in claim.because
    assert over_time.order_changes(epochs[:1], [epochs[:1, None]]).appeared == "not tested"


def test_the_order_changes_only_where_noise_alone_would_not_change_it_as_often() -> None:
    def answer(moves: float, noise: float, seeds: int = 3) -> str:
        found = []
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            true = np.repeat(
                np.repeat(np.arange(16.0).reshape(1, 4, 4), 5, 0) + moves * random.normal(size=(5, 4, 4)), 8, 0
            )
            history = true + noise * random.normal(size=(40, 4, 4))
            found.append(Affinity.from_history(history, list("abcd")))
        epochs = over_time.per_epoch(found[0], 8)
        return over_time.order_changes(epochs, [over_time.halves(one, 8) for one in found]).appeared

    assert answer(moves=100.0, noise=1.0) == "yes"
    assert answer(moves=0.0, noise=100.0) == "within noise", "the same order all the time"
    assert answer(moves=0.0, noise=0.0) == "no"
    assert answer(moves=100.0, noise=1.0, seeds=1) == "within noise", "one seed"


def test_halves_of_epochs_add_up_to_the_epochs(bench: Bench) -> None:
    with bench.lab() as lab:
        affinity = every_step(lab, [0])[0]
    steps = -(-len(bench.chosen.train) // bench.chosen.recipe.batch_size)
    halves = over_time.halves(affinity, steps)
    np.testing.assert_allclose(halves.sum(1), over_time.per_epoch(affinity, steps))
    assert np.abs(halves).sum(axis=(2, 3)).all(), "steps in either half"


def test_the_first_steps_are_compared_with_all_later_ones(bench: Bench) -> None:
    with bench.lab() as lab:
        affinity = every_step(lab, [0])[0]
    start, later = over_time.parts(affinity)
    assert later is not None
    assert start.steps.tolist() == affinity.steps[:3].tolist()
    assert later.steps.tolist() == affinity.steps[3:].tolist()
    assert over_time.parts(start) == (start, None)
    assert over_time.more_alike([start], [None]).appeared == "not tested"


def test_first_steps_are_more_alike_only_where_seeds_agree() -> None:
    alike, unlike = (
        Affinity.from_matrix(1 + far * np.arange(9.0).reshape(3, 3), ["a", "b", "c"]) for far in (0.01, 1.0)
    )
    assert over_time.more_alike([alike] * 3, [unlike] * 3).appeared == "yes"
    assert over_time.more_alike([unlike] * 3, [alike] * 3).appeared == "no"
    assert over_time.more_alike([alike, unlike], [unlike, alike]).appeared == "within noise"
    assert over_time.more_alike([alike], [unlike]).appeared == "within noise", "one seed"


def test_noise_alone_refutes_no_claim_that_rests_on_many_comparisons() -> None:
    noise = np.random.default_rng(0).standard_normal((500, 2, 20, 3))
    answers = [
        all_lower("each is lower", {str(i): (mine[i].tolist(), other[i].tolist()) for i in range(20)}).appeared
        for mine, other in noise
    ]
    assert answers.count("no") / len(answers) < 0.07
    assert answers.count("yes") == 0
    refuted = {"a": ([2.0, 2.1, 2.05], [1.0, 1.0, 1.0]), "b": ([0.0, 0.1, 0.05], [1.0, 1.0, 1.0])}
    assert all_lower("each is lower", refuted).appeared == "no"


def test_a_single_negative_mean_is_no_clear_sign() -> None:
    def start(seed: int, shift: float) -> Affinity:
        steps = np.random.default_rng(seed).standard_normal((7, 3, 3)) + shift
        return Affinity.from_history(steps, list("abc"))

    assert over_time.positive([start(0, 0.1), start(1, 0.1)]).appeared == "within noise"
    assert over_time.positive([start(seed, 50.0) for seed in range(3)]).appeared == "yes"
    assert over_time.positive([start(seed, -50.0) for seed in range(3)]).appeared == "no"


def test_over_time_draws_the_totals_of_its_tables(report: Reports) -> None:
    found = report("over-time")
    figure = found.figures["over-time"]
    for panel, sheet in enumerate(found.sheets[:-1]):
        assert sheet.title.startswith(f"Total affinity × 1000 {figure.layout.annotations[panel].text}")
        lines = {line.name: line.y for line in figure.data if line.xaxis == ("x" if not panel else f"x{panel + 1}")}
        assert set(lines) == set(sheet.columns[1:])
        for source, values in lines.items():
            assert means(found, sheet.title, source) == pytest.approx(values)


def test_the_paper_s_two_sets_and_drawn_ones_are_measured(report: Reports, bench: Bench) -> None:
    names = [bench.short(task) for task in task_sets.FIRST], [bench.short(task) for task in task_sets.SECOND]
    assert names == (["a1", "a2", "a3", "a4", "a7"], ["a1", "a5", "a7", "a8", "a9"])
    onto = report("task-sets").sheet("Affinity × 1000 onto a1")
    assert onto.column("trained with") == [" ".join(some) for some in names]
    drawn = task_sets.random_sets(bench.problem.names, 8, seed=0)
    assert {len(tasks) for tasks in drawn} == {5}
    assert all(list(tasks) == [name for name in bench.problem.names if name in tasks] for tasks in drawn)


def test_task_sets_name_every_task_they_draw_from_and_tell_of_the_data(report: Reports, bench: Bench) -> None:
    notes = report("task-sets").notes
    assert notes[1] == replace(bench, tasks=None).about[1]
    assert "a8 Rosy_Cheeks" in notes[1]
    assert set(bench.problem.notes) <= set(notes)


def test_sets_are_drawn_from_the_tasks_that_were_asked_for(bench: Bench) -> None:
    assert task_sets.pool(bench) == bench.problem.names, "the five of the small size were not asked for"
    assert task_sets.pool(replace(bench, tasks=None)) == bench.problem.names
    asked = replace(bench, tasks=list(bench.chosen.names))
    assert task_sets.pool(asked) == bench.chosen.names
    found = run_experiment("task-sets", replace(bench, tasks=bench.problem.names[:4]))
    assert "sets of 3 tasks, drawn from 4" in found.notes[-1]


def test_too_few_tasks_for_sets_are_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "task-sets", "--tasks", "Goatee,Mustache,No_Beard", "--out", str(tmp_path / "run")]
    assert main([*command, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tagalong: --tasks must name 4 tasks or more")
    assert "found 3: Goatee, Mustache, No_Beard" in said
    assert not (tmp_path / "run" / "run.sqlite").exists()


def test_a_harmful_task_must_harm_before_it_can_be_blamed(report: Reports, bench: Bench) -> None:
    found = report("task-sets").sheet("Does the destructive task harm")
    first = bench.problem.only(task_sets.FIRST)
    with bench.lab(first) as lab:
        rows = results_of(lab, first.names, bench.seeds)
    without = found.rows[0][0]
    assert isinstance(without, Value)
    assert without.mean == pytest.approx(sum(np.mean(values) for values in rows.values()))
    less_alike = [(0.9, 0.5), (0.92, 0.51)]
    judged = {harms: task_sets.changes(less_alike, harms).appeared for harms in ("yes", "within noise", "no")}
    assert judged == {"yes": "yes", "within noise": "within noise", "no": "not tested"}
    assert task_sets.changes([(alone, together) for together, alone in less_alike], "yes").appeared == "no"


def test_affinities_must_clearly_change_over_seeds() -> None:
    assert task_sets.changes([(0.9, 0.8), (0.9, 0.3)], "yes").appeared == "within noise"
    assert task_sets.changes([(0.9, 0.5)], "yes").appeared == "within noise", "one seed"
    assert task_sets.changes([(0.9, math.nan), (0.9, 0.5)], "yes").appeared == "not tested"


def test_the_destructive_task_has_the_same_labels_in_other_rows(bench: Bench) -> None:
    spoilt = task_sets.with_destructive_task(bench.chosen)
    assert spoilt.names == (*bench.chosen.names, "destructive")
    first = bench.chosen.names[0]
    for split in spoilt.splits.values():
        assert split.targets["destructive"].sum() == split.targets[first].sum()
    assert (spoilt.train.targets["destructive"] != spoilt.train.targets[first]).any()
    assert spoilt.task("destructive").weight == task_sets.WEIGHT


def test_without_early_stopping_every_epoch_is_trained(report: Reports, bench: Bench) -> None:
    report("no-early-stopping")
    recipe = bench.chosen.recipe
    steps = -(-len(bench.chosen.train) // recipe.batch_size)
    with bench.lab(patience=None, keep="last") as lab:
        jobs = [lab.job(bench.chosen.names, seed, rule) for seed in bench.seeds for rule in ("plain", "uw", "pcgrad")]
        assert not lab.missing(jobs)
        for row in lab.networks(jobs).values():
            assert row.steps == steps * recipe.epochs
            assert row.best_epoch == recipe.epochs - 1


def test_the_rates_tried_are_the_paper_s_and_the_best_is_chosen(report: Reports, bench: Bench) -> None:
    assert [5e-4 * times for times in tune.RATES] == pytest.approx([5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2])
    found = report("tune")
    totals = dict(zip(tune.ALPHAS, means(found, "GradNorm", "total"), strict=True))
    assert found.numbers["alpha"] == tune.best_alpha(totals)
    grid = found.sheet("MTL")
    cells = [cell.mean for row in grid.rows for cell in row if isinstance(cell, Value)]
    assert len(cells) == len(tune.RATES) * len(tune.BATCHES)
    size = bench.chosen.recipe.batch_size
    assert [f"batches of {round(size * times)}" for times in tune.BATCHES] == list(grid.columns[1:])


def test_a_tie_on_validation_does_not_count_against_the_recipe() -> None:
    rates, found = [1e-4, 5e-4], {128: [9.0, 8.0], 256: [8.5, 8.0 + 1e-12]}
    assert tune.best_setting(rates, found, 5e-4, 256)[1:] == (256, 5e-4)
    assert tune.best_setting(rates, found, 1e-4, 256)[1:] == (128, 5e-4)
    assert tune.claim(5e-4, 256, (8.0, 256, 5e-4)).appeared == "yes"
    assert tune.claim(1e-4, 256, (8.0, 128, 5e-4)).appeared == "within noise", "lower with one seed"
    assert tune.claim(1e-4, 256, (math.inf, 128, 5e-4)).appeared == "not tested"


def test_capacity_draws_no_point_for_a_total_that_is_no_number() -> None:
    sizes = [Capacity("channels", n, n, 10, n) for n in (1.0, 2.0)]
    found = {("mtl", "channels", 1.0): [5.0, 6.0], ("mtl", "channels", 2.0): [5.0, math.nan]}
    drawn = capacity.points(
        sizes, found, {("tag", 2): [math.inf, 4.0], ("hoa", 2): [4.0, 4.0]}, {("tag", 2): 1.6, ("hoa", 2): 1.5}
    )
    assert [(point.method, point.cost, point.error) for point in drawn] == [("mtl, channels", 1, 5.5), ("hoa", 1.5, 4)]


def test_capacity_of_some_methods_alone(report: Reports, bench: Bench) -> None:
    report("capacity")
    idle = Bench(bench.problem, bench.out, bench.tasks, bench.seeds, bench.size, "cpu", NothingToTrain())
    sheet = run_experiment("capacity", idle, methods=["gradnorm", "mtl"]).sheet("One larger network")
    every = [row for row in report("capacity").sheet("One larger network").rows if row[0] != "uw"]
    assert sorted(map(str, sheet.rows)) == sorted(map(str, every))
    with pytest.raises(ValueError, match="`methods` must be of 'mtl', 'uw', 'gradnorm', found 'pcgrad'"):
        run_experiment("capacity", idle, methods=["mtl", "pcgrad"])


def test_a_few_test_rows_are_not_clear_however_alike_seeds_are(report: Reports, bench: Bench) -> None:
    row = one_row(bench.chosen)
    assert row == 100 / len(bench.problem.splits["test"])
    for count, appeared in ((1, "within noise"), (3, "within noise"), (4, "yes"), (40, "yes")):
        claim = all_lower("lower", {"one": ([5.0] * 3, [5.0 + count * row] * 3)}, row=row)
        assert claim.appeared == appeared, f"z = 1.96 calls √n rows clear from four of them on, found {count}"
    assert all_lower("lower", {"one": ([5.0] * 3, [5.0 + row] * 3)}).appeared == "yes", "of losses nothing is counted"
    shown = [cell for line in report("no-early-stopping").sheet("Total").rows for cell in line[1:]]
    counts = [len(bench.seeds) * cell.mean / row for cell in shown if isinstance(cell, Value)]
    assert counts == pytest.approx([round(count) for count in counts]), "errors are whole numbers of rows"


def test_no_early_stopping_of_some_methods_alone(report: Reports, bench: Bench) -> None:
    every = report("no-early-stopping").sheet("Total").rows
    idle = Bench(bench.problem, bench.out, bench.tasks, bench.seeds, bench.size, "cpu", NothingToTrain())
    rows = run_experiment("no-early-stopping", idle, methods=["gradnorm", "pcgrad"]).sheet("Total").rows
    assert list(map(str, rows)) == [str(row) for row in every if row[0] in ("mtl", "gradnorm", "pcgrad")]
    with pytest.raises(ValueError, match=r"`methods` must be of 'mtl', 'uw', .*, found 'tag'"):
        run_experiment("no-early-stopping", idle, methods=["tag"])


def test_groups_stand_at_the_parameters_that_they_have(report: Reports, bench: Bench) -> None:
    found = report("capacity")
    sheet = found.sheet("Groups of networks")
    weights = means(found, "Groups of networks", "parameters, ×")
    report("main")
    records = Results.load(bench.out / "main-results.json").records
    usual = next(record.parameters for record in records if record.method == "mtl")
    for (method, budget, *_), weight in zip(sheet.rows, weights, strict=True):
        (real,) = {one.parameters for one in records if (one.method, one.budget) == (method, budget)}
        assert weight == pytest.approx(real / usual)
        assert weight < float(str(budget)), "no group has a head for every task"
    figure = found.figures["capacity"]
    assert "stand side by side" in figure.layout.title.text, "points are moved"
    drawn = {line.name: list(line.customdata) for line in figure.data}
    assert drawn["tag"] + drawn["hoa"] == pytest.approx(weights)


def test_n_times_the_channels_are_more_than_n_times_the_parameters(report: Reports) -> None:
    sheet = report("capacity").sheet("One larger network")
    sizes = {str(row[1]): row[2].mean for row in sheet.rows if isinstance(row[2], Value)}
    assert sizes["1× channels"] == 1
    assert all(sizes[f"{n}× channels"] > n for n in (2, 3, 4))
    assert all(abs(sizes[f"{n}× parameters"] - n) < abs(sizes[f"{n}× channels"] - n) for n in (2, 3, 4))


def test_two_tasks_are_too_few_to_correlate(bench: Bench, tmp_path: Path) -> None:
    pair = Bench(bench.problem, tmp_path, ("Goatee", "No_Beard"), bench.seeds, bench.size, "cpu")
    found = run_experiment("validation", pair)
    assert found.claims[0].appeared == "not tested", "two points are always on a line"
    assert found.numbers["pearson"] is None
    assert "too few to correlate" in found.figures["validation"].layout.title.text
