import copy
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tagalong.learn import Job, MappedTensor, Problem, Recipe, Task, train

ROWS = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32))
    return tmp_path / "rows.npy"


def problem_of(inputs: torch.Tensor) -> Problem:
    """Learns from these inputs; validation and test rows are in memory."""
    rows = torch.rand(len(inputs) + 20, 4, generator=torch.Generator().manual_seed(0))
    targets = {"above": (rows[:, 0] > 0.5).double(), "sum": rows.sum(1)}
    tasks = [Task("above"), Task("sum", kind="regression")]
    parts = np.split(np.arange(len(rows)), [len(inputs), len(inputs) + 10])
    made = Problem.from_arrays(rows, targets, tasks, recipe=Recipe(epochs=2, batch_size=16), split=parts)
    return replace(made, train=replace(made.train, inputs=inputs))


def test_a_mapped_tensor_has_the_rows_of_its_file_and_results_are_plain_tensors(file: Path) -> None:
    rows = MappedTensor.open(file, "key", 10, 20)
    assert torch.equal(torch.as_tensor(np.load(file)[10:30]), rows)
    chosen = torch.tensor([3, 0, 3])
    for made in (rows[2:5], rows.index_select(0, chosen), rows.float() + 1, rows.split(4)[0]):
        assert type(made) is torch.Tensor
    assert rows.to("cpu") is rows


def test_writing_to_a_mapped_tensor_leaves_the_file_unchanged(file: Path) -> None:
    before = file.read_bytes()
    MappedTensor.open(file, "key").zero_()
    assert file.read_bytes() == before


def test_pickles_and_copies_hold_the_path_not_the_content(file: Path) -> None:
    rows = MappedTensor.open(file, "key", 10, 20)
    stored = pickle.dumps(rows)
    assert len(stored) < 400
    for again in (pickle.loads(stored), copy.deepcopy(rows)):
        assert isinstance(again, MappedTensor)
        assert torch.equal(again, rows)
        assert (again.path, again.key, again.first) == (str(file), "key", 10)


def test_a_missing_or_truncated_file_raises_an_error_with_its_name(file: Path) -> None:
    stored = pickle.dumps(MappedTensor.open(file, "key"))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"rows\.npy must be a complete npy file, found a truncated one; delete it"):
        pickle.loads(stored)
    file.unlink()
    with pytest.raises(ValueError, match=r"rows\.npy does not exist on this machine"):
        pickle.loads(stored)


def test_a_fingerprint_uses_the_key_and_the_rows_instead_of_reading(file: Path) -> None:
    def fingerprint(key: str, first: int = 0, path: Path = file) -> str:
        return problem_of(MappedTensor.open(path, key, first, 40)).fingerprint

    other = file.with_name("other.npy")
    np.save(other, np.zeros_like(np.load(file)))
    assert fingerprint("a") == fingerprint("a", path=other)
    assert len({fingerprint("a"), fingerprint("b"), fingerprint("a", first=1)}) == 3


def test_training_on_a_mapped_tensor_equals_training_in_memory(file: Path) -> None:
    inputs = MappedTensor.open(file, "key", 5, 50)
    mapped, plain = problem_of(inputs), problem_of(inputs.clone())
    assert type(plain.train.inputs) is torch.Tensor
    first, second = (train(problem, Job(problem.names)) for problem in (mapped, plain))
    np.testing.assert_array_equal(first.curve, second.curve)
