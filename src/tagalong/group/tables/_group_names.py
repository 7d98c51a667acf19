"""The tasks of a group as one cell names them: a+b, or a,b, a;b, a|b, a&b."""

from __future__ import annotations

import re
from collections.abc import Collection

JOINTS = ("+", ";", ",", "|", "&", "/")


def group_names(cell: str, known: Collection[str] | None = None) -> frozenset[str] | None:
    """The names in a cell, None if they make no sense; names that hold a joint are recognised if known.

    Args:
        cell: the text.
        known: the names there are; without them the first joint found splits the cell.

    Example:
        >>> sorted(group_names("age+ill", {"age", "ill"})), sorted(group_names("{age, ill}"))
        (['age', 'ill'], ['age', 'ill'])
    """
    bare = re.sub(r"^[\[({]|[\])}]$", "", cell.strip())
    for text in (cell.strip(), bare):
        if known is not None and text in known:
            return frozenset({text})
    for joint in JOINTS:
        names = [name.strip().strip("'\"") for name in bare.split(joint)]
        if len(names) > 1 and (known is None or all(name in known for name in names)):
            return frozenset(names) if len(set(names)) == len(names) and all(names) else None
    return frozenset({bare}) if known is None and bare else None
