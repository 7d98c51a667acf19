"""Files: written whole or not at all, versioned JSON documents, and a folder for caches."""

from __future__ import annotations

import json
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces `path` in one go: a reader, or a crash, meets the old file or the new one, never a part."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Opened plainly, not through tempfile: the file gets the usual permissions, not the owner's alone.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


CACHE = "tagalong-cache"


def make_folder(folder: Path) -> None:
    """Makes the folder.

    Raises:
        ValueError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        found = f"{folder} ({error.strerror})"
        raise ValueError(f"`cache` must be a folder that can be written to, found {found}; name one") from error
