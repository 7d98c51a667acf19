import json
import logging
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch
from study_small import small_problem

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Grouping
from tagalong.learn import MLP
from tagalong.study import ExternalStudy, Results, Store, Study, TrainingBackend
from tagalong.study.executors import Serial
from tagalong.study.methods import Tag
from tagalong.study.run_folder import log_to_file

METHODS = ["mtl", "stl", "tag", "hoa", "optimal", "random"]


class NeverTrains(Serial):
    """Trains nothing."""

    def map(self, chunks, advance):
        raise AssertionError(f"trains {[chunk.jobs for chunk in chunks]}")


def count(out):
    with Store(out / "run.sqlite") as store:
        return len(store)


def test_a_second_run_trains_nothing_and_gives_the_same_results(tmp_path):
    first = Study(small_problem(), tmp_path).run(METHODS, [2, 3], 2)
    networks = count(tmp_path)
    again = Study(small_problem(), tmp_path, executor=NeverTrains()).run(METHODS, [2, 3], 2)
    assert again.records == first.records
    assert again.noise == first.noise
    assert count(tmp_path) == networks == 14
    assert Results.load(tmp_path).records == first.records
    assert [(r.method, r.budget, r.seed) for r in first.records][:4] == [
        ("mtl", None, 0), ("mtl", None, 1), ("stl", None, 0), ("stl", None, 1)
    ]  # fmt: skip


def test_the_order_of_methods_changes_nothing_but_the_order_of_results(tmp_path):
    first = Study(small_problem(), tmp_path / "one").run(["tag", "random", "optimal", "mtl"], [2], 1)
    other = Study(small_problem(), tmp_path / "two").run(["mtl", "optimal", "random", "tag"], [2], 1)

    def numbers(results):
        return {(r.method, r.budget, r.seed): (r.groups, r.val, r.test) for r in results.records}

    assert numbers(first) == numbers(other)
    assert [record.method for record in first.records] == ["tag", "random", "optimal", "mtl"]


def test_a_later_method_uses_what_an_earlier_run_trained(tmp_path):
    Study(small_problem(), tmp_path).run(["optimal"], [2], 1)
    networks = count(tmp_path)
    results = Study(small_problem(), tmp_path).run(["hoa", "stl"], [2], 1)
    assert count(tmp_path) == networks == 7
    assert {label[0] for label in results.noise} == {"hoa", "stl"}, "row losses came back where they were pruned"


def test_only_recommended_networks_keep_their_weights(tmp_path):
    results = Study(small_problem("abcd"), tmp_path).run(["optimal"], [2], 1)
    chosen = {key for record in results.records for key in record.networks}
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    kept = {key for (key,) in connection.execute("SELECT key FROM networks WHERE weights IS NOT NULL")}
    connection.close()
    assert kept == chosen
    assert count(tmp_path) == 15


def test_the_network_for_all_tasks_is_always_included(tmp_path):
    results = Study(small_problem(), tmp_path).run(["stl"], seeds=[3])
    assert [(record.method, record.seed) for record in results.records] == [("mtl", 3), ("stl", 3)]


def test_a_run_writes_its_files(tmp_path):
    results = Study(small_problem(), tmp_path).run(["mtl", Tag(every=1), "cs", "tag+uw"], [2], 2, price_per_hour=3)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["problem"]["fingerprint"] == small_problem().fingerprint
    assert settings["seeds"] == [0, 1]
    assert settings["methods"] == ["mtl", "tag", "cs", "tag+uw"]
    assert settings["versions"]["torch"]
    assert results.settings["price_per_hour"] == 3
    affinity = Affinity.load(tmp_path / "affinity.json")
    assert affinity.settings["estimator"] == "lookahead"
    assert Affinity.load(tmp_path / "affinity-cs.json").settings["estimator"] == "cosine"
    groupings = json.loads((tmp_path / "groupings.json").read_text())["groupings"]
    assert [(entry["method"], entry["budget"]) for entry in groupings] == [
        ("mtl", None), ("tag", 2), ("cs", 2), ("tag+uw", 2)
    ]  # fmt: skip
    proof = Grouping.from_json(json.dumps(groupings[1]["grouping"]))
    assert [sorted(group.trains) for group in proof.groups] == [g["trains"] for g in groupings[1]["groups"]]
    assert "tag decides" in (tmp_path / "run.log").read_text()
    assert not list(tmp_path.glob("partial/*"))
    assert results.best().predict(small_problem().test.inputs).keys() == {"a", "b", "c"}
    assert logging.getLogger("tagalong").handlers == [], "the log file is let go"


def test_log_records_of_both_packages_are_in_the_log_of_the_run(tmp_path):
    loggers = [logging.getLogger(name) for name in ("tagalong.study", "tagalong_paper.taskonomy", "tagalong_extras")]
    with log_to_file(tmp_path / "run.log"):
        for logger in loggers:
            logger.info("said by %s", logger.name)
    log = (tmp_path / "run.log").read_text()
    assert [logger.name for logger in loggers if f"said by {logger.name}" in log] == [
        "tagalong.study",
        "tagalong_paper.taskonomy",
    ]
    assert logging.getLogger("tagalong_paper").handlers == []
    assert logging.getLogger("tagalong_paper").level == logging.NOTSET


def test_row_losses_of_records_average_to_their_losses(tmp_path):
    problem = small_problem()
    results = Study(problem, tmp_path).run(["mtl", "hoa"], [2], 2)
    with Store(tmp_path / "run.sqlite") as store, TrainingBackend(problem, store, executor=NeverTrains()) as backend:
        for record in results.records:
            for task, losses in backend.row_losses(record).items():
                assert losses.mean() == pytest.approx(record.test[task].loss, rel=1e-5)


def test_options_reach_the_meter(tmp_path):
    given = {"tag": {"every": 3, "estimator": "gradient", "update": "optimizer", "held_out": True}}
    Study(small_problem(), tmp_path).run(["tag"], [2], 1, options=given)
    settings = Affinity.load(tmp_path / "affinity.json").settings
    assert (settings["estimator"], settings["update"], settings["held_out"]) == ("gradient", "optimizer", True)


def test_a_study_of_one_task_works(tmp_path):
    results = Study(small_problem("a"), tmp_path).run(["mtl", "stl", "tag", "hoa", "optimal", "random"], [1], 1)
    assert {record.test["a"].loss for record in results.records} == {results.records[0].test["a"].loss}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"methods": ["mtl", "tga"]}, r"`methods` must be a known method, found 'tga'; did you mean 'tag'\?"),
        ({"methods": "mtl"}, r"`methods` must be a list of names, found 'mtl'; write \['mtl'\]"),
        ({"methods": []}, "`methods` must name at least one method, found none"),
        ({"methods": ["stl", "stl"]}, "`methods` must be distinct, found 'stl' more than once"),
        ({"budgets": [4]}, r"`budgets` must be between 1 and the number of tasks \(3\), found 4"),
        ({"budgets": [0]}, r"`budgets` must be between 1 and the number of tasks \(3\), found 0"),
        ({"budgets": [4]}, "found 4; add 'ensemble' or 'best-of', which average the answers of more networks"),
        ({"budgets": [0], "methods": ["ensemble"]}, "`budgets` must be between 1 and 1,000, found 0"),
        ({"budgets": [-1], "methods": None}, "`budgets` must be between 1 and 1,000, found -1"),
        ({"budgets": [10**9], "methods": ["best-of"]}, "`budgets` must be between 1 and 1,000, found 1000000000"),
        (
            {"budgets": [4, 5], "methods": ["tag", "ensemble"]},
            "`budgets` must contain at least one budget for tag, found none up to 3, the number of tasks",
        ),
        ({"effort": 9}, "`effort` applies only to 'auto' and 'best-of', neither of which is among `methods`"),
        ({"methods": 5, "effort": 9}, "`methods` must be a list of names, found 5"),
        ({"budgets": [2.5]}, "`budgets` must be integers, found 2.5"),
        ({"budgets": 2}, r"`budgets` must be a list of integers, found 2; write a list such as \[2, 3\]"),
        ({"budgets": []}, "`budgets` must contain at least one budget for tag, found none"),
        ({"seeds": 0}, "`seeds` must be a positive integer"),
        ({"seeds": [1, 1]}, "`seeds` must be a positive integer"),
        ({"options": {"hoa": {}}}, "`options` must only refer to methods in the comparison, found 'hoa'"),
        ({"options": {"tag": {"every": 0}}}, "`every`"),
        ({"confirm": -1}, "`confirm` must be a non-negative integer, found -1"),
        ({"price_per_hour": -1}, "`price_per_hour` must be a non-negative number, found -1"),
        ({"methods": ["mtl-wide2"], "encoder": MLP(4)(1).double()}, "'mtl-wide2' cannot widen this network"),
        ({"methods": ["mtl-wide1000000000"]}, r"'mtl-wide1e\+09' cannot widen this network"),
        ({"methods": ["auto"], "effort": 10**18}, "`effort` must be a number of training runs"),
        ({"methods": ["tag+no such"]}, r"`methods`: 'tag\+no such': "),
    ],
)
def test_invalid_input_is_rejected_before_any_training(tmp_path, asked, message):
    given = {"methods": ["mtl", "tag"], "budgets": [2], "seeds": 1} | asked
    encoder = given.pop("encoder", small_problem().encoder)
    with pytest.raises(ValueError, match=message):
        Study(replace(small_problem(), encoder=encoder), tmp_path / "out", executor=NeverTrains()).run(**given)
    assert not (tmp_path / "out").exists()


def test_budgets_above_the_number_of_tasks_are_for_methods_that_average(tmp_path):
    results = Study(small_problem(), tmp_path).run(["tag", "ensemble"], [2, 5], 1)
    assert {record.label for record in results.records} == {("mtl", None), ("tag", 2), ("ensemble", 2), ("ensemble", 5)}
    assert len(results.records_of(("ensemble", 5))[0].networks) == 5
    note = "tag has no results for budgets above 3: one network serves each task."
    assert results.settings["notes"] == [note]
    assert note in str(results)
    assert [record.label for record in Results.load(tmp_path).records] == [record.label for record in results.records]


def test_one_error_lists_all_problems(tmp_path):
    with pytest.raises(ValueError, match="several problems") as error:
        Study(small_problem(), tmp_path).run(["tga", "hoa"], [9], seeds=0)
    assert all(name in str(error.value) for name in ("'tga'", "`budgets`", "`seeds`"))


def test_a_folder_of_another_problem_is_rejected(tmp_path):
    Study(small_problem(), tmp_path).run(["mtl"], seeds=1)
    with pytest.raises(ValueError, match=r"`out`: .* contains a run on a different problem or different data"):
        Study(small_problem(seed=1), tmp_path).run(["mtl"], seeds=1)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match=r"settings\.json must have the format"):
        Study(small_problem(), tmp_path).run(["mtl"], seeds=1)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="`out` must be a folder, found the file"):
        Study(small_problem(), file).run(["mtl"], seeds=1)


def test_confirming_seeds_are_trained_for_the_candidate_and_all_together_only(tmp_path):
    results = Study(small_problem(), tmp_path).run(["mtl", "stl", "hoa", "optimal"], [2], 2, confirm=3)
    candidate = results.verdict().candidate
    fresh = {(r.method, r.budget): [] for r in results.records if r.seed > 1}
    for record in results.records:
        if record.seed > 1:
            fresh[record.method, record.budget].append(record.seed)
    assert fresh == {("mtl", None): [2, 3, 4], candidate: [2, 3, 4]}
    groups = {record.groups for record in results.records if (record.method, record.budget) == candidate}
    assert len(groups) == 1
    assert results.verdict().seeds == 3
    assert Results.load(tmp_path).verdict() == results.verdict()


def test_a_study_leaves_the_global_random_state_unchanged(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Study(small_problem(), tmp_path).run(["mtl", "stl", "tag", "cs", "mtl-wide2", "mtl-big2", "tag+uw"], [2], 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_numpy_integers_are_accepted(tmp_path):
    results = Study(small_problem(), tmp_path).run(["tag"], [np.int64(2)], [np.int64(1), np.int32(0)])
    assert {(record.budget, record.seed) for record in results.records} == {(None, 1), (None, 0), (2, 1), (2, 0)}
    assert all(type(record.seed) is int for record in results.records)


def test_a_damaged_store_is_an_error(tmp_path):
    Study(small_problem(), tmp_path).run(["mtl", "stl"], seeds=1)
    path = tmp_path / "run.sqlite"
    content = bytearray(path.read_bytes())
    content[5000:-2000:7] = b"\xff" * len(content[5000:-2000:7])
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"could not read or write .*run\.sqlite .*delete it to train"):
        Study(small_problem(), tmp_path).run(["mtl", "stl"], seeds=1)
    path.unlink()
    path.mkdir()
    with pytest.raises(
        ValueError, match=r"could not open .*run\.sqlite \(unable to open database file\); choose another folder"
    ):
        Study(small_problem(), tmp_path).run(["mtl", "stl"], seeds=1)


def test_results_after_a_run_are_those_of_the_run_and_write_nothing(tmp_path):
    study = Study(small_problem(), tmp_path)
    ran = study.run(["mtl", "stl"], seeds=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for found in (study.results(), Study(small_problem(), tmp_path).results()):
        assert found.records == ran.records
        assert found.verdict() == ran.verdict()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_study_of_networks_trained_elsewhere_does_not_touch_a_run(tmp_path):
    ran = Study(small_problem(), tmp_path).run(["mtl"], seeds=1)
    with pytest.raises(ValueError, match=r"`out` must not be the folder of a run, .* its results would be overwritten"):
        ExternalStudy(small_problem().names, tmp_path)
    assert Study(small_problem(), tmp_path).results().records == ran.records


def test_a_study_needs_a_problem(tmp_path):
    with pytest.raises(ValueError, match=r"`problem` must be a Problem, found \['a', 'b'\]; .* use ExternalStudy"):
        Study(["a", "b"], tmp_path)


def test_there_are_no_results_before_a_run_or_a_plan(tmp_path):
    out = tmp_path / "new"
    with pytest.raises(ValueError, match=r"there are no results in .*new yet; run the study first"):
        Study(small_problem(), out).results()
    with pytest.raises(ValueError, match=r"there are no results yet; call ask\(\) and tell\(\) first"):
        ExternalStudy(["a", "b"], out).results()
    assert not out.exists()


def test_results_of_another_problem_are_rejected(tmp_path):
    Study(small_problem(), tmp_path).run(["mtl"], seeds=1)
    with pytest.raises(ValueError, match="contains a run on a different problem"):
        Study(small_problem(seed=1), tmp_path).results()
    elsewhere = ExternalStudy(["x", "y"], tmp_path / "elsewhere")
    elsewhere.plan(methods=["mtl"], seeds=1)
    elsewhere.tell(["x", "y"], 0, val={"x": 1.0, "y": 1.0}, test={"x": 1.0, "y": 1.0})
    elsewhere.results()
    with pytest.raises(ValueError, match="`out` must contain results for this problem"):
        Study(small_problem(), tmp_path / "elsewhere").results()
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match="`out` must contain results for this problem"):
        Study(small_problem(seed=1), tmp_path).results()


def test_a_budget_without_a_method_does_not_identify_networks(tmp_path):
    study = Study(small_problem(), tmp_path)
    study.run(["mtl"], seeds=1)
    with pytest.raises(ValueError, match="`budget` can only be used together with `method`"):
        study.best(budget=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": 3}, r"`budgets` must be a list of integers, found 3; write a list such as \[2, 3\]"),
        ({"budgets": "23"}, "`budgets` must be a list of integers, found '23'"),
        ({"methods": "tag"}, r"`methods` must be a list of names, found 'tag'; write \['tag'\]"),
        (
            {"seeds": "3"},
            "`seeds` must be a positive integer .* or a list of distinct non-negative integers, found '3'",
        ),
        (
            {"seeds": 2.5},
            "`seeds` must be a positive integer .* or a list of distinct non-negative integers, found 2.5",
        ),
    ],
)
def test_wrong_types_are_rejected_with_one_message(tmp_path, given, message):
    study = Study(small_problem(), tmp_path / "run")
    for ask in (study.run, study.check):
        with pytest.raises(ValueError, match=message) as caught:
            ask(**{"methods": ["tag"], **given})
        assert "\n" not in str(caught.value)
    assert not study.out.exists()


@pytest.mark.parametrize("out", [None, 3, "", b"out", "a\0b"])
def test_a_study_needs_a_folder(out):
    with pytest.raises(InvalidInput, match=r"^`out` must be a folder, found "):
        Study(small_problem(), out)
