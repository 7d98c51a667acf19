"""File helpers: atomic writes, versioned JSON documents and npz archives."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput

T = TypeVar("T")
CACHE = "tagalong-cache"
MAX_REASON = 500  # characters of an error that a message repeats
damage_logger = logging.getLogger("tagalong.damage")  # commands print its warnings


class DocumentError(InvalidInput):
    """Raised if a file has unexpected content. The message says what is wrong and how to fix it."""


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces `path` when it is closed.

    Readers see either the old file or the new one, never a partial file, even after a crash. If writing fails, the old
    file is left unchanged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_atomic(Path(folder, "numbers.npy")) as file:
        ...         np.save(file, [1, 2])
        ...     np.load(Path(folder, "numbers.npy"))
        array([1, 2])
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; specify a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{uuid4().hex[:12]}")  # readable by others, unlike those of tempfile
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk is reported without a name
        raise


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes text or bytes to a file atomically; see `open_atomic`."""
    with open_atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def describe_unwritten(path: Path, error: BaseException) -> str:
    """Returns a sentence that says why a file or folder could not be written.

    Example:
        >>> describe_unwritten(Path("plan.csv"), OSError(28, "No space left on device"))
        'plan.csv could not be written: No space left on device'
    """
    return f"{path} could not be written: {getattr(error, 'strerror', None) or error or type(error).__name__}"


def json_safe(value: Any) -> Any:
    """Converts a value to one that JSON can represent: NaN and infinity become null, arrays and tuples become lists.

    An object becomes what its method `to_document` returns, or its fields if it is a dataclass. Fields without a repr
    are left out.

    Example:
        >>> json_safe({"total": np.array([1.5, float("nan")]), "method": "tag"})
        {'total': [1.5, None], 'method': 'tag'}
    """
    if hasattr(value, "to_document"):
        return json_safe(value.to_document())
    if is_dataclass(value):
        return {field.name: json_safe(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {name: json_safe(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(part) for part in value]
    if hasattr(value, "tolist"):  # arrays and NumPy scalars
        return json_safe(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document_text(
    kind: str, version: int, content: Mapping[str, Any], default: Callable[[Any], Any] | None = None
) -> str:
    """Returns a document as JSON text: the format and version, followed by the content.

    Args:
        kind: the format, e.g. "tagalong-results".
        version: the version of the format.
        content: the other entries, converted by `json_safe`.
        default: a function that converts objects that JSON cannot represent. Without this function, such objects cause
            a TypeError.

    Example:
        >>> print(document_text("tagalong-example", 1, {"loss": float("nan")}))
        {
         "format": "tagalong-example",
         "version": 1,
         "loss": null
        }
    """
    document = json_safe({"format": kind, "version": version} | dict(content))
    return json.dumps(document, indent=1, allow_nan=False, default=default)


def write_document(
    path: Path, kind: str, version: int, content: Mapping[str, Any], default: Callable[[Any], Any] | None = None
) -> None:
    """Writes a JSON document atomically. See `document_text` for the arguments."""
    write_atomic(path, document_text(kind, version, content, default) + "\n")


def read_document(
    path: Path,
    kind: str,
    version: int,
    parse: Callable[[dict[str, Any]], T],
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> T:
    """Reads a JSON document written by `write_document`.

    Args:
        path: the file.
        kind: the expected format.
        version: the expected version.
        parse: a function that converts the document to the return value.
        error: the exception class to raise.
        hint: how to fix a damaged or unknown file.

    Raises:
        DocumentError: If the file is not valid JSON, has the wrong format or version, or cannot be parsed. If `error`
            is given, it is raised instead.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_document(Path(folder, "a.json"), "tagalong-example", 1, {"loss": 0.5})
        ...     read_document(Path(folder, "a.json"), "tagalong-example", 1, lambda document: document["loss"])
        0.5
    """
    document = parse_document(path.read_bytes(), str(path), kind, version, error, hint)
    with report_damage(path, error, hint):
        return parse(document)


def parse_document(
    text: str | bytes,
    source: str,
    kind: str,
    version: int,
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> dict[str, Any]:
    """Parses the JSON text of a document and checks its format and version; see `read_document`.

    Args:
        text: the JSON text.
        source: the source of the text, as named in messages.
        kind: the expected format.
        version: the expected version.
        error: the exception class to raise.
        hint: how to fix an unknown document.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise error(source, f"is not valid JSON: {reason}", hint="is it truncated?") from reason
    return check_document(document, source, kind, version, error, hint)


def check_document(
    document: Any,
    source: str,
    kind: str,
    version: int,
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> dict[str, Any]:
    """Checks the format and version of a parsed document and returns it; see `parse_document`.

    Example:
        >>> check_document({"format": "tagalong-example", "version": 3}, "a.json", "tagalong-example", 2)
        Traceback (most recent call last):
        tagalong.files.DocumentError: a.json must have version 2, found 3; recreate it
    """
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != kind:
        raise error(source, f"must have the format {kind!r}", short(found), "choose another file")
    if document.get("version") != version:
        raise error(source, f"must have version {version}", short(document.get("version")), hint)
    return dict(document)


@contextmanager
def report_damage(
    source: Path | str, error: type[InvalidInput] = DocumentError, hint: str = "recreate it"
) -> Iterator[None]:
    """Converts any error that occurs while reading a damaged file into one that names the file."""
    try:
        yield
    except Exception as reason:  # pickles, archives and parsers raise errors of many kinds
        if isinstance(reason, error):  # it already names a file
            raise
        lines = (" ".join(line.split()) for line in str(reason).splitlines()[:2])
        message = " ".join(lines)[:MAX_REASON].replace("`", "'")  # backticks mark arguments
        description = message if message and isinstance(reason, ValueError) else f"{type(reason).__name__}: {message}"
        raise error(str(source), f"is damaged: {description}", hint=hint) from reason


def checksum(content: bytes) -> str:
    """Returns the SHA-256 checksum of the given bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Packs named arrays into an npz archive and returns its bytes.

    Example:
        >>> unpack_arrays(pack_arrays({"steps": [1, 2]}))
        {'steps': array([1, 2])}
    """
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def unpack_arrays(content: bytes, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Returns all arrays of an npz archive, or only the named ones. Rejects pickled objects.

    Raises:
        ValueError: If the bytes are not an archive of plain arrays.
        KeyError: a name is missing.
        zipfile.BadZipFile: the archive is damaged.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in (archive.files if names is None else names)}
