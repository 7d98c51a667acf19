"""Catching ValueError catches every exception of tagalong's own about invalid input or damaged files."""

import ast
import builtins
import pickle
from pathlib import Path

from tagalong.errors import InvalidInput

SOURCE = Path(__file__).parents[1] / "src"
# Public exceptions that are deliberately not a ValueError, each with the reason. Private ones never reach a user.
OTHERS = {
    "MissingNetworks": "a signal from a backend to its study, which no user sees",
}


Bases = dict[str, list[str]]


def classes() -> list[tuple[str, list[str]]]:
    """Every class of the source, with the names of its bases."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(SOURCE.rglob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [(node.name, [ast.unparse(base).rpartition(".")[2] for base in node.bases]) for node in nodes]


def is_exception(name: str, known: Bases) -> bool:
    found = getattr(builtins, name, None)
    if isinstance(found, type):
        return issubclass(found, BaseException)
    if name not in known:  # of another package
        return name.endswith(("Error", "Exception", "Exit", "Interrupt", "Warning"))
    return any(is_exception(base, known) for base in known[name] if base != name)


def is_value_error(name: str, known: Bases) -> bool:
    found = getattr(builtins, name, None)
    if isinstance(found, type):
        return issubclass(found, ValueError)
    return any(is_value_error(base, known) for base in known.get(name, ()) if base != name)


def test_every_public_exception_is_a_value_error() -> None:
    known = dict(classes())
    public = [(name, bases) for name, bases in classes() if not name.startswith("_")]
    exceptions = [(name, bases) for name, bases in public if any(is_exception(base, known) for base in bases)]
    assert {"AffinityFileError", "ClosureError", "Diverged", "StoreError", "TableError"} <= dict(exceptions).keys()
    wrong = {name for name, bases in exceptions if not any(is_value_error(base, known) for base in bases)}
    advice = "derive them from ValueError, or give them a leading underscore if users never see them"
    assert wrong == set(OTHERS), f"not a ValueError: {', '.join(sorted(wrong - set(OTHERS)))}; {advice}"


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
