"""Tables in plain text."""

import pytest

from tagalong.rendering import TextTable, display_width, wrap


def problems() -> TextTable:
    table = TextTable("problem", "what it is", "number of tasks", numbers=["number of tasks"], names=["problem"])
    table.add_row("a_problem_with_a_long_name", "which networks should be trained together", "9")
    table.add_row("年齢", "small", "1,234,567")
    return table


@pytest.mark.parametrize("width", [None, 35, 60])
def test_a_table_keeps_its_numbers_whatever_the_width(width: int | None) -> None:
    lines = problems().lines(width)
    assert width is None or max(map(display_width, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert all(number in text for number in ("9", "1,234,567"))
    assert "small" in text


def test_wrapped_text_fits_and_loses_nothing() -> None:
    text = "one network for all tasks"
    lines = wrap(text, 12, hang="  ")
    assert max(map(display_width, lines)) <= 12
    assert " ".join(" ".join(lines).split()) == text
