"""Optional packages are imported only when needed; errors for missing ones say how to install them."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("extra", ["lightning", "transformers"])
def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    for name in {extra, *(name for name in sys.modules if name.startswith(f"{extra}."))}:
        monkeypatch.setitem(sys.modules, name, None)  # makes Python treat the package as missing
    monkeypatch.delitem(sys.modules, f"tagalong.integrations.{extra}", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"tagalong.integrations.{extra}")
    assert f"pip install 'tagalong[{extra}]'" in str(caught.value)


def test_importing_tagalong_imports_no_optional_package_nor_torch_nor_pandas() -> None:
    packages = {"lightning", "transformers", "accelerate", "sklearn", "torchjd", "torch", "pandas"}
    code = f"import sys, tagalong, tagalong.integrations; print({packages} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
