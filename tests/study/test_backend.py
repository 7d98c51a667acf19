from dataclasses import replace

import numpy as np
import pytest
from study_small import small_problem

from tagalong.group import Group
from tagalong.learn import Job, Recipe, train
from tagalong.progress import NoProgress
from tagalong.study import (
    Record,
    Store,
    Study,
    TrainingBackend,
    check_backend,
    claim_folder,
    compare_methods,
    make_executor,
    open_backend,
    train_side_by_side,
)
from tagalong.study.executors import Serial
from tagalong.study.network_result import pack_result
from tagalong.study.relative_losses import relative_losses


class CountingExecutor(Serial):
    """Counts the networks it trains."""

    def __init__(self):
        self.trained: list[Job] = []
        self.requests: list[list[int]] = []

    def map(self, chunks, advance):
        self.requests.append([len(chunk.jobs) for chunk in chunks])
        for chunk, packed in super().map(chunks, advance):
            self.trained += chunk.jobs
            yield chunk, packed


class RecordingProgress:
    """Records progress updates."""

    def __init__(self):
        self.updates = []

    def start(self, total, what):
        self.updates.append((what, total))

    def advance(self, n):
        self.updates.append(n)

    def done(self):
        self.updates.append("done")


@pytest.fixture
def backend(tmp_path):
    counting, watching = CountingExecutor(), RecordingProgress()
    with Store(tmp_path / "run.sqlite") as store:
        backend = TrainingBackend(
            small_problem(), store, executor=counting, progress=watching, partial=tmp_path / "partial"
        )
        backend.counting, backend.watching = counting, watching
        with backend:
            yield backend


def test_networks_are_trained_once_and_equal_training_alone(backend):
    jobs = [backend.job(subset, seed) for subset in backend.subsets() for seed in (0, 1)]
    rows = backend.networks(jobs)
    assert len(backend.counting.trained) == len(jobs) == 14
    for job in (jobs[3], jobs[-1]):
        alone = train(backend.problem, job)
        assert rows[job].val[job.tasks[0]].loss == pytest.approx(alone.val[job.tasks[0]].loss, rel=1e-9)
        assert rows[job].steps == alone.steps
        assert rows[job].parameters == alone.parameters
    assert backend.networks(jobs) == rows
    assert len(backend.counting.trained) == 14


def test_jobs_name_their_tasks_in_the_order_of_the_problem(backend):
    assert backend.job({"c", "a"}, 0).tasks == ("a", "c")


def test_another_backend_reuses_stored_networks(backend):
    jobs = [backend.job({"a"}, 0), backend.job({"a", "b"}, 0, "uw")]
    rows = backend.networks(jobs)
    counting = CountingExecutor()
    other = TrainingBackend(backend.problem, backend.store, executor=counting)
    assert other.missing([*jobs, other.job({"b"}, 0)]) == [Job(("b",), 0)]
    assert other.networks(jobs) == rows
    assert counting.trained == []
    assert other.requested(jobs)
    assert not other.requested([Job(("b",), 0)])


def test_progress_reports_finished_networks_and_their_total(backend):
    backend.networks([backend.job({"a"}, 0), backend.job({"b"}, 0), backend.job({"a", "b"}, 0, "uw")], "some")
    assert backend.watching.updates == [("some", 3), 1, 1, 1, "done"]


def test_progress_with_a_steps_method_receives_steps(backend):
    class StepCounter(NoProgress):
        taken = 0

        def steps(self, n):
            self.taken += n

    counted = StepCounter()
    other = TrainingBackend(backend.problem, backend.store, executor=backend.counting, progress=counted)
    rows = other.networks([other.job({"a"}, 5), other.job({"b"}, 5), other.job({"a", "b"}, 5, "uw")])
    assert counted.taken == sum(row.steps for row in rows.values())


def test_affinity_is_measured_once_and_also_yields_the_network_of_all_tasks(backend):
    together = backend.job(backend.tasks, 0)
    affinity = backend.affinities([0], {"every": 2})[0][0]
    assert backend.affinities([0], {"every": 2})[0][0].to_csv() == affinity.to_csv()
    assert len(backend.counting.trained) == 1
    assert backend.missing([together]) == []
    alone = train(backend.problem, together)
    assert {t: o.loss for t, o in backend.networks([together])[together].test.items()} == {
        t: s.loss for t, s in alone.test.items()
    }
    assert backend.affinities([0], {"every": 1})[0][0].steps.tolist() != affinity.steps.tolist()
    assert len(backend.counting.trained) == 2


def test_costs_count_each_network_once(backend):
    jobs = [backend.job({"a"}, 0), backend.job({"b"}, 0), backend.job({"a"}, 0)]
    rows = backend.networks(jobs)
    assert backend.cost(jobs).networks == 2
    assert backend.cost(jobs).steps == sum(row.steps for row in rows.values())


@pytest.mark.parametrize("reference", ["alone", "together"])
def test_relative_losses_are_ratios_per_seed_averaged(backend, reference):
    table = relative_losses(backend, backend.subsets(), [0, 1], split="val", reference=reference)
    assert table.keys() == set(backend.subsets())
    ratios = []
    for seed in (0, 1):
        beside = "a" if reference == "alone" else "abc"
        pair, base = (train(backend.problem, backend.job(tasks, seed)) for tasks in ("ab", beside))
        ratios.append(pair.val["a"].loss / base.val["a"].loss)
    assert table[frozenset("ab")]["a"] == pytest.approx(np.mean(ratios), rel=1e-9)
    own = table[frozenset("a")]["a"] if reference == "alone" else table[frozenset("abc")]["a"]
    assert own == pytest.approx(1.0, rel=1e-12)


def test_row_losses_come_from_the_network_that_serves_the_task_even_after_pruning(backend):
    groups = (Group("ab", "a"), Group("bc", "bc"))
    rows = backend.networks(backend.job(group.trains, 0) for group in groups)
    record = Record("own", 2, 0, groups, {}, {}, networks=tuple(row.key for row in rows.values()))
    before, weights = backend.row_losses(record), backend.weights(record.networks[0])
    assert list(before) == ["a", "b", "c"]
    trained = train(backend.problem, backend.job("ab", 0))
    np.testing.assert_allclose(before["a"], trained.test["a"].rows, rtol=1e-5)
    backend.store.prune()
    after = backend.row_losses(record)
    assert all(np.array_equal(before[task], after[task]) for task in before), "bit for bit, by the same computation"
    assert all((weights[name] == tensor).all() for name, tensor in backend.weights(record.networks[0]).items())


def test_slices_do_not_depend_on_which_networks_are_finished():
    from tagalong.study.training_backend import split_into_chunks

    jobs = [Job((task,), seed) for seed in (0, 1) for task in "abcdefgh"]
    whole = split_into_chunks(jobs, 3)
    for finished in range(2 ** len(whole)):
        left = [some for i, some in enumerate(whole) if not finished >> i & 1]
        assert split_into_chunks([job for some in left for job in some], 3) == left


def test_learning_rates_of_their_own_have_their_own_networks_and_survive_the_store(backend):
    plain = [backend.job("ab", seed) for seed in (0, 1)]
    jobs = [*plain, *(replace(job, lr=0.001) for job in plain)]
    results = backend.networks(jobs)
    assert len({result.key for result in results.values()}) == 4
    assert "lr" not in backend.keys.definition(plain[0])
    stored = backend.store.results([results[jobs[2]].key])
    assert [result.job for result in stored.values()] == [jobs[2]]
    trained = train(backend.problem, jobs[2])
    assert results[jobs[2]].test["a"].loss == pytest.approx(trained.test["a"].loss, rel=1e-5)
    weights = backend.weights(results[jobs[3]].key)
    backend.store.prune()
    again = backend.weights(results[jobs[3]].key)
    assert all((weights[name] == tensor).all() for name, tensor in again.items()), "restored with its own rate"


class TwoWorkers(CountingExecutor):
    """Trains in this process, as two workers would; optionally, dies after some chunks."""

    def __init__(self, dies_after=None):
        super().__init__()
        self.dies_after, self.chunks = dies_after, []

    def worker_count(self, device):
        return 2

    def map(self, chunks, advance):
        for number, (chunk, packed) in enumerate(super().map(chunks, advance)):
            if number == self.dies_after:
                raise KeyboardInterrupt
            self.chunks.append(chunk.jobs)
            yield chunk, packed


@pytest.mark.parametrize(("networks", "sizes"), [(7, [4, 3]), (1, [1]), (2, [1, 1]), (15, [8, 7])])
def test_requests_are_split_evenly_over_workers(tmp_path, networks, sizes):
    workers = TwoWorkers()
    with Store(tmp_path / "run.sqlite") as store:
        backend = TrainingBackend(small_problem("abcd"), store, executor=workers)
        backend.networks([backend.job(subset, 0) for subset in backend.subsets()[:networks]])
    assert workers.requests == [sizes]


def test_more_networks_than_fit_into_one_chunk_per_worker_are_split_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr("tagalong.study.training_backend.CHUNK_SIZES", {"cpu": 4})
    workers = TwoWorkers()
    with Store(tmp_path / "run.sqlite") as store:
        backend = TrainingBackend(small_problem("abcd"), store, executor=workers)
        backend.networks([backend.job(subset, 0) for subset in backend.subsets()])
    assert workers.requests == [[4, 4, 4, 3]]


@pytest.mark.parametrize("dies_after", [0, 1])
def test_a_resumed_request_has_the_same_chunks_for_several_workers(tmp_path, dies_after):
    def train_with(workers, path):
        with Store(path) as store:
            backend = TrainingBackend(small_problem("abcd"), store, executor=workers)
            jobs = [backend.job(subset, 0) for subset in backend.subsets()]
            backend.networks(jobs[2:5])
            return {job: (row.val, row.test) for job, row in backend.networks(jobs).items()}

    clean, killed, resumed = TwoWorkers(), TwoWorkers(), TwoWorkers()
    expected = train_with(clean, tmp_path / "clean.sqlite")
    with Store(tmp_path / "run.sqlite") as store:
        backend = TrainingBackend(small_problem("abcd"), store, executor=killed)
        jobs = [backend.job(subset, 0) for subset in backend.subsets()]
        backend.networks(jobs[2:5])
        killed.dies_after = dies_after
        with pytest.raises(KeyboardInterrupt):
            backend.networks(jobs)
    assert train_with(resumed, tmp_path / "run.sqlite") == expected
    assert killed.chunks + resumed.chunks == clean.chunks


def test_networks_and_affinities_can_be_prepared_in_one_request(backend):
    settings = {"estimator": "cosine", "every": 2}
    others = [backend.job("abc", seed) for seed in (1, 2)]
    backend.prepare(others, [0], settings)
    assert len(backend.counting.requests) == 1
    assert sorted(job.seed for job in backend.counting.trained) == [0, 1, 2]
    backend.measure_affinity([0], settings)
    backend.networks([backend.job("abc", 0), *others])
    backend.prepare(others, [0], settings)
    assert len(backend.counting.requests) == 1, "all of them are known"


def test_the_worker_of_a_metered_network_gets_no_share_of_the_others(tmp_path):
    workers = TwoWorkers()
    with Store(tmp_path / "run.sqlite") as store:
        backend = TrainingBackend(small_problem(), store, executor=workers)
        backend.prepare([backend.job(tasks, 0) for tasks in "ab"], [0], {"estimator": "cosine", "every": 2})
    assert workers.requests == [[1, 2]]


def test_the_free_width_depends_on_the_problem_and_the_workers_only(backend, tmp_path):
    pytest.importorskip("cloudpickle")
    width = backend.free_width
    assert width > 100, "networks with a few weights"
    backend.networks([backend.job("a", 0)])
    larger = small_problem(rows=4800, recipe=replace(backend.problem.recipe, batch_size=4800))
    one_by_one = small_problem(recipe=Recipe(epochs=1, schedule="windows"))

    def width_of(problem, executor="serial"):
        return TrainingBackend(problem, None, executor=make_executor(executor)).free_width

    assert width_of(backend.problem) == width
    assert width_of(backend.problem, "processes:3") == 3 * width
    assert 1 <= width_of(larger) < width / 10
    assert width_of(one_by_one) == 1
    assert width_of(one_by_one, "processes:3") == 3


def test_variants_train_side_by_side_with_the_same_results_as_one_after_the_other(tmp_path):
    changes = [{}, {"lr": 0.03}, {"batch_size": 8}, {"lr": 0.03, "batch_size": 8}]
    counting, expected = CountingExecutor(), []
    for changed in changes:
        problem = small_problem()
        problem = replace(problem, recipe=replace(problem.recipe, **changed))
        with open_backend(problem, tmp_path / "alone", device="cpu") as alone:
            jobs = [alone.job(subset, seed) for seed in (0, 1) for subset in alone.subsets()]
            expected.append({alone.keys.of(job): row.val for job, row in alone.networks(jobs).items()})
    with open_backend(small_problem(), tmp_path / "together", executor=counting, device="cpu") as base:
        backends = [base.variant(**changed) if changed else base for changed in changes]
        train_side_by_side(dict.fromkeys(backends, jobs), "settings")
        found = [{one.keys.of(job): row.val for job, row in one.networks(jobs).items()} for one in backends]
        train_side_by_side(dict.fromkeys(backends, jobs), "settings")
    assert found == expected
    assert len(counting.requests) == 1
    assert len(counting.trained) == len(changes) * len(jobs)


def test_variants_are_trained_by_worker_processes_with_their_own_recipe(tmp_path):
    pytest.importorskip("cloudpickle")
    with open_backend(small_problem(), tmp_path, executor="processes:2", device="cpu") as base:
        backends, jobs = [base, base.variant(batch_size=8)], [base.job("abc", 0)]
        train_side_by_side(dict.fromkeys(backends, jobs))
        assert [one.networks(jobs)[jobs[0]].steps // 3 for one in backends] == [3, 6]
        (first, second) = (one.networks(jobs)[jobs[0]] for one in backends)
    for result, size in ((first, 16), (second, 8)):
        problem = small_problem()
        alone = train(replace(problem, recipe=replace(problem.recipe, batch_size=size)), jobs[0])
        assert {task: score.loss for task, score in result.val.items()} == pytest.approx(
            {task: score.loss for task, score in alone.val.items()}
        )


def test_leftovers_of_killed_trainings_are_removed_once_finished(backend, tmp_path):
    job = backend.job("a", 0)
    key, other = backend.keys.of(job), backend.keys.of(backend.job("b", 0))
    partial = tmp_path / "partial"
    partial.mkdir()
    for name in (f"{key[:32]}.pt", f".{key[:32]}.pt.x.tmp", f"{other[:32]}.pt"):
        (partial / name).touch()
    backend.store.add({key: (backend.keys.definition(job), pack_result(train(backend.problem, job)))})
    backend.tidy()
    assert [path.name for path in partial.iterdir()] == [f"{other[:32]}.pt"], "that one may be needed"
    (partial / f"{other[:32]}.pt").unlink()
    backend.tidy()
    assert not partial.exists()


def test_an_open_backend_keeps_networks_in_its_folder_and_drops_their_weights(tmp_path):
    out = tmp_path / "new" / "folder"
    with open_backend(small_problem(), out, device="cpu") as backend:
        key = backend.keys.of(backend.job("a", 0))
        backend.networks([backend.job("a", 0)])
        assert backend.store.weights(key) is not None
    with open_backend(small_problem(), out, executor=CountingExecutor(), device="cpu") as again:
        assert again.missing([again.job("a", 0)]) == []
        assert again.store.weights(key) is None
    assert "training 1 of 1 networks" in (out / "run.log").read_text()


def test_a_backend_closed_by_an_error_keeps_its_networks(tmp_path):
    def fail(problem):
        with open_backend(problem, tmp_path, device="cpu") as backend:
            backend.networks([backend.job("a", 0)])
            raise KeyError

    with pytest.raises(KeyError):
        fail(small_problem())
    backend = TrainingBackend(small_problem(), None, executor=Serial())
    with Store(tmp_path / "run.sqlite") as store:
        assert store.weights(backend.keys.of(backend.job("a", 0))) is not None


def test_invalid_backend_arguments_are_rejected_before_a_problem_is_loaded(tmp_path):
    check_backend(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="`executor` must be a known executor"):
        check_backend(tmp_path, executor="sequential")
    with pytest.raises(ValueError, match="`device` must be"):
        check_backend(tmp_path, device="abacus")
    (tmp_path / "run.sqlite").write_text("no database, but long enough to be taken for one")
    with pytest.raises(ValueError, match="file is not a database"):
        check_backend(tmp_path)


def test_a_folder_belongs_to_one_problem(tmp_path):
    settings = claim_folder(tmp_path, small_problem(), {"size": "small"})
    assert settings["size"] == "small"
    claim_folder(tmp_path, small_problem())
    with pytest.raises(ValueError, match="a different problem or different data"):
        claim_folder(tmp_path, small_problem("ab"))
    with pytest.raises(ValueError, match="a different problem or different data"):
        Study(small_problem("ab"), tmp_path).check(["stl"])


def test_methods_are_compared_as_a_study_compares_them(tmp_path):
    methods, options = ["mtl", "tag", "random"], {"random": {"samples": 2}}
    with open_backend(small_problem(), tmp_path / "backend", device="cpu") as backend:
        found = compare_methods(backend, methods, [2], 2, options)
    results = Study(small_problem(), tmp_path / "study", device="cpu").run(methods, [2], 2, options=options)
    assert [(r.label, r.seed, r.groups, r.test) for r in found] == [
        (r.label, r.seed, r.groups, r.test) for r in results.records
    ]
    with pytest.raises(ValueError, match="`budgets` must be between 1 and the number of tasks"):
        compare_methods(backend, methods, [9])
