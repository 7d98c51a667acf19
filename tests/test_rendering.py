"""Tables and wrapped sentences in plain text."""

import re
import sys

import pytest

from tagalong.rendering import StyledText, TextTable, display_width, terminal_width, wrap

WORDS = "which networks should be trained together"


def problems() -> TextTable:
    table = TextTable("problem", "what it is", "number of tasks", numbers=["number of tasks"], names=["problem"])
    table.add_row("a_problem_with_a_long_name", WORDS, "9")
    table.add_row("年齢", "small", "1,234,567")
    return table


def test_nothing_is_shortened_without_a_width() -> None:
    assert problems().lines() == [
        "problem                     what it is                                 number of tasks",
        f"a_problem_with_a_long_name  {WORDS}                9",
        "年齢                        small                                            1,234,567",
    ]


@pytest.mark.parametrize("width", [35, 40, 50, 60, 70, 80, 85, 90])
def test_a_table_fits_and_keeps_its_numbers(width: int) -> None:
    lines = problems().lines(width)
    assert max(map(display_width, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)
    text = " ".join(" ".join(lines).split())
    assert all(number in text for number in ("9", "1,234,567"))


def test_names_are_shortened_before_sentences_are_wrapped() -> None:
    first, second, *_ = problems().lines(75)
    assert first.startswith("problem")
    assert re.match(rf"a_prob\w*…  {WORDS}", second)
    narrow = problems().lines(50)
    assert narrow[0] == "problem   what it is               number of tasks"
    assert narrow[1] == "a_probl…  which networks should                  9"
    assert narrow[2] == "          be trained together"


def test_headings_of_numbers_are_wrapped_last_and_stand_at_the_bottom() -> None:
    lines = problems().lines(30)
    assert [line.split() for line in lines[:2]] == [["what", "it", "number", "of"], ["problem", "is", "tasks"]]
    whole = TextTable("number of tasks", numbers=["number of tasks"], wrap_headings=False)
    whole.add_row("9")
    assert whole.lines(6) == ["number of tasks", "              9"]


def test_numbers_are_never_cut() -> None:
    table = TextTable("a", "b", numbers=["a", "b"])
    table.add_row("123456", "654321")
    assert table.lines(5) == ["     a       b", "123456  654321"]


def test_cells_may_have_several_lines() -> None:
    table = TextTable("budget", "groups", numbers=["budget"])
    table.add_row("2", "{age, ill}\n{weight}")
    assert table.lines() == ["budget  groups", "     2  {age, ill}", "        {weight}"]


def test_empty_headings_have_no_line() -> None:
    table = TextTable("", "")
    table.add_row("weight", "3×4")
    assert table.lines() == ["weight  3×4"]


def test_styles_are_applied_to_the_text_only() -> None:
    table = TextTable("task", "loss", numbers=["loss"])
    table.add_row("age", StyledText("1.5", "dim"))
    painted = table.lines(paint=lambda text, style: f"<{style}>{text}</{style}>")
    assert painted == ["<bold>task</bold>  <bold>loss</bold>", "age    <dim>1.5</dim>"]
    assert table.lines() == ["task  loss", "age    1.5"]


@pytest.mark.parametrize("text", [WORDS, "年齢と体重 and a_word_that_is_longer_than_a_line and more", "", "   "])
@pytest.mark.parametrize("width", [10, 17, 60])
def test_wrapped_lines_fit_and_lose_no_word(text: str, width: int) -> None:
    lines = wrap(text, width, hang="  ")
    assert max(map(display_width, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_words_are_not_broken() -> None:
    path = "runs/a_rather_long_name/results.json"
    assert wrap(f"see {path} for more", 12, break_words=False) == ["see", path, "for more"]


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert terminal_width() == 72
