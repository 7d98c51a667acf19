"""What trains the networks of a study: each one once, in chunks that do not depend on what is already there."""

from dataclasses import replace
from unittest.mock import Mock, call

import numpy as np
import pytest
from study_small import small_problem
from watched_executor import WatchedExecutor

from tagalong.group import Group
from tagalong.learn import Job, train
from tagalong.study import (
    Record,
    Runner,
    Store,
    check_runner,
    open_runner,
)
from tagalong.study.runner import split_into_chunks


@pytest.fixture
def executor():
    return WatchedExecutor()


@pytest.fixture
def runner(executor, tmp_path):
    with open_runner(small_problem(), tmp_path, executor=executor, device="cpu") as runner:
        yield runner


def test_networks_are_trained_once_and_equal_training_alone(runner, executor, tmp_path):
    jobs = [runner.job(reversed(subset), seed) for subset in ("a", "b", "ab", "ac", "abc") for seed in (0, 1)]
    jobs += [runner.job("ab", 0, "uw"), replace(jobs[-1], lr=0.001)]
    assert jobs[6].tasks == ("a", "c"), "in the order of the problem"
    results = runner.networks(jobs)
    assert len(executor.jobs) == len(jobs) == len({result.key for result in results.values()})
    for job in (jobs[3], jobs[7], jobs[-1]):
        alone = train(runner.problem, job)
        assert results[job].test[job.tasks[0]].loss == pytest.approx(alone.test[job.tasks[0]].loss, rel=1e-5)
        assert (results[job].steps, results[job].parameters) == (alone.steps, alone.parameters)
    assert runner.networks(jobs) == results
    assert runner.cost([*jobs, jobs[0]]).networks == len(jobs)
    assert runner.cost(jobs).steps == sum(result.steps for result in results.values())
    other = Runner(runner.problem, runner.store, executor)
    assert other.missing([*jobs, Job(("c",))]) == [Job(("c",))]
    assert other.networks(jobs) == results
    assert len(executor.jobs) == len(jobs)
    assert other.requested(jobs)
    assert not other.requested([Job(("c",))])


def test_progress_receives_finished_networks_and_steps(tmp_path):
    progress = Mock()
    with open_runner(small_problem(), tmp_path, device="cpu", progress=progress) as runner:
        jobs = [runner.job("a", 5), runner.job("b", 5), runner.job("ab", 5, "uw")]
        results = runner.networks(jobs, "some")
    assert progress.start.call_args == call(3, "some")
    assert sum(number for (number,), _ in progress.advance.call_args_list) == 3
    assert progress.done.call_count == 1
    assert sum(steps for (steps,), _ in progress.steps.call_args_list) == sum(one.steps for one in results.values())


def test_affinity_is_measured_once_and_also_yields_the_network_of_all_tasks(runner, executor):
    together = runner.job(runner.tasks, 0)
    affinity = runner.affinities([0], {"every": 2})[0][0]
    assert runner.affinities([0], {"every": 2})[0][0].to_csv() == affinity.to_csv()
    assert len(executor.jobs) == 1
    assert runner.missing([together]) == []
    alone = train(runner.problem, together)
    assert {t: score.loss for t, score in runner.networks([together])[together].test.items()} == {
        t: score.loss for t, score in alone.test.items()
    }
    assert runner.affinities([0], {"every": 1})[0][0].steps.tolist() != affinity.steps.tolist()
    assert len(executor.jobs) == 2


def test_dropped_weights_are_trained_again_bit_for_bit_and_answers_stay(runner, executor):
    groups = (Group("ab", "a"), Group("bc", "bc"), Group("bc", "c", copy=1))
    jobs = [replace(runner.group_job(group, 0), lr=lr) for group, lr in zip(groups, (None, 0.001, None), strict=True)]
    record = Record("own", 2, 0, groups, {}, {}, networks=tuple(one.key for one in runner.networks(jobs).values()))
    before, weights = runner.row_losses(record), [runner.weights(key) for key in record.networks]
    averages = runner.average_scores(groups, record.networks, "val")
    assert list(before) == ["a", "b", "c"]
    np.testing.assert_allclose(before["a"], train(runner.problem, jobs[0]).test["a"].rows, rtol=1e-5)
    runner.drop_weights()
    assert sorted(runner.store.without_weights(record.networks)) == sorted(record.networks)
    after = runner.row_losses(record)
    assert all(np.array_equal(before[task], after[task]) for task in before)
    assert runner.average_scores(groups, record.networks, "val") == averages
    assert len(executor.jobs) == 3, "answers and losses need no weights"
    for key, tensors in zip(record.networks, weights, strict=True):
        assert all((tensors[name] == tensor).all() for name, tensor in runner.weights(key).items())


def test_chunks_do_not_depend_on_which_networks_are_finished():
    jobs = [Job((task,), seed) for seed in (0, 1) for task in "abcdefgh"]
    whole = split_into_chunks(jobs, 3)
    for finished in range(2 ** len(whole)):
        left = [chunk for number, chunk in enumerate(whole) if not finished >> number & 1]
        assert split_into_chunks([job for chunk in left for job in chunk], 3) == left


@pytest.mark.parametrize(
    ("networks", "largest", "sizes"),
    [(7, None, [4, 3]), (1, None, [1]), (2, None, [1, 1]), (15, None, [8, 7]), (15, 4, [4, 4, 4, 3])],
)
def test_requests_are_split_evenly_over_workers(tmp_path, monkeypatch, networks, largest, sizes):
    if largest is not None:
        monkeypatch.setattr("tagalong.study.runner.CHUNK_SIZES", {"cpu": largest})
    workers = WatchedExecutor(workers=2)
    with open_runner(small_problem("abcd"), tmp_path, executor=workers, device="cpu") as runner:
        runner.networks([runner.job(subset, 0) for subset in runner.subsets()[:networks]])
    assert [len(chunk.jobs) for chunk in workers.chunks] == sizes


def test_a_resumed_request_has_the_same_chunks_for_several_workers(tmp_path):
    def train_with(workers, out):
        with open_runner(small_problem("abcd"), out, executor=workers, device="cpu") as runner:
            jobs = [runner.job(subset, 0) for subset in runner.subsets()]
            runner.networks(jobs[2:3])
            return {job: (result.val, result.test) for job, result in runner.networks(jobs).items()}

    clean, killed, resumed = (WatchedExecutor(stop_after, workers=2) for stop_after in (None, 1, None))
    expected = train_with(clean, tmp_path / "clean")
    with pytest.raises(KeyboardInterrupt):
        train_with(killed, tmp_path / "run")
    assert train_with(resumed, tmp_path / "run") == expected
    finished = [chunk.jobs for chunk in killed.chunks[:1]]
    assert finished + [chunk.jobs for chunk in resumed.chunks] == [chunk.jobs for chunk in clean.chunks]


def test_networks_and_affinities_can_be_prepared_in_one_request(tmp_path):
    settings, executor = {"estimator": "cosine", "every": 2}, WatchedExecutor(workers=2)
    with open_runner(small_problem(), tmp_path, executor=executor, device="cpu") as runner:
        others = [runner.job(task, 0) for task in "ab"]
        runner.prepare(others, [0], settings)
        assert [len(chunk.jobs) for chunk in executor.chunks] == [1, 2], "measuring keeps one of two workers busy"
        runner.measure_affinity([0], settings)
        runner.networks([runner.job("abc", 0), *others])
        runner.prepare(others, [0], settings)
    assert len(executor.requests) == 1, "all of them are known"


def test_an_open_runner_keeps_networks_in_its_folder_even_if_it_fails(tmp_path):
    out, job, executor = tmp_path / "new" / "folder", Job(("a",), 0), WatchedExecutor()
    with (
        pytest.raises(KeyboardInterrupt),
        open_runner(small_problem(), out, executor=WatchedExecutor(1), device="cpu") as runner,
    ):
        runner.networks([job, replace(job, rule="uw")])
    for keep in ("all", "recommended"):
        with open_runner(small_problem(), out, executor=executor, device="cpu", keep=keep) as runner:
            key = runner.networks([job])[job].key
            assert runner.store.weights(key) is not None
    assert executor.jobs == []
    with Store(out / "run.sqlite") as store:
        assert store.weights(key) is None


def test_invalid_runner_arguments_are_rejected_before_a_problem_is_loaded(tmp_path):
    check_runner(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for options in ({"executor": "sequential"}, {"device": "abacus"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            check_runner(tmp_path, **options)
