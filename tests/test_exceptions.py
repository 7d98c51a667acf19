"""Catching ValueError catches every exception of tagalong's own about invalid input or damaged files."""

import pickle
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import tagalong
from tagalong.errors import InvalidInput

SIGNALS = {"Pending", "TimeIsUp"}  # between parts of a study; no user sees them


def exceptions_below(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind, *(exception for child in kind.__subclasses__() for exception in exceptions_below(child))}


def test_every_public_exception_is_a_value_error() -> None:
    for module in walk_packages(tagalong.__path__, "tagalong."):
        if not module.name.startswith(("tagalong.integrations.", "tagalong.__main__")):
            import_module(module.name)
    ours = {kind for kind in exceptions_below(Exception) if kind.__module__.startswith("tagalong.")}
    public = {kind for kind in ours if not kind.__name__.startswith("_")}
    assert len(public) > 5
    assert {kind.__name__ for kind in public if not issubclass(kind, ValueError)} == SIGNALS


def test_problems_are_joined_and_survive_pickling() -> None:
    error = InvalidInput.join([InvalidInput("a", "must be 1", "2"), InvalidInput(Path("b"), "is empty; pass `a`")])
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "several problems:\n`a` must be 1, found 2\nb is empty; pass `a`"
    assert [problem.argument for problem in copy.problems] == ["a", Path("b")]


def test_long_values_are_shown_in_part() -> None:
    assert len(str(InvalidInput("tasks", "must be distinct", repr("x" * 10_000), "rename them"))) < 500
