"""A time limit leaves out the methods that are not finished, and a run with more time continues."""

import itertools
from pathlib import Path

import pytest
from study_small import small_problem

from tagalong import progress
from tagalong.study import Store, Study

METHODS = ["mtl", "stl", "ensemble", "tag"]


def keys_of(folder: Path) -> set[str]:
    with Store(folder / "run.sqlite") as store:
        return set(store.known_keys())


def test_without_time_there_is_one_network_and_the_reference(tmp_path: Path) -> None:
    study = Study(small_problem(), tmp_path / "limited", device="cpu")
    first = study.run(METHODS, [2], seeds=2, reference="stl", time=1e-9)
    assert {record.method for record in first.records} == {"mtl", "stl"}
    assert any("ensemble, tag" in note for note in first.settings["notes"])
    trained = keys_of(study.out)
    assert trained

    # With more time, the rest is trained, and the results are those of a run without a limit.
    continued = study.run(METHODS, [2], seeds=2, reference="stl", time="1h")
    assert trained < keys_of(study.out)
    expected = Study(small_problem(), tmp_path / "free", device="cpu").run(METHODS, [2], seeds=2, reference="stl")
    for own, record in zip(continued.records, expected.records, strict=True):
        assert own.label == record.label
        losses = {task: score.loss for task, score in record.test.items()}
        assert {task: score.loss for task, score in own.test.items()} == pytest.approx(losses)  # batches differ
    assert not any("time" in note for note in continued.settings["notes"])


def test_time_runs_out_between_two_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(progress, "monotonic", lambda: next(seconds))
    results = Study(small_problem(), tmp_path, device="cpu").run(METHODS, [2], seeds=2, time=4)
    methods = {record.method for record in results.records}
    assert {"mtl", "ensemble"} <= methods < set(METHODS)


@pytest.mark.parametrize("time", ["soon", "10", 0, -1.0, "0min"])
def test_a_time_that_is_no_duration_is_an_error(time: str | float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`time`"):
        Study(small_problem(), tmp_path).check(METHODS, time=time)
