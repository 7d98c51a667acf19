"""Catching ValueError catches every exception of tagalong's own about invalid input or damaged files."""

import pickle
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import tagalong
from tagalong.errors import InvalidInput

SIGNALS = {"MissingNetworks"}  # from a backend to its study; no user sees it


def exceptions_below(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind, *(found for child in kind.__subclasses__() for found in exceptions_below(child))}


def test_every_public_exception_is_a_value_error() -> None:
    for module in walk_packages(tagalong.__path__, "tagalong."):
        if not module.name.startswith(("tagalong.integrations.", "tagalong.__main__")):
            import_module(module.name)
    ours = {kind for kind in exceptions_below(Exception) if kind.__module__.startswith("tagalong.")}
    public = {kind for kind in ours if not kind.__name__.startswith("_")}
    assert len(public) > 5
    assert {kind.__name__ for kind in public if not issubclass(kind, ValueError)} == SIGNALS


def test_the_path_of_a_file_is_never_taken_for_an_argument() -> None:
    error = InvalidInput(Path("mine"), "must hold `scores`", hint="pass `budget`")
    assert str(error) == "mine must hold `scores`; pass `budget`"
    assert error.render(lambda name: f"--{name}") == "mine must hold --scores; pass --budget"
    assert str(InvalidInput("mine", "must be a number")) == "`mine` must be a number"


def test_an_error_of_several_problems_survives_pickling() -> None:
    error = InvalidInput.join([InvalidInput("a", "must be 1", "2"), InvalidInput(Path("b"), "is empty")])
    error.show_as({"a": "--first"})
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "several problems:\n--first must be 1, found 2\nb is empty"
    assert [problem.argument for problem in copy.problems] == ["a", Path("b")]


def test_a_single_backtick_in_a_name_hides_no_argument() -> None:
    error = InvalidInput("`targets`:", "'b`' must vary, or pass `kinds`")
    assert error.render(lambda name: f"--{name}") == "--targets: 'b`' must vary, or pass --kinds"


def test_a_message_shows_only_part_of_a_long_value() -> None:
    error = InvalidInput("tasks", "must be distinct", repr("x" * 10_000), "rename them")
    assert len(str(error)) < 500
    assert str(error).endswith("; rename them")


def test_control_characters_never_leave_a_message() -> None:
    error = InvalidInput(Path("\x1b[31mred"), "must not be \x9b2J", "\x07")
    assert str(error) == r"\x1b[31mred must not be \x9b2J, found \x07"


def test_a_quoted_name_in_backticks_is_no_reference_to_an_argument() -> None:
    error = InvalidInput("tasks", "must be among '`age`', or pass `tasks`")
    assert error.render(str.upper) == "TASKS must be among '`age`', or pass TASKS"
