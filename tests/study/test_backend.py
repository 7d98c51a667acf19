from dataclasses import replace

import numpy as np
import pytest
from study_small import small_problem

from tagalong.group import Group
from tagalong.learn import Job, train
from tagalong.progress import NoProgress
from tagalong.study import (
    Record,
    Store,
    Study,
    TrainingBackend,
    check_backend,
    claim_folder,
    compare_methods,
    open_backend,
)
from tagalong.study.executors import Serial
from tagalong.study.relative_losses import relative_losses
from tagalong.study.store import pack_result


class CountingExecutor(Serial):
    """Counts the networks it trains."""

    def __init__(self):
        self.trained: list[Job] = []

    def map(self, chunks, advance):
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
    affinity = backend.affinity(0, every=2)
    assert backend.affinity(0, every=2).to_csv() == affinity.to_csv()
    assert len(backend.counting.trained) == 1
    assert backend.missing([together]) == []
    alone = train(backend.problem, together)
    assert {t: o.loss for t, o in backend.networks([together])[together].test.items()} == {
        t: s.loss for t, s in alone.test.items()
    }
    assert backend.affinity(0, every=1).steps.tolist() != affinity.steps.tolist()
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
    from tagalong.study.backend import split_into_chunks

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
    with pytest.raises(ValueError, match="is not a network store"):
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
