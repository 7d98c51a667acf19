import gc
import random
import shutil
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from forkserver import forkserver
from tagalong import registry
from tagalong.measure import estimators
from tagalong.problems import problem_registry
from tagalong.study.methods import method_registry

REGISTRIES = (estimators._estimators, problem_registry._problems, method_registry._methods)
SHIPPED = [(shipped, dict(shipped.entries)) for shipped in REGISTRIES]


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the meter must protect the legacy generator, so tests draw from it
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _enable_ctrl_c() -> None:
    """Restores Ctrl-C, which tests started in the background by a script, and their processes, would ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts every test with what ships with the package, whatever the examples of docstrings have registered."""
    for shipped, entries in SHIPPED:
        monkeypatch.setattr(shipped, "entries", dict(entries))


@pytest.fixture
def own_plugins() -> Iterator[None]:
    """Looks for plug-ins again, and repeats warnings that other tests have seen."""
    registry.find_plugins.cache_clear()
    registry.warn_once.cache_clear()
    yield
    registry.find_plugins.cache_clear()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Uses one thread, for tiny networks: more would only wait for each other and for those of other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Returns a context whose processes have already imported torch and the package, so that they start at once."""
    return forkserver()


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the worker processes of a study start at once, for tests that are not about how they start."""
    monkeypatch.setattr("tagalong.study.executors.multiprocessing", SimpleNamespace(get_context=lambda _: forkserver()))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freezes modules and tests for the garbage collector: going through them takes half a second each time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
