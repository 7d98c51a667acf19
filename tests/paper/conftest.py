"""One folder for all experiments at small size: every network is trained once, whichever tests run."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tagalong_paper import Bench, Report, open_bench, run_experiment


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The networks are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # workers share what they have trained
    return open_bench("faces", "small", out=Path(root) / "paper-small", device="cpu")


@pytest.fixture(scope="session")
def report(bench: Bench) -> Callable[..., Report]:
    """The report of an experiment, run once in a session."""

    @cache
    def of(name: str, **options: bool) -> Report:
        found = run_experiment(name, bench, **options)
        found.save(bench.out)
        return found

    return of
