"""Text in columns of a screen, where some signs take two of them and others none."""

from __future__ import annotations

from unicodedata import category, east_asian_width


def columns(text: str) -> int:
    """How many columns a text takes.

    Example:
        >>> columns("age"), columns("年齢"), columns("a\\u0301ge")
        (3, 4, 3)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(sign: str) -> int:
    if category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(sign) in "WF" else 1


def left(text: str, width: int) -> str:
    """The text with spaces behind it."""
    return text + " " * (width - columns(text))


def right(text: str, width: int) -> str:
    """The text with spaces before it."""
    return " " * (width - columns(text)) + text


def cut(text: str, width: int) -> str:
    """The text, its end left out where it is too long.

    Example:
        >>> cut("weight", 6), cut("weight", 4), cut("年齢と体重", 6)
        ('weight', 'wei…', '年齢…')
    """
    if columns(text) <= width:
        return text
    while columns(text) >= width:
        text = text[:-1]
    return f"{text}…"
