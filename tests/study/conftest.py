from collections.abc import Iterator

import pytest

from tagalong.study import run_folder


@pytest.fixture(autouse=True, scope="module")
def _no_page() -> Iterator[None]:
    """Lets studies write no page, which takes as long as everything else that these small ones do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagalong.study.study.write_run_report", lambda out: None)
        yield


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets studies write their page."""
    monkeypatch.setattr("tagalong.study.study.write_run_report", run_folder.write_run_report)
