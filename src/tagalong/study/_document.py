"""Files that say in JSON what they are and of which version."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OSError, EOFError, RuntimeError, pickle.UnpicklingError)


def read_document(
    file: Path, what: str, version: int, parse: Callable[[dict[str, Any]], Any], error: type[ValueError] = ValueError
) -> Any:
    """What a file holds, or one sentence on why it cannot be read.

    Args:
        file: to be read.
        what: the format that it must name.
        version: that it must have.
        parse: makes what is wanted of the document.
        error: what to raise.
    """
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as reason:
        raise error(f"{file} is not valid JSON ({reason}); is it cut short?") from reason
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != what:
        raise error(f"{file} must have the format {what!r}, found {found!r}")
    if document.get("version") != version:
        number = document.get("version")
        todo = "run the study again in another folder" if number in range(version) else "update tagalong"
        raise error(f"{file} has version {number!r}, this tagalong reads {version}; {todo}")
    try:
        return parse(document)
    except DAMAGE as reason:
        said = (str(reason).splitlines() or [""])[0]
        raise error(f"{file} is damaged: {type(reason).__name__}: {said}; run the study again") from reason
