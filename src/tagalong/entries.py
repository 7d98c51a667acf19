"""`Entry`: checked access to the values of a JSON document, which a person may have edited by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from reprlib import repr as short
from typing import Any, TypeVar

from tagalong.errors import is_integer, is_number

T = TypeVar("T")


class EntryError(ValueError):
    """An entry of a document is missing or invalid; the message says where it is, and what was expected and found."""


class Entry:
    """A value in a document, and its place there, which error messages name.

    Args:
        value: the value, as parsed from JSON.
        place: where it is in the document; empty for the document itself.

    Example:
        >>> document = Entry({"records": [{"seed": "x"}]})
        >>> document["records"].entries()[0]["seed"].integer()
        Traceback (most recent call last):
        tagalong.entries.EntryError: records[0].seed must be an integer, found 'x'
    """

    def __init__(self, value: Any, place: str = "") -> None:
        self.value, self.place = value, place

    def error(self, expected: str) -> EntryError:
        """Returns the error to raise if the value is not as expected."""
        return EntryError(f"{self.place or 'the document'} {expected}, found {short(self.value)}")

    def __getitem__(self, name: str) -> Entry:
        value = self._object()
        if name not in value:
            raise EntryError(f"{self._place_of(name)} is missing")
        return Entry(value[name], self._place_of(name))

    def get(self, name: str) -> Entry:
        """Returns an entry that may be missing, whose value is then None."""
        return Entry(self._object().get(name), self._place_of(name))

    def mapping(self) -> dict[str, Entry]:
        """Returns the entries of an object by name."""
        return {name: Entry(value, self._place_of(name)) for name, value in self._object().items()}

    def entries(self) -> list[Entry]:
        """Returns the entries of a list."""
        if not isinstance(self.value, list):
            raise self.error("must be a list")
        return [Entry(value, f"{self.place}[{number}]") for number, value in enumerate(self.value)]

    def some(self) -> list[Entry]:
        """Returns the entries of a list that must not be empty."""
        entries = self.entries()
        if not entries:
            raise self.error("must not be empty")
        return entries

    def optional(self, read: Callable[[Entry], T]) -> T | None:
        """Returns None for null, and what `read` returns for anything else."""
        return None if self.value is None else read(self)

    def text(self) -> str:
        """Returns a string."""
        if not isinstance(self.value, str):
            raise self.error("must be a string")
        return self.value

    def name(self, known: Collection[str] | None = None) -> str:
        """Returns a non-empty string; if names are given, it must be one of them."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error("must be a non-empty string")
        if known is not None and self.value not in known:
            raise self.error("must be the name of a task")
        return self.value

    def names(self, known: Collection[str] | None = None) -> tuple[str, ...]:
        """Returns a list of distinct names."""
        names = tuple(entry.name(known) for entry in self.entries())
        if len(set(names)) < len(names):
            raise self.error("must contain each name once")
        return names

    def choice(self, options: Collection[str]) -> str:
        """Returns one of some strings."""
        if not isinstance(self.value, str) or self.value not in options:
            raise self.error(f"must be {' or '.join(map(repr, options))}")
        return self.value

    def flag(self) -> bool:
        """Returns a truth value."""
        if not isinstance(self.value, bool):
            raise self.error("must be true or false")
        return self.value

    def number(self, minimum: float = -math.inf) -> float:
        """Returns a finite number of at least `minimum`; an integer stays one."""
        if not is_number(self.value) or self.value < minimum:
            raise self.error("must be a finite number" if minimum == -math.inf else f"must be at least {minimum:g}")
        return self.value

    def number_or_nan(self, minimum: float = -math.inf) -> float:
        """Returns a number, or NaN for null."""
        return math.nan if self.value is None else self.number(minimum)

    def integer(self, minimum: float = -math.inf) -> int:
        """Returns an integer of at least `minimum`."""
        if not is_integer(self.value) or not is_number(self.value):
            raise self.error("must be an integer")
        if self.value < minimum:
            raise self.error(f"must be at least {minimum:g}")
        return int(self.value)

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.error("must be an object")
        return self.value

    def _place_of(self, name: str) -> str:
        step = name if str(name).isidentifier() else f"[{short(name)}]"
        return f"{self.place}.{step}" if self.place and step == name else f"{self.place}{step}"
