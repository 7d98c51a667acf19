import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch
from study_small import small_problem

from tagalong.affinity import Affinity
from tagalong.learn import Job, Score, Trained, train
from tagalong.study import Cost, Store, StoreError, store as store_module
from tagalong.study.keys import Keys

PROBLEM = small_problem()
KEYS = Keys(PROBLEM, "cpu")


def fake(job: Job, loss: float = 1.0, affinity: Affinity | None = None) -> Trained:
    rows = np.arange(4, dtype=np.float32)
    scores = {task: Score(loss + i, 0.5, rows + i) for i, task in enumerate(job.tasks)}
    state = {"weight": torch.tensor([loss])}
    return Trained(job, scores, scores, 6, 0.25, 11, best_epoch=1, state=state, affinity=affinity)


def entries(*trained: Trained):
    return {KEYS.of(t.job): (KEYS.definition(t.job), t) for t in trained}


@pytest.mark.parametrize("piece_bytes", [2**28, 100])
def test_a_stored_network_is_read_back_unchanged(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(store_module, "PIECE_BYTES", piece_bytes)
    trained = train(PROBLEM, Job(("a", "c"), 1))
    key = KEYS.of(trained.job)
    with Store(tmp_path / "run.sqlite") as store:
        store.add(entries(trained))
    with Store(tmp_path / "run.sqlite") as store:
        row = store.results([key, "of nobody"])[key]
        for name in ("job", "flattery", "halves", "steps", "parameters", "best_epoch"):
            assert getattr(row, name) == getattr(trained, name)
        for part in ("val", "test"):
            losses = store.losses(key, part)
            for task, score in getattr(trained, part).items():
                assert (getattr(row, part)[task].loss, getattr(row, part)[task].error) == (score.loss, score.error)
                np.testing.assert_array_equal(losses[task], score.rows)
        weights = store.weights(key)
        assert weights.keys() == trained.state.keys()
        assert all(torch.equal(weights[name], trained.state[name]) for name in weights)


def test_stored_networks_are_never_replaced_and_unknown_losses_are_read_back_as_nan(tmp_path):
    keys = [KEYS.of(Job((task,), 0)) for task in "ab"]
    with Store(tmp_path / "run.sqlite") as store:
        store.add(entries(fake(Job(("a",), 0), loss=1.0)))
        store.add(entries(fake(Job(("a",), 0), loss=2.0), fake(Job(("b",), 0), loss=float("nan"))))
        assert len(store) == 2
        stored = store.results(keys)
    assert stored[keys[0]].val["a"].loss == 1.0
    assert np.isnan(stored[keys[1]].test["b"].loss)


def test_dropped_weights_can_be_added_again_and_everything_else_stays(tmp_path):
    one, two = Job(("a",), 0), Job(("b",), 0)
    keys = [KEYS.of(one), KEYS.of(two)]
    with Store(tmp_path / "run.sqlite") as store:
        store.add(entries(fake(one), fake(two)))
        store.keep([keys[0]])
        assert store.drop_weights(keys) == Cost(1, 6, 0.25)
        assert store.drop_weights(keys) == Cost()
        assert store.weights(keys[0]) is not None
        assert store.weights(keys[1]) is None
        assert store.losses(keys[1])["b"].tolist() == [0, 1, 2, 3]
        assert store.without_weights(keys) == [keys[1]]
        store.add_weights({keys[1]: fake(two)})
        assert store.without_weights(keys) == []
        assert store.batch(keys[1]) == [one, two], "trained together, in this order"


def test_more_keys_may_be_read_than_sqlite_takes_at_once(tmp_path):
    jobs = [Job(("a",), seed) for seed in range(1203)]
    with Store(tmp_path / "run.sqlite") as store:
        store.add(entries(*map(fake, jobs)))
        assert len(store.results(KEYS.of(job) for job in jobs)) == len(jobs)


def test_affinities_are_read_back_bit_for_bit(tmp_path):
    history = np.random.default_rng(0).normal(size=(5, 2, 2))
    history[0, 0, 1] = np.nan
    more = {"skipped": {"no label": [[0, 1], [0, 0]]}, "settings": {"estimator": "lookahead"}}
    affinity, job = Affinity.from_history(history, ["a", "b"], **more), Job(("a", "b"), 0)
    key, cost = KEYS.of_affinity(job, {"every": 1}), Cost(1, 13, 0.5)
    with Store(tmp_path / "run.sqlite") as store:
        store.add(entries(fake(job)))
        assert store.affinity(key) is None
        for _ in range(2):
            store.add_affinity(key, affinity, cost, Cost(0, 0, 0.25))
        found, found_cost = store.affinity(key)
        assert store.spent() == Cost(1, 6, 0.5)
    assert (found.to_csv(), found.settings) == (affinity.to_csv(), affinity.settings)
    assert np.array_equal(found.history, affinity.history, equal_nan=True)
    assert found.skipped["no label"].tolist() == [[0, 1], [0, 0]]
    assert found_cost == cost


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0" * 99]
)
def test_a_file_that_is_not_a_database_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "run.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"could not read or write {path}"):
        Store(path)
    assert path.read_bytes() == content


def test_a_store_of_an_unknown_version_is_named_and_left_alone(tmp_path):
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"{path} must have version \d, found 99"):
        Store(path)
    assert path.read_bytes() == before
