"""Rows that are mapped from a file."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tagalong_paper.mapped_tensor import MappedTensor

ROWS = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32))
    return tmp_path / "rows.npy"


def test_a_mapped_tensor_has_the_rows_of_its_file_and_results_are_plain_tensors(file: Path) -> None:
    rows = MappedTensor.open(file, "key", 10, 20)
    assert torch.equal(torch.as_tensor(np.load(file)[10:30]), rows)
    chosen = torch.tensor([3, 0, 3])
    for made in (rows[2:5], rows.index_select(0, chosen), rows.float() + 1, rows.split(4)[0]):
        assert type(made) is torch.Tensor
    assert rows.to("cpu") is rows


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
