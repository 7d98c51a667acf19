from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import HOSTILE, BrowserPage
from fake_run import make_run

from tagalong.report import write_report


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose tasks have names with HTML and TeX."""
    folder = tmp_path_factory.mktemp("runs") / "hostile"
    make_run(folder, HOSTILE)
    return write_report(folder)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., BrowserPage]]:
    """Opens pages, and fails if any of them reports errors or requests anything from the network."""
    opened: list[BrowserPage] = []

    def open_file(file: Path, **context: Any) -> BrowserPage:
        opened.append(BrowserPage(browser, file, **context))
        return opened[-1]

    yield open_file
    for page in opened:
        page.page.close()
    assert [complaint for page in opened for complaint in page.complaints] == []
