"""Text in columns of a terminal, and HTML that is escaped by construction."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from unicodedata import category, east_asian_width

VOID = frozenset({"br", "input", "meta", "hr"})  # elements without an end tag


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


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(content: object) -> Html:
    """Escapes anything that is not HTML.

    Example:
        >>> escape("<b>"), escape(Html("<b>"))
        ('&lt;b&gt;', '<b>')
    """
    return content if isinstance(content, Html) else Html(html.escape(str(content)))


def tag(element: str, /, *children: object, **attributes: str | float | bool | None) -> Html:
    """An element. Attributes are written `class_`, `aria_label`; None and False leave one out, True has no value.

    Example:
        >>> tag("th", "R&D", scope="col", class_="wide", hidden=True)
        '<th scope="col" class="wide" hidden>R&amp;D</th>'
    """
    start = f"<{element}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if element in VOID:
        return Html(start)
    return Html(f"{start}{join(children)}</{element}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def join(children: Iterable[object], separator: str = "") -> Html:
    """Children one after the other, each escaped unless it is HTML; None is left out."""
    return Html(separator.join(escape(child) for child in children if child is not None))


def table(
    headings: Sequence[object], rows: Iterable[Sequence[object]], *, caption: object = None, class_: str | None = None
) -> Html:
    """A table whose first column names the rows; a cell may be a `td` or `th` already.

    Example:
        >>> table(["task", "score"], [["age", 1]])[-66:]
        '<tbody><tr><th scope="row">age</th><td>1</td></tr></tbody></table>'
    """
    head = tag("thead", tag("tr", *(_cell(heading, "col") for heading in headings)))
    body = [tag("tr", _cell(row[0], "row"), *map(_cell, row[1:])) for row in rows]
    titled = None if caption is None else tag("caption", caption)
    return tag("table", titled, head, tag("tbody", *body), class_=class_)


def _cell(content: object, scope: str | None = None) -> Html:
    if isinstance(content, Html) and content.startswith(("<td", "<th")):
        return content
    return tag("th", content, scope=scope) if scope else tag("td", content)
