"""What `show_versions` prints, and the names that `import tagalong` offers without loading anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tagalong
from tagalong import show_versions
from tagalong.learn import MLP, Recipe
from tagalong.study import Verdict

ROOT = Path(__file__).parent.parent
NOT_SHOWN = {"docs", "test", "dev", "integrations"}  # extras that are for developers, or made of other extras


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_versions_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_versions() is None
    printed = dict(re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert printed == show_versions(as_dict=True)
    assert list(printed)[:5] == ["Python", "OS", "tagalong", "torch", "CUDA"]
    assert printed["tagalong"] == tagalong.__version__


def test_as_dict_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_versions(as_dict=True)
    assert capsys.readouterr().out == ""


def test_a_package_that_is_missing_is_shown_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(package: str) -> str:
        if package == "ray":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr("tagalong.versions.version", version)
    versions = show_versions(as_dict=True)
    assert versions is not None
    assert (versions["ray"], versions["scipy"]) == ("not installed", "1.0")


def test_every_dependency_is_shown() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [given for extra, given in project["optional-dependencies"].items() if extra not in NOT_SHOWN]
    wanted = {re.split(r"\W*>=", line)[0] for lines in (project["dependencies"], *extras) for line in lines}
    versions = show_versions(as_dict=True)
    assert versions is not None
    assert wanted - set(versions) == set()


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
