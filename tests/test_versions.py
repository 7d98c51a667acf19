"""The output of `show_versions`, and the names that `import tagalong` offers without loading large packages."""

import re
import subprocess
import sys

import pytest

import tagalong
from tagalong import show_versions
from tagalong.learn import MLP, Recipe
from tagalong.study import Verdict


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_versions_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_versions()
    printed = dict(re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert {"Python", "OS", "CUDA", "torch", "scipy"} <= printed.keys()
    assert printed["tagalong"] == tagalong.__version__


def test_showing_versions_imports_no_large_package_but_torch() -> None:
    code = (
        "import sys, tagalong; tagalong.show_versions(); print({'pandas', 'ray', 'scipy', 'sklearn'} & {*sys.modules})"
    )
    assert run(code).splitlines()[-1] == "set()"


def test_import_loads_neither_torch_nor_pandas() -> None:
    assert run("import sys, tagalong; print({'torch', 'pandas', 'scipy'} & set(sys.modules))").strip() == "set()"


def test_the_most_used_names_are_at_the_top() -> None:
    assert (tagalong.Recipe, tagalong.MLP, tagalong.Verdict) == (Recipe, MLP, Verdict)
    assert all(hasattr(tagalong, name) for name in tagalong.__all__)
