"""Groups as people write them down: lists of names, named lists, or a saved grouping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ._grouping import Group
from ._grouping_file import FORMAT, GroupingFileError
from ._yaml import read_yaml

Written = Group | frozenset[str]
EXPECTED = "a list of lists of names, `name: [names]`, or entries with `trains` and perhaps `serves`"


def read_groups(text: str) -> tuple[Written, ...]:
    """Reads groups from YAML or JSON text, a saved grouping or one made by hand.

    Args:
        text: a list of lists of names; a mapping from a name of your own to such a list; a list (or mapping) of
            entries with `trains`, and with `serves` where helpers are trained along; or what `Grouping.to_json`
            and `Grouping.to_yaml` write.

    Returns:
        A `Group` where the text says what is served, a set of names where it does not.

    Raises:
        GroupingFileError: the text says something else.

    Example:
        >>> [sorted(group) for group in read_groups("hair: [black, blond]\\nbeard: [goatee, mustache]")]
        [['black', 'blond'], ['goatee', 'mustache']]
        >>> print(read_groups("- {trains: [age, ill], serves: [age]}")[0])
        serves {age}, helped by {ill}
    """
    document = _document(text)
    if isinstance(document, Mapping):
        if "groupings" in document:
            raise GroupingFileError("found groupings for several budgets, expected one; save a single budget")
        document = document.get("groups", document)
    entries = list(document.values()) if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        found = "nothing" if not entries else type(entries).__name__
        raise GroupingFileError(f"groups must be {EXPECTED}, found {found}")
    return tuple(_written(entry) for entry in entries)


def _document(text: str) -> Any:
    # JSON first: YAML does not take its tabs.
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
            if isinstance(document, dict) and document.get("format") == FORMAT:
                return document
        except (ValueError, RecursionError):
            pass
    try:
        return read_yaml(text.replace("\t", " "), as_text=True)
    except ValueError as error:
        raise GroupingFileError(f"groups must be valid YAML or JSON, found {error}") from error


def _written(entry: Any) -> Written:
    if not isinstance(entry, Mapping):
        return _names(entry)
    if "trains" not in entry or set(entry) - {"trains", "serves", "cost", "name"}:
        raise GroupingFileError(f"groups must be {EXPECTED}, found an entry with {', '.join(map(repr, entry))}")
    trains = _names(entry["trains"])
    if "serves" not in entry:
        return trains
    try:
        return Group(trains, _names(entry["serves"]), float(entry.get("cost", 1)))
    except (TypeError, ValueError) as error:
        raise GroupingFileError(str(error)) from None


def _names(entry: Any) -> frozenset[str]:
    names = re.split(r"\s*[,+;]\s*", entry.strip()) if isinstance(entry, str) else entry
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise GroupingFileError(f"a group must be a list of names, found {entry!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise GroupingFileError(f"a group must name each task once, found {', '.join(map(repr, twice))} again")
    return frozenset(names)
