"""What JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def holdable(found: Any) -> Any:
    """The same with null for numbers that JSON does not know.

    Example:
        >>> holdable({"total": [1.5, float("nan")], "method": "tag"})
        {'total': [1.5, None], 'method': 'tag'}
    """
    if isinstance(found, Mapping):
        return {name: holdable(part) for name, part in found.items()}
    if isinstance(found, (list, tuple)):
        return [holdable(part) for part in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
