"""Errors for missing optional packages say how to install them."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("extra", ["lightning", "transformers"])
def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    for name in {extra, *(name for name in sys.modules if name.startswith(f"{extra}."))}:
        monkeypatch.setitem(sys.modules, name, None)  # makes Python treat the package as missing
    monkeypatch.delitem(sys.modules, f"tagalong.integrations.{extra}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'tagalong\[{extra}\]'"):
        importlib.import_module(f"tagalong.integrations.{extra}")
