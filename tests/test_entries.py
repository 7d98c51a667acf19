"""Entries of documents: what is wrong is named with its place, in a short message."""

import math
from collections.abc import Callable

import pytest

from tagalong.entries import Entry, EntryError


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (Entry.text, None),
        (Entry.name, ""),
        (Entry.names, ["a", "a"]),
        (Entry.mapping, []),
        (Entry.entries, {}),
        (Entry.some, []),
        (Entry.flag, 1),
        (Entry.number, True),
        (Entry.number, 10**400),
        (Entry.number, "x" * 5000),
        (Entry.integer, 1.5),
        (lambda entry: entry.number(0), -1),
        (lambda entry: entry.integer(1), 0),
        (lambda entry: entry.choice(("max", "min")), "most"),
        (lambda entry: entry["b"], {}),
    ],
)
def test_an_invalid_value_is_named_with_its_place(read: Callable[[Entry], object], value: object) -> None:
    with pytest.raises(EntryError, match=r"^records\[1\]\.a") as caught:
        read(Entry({"records": [0, {"a": value}]})["records"].entries()[1]["a"])
    assert len(str(caught.value)) < 200


def test_valid_values_are_returned_unchanged() -> None:
    document = Entry({"n": 3, "x": 0.5, "names": ["a", "b"], "none": None})
    assert document["n"].integer(3) == document["n"].number() == 3
    assert document["x"].number() == document["x"].number_or_nan() == 0.5
    assert document["names"].names(["a", "b", "c"]) == ("a", "b")
    assert document["none"].optional(Entry.number) is None
    assert math.isnan(document["none"].number_or_nan())
    assert document.get("missing").value is None
