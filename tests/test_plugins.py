"""Plug-ins: found by entry points or registered in code, imported when used, with one warning each."""

import re
import sys
from pathlib import Path

import pytest

from packages import install
from tagalong import Problem
from tagalong.errors import InvalidInput
from tagalong.measure import AffinityMeter, Estimator, estimator_names, make_estimator, register_estimator
from tagalong.plugins import PluginError, find_plugins, load_plugins, register
from tagalong.problems import load_problem, problem_names, register_problem
from tagalong.study import make_method, method_names, register_method
from tagalong.study.methods import Mtl
from tagalong_paper import register as register_paper

pytestmark = pytest.mark.usefixtures("own_plugins")
ROOT = Path(__file__).parents[1]
POINTS = """
    [tagalong.estimators]
    {0} = {0}_module:made
    """


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a package while a test runs."""

    def install_package(name: str, entry_points: str, **modules: str) -> None:
        monkeypatch.syspath_prepend(str(install(tmp_path / name, name, entry_points, **modules)))

    yield install_package
    for name in [name for name in sys.modules if name.endswith("_module")]:
        del sys.modules[name]


def test_declared_plugins_are_found_and_not_imported(package) -> None:
    package("early", POINTS.format("early"), early_module="made = 3")
    found = find_plugins("estimators")["early"]
    assert (found.value, found.package, str(found)) == (
        "early_module:made",
        "early 1.0",
        "the estimator 'early' from early_module:made",
    )
    assert "early_module" not in sys.modules
    assert load_plugins("estimators")["early"] == 3


def test_packages_are_found_in_the_order_of_their_names(package) -> None:
    for name in ("middle", "zulu", "alpha"):
        package(name, POINTS.format(name))
    assert [name for name in find_plugins("estimators") if name in ("alpha", "middle", "zulu")] == [
        "alpha",
        "middle",
        "zulu",
    ]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('no wheels\\nat all')", "no wheels"),
        ("raise RuntimeError", "RuntimeError"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("import sys; sys.exit('started as a script')", "started as a script"),
        ("made = (", "'(' was never closed"),
    ],
)
def test_a_broken_plugin_is_one_warning_and_hides_no_other(package, caplog, source: str, why: str) -> None:
    package("broken", POINTS.format("broken"), broken_module=source)
    package("fine", POINTS.format("fine"), fine_module="made = 3")
    for _ in range(2):
        loaded = load_plugins("estimators")
        assert "broken" not in loaded
        assert loaded["fine"] == 3
    (message,) = caplog.messages
    assert message.startswith(f"the estimator 'broken' from broken_module:made cannot be loaded: {why}")
    assert "\n" not in message


def test_entry_points_that_cannot_be_read_are_one_warning_and_hide_no_others(package, caplog) -> None:
    package("fine", "[tagalong.estimators]\ngood = fine_module:made", fine_module="made = 1")
    package("unfit", "[tagalong.estimators]\na line without a value")
    assert list(find_plugins("estimators")) == list(find_plugins("estimators")) == ["good"]
    (message,) = caplog.messages
    assert message.startswith("the entry points of unfit cannot be read: ")


def test_the_first_of_two_plugins_with_the_same_name_is_used(package, caplog) -> None:
    point = "[tagalong.estimators]\nsame = {}_module:made\n"
    package("alpha", point.format("alpha"), alpha_module="made = 1")
    package("beta", point.format("beta"), beta_module="made = 2")
    assert load_plugins("estimators")["same"] == load_plugins("estimators")["same"] == 1
    assert caplog.messages == [
        "the estimator 'same' from beta_module:made is not used: alpha_module:made has the same name"
    ]


def test_a_plugin_cannot_replace_a_built_in(package, caplog) -> None:
    package("tag", "[tagalong.methods]\ntag = tag_module:made\na+b = tag_module:made\n", tag_module="made = 1")
    assert method_names().count("tag") == 1
    assert "a+b" not in method_names()
    assert make_method("tag").name == "tag"
    assert caplog.messages == [
        "the method 'tag' from tag_module:made is not used: another method already has this name",
        "the method 'a+b' from tag_module:made is not used: only names of combinations may contain '+'",
    ]


def test_plugins_registered_in_code_take_precedence_over_declared_ones(package, caplog) -> None:
    package("early", POINTS.format("early"), early_module="made = 3")
    register(estimators={"early": len, "late": "early_module:made"})
    assert load_plugins("estimators") == {"early": len, "late": 3}
    assert caplog.messages == [
        "the estimator 'early' from early_module:made is not used: builtins:len has the same name"
    ]


def test_only_the_same_object_may_be_registered_again(caplog) -> None:
    def made() -> int:
        return 1

    first = made

    def made() -> int:  # as when a cell of a notebook is run again
        return 2

    register(estimators={"one": first})
    register(estimators={"one": made})
    assert load_plugins("estimators")["one"]() == 2
    assert caplog.messages == []
    register(estimators={"one": 1.5})
    assert load_plugins("estimators")["one"] is made
    assert re.fullmatch(
        r"the estimator 'one' from builtins:float@\w+ is not used: test_plugins:\S+ has the same name",
        caplog.messages[0],
    )


def test_a_name_must_be_text() -> None:
    with pytest.raises(ValueError, match="`problems` must use non-empty strings as names, found ''"):
        register(problems={"": len})


def coins(rows: int = 50) -> Problem:
    """Tossed coins."""
    return Problem.from_arrays([[i] for i in range(rows)], [i % 2 for i in range(rows)], ["heads"])


class Drop(Estimator):
    """By how much the loss falls."""

    name, needs, ratio = "drop", frozenset({"after"}), False

    def __call__(self, seen):
        return seen.before - seen.after


def test_registered_methods_and_estimators_are_known(caplog) -> None:
    import torch

    register(methods={"ours": Mtl, "number": 3}, estimators={"drop": Drop, "function": lambda problem, seed: None})
    assert {"ours", "number"} <= set(method_names())
    assert isinstance(make_method("ours"), Mtl)
    assert make_method("ours+pcgrad").name
    with pytest.raises(PluginError, match="it must be a class or a function, found int"):
        make_method("number")
    assert "drop" in estimator_names()
    assert "function" not in estimator_names()
    encoder = torch.nn.Linear(2, 2)
    AffinityMeter(encoder, lr=0.1, estimator="drop")
    with pytest.raises(ValueError, match="it must be an Estimator, found function"):
        AffinityMeter(encoder, lr=0.1, estimator="function")
    assert caplog.messages == []


REGISTRIES = {
    "estimator": (register_estimator, estimator_names, make_estimator, Drop, "drop"),
    "method": (register_method, method_names, make_method, Mtl, "drop"),
    "problem": (register_problem, problem_names, load_problem, coins, "drop"),
}


@pytest.fixture
def restore_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        ("tagalong.measure.estimators", "_estimators"),
        ("tagalong.study.methods.method_registry", "_methods"),
        ("tagalong.problems.problem_registry", "_problems"),
    ):
        registry = getattr(sys.modules[module], name)
        monkeypatch.setattr(registry, "entries", dict(registry.entries))


@pytest.mark.usefixtures("restore_registries")
@pytest.mark.parametrize("noun", REGISTRIES)
def test_all_registries_behave_alike(package, caplog, noun: str) -> None:
    register_one, names, make, made, name = REGISTRIES[noun]
    with pytest.raises(InvalidInput, match=f"must be a known {noun}, found 'dorp'; choose from "):
        make("dorp")
    register_one(name, made)
    assert name in names()
    assert make(name) is not None
    with pytest.raises(InvalidInput, match=rf"must be a known {noun}, found 'dorp'; did you mean 'drop'\?"):
        make("dorp")
    for wrong in ("", 3):
        with pytest.raises(InvalidInput, match=r"`name` must be a non-empty string.*, found "):
            register_one(wrong, made)
    with pytest.raises(InvalidInput, match=rf"^`{noun}` must be a.*, found int$"):
        register_one("number", 3)
    assert "number" not in names()
    package("other", f"[tagalong.{noun}s]\ndrop = other_module:made\n", other_module="made = 3")
    assert names().count("drop") == 1
    assert caplog.messages == [
        f"the {noun} 'drop' from other_module:made is not used: another {noun} already has this name"
    ]


@pytest.mark.usefixtures("restore_registries")
def test_an_estimator_is_registered_by_its_own_name() -> None:
    with pytest.raises(InvalidInput, match=r"^`estimator` must have the name 'fall', found 'drop'$"):
        register_estimator("fall", Drop())


def test_a_broken_method_is_an_error_when_it_is_used(package, caplog) -> None:
    package("broken", "[tagalong.methods]\nbroken = broken_module:made\n", broken_module="import no_such_package")
    assert "broken" in method_names()
    assert make_method("mtl").name == "mtl"
    with pytest.raises(PluginError, match="the method 'broken' from broken_module:made cannot be loaded: No module"):
        make_method("broken")
    assert caplog.messages == []


def test_the_paper_declares_what_it_registers(caplog) -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    register_paper()
    for kind in ("commands", "problems"):
        registered = {name: plugin.value for name, plugin in find_plugins(kind).items() if not plugin.package}
        assert registered == project["entry-points"][f"tagalong.{kind}"]
    assert caplog.messages == []


def test_a_method_or_problem_made_as_something_else_is_named() -> None:
    register_method("three", lambda: 3)
    with pytest.raises(PluginError, match="the method 'three' must be made as a Method, found int"):
        make_method("three")
    register_problem("seven", lambda: [7])
    with pytest.raises(PluginError, match="the problem 'seven' must be made as a Problem, found list"):
        load_problem("seven")


def test_an_estimator_that_needs_arguments_is_named(package) -> None:
    source = """
        from tagalong.measure import Estimator

        class Made(Estimator):
            name, needs = "needy", frozenset({"after"})

            def __init__(self, size):
                self.size = size

            def __call__(self, seen):
                return seen.after

        made = Made
        """
    package("needy", POINTS.format("needy"), needy_module=source)
    with pytest.raises(PluginError, match=r"the estimator 'needy' from .* a class that needs no arguments"):
        make_estimator("needy")
