"""What methods decide, compared with enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from study_small import small_problem
from watched_executor import WatchedExecutor

from tagalong.errors import InvalidInput
from tagalong.group import Group, select_groups
from tagalong.learn import Score
from tagalong.study import (
    Runner,
    Store,
    Study,
    make_method,
)
from tagalong.study.decisions import train_choices
from tagalong.study.executors import Serial
from tagalong.study.methods.random_groups import random_cover, random_partition


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A runner with five tasks; its networks are trained once for all tests here."""
    path = tmp_path_factory.mktemp("five") / "run.sqlite"
    with Store(path) as store, Runner(small_problem("abcde"), store, executor=Serial()) as runner:
        yield runner


def decide(runner, name, budgets=(1, 2, 3), seeds=(0, 1), options=None):
    method = make_method(name, options)
    decision = method.decide(runner, budgets, seeds)
    return decision, train_choices(runner, {name: (method, decision)}, seeds)


def record_for(records, budget, seed=0):
    return next(record for record in records if (record.budget, record.seed) == (budget, seed))


def set_partitions(names):
    if not names:
        yield []
        return
    first, *rest = names
    for partition in set_partitions(rest):
        yield [{first}, *partition]
        for i, block in enumerate(partition):
            yield [*partition[:i], block | {first}, *partition[i + 1 :]]


def relative_loss(runner, task, subset, reference, part="val"):
    ratios = []
    for seed in (0, 1):
        mine, other = runner.job(subset, seed), runner.job(reference, seed)
        rows = runner.networks([mine, other])
        ratios.append(getattr(rows[mine], part)[task].loss / getattr(rows[other], part)[task].loss)
    return float(np.mean(ratios))


@pytest.mark.parametrize(("name", "part"), [("optimal", "val"), ("oracle", "test")])
def test_the_exhaustive_optimum_is_the_best_of_all_choices_of_networks(five, name, part):
    decision, records = decide(five, name)
    subsets = five.subsets()
    value = {(t, s): relative_loss(five, t, s, five.tasks, part) for s in subsets for t in s}

    def total(networks):
        """Returns the total with every task served where it does best; infinite if one is left out."""
        return sum(min((value[task, tasks] for tasks in networks if task in tasks), default=np.inf) for task in "abcde")

    for budget in (1, 2, 3):
        numbers = range(1, budget + 1)
        best = min(total(chosen) for number in numbers for chosen in itertools.combinations(subsets, number))
        choice = decision.choices[budget, 0]
        assert total([group.trains for group in choice.groups]) == pytest.approx(best, rel=1e-12)
        assert choice.grouping.value == pytest.approx(best, rel=1e-9)
        served = {task: five.job(group.trains, 0) for group in choice.groups for task in group.serves}
        rows = five.networks(served.values())
        assert getattr(record_for(records, budget), part) == {t: getattr(rows[served[t]], part)[t] for t in "abcde"}
    assert all(record.honest == (name == "optimal") for record in records)


def test_hoa_chooses_the_groups_that_select_groups_chooses_from_pairs(five):
    decision, records = decide(five, "hoa")
    table = {
        frozenset(pair): {task: relative_loss(five, task, pair, [task]) for task in pair}
        for size in (1, 2)
        for pair in itertools.combinations("abcde", size)
    }
    for budget in (1, 2, 3):
        expected_groups = select_groups(table, budget, complete="pairs", objective="min")
        assert decision.choices[budget, 1].groups == expected_groups.groups
    assert decision.deciding[0].networks == 15
    assert record_for(records, 3).deciding == decision.deciding[0]
    assert record_for(records, 3).training.networks == len(decision.choices[3, 0].groups)


@pytest.mark.parametrize(("name", "subsets"), [("hoa", 6 + 1), ("optimal", 7), ("oracle", 7)])
def test_all_networks_of_all_seeds_are_requested_at_once(tmp_path, name, subsets):
    executor = WatchedExecutor()
    Study(small_problem("abc"), tmp_path, executor=executor, device="cpu").run([name], [2], seeds=2)
    sizes = [sum(len(chunk.jobs) for chunk in request) for request in executor.requests]
    assert sizes[:2] == [2, 2 * (subsets - 1)]


def test_tag_merges_the_affinities_of_seeds_and_selects(five):
    decision, records = decide(five, "tag", options={"tag": {"every": 2}})
    measured = five.affinities([0, 1], {"every": 2, "estimator": "lookahead", "update": "sgd"})
    merged = measured[0][0].merge(measured[1][0])
    assert decision.affinity.to_csv() == merged.to_csv()
    assert decision.affinity.settings["update"] == "sgd"
    for budget in (2, 3):
        assert decision.choices[budget, 0].groups == select_groups(merged, budget, resamples=0).groups
        assert record_for(records, budget, 0).groups == record_for(records, budget, 1).groups
    assert decision.deciding[1].networks == 1


def test_cs_measures_cosines_at_every_step(five):
    decision, _ = decide(five, "cs", budgets=(2,), seeds=(0,))
    assert decision.affinity.settings["estimator"] == "cosine"
    job = five.job("abcde", 0)
    assert len(decision.affinity.steps) == five.networks([job])[job].steps
    off = ~np.eye(5, dtype=bool)
    assert np.abs(decision.affinity.mean[off]).max() <= 1


def test_tag_uses_the_requested_average(five):
    plain, _ = decide(five, "tag", budgets=(2,), options={"tag": {"every": 1}})
    median, _ = decide(five, "tag", budgets=(2,), options={"tag": {"every": 1, "average": "median"}})
    assert median.affinity.to_csv() == plain.affinity.averaged("median").to_csv()


def test_exact_random_equals_the_mean_over_all_partitions(five):
    rows = {subset: five.networks([five.job(subset, 0)])[five.job(subset, 0)] for subset in five.subsets()}
    for k in range(1, 6):
        _, (record,) = decide(five, "random", budgets=(k,), seeds=(0,))
        partitions = [[rows[frozenset(s)] for s in some] for some in set_partitions(list("abcde")) if len(some) == k]
        for part, task, value in itertools.product(("val", "test"), "abcde", ("loss", "error")):
            scores = [getattr(row, part)[task] for some in partitions for row in some if task in row.job.tasks]
            expected = np.mean([getattr(score, value) for score in scores])
            assert getattr(getattr(record, part)[task], value) == pytest.approx(expected, rel=1e-9)
        steps = [sum(row.steps for row in some) for some in partitions]
        assert record.training.steps == pytest.approx(np.mean(steps), abs=0.5)
        assert (record.training.networks, record.deciding.networks) == (k, 1), "the paper counts one run"
        assert (record.groups, record.latency) == ((), None)


def test_random_draws_groupings_if_not_all_networks_are_trained(tmp_path):
    with (
        Store(tmp_path / "run.sqlite") as store,
        Runner(small_problem("abcde"), store, executor=Serial()) as runner,
    ):
        decision, (record,) = decide(runner, "random", budgets=(3,), seeds=(0,), options={"random": {"samples": 2}})
        choice = decision.choices[3, 0]
        assert sum(choice.shares) == pytest.approx(3)
        assert all(share in (0.5, 1.0) for share in choice.shares)
        assert len(store) <= 1 + 2 * 3
        again, _ = decide(runner, "random", budgets=(3, 2), seeds=(0, 1), options={"random": {"samples": 2}})
        assert again.choices[3, 0] == choice, "whatever else is asked for"
        for task in "abcde":
            served = {g: s for g, s in zip(choice.groups, choice.shares, strict=True) if task in g.serves}
            rows = runner.networks(runner.job(group.trains, 0) for group in served)
            expected = sum(s * rows[runner.job(g.trains, 0)].test[task].loss for g, s in served.items())
            assert record.test[task].loss == pytest.approx(expected)


def test_random_partitions_are_equally_likely():
    draw = np.random.default_rng(0)
    counts = {}
    for _ in range(7000):
        found = frozenset(random_partition(tuple("abcd"), 2, draw))
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 7
    assert max(abs(count - 1000) for count in counts.values()) < 130, "more than four standard deviations"


def test_random_covers_are_equally_likely_and_serve_every_task_once():
    draw = np.random.default_rng(0)
    counts = {}
    for _ in range(4000):
        groups = random_cover(tuple("abc"), 2, draw)
        assert sorted(task for group in groups for task in group.serves) == ["a", "b", "c"]
        key = frozenset(group.trains for group in groups)
        counts[key] = counts.get(key, 0) + 1
    subsets = [frozenset(s) for size in (1, 2, 3) for s in itertools.combinations("abc", size)]
    covers = {frozenset(pair) for pair in itertools.combinations(subsets, 2) if frozenset().union(*pair) == set("abc")}
    assert counts.keys() == covers
    expected = 4000 / len(covers)
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5


def test_random_over_covers_trains_overlapping_groups(five):
    decision, (record,) = decide(five, "random", budgets=(2,), seeds=(0,), options={"random": {"overlap": True}})
    assert any(group.helpers for group in decision.choices[2, 0].groups)
    assert record.test.keys() == set("abcde")


def test_combinations_train_the_groups_of_one_by_the_rule_of_the_other(five):
    _, plain = decide(five, "hoa", budgets=(2,), seeds=(0,))
    _, (record,) = decide(five, "hoa+uw", budgets=(2,), seeds=(0,))
    assert record.method == "hoa+uw"
    assert record.groups == plain[0].groups
    rows = [five.networks([job])[job] for job in (five.job(g.trains, 0, "uw") for g in record.groups)]
    assert record.networks == tuple(row.key for row in rows)
    assert record.deciding == plain[0].deciding


@pytest.mark.parametrize("rule", ["uw", "gradnorm", "pcgrad"])
def test_rules_train_one_network_for_all_tasks(five, rule):
    _, (record,) = decide(five, rule, seeds=(0,))
    assert record.budget is None
    assert record.groups == (Group("abcde", "abcde"),)
    job = five.job("abcde", 0, rule)
    assert record.test == five.networks([job])[job].test


def test_wider_networks_for_all_tasks(five):
    records = {name: decide(five, name, seeds=(0,))[1][0] for name in ("mtl", "mtl-wide2", "mtl-big3")}
    assert records["mtl-wide2"].parameters == 10 * 4 + 10 + 5 * 11
    assert records["mtl-big3"].parameters == pytest.approx(3 * records["mtl"].parameters, rel=0.1)


@pytest.mark.parametrize("name", ["hoa", "optimal"])
def test_rescaling_the_losses_of_a_task_changes_no_grouping(five, tmp_path, name):
    decision, _ = decide(five, name)
    with Store(tmp_path / "run.sqlite") as store, Runner(five.problem, store, executor=Serial()) as runner:
        for job in (five.job(subset, seed) for subset in five.subsets() for seed in (0, 1)):
            row = five.networks([job])[job]
            val = {t: Score(o.loss * (1000 if t == "c" else 1), o.error) for t, o in row.val.items()}
            store.add({row.key: (five.keys.definition(job), replace(row, val=val, test=val))})
        again = make_method(name).decide(runner, (1, 2, 3), (0, 1))
        assert len(store) == 62, "nothing was trained"
    assert {at: choice.groups for at, choice in again.choices.items()} == {
        at: choice.groups for at, choice in decision.choices.items()
    }


def test_unknown_methods_and_options_are_rejected():
    for name, hint in (("tga", r"did you mean 'tag'\?"), ("tagg+uw", r"'tag\+uw'\?"), ("zzz", "choose from mtl")):
        with pytest.raises(InvalidInput, match=f"`methods` must be a known method.*{hint}"):
            make_method(name)
    for name in ("random", "stl", "mtl-big2"):
        with pytest.raises(InvalidInput, match=f"`options`: '{name}' .* found sample"):
            make_method(name, {name: {"sample": 3}})


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("tag", {"evry": 3}, "'tag' accepts only average, trim"),
        ("tag", {"every": 0}, "`every`"),
        ("cs", {"estimator": "sine"}, "estimator"),
        ("tag", {"update": "adam"}, "`update`"),
        ("tag", {"must_link": [["a", "zzz"]]}, "`must_link`"),
        ("auto", {"passes": 2}, "passes"),
        ("auto", {"teach": None}, "`teach` must be True or False"),
        ("auto", {"average": 1}, "`average` must be True or False"),
        ("best-of", {"copies": 0}, "`copies`"),
    ],
)
def test_wrong_options_are_named(name, options, named):
    problem, *_ = make_method(name, {name: options}).problems(small_problem().names)
    assert named in str(problem)
    tag = make_method("tag", {"tag": {"must_link": [["a", "b"]], "held_out": True}})
    assert tag.problems(small_problem().names) == []


def test_optimal_rejects_too_many_tasks_before_training():
    (problem,) = make_method("optimal").problems([f"t{i}" for i in range(13)])
    assert "subset of the 13 tasks, which requires 8,191 networks per seed" in str(problem)
