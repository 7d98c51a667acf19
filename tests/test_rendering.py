"""Tables in plain text."""

import pytest

from tagalong.rendering import StyledText, TextTable, display_width


def problems() -> TextTable:
    table = TextTable("problem", "what it is", "number of tasks", numbers=["number of tasks"], names=["problem"])
    table.add_row("a_problem_with_a_long_name", "which networks should be trained together", "9")
    table.add_row("年齢", StyledText("small", "dim"), "1,234,567")
    return table


@pytest.mark.parametrize("width", [None, 35, 60])
def test_a_table_keeps_its_numbers_whatever_the_width(width: int | None) -> None:
    lines = problems().lines(width)
    assert width is None or max(map(display_width, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert all(number in text for number in ("9", "1,234,567"))
    assert "small" in text
    painted = "".join(problems().lines(width, paint=lambda text, style: f"<{style}>{text}</{style}>"))
    assert "<dim>small</dim>" in painted
