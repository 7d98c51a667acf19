import numpy as np
import pytest
from study_small import small_problem

from tagalong.group import Group
from tagalong.learn import Job, train
from tagalong.progress import NoProgress
from tagalong.study import Lab, Record, Store, Study, check_lab, claim_folder, compare_methods, open_lab
from tagalong.study.executors import Serial
from tagalong.study.relative_losses import relative_losses
from tagalong.study.store import pack


class Counting(Serial):
    """Counts the networks it trains."""

    def __init__(self):
        self.trained: list[Job] = []

    def map(self, chunks, advance):
        for chunk, packed in super().map(chunks, advance):
            self.trained += chunk.jobs
            yield chunk, packed


class Watching:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def start(self, total, what):
        self.told.append((what, total))

    def advance(self, n):
        self.told.append(n)

    def done(self):
        self.told.append("done")


@pytest.fixture
def lab(tmp_path):
    counting, watching = Counting(), Watching()
    with Store(tmp_path / "run.sqlite") as store:
        lab = Lab(small_problem(), store, executor=counting, progress=watching, partial=tmp_path / "partial")
        lab.counting, lab.watching = counting, watching
        with lab:
            yield lab


def test_networks_are_trained_once_and_equal_training_alone(lab):
    jobs = [lab.job(subset, seed) for subset in lab.subsets() for seed in (0, 1)]
    rows = lab.networks(jobs)
    assert len(lab.counting.trained) == len(jobs) == 14
    for job in (jobs[3], jobs[-1]):
        alone = train(lab.problem, job)
        assert rows[job].val[job.tasks[0]].loss == pytest.approx(alone.val[job.tasks[0]].loss, rel=1e-9)
        assert rows[job].steps == alone.steps
        assert rows[job].parameters == alone.parameters
    assert lab.networks(jobs) == rows
    assert len(lab.counting.trained) == 14


def test_jobs_name_their_tasks_in_the_order_of_the_problem(lab):
    assert lab.job({"c", "a"}, 0).tasks == ("a", "c")


def test_another_lab_finds_what_is_stored(lab):
    jobs = [lab.job({"a"}, 0), lab.job({"a", "b"}, 0, "uw")]
    rows = lab.networks(jobs)
    counting = Counting()
    other = Lab(lab.problem, lab.store, executor=counting)
    assert other.missing([*jobs, other.job({"b"}, 0)]) == [Job(("b",), 0)]
    assert other.networks(jobs) == rows
    assert counting.trained == []
    assert other.asked(jobs)
    assert not other.asked([Job(("b",), 0)])


def test_whoever_watches_is_told_networks_done_and_in_all(lab):
    lab.networks([lab.job({"a"}, 0), lab.job({"b"}, 0), lab.job({"a", "b"}, 0, "uw")], "some")
    assert lab.watching.told == [("some", 3), 1, 1, 1, "done"]


def test_steps_are_told_to_those_who_count_them(lab):
    class Counted(NoProgress):
        taken = 0

        def steps(self, n):
            self.taken += n

    counted = Counted()
    other = Lab(lab.problem, lab.store, executor=lab.counting, progress=counted)
    rows = other.networks([other.job({"a"}, 5), other.job({"b"}, 5), other.job({"a", "b"}, 5, "uw")])
    assert counted.taken == sum(row.steps for row in rows.values())


def test_affinity_is_measured_once_and_leaves_the_network_of_all_tasks(lab):
    together = lab.job(lab.problem.names, 0)
    affinity = lab.affinity(0, every=2)
    assert lab.affinity(0, every=2).to_csv() == affinity.to_csv()
    assert len(lab.counting.trained) == 1
    assert lab.missing([together]) == []
    alone = train(lab.problem, together)
    assert {t: o.loss for t, o in lab.networks([together])[together].test.items()} == {
        t: s.loss for t, s in alone.test.items()
    }
    assert lab.affinity(0, every=1).steps.tolist() != affinity.steps.tolist()
    assert len(lab.counting.trained) == 2


def test_costs_count_each_network_once(lab):
    jobs = [lab.job({"a"}, 0), lab.job({"b"}, 0), lab.job({"a"}, 0)]
    rows = lab.networks(jobs)
    assert lab.cost(jobs).networks == 2
    assert lab.cost(jobs).steps == sum(row.steps for row in rows.values())


@pytest.mark.parametrize("reference", ["alone", "together"])
def test_relative_losses_are_ratios_per_seed_averaged(lab, reference):
    table = relative_losses(lab, lab.subsets(), [0, 1], part="val", reference=reference)
    assert table.keys() == set(lab.subsets())
    ratios = []
    for seed in (0, 1):
        beside = "a" if reference == "alone" else "abc"
        pair, base = (train(lab.problem, lab.job(tasks, seed)) for tasks in ("ab", beside))
        ratios.append(pair.val["a"].loss / base.val["a"].loss)
    assert table[frozenset("ab")]["a"] == pytest.approx(np.mean(ratios), rel=1e-9)
    own = table[frozenset("a")]["a"] if reference == "alone" else table[frozenset("abc")]["a"]
    assert own == pytest.approx(1.0, rel=1e-12)


def test_row_losses_come_from_where_tasks_are_served_even_after_pruning(lab):
    groups = (Group("ab", "a"), Group("bc", "bc"))
    rows = lab.networks(lab.job(group.trains, 0) for group in groups)
    record = Record("own", 2, 0, groups, {}, {}, networks=tuple(row.key for row in rows.values()))
    before, weights = lab.row_losses(record), lab.weights(record.networks[0])
    assert list(before) == ["a", "b", "c"]
    trained = train(lab.problem, lab.job("ab", 0))
    np.testing.assert_allclose(before["a"], trained.test["a"].rows, rtol=1e-5)
    lab.store.prune()
    after = lab.row_losses(record)
    assert all(np.array_equal(before[task], after[task]) for task in before), "bit for bit, by the same computation"
    assert all((weights[name] == tensor).all() for name, tensor in lab.weights(record.networks[0]).items())


def test_slices_stay_the_same_whichever_are_finished():
    from tagalong.study.backend import slices

    jobs = [Job((task,), seed) for seed in (0, 1) for task in "abcdefgh"]
    whole = slices(jobs, 3)
    for finished in range(2 ** len(whole)):
        left = [some for i, some in enumerate(whole) if not finished >> i & 1]
        assert slices([job for some in left for job in some], 3) == left


def test_what_kills_left_of_finished_trainings_is_removed(lab, tmp_path):
    job = lab.job("a", 0)
    key, other = lab.keys.of(job), lab.keys.of(lab.job("b", 0))
    partial = tmp_path / "partial"
    partial.mkdir()
    for name in (f"{key[:32]}.pt", f".{key[:32]}.pt.x.tmp", f"{other[:32]}.pt"):
        (partial / name).touch()
    lab.store.add({key: (lab.keys.definition(job), pack(train(lab.problem, job)))})
    lab.tidy()
    assert [path.name for path in partial.iterdir()] == [f"{other[:32]}.pt"], "that one may be needed"


def test_an_open_lab_keeps_networks_in_its_folder_and_drops_their_weights(tmp_path):
    out = tmp_path / "new" / "folder"
    with open_lab(small_problem(), out, device="cpu") as lab:
        key = lab.keys.of(lab.job("a", 0))
        lab.networks([lab.job("a", 0)])
        assert lab.store.weights(key) is not None
    with open_lab(small_problem(), out, executor=Counting(), device="cpu") as again:
        assert again.missing([again.job("a", 0)]) == []
        assert again.store.weights(key) is None
    assert "training 1 of 1 networks" in (out / "run.log").read_text()


def test_a_lab_that_ends_in_an_error_keeps_what_it_has(tmp_path):
    def fail(problem):
        with open_lab(problem, tmp_path, device="cpu") as lab:
            lab.networks([lab.job("a", 0)])
            raise KeyError

    with pytest.raises(KeyError):
        fail(small_problem())
    lab = Lab(small_problem(), None, executor=Serial())
    with Store(tmp_path / "run.sqlite") as store:
        assert store.weights(lab.keys.of(lab.job("a", 0))) is not None


def test_a_lab_is_refused_before_a_problem_is_loaded(tmp_path):
    check_lab(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="`executor` must be a known executor"):
        check_lab(tmp_path, executor="sequential")
    with pytest.raises(ValueError, match="`device` must be"):
        check_lab(tmp_path, device="abacus")
    (tmp_path / "run.sqlite").write_text("no database, but long enough to be taken for one")
    with pytest.raises(ValueError, match="is not a store of networks"):
        check_lab(tmp_path)


def test_a_folder_belongs_to_one_problem(tmp_path):
    settings = claim_folder(tmp_path, small_problem(), {"size": "small"})
    assert settings["size"] == "small"
    claim_folder(tmp_path, small_problem())
    with pytest.raises(ValueError, match="another problem, or of other data"):
        claim_folder(tmp_path, small_problem("ab"))
    with pytest.raises(ValueError, match="another problem, or of other data"):
        Study(small_problem("ab"), tmp_path).check(["stl"])


def test_methods_are_compared_as_a_study_compares_them(tmp_path):
    methods, options = ["mtl", "tag", "random"], {"random": {"samples": 2}}
    with open_lab(small_problem(), tmp_path / "lab", device="cpu") as lab:
        found = compare_methods(lab, methods, [2], 2, options)
    results = Study(small_problem(), tmp_path / "study", device="cpu").run(methods, [2], 2, options=options)
    assert [(r.label, r.seed, r.groups, r.test) for r in found] == [
        (r.label, r.seed, r.groups, r.test) for r in results.records
    ]
    with pytest.raises(ValueError, match="`budgets` must be from 1 to the number of tasks"):
        compare_methods(lab, methods, [9])
