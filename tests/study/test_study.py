"""A study: what it trains, writes and reads again, and what it refuses."""

import json
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from study_small import small_problem
from watched_executor import WatchedExecutor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Grouping
from tagalong.study import Cost, ExternalStudy, Results, Store, Study, compare_methods, open_runner


def test_the_order_of_methods_changes_nothing_but_the_order_of_results(tmp_path):
    first = Study(small_problem(), tmp_path / "one").run(["tag", "random", "optimal", "mtl"], [2], 1)
    other = Study(small_problem(), tmp_path / "two").run(["mtl", "optimal", "random", "tag"], [2], 1)

    def numbers(results):
        return {(r.method, r.budget, r.seed): (r.groups, r.val, r.test) for r in results.records}

    assert numbers(first) == numbers(other)
    assert [record.method for record in first.records] == ["tag", "random", "optimal", "mtl"]


def test_more_budgets_methods_and_seeds_train_exactly_the_new_networks(tmp_path):
    def grow(keep):
        trained = []
        few, many = ["optimal", "best-of", "stl"], ["optimal", "best-of", "stl", "hoa", "ensemble", "tag", "auto"]
        for methods, budgets, seeds in (
            (few, [1, 2], 1),
            (few, [1, 2, 3], 1),
            (many, [1, 2, 3], 1),
            (many, [1, 2, 3], 2),
        ):
            executor = WatchedExecutor()
            study = Study(small_problem(), tmp_path / keep, executor=executor, keep=keep)
            results = study.run(methods, budgets, seeds, effort=8)
            for chunk in executor.chunks:
                # A network whose affinity is measured later is trained once more, with the meter.
                trained += [job for job in chunk.jobs if chunk.meter is None or job not in trained]
            with Store(tmp_path / keep / "run.sqlite") as store:
                assert len(store) == len(set(trained))
        return trained, [replace(record, latency=None, training=Cost(), deciding=Cost()) for record in results.records]

    trained, records = grow("all")
    assert len(trained) == len(set(trained))
    trained_again, same_records = grow("recommended")
    assert len(trained_again) <= 1.3 * len(set(trained)), "only teachers and recommended networks"
    assert set(trained_again) == set(trained)
    assert same_records == records


@pytest.mark.parametrize("writes_results", [True, False])
def test_affinities_are_measured_while_the_networks_for_all_tasks_are_trained(tmp_path, writes_results):
    executor = WatchedExecutor()
    if writes_results:
        Study(small_problem(), tmp_path, executor=executor).run(["mtl", "stl", "tag"], [2], 2)
    else:
        with open_runner(small_problem(), tmp_path, executor=executor) as runner:
            compare_methods(runner, ["mtl", "stl", "tag"], [2], 2)
    trained = [job for chunk in executor.chunks for job in chunk.jobs]
    assert len(trained) == len(set(trained))
    with Store(tmp_path / "run.sqlite") as store:
        assert store.spent().networks == len(store) == len(trained)


def test_a_network_is_not_trained_again_for_affinities_that_no_method_uses(tmp_path):
    trained = []
    for methods in (["tag"], ["stl"], ["mtl"]):
        executor = WatchedExecutor()
        Study(small_problem(), tmp_path, executor=executor).run(methods, [2], 2)
        trained += executor.jobs
    assert len(trained) == len(set(trained))


def test_what_is_kept_is_checked(tmp_path):
    with pytest.raises(InvalidInput, match="`keep` must be one of 'all', 'recommended', found 'none'"):
        Study(small_problem(), tmp_path, keep="none")


def test_a_run_writes_its_files(tmp_path):
    tag = {"every": 3, "estimator": "gradient", "update": "optimizer", "held_out": True}
    methods, options = ["mtl", "tag", "cs", "tag+uw"], {"tag": tag}
    Study(small_problem(), tmp_path).run(methods, [2], 2, options=options)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["problem"]["fingerprint"] == small_problem().fingerprint
    assert (settings["seeds"], settings["methods"]) == ([0, 1], methods)
    assert Affinity.load(tmp_path / "affinity-cs.json").settings["estimator"] == "cosine"
    measured = Affinity.load(tmp_path / "affinity.json").settings
    assert [measured[name] for name in ("estimator", "update", "held_out")] == ["gradient", "optimizer", True]
    groupings = json.loads((tmp_path / "groupings.json").read_text())["groupings"]
    assert [(one["method"], one["budget"]) for one in groupings] == list(zip(methods, [None, 2, 2, 2], strict=True))
    grouping = Grouping.from_json(json.dumps(groupings[1]["grouping"]))
    assert [sorted(group.trains) for group in grouping.groups] == [g["trains"] for g in groupings[1]["groups"]]
    assert "tag decides" in (tmp_path / "run.log").read_text()
    assert logging.getLogger("tagalong").handlers == [], "the log file is let go"
    assert not list(tmp_path.glob("partial/*"))


def test_a_study_of_one_task_works(tmp_path):
    results = Study(small_problem("a"), tmp_path).run(["mtl", "stl", "tag", "hoa", "optimal", "random"], [1], 1)
    assert {record.test["a"].loss for record in results.records} == {results.records[0].test["a"].loss}


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"methods": ["mtl", "tga"]}, "`methods` .* did you mean 'tag'"),
    ({"methods": "mtl"}, r"`methods` must be a list of names, found 'mtl'; write \['mtl'\]"),
    ({"methods": 5, "effort": 9}, "`methods` must be a list of names, found 5"),
    ({"methods": []}, "`methods`"),
    ({"methods": ["stl", "stl"]}, "`methods` must be distinct"),
    ({"methods": ["tag+no such"]}, "`methods`"),
    ({"methods": ["mtl-wide1000000000"]}, "cannot widen this network"),
    ({"budgets": [4]}, "`budgets`"),
    ({"budgets": [0]}, "`budgets`"),
    ({"budgets": [-1], "methods": None}, "`budgets`"),
    ({"budgets": [10**9], "methods": ["best-of"]}, "`budgets`"),
    ({"budgets": [4, 5], "methods": ["tag", "ensemble"]}, "`budgets` must contain at least one budget for tag"),
    ({"budgets": [2.5]}, "`budgets`"),
    ({"budgets": 2}, r"`budgets` .* write a list such as \[2, 3\]"),
    ({"budgets": "23"}, "`budgets`"),
    ({"budgets": []}, "`budgets`"),
    ({"seeds": 0}, "`seeds`"),
    ({"seeds": [1, 1]}, "`seeds`"),
    ({"seeds": "3"}, "`seeds`"),
    ({"seeds": 2.5}, "`seeds`"),
    ({"options": {"hoa": {}}}, "`options`"),
    ({"options": {"tag": {"every": 0}}}, "`every`"),
    ({"confirm": -1}, "`confirm`"),
    ({"effort": 9}, "`effort` applies only to 'auto' and 'best-of'"),
    ({"methods": ["auto"], "effort": 10**18}, "`effort`"),
    ({"methods": ["auto"], "effort": "soon"}, "`effort`"),
]


@pytest.mark.parametrize(("changed", "message"), INVALID, ids=str)
def test_invalid_input_is_rejected_before_any_training(tmp_path, changed, message):
    study, executor = tmp_path / "out", WatchedExecutor()
    for call in (Study(small_problem(), study, executor=executor).run, Study(small_problem(), study).check):
        with pytest.raises(InvalidInput, match=message):
            call(**({"methods": ["mtl", "tag"], "budgets": [2], "seeds": 1} | changed))
    assert executor.jobs == []
    assert not study.exists()


def test_one_error_lists_all_problems(tmp_path):
    with pytest.raises(ValueError, match="several problems") as error:
        Study(small_problem(), tmp_path).run(["tga", "hoa"], [9], seeds=0)
    assert all(name in str(error.value) for name in ("'tga'", "`budgets`", "`seeds`"))


@pytest.mark.parametrize("out", [None, 3, "", b"out", "a\0b"])
def test_a_study_needs_a_problem_and_a_folder(tmp_path, out):
    with pytest.raises(InvalidInput, match="`problem` must be a Problem"):
        Study(["a", "b"], tmp_path)
    with pytest.raises(InvalidInput, match="`out` must be a folder"):
        Study(small_problem(), out)


def test_budgets_above_the_number_of_tasks_are_for_methods_that_average(tmp_path):
    results = Study(small_problem(), tmp_path).run(["tag", "ensemble"], [2, 5], 1)
    assert {record.label for record in results.records} == {("mtl", None), ("tag", 2), ("ensemble", 2), ("ensemble", 5)}
    assert len(results.records_of(("ensemble", 5))[0].networks) == 5
    assert results.settings["notes"][0].endswith("tag.")


def test_a_folder_belongs_to_one_problem_and_one_kind_of_study(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    ran = Study(small_problem(), here).run(["mtl"], seeds=1)
    other = Study(small_problem(seed=1), here)
    for call in (lambda: other.run(["mtl"]), lambda: other.check(["mtl"]), other.results):
        with pytest.raises(InvalidInput, match="contains a run on a different problem"):
            call()
    with pytest.raises(InvalidInput, match="`out`"):
        ExternalStudy(small_problem().names, here)
    assert Study(small_problem(), here).results().records == ran.records

    ExternalStudy(["x", "y"], elsewhere).plan(methods=["mtl"], seeds=1)
    with pytest.raises(InvalidInput, match="contains a run on a different problem"):
        Study(small_problem(), elsewhere).run(["mtl"], seeds=1)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="`out` must be a folder, found the file"):
        Study(small_problem(), tmp_path / "file").run(["mtl"], seeds=1)


def test_a_study_leaves_the_global_random_state_unchanged(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Study(small_problem(), tmp_path).run(["mtl", "stl", "tag", "cs", "mtl-wide2", "mtl-big2", "tag+uw"], [2], 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_network_for_all_tasks_is_always_included_and_numpy_integers_are_accepted(tmp_path):
    results = Study(small_problem(), tmp_path).run(["tag"], [np.int64(2)], [np.int64(1), np.int32(0)])
    assert {(record.budget, record.seed) for record in results.records} == {(None, 1), (None, 0), (2, 1), (2, 0)}
    assert all(type(record.seed) is int for record in results.records)


def test_results_after_a_run_are_those_of_the_run_and_write_nothing(tmp_path):
    study = Study(small_problem(), tmp_path)
    with pytest.raises(InvalidInput, match="there are no results"):
        study.results()
    ran = study.run(["mtl", "stl"], seeds=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for results in (study.results(), Results.load(tmp_path)):
        assert (results.records, results.verdict()) == (ran.records, ran.verdict())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
