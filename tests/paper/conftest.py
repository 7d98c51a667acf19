"""Shares one folder among all experiments at small size, so that every network is trained only once."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tagalong_paper import ExperimentSetup, Report, load_setup, run_experiment


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Uses one thread: the networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # workers share their trained networks
    return load_setup("faces", "small", out=Path(root) / "paper-small", device="cpu")


@pytest.fixture(scope="session")
def report(setup: ExperimentSetup) -> Callable[..., Report]:
    """Returns a function that runs an experiment, once per session, and returns its report."""
    return cache(lambda name, **options: run_experiment(name, setup, **options))
