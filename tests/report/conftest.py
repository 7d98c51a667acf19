from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_run import make_run
from seen_page import HOSTILE, Seen

from tagalong.report import write_report


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose tasks have the worst of names."""
    folder = tmp_path_factory.mktemp("runs") / "hostile"
    make_run(folder, HOSTILE)
    return write_report(folder)


@pytest.fixture
def see(browser: Any) -> Iterator[Callable[..., Seen]]:
    """Opens pages; none of them may complain or ask the network for anything."""
    opened: list[Seen] = []

    def open_page(file: Path, **context: Any) -> Seen:
        opened.append(Seen(browser, file, **context))
        return opened[-1]

    yield open_page
    for seen in opened:
        seen.context.close()
    assert [complaint for seen in opened for complaint in seen.complaints] == []
