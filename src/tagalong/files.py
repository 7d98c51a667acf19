"""File helpers: atomic writes, leftovers of killed processes, versioned JSON documents, checksums and npz archives."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import math
import os
import pickle
import platform
import re
import shutil
import struct
import tempfile
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO, NoReturn, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput

T = TypeVar("T")
CACHE = "tagalong-cache"
CHECKSUM = "checksum"
CHECKSUM_PREFIX = b"tagalong-sha256:"
MAX_REASON = 500  # characters of an error that a message repeats
UNVERSIONED = 0  # stands for documents without a format, as written by early releases
# Errors that reading a damaged file may raise.
READ_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, EOFError, RuntimeError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error),
    *(SyntaxError, tokenize.TokenError),  # from the header of an npy file
)
# The owner of a temporary file: a hash of its machine, the process ID and the start time of the process.
OWNER = r"([0-9a-f]{8})-(\d{1,9})-(\d+)-[0-9a-f]{8}"
# Temporary files and folders, in an output folder or in the system's temporary folder; early releases named no owner.
TEMPORARY = re.compile(rf"\..+\.(?:{OWNER}|[0-9a-f]{{32}})(?:\.tmp|\.before)?")
TEMPORARY_FOLDER = re.compile(rf"tagalong-{OWNER}-\w+")
MAX_AGE = 24 * 3600  # seconds after which the files of a process that cannot be looked up count as abandoned
damage_logger = logging.getLogger("tagalong.damage")  # commands print its warnings


class DocumentError(InvalidInput):
    """Raised if a file has unexpected content. The message says what is wrong and how to fix it."""


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces `path` when it is closed.

    Readers see either the old file or the new one, never a partial file, even after a crash. If writing fails, the old
    file is left unchanged.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_atomic(Path(folder, "numbers.npy")) as file:
        ...         np.save(file, [1, 2])
        ...     np.load(Path(folder, "numbers.npy"))
        array([1, 2])
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; specify a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile, whose files are readable only by their owner.
    temporary = path.with_name(f".{path.name}.{owner_mark()}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        move_into_place(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk is reported without a name
        raise


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes text or bytes to a file atomically; see `open_atomic`."""
    with open_atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def move_into_place(finished: Path, path: Path) -> None:
    """Flushes a finished file to disk and moves it to `path`, replacing any existing file."""
    with open(finished, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(finished, path)


def read_regular_file(path: Path) -> bytes:
    """Reads a file, but refuses a pipe or device, which would be waited for or read forever.

    Raises:
        OSError: If the file cannot be read or is not a regular file.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.read_bytes()


def describe_unwritten(path: Path, error: BaseException) -> str:
    """Returns a sentence that says why a file or folder could not be written.

    Example:
        >>> describe_unwritten(Path("plan.csv"), OSError(28, "No space left on device"))
        'plan.csv could not be written: No space left on device'
    """
    return f"{path} could not be written: {getattr(error, 'strerror', None) or error or type(error).__name__}"


def owner_mark() -> str:
    """Returns a unique part of a temporary file's name by which `remove_leftovers` finds out whether it is in use."""
    return f"{_machine()}-{os.getpid()}-{_start_time(os.getpid()) or 0}-{uuid4().hex[:8]}"


def remove_leftovers(*folders: Path) -> None:
    """Removes the temporary files of killed processes from these folders and from the system's temporary folder.

    Files of running processes are kept. The processes of other machines cannot be looked up, so their files are removed
    after a day.
    """
    places = [(folder, TEMPORARY) for folder in folders] + [(Path(tempfile.gettempdir()), TEMPORARY_FOLDER)]
    for folder, pattern in places:
        for path in folder.iterdir() if folder.is_dir() else ():
            found = pattern.fullmatch(path.name)
            if found and _is_abandoned(path, *found.groups()):
                _remove(path)


def _is_abandoned(path: Path, machine: str | None, process: str | None, start: str | None) -> bool:
    if machine == _machine() and process is not None and os.name == "posix":
        return _start_time(int(process)) not in (start, "0")
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > MAX_AGE
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@cache
def _machine() -> str:
    """Returns a hash of everything within which a process ID is unique: the machine, its boot and its container."""
    known = [platform.node()]
    with suppress(OSError):
        known += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]


def _start_time(process: int) -> str | None:
    """Returns when a process started, in clock ticks since boot; "0" if it is unknown, None if the process ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it belongs to another user
        pass
    return "0"


def json_safe(value: Any) -> Any:
    """Converts a value to one that JSON can represent: NaN and infinity become null, arrays and tuples become lists.

    Example:
        >>> json_safe({"total": np.array([1.5, float("nan")]), "method": "tag"})
        {'total': [1.5, None], 'method': 'tag'}
    """
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
    """Returns a document as JSON text: the format and version, followed by the content and its checksum.

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
         "loss": null,
         "checksum": "30d18949e984dfba"
        }
    """
    document = json_safe({"format": kind, "version": version} | dict(content))
    plain = json.loads(json.dumps(document, allow_nan=False, default=default))
    return json.dumps(plain | {CHECKSUM: _document_checksum(plain)}, indent=1)


def _document_checksum(document: Mapping[str, Any]) -> str:
    """Returns a checksum that does not depend on the order of entries or on whitespace."""
    content = {name: value for name, value in document.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def write_document(
    path: Path, kind: str, version: int, content: Mapping[str, Any], default: Callable[[Any], Any] | None = None
) -> None:
    """Writes a JSON document atomically. See `document_text` for the arguments."""
    write_atomic(path, document_text(kind, version, content, default) + "\n")


def read_document(
    path: Path,
    kind: str,
    versions: Collection[int],
    parse: Callable[[dict[str, Any]], T],
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> T:
    """Reads a JSON document written by `write_document`, and logs a warning if it has been edited since.

    Args:
        path: the file.
        kind: the expected format.
        versions: the supported versions. If these include `UNVERSIONED`, documents without a format are accepted.
        parse: a function that converts the document to the return value.
        error: the exception class to raise.
        hint: how to fix a damaged or outdated file.

    Raises:
        DocumentError: If the file is not valid JSON, has the wrong format or version, or cannot be parsed. If `error`
            is given, it is raised instead.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_document(Path(folder, "a.json"), "tagalong-example", 1, {"loss": 0.5})
        ...     read_document(Path(folder, "a.json"), "tagalong-example", (1,), lambda document: document["loss"])
        0.5
    """
    document = parse_document(read_regular_file(path), str(path), kind, versions, error, hint)
    with report_damage(path, error, hint):
        return parse(document)


def parse_document(
    text: str | bytes,
    source: str,
    kind: str,
    versions: Collection[int],
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> dict[str, Any]:
    """Parses the JSON text of a document and checks its format and version; see `read_document`.

    Args:
        text: the JSON text.
        source: the source of the text, as named in messages.
        kind: the expected format.
        versions: the supported versions.
        error: the exception class to raise.
        hint: how to fix an outdated document.
    """
    try:
        document = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as reason:
        raise error(source, f"is not valid JSON: {_describe_json_error(reason)}", hint="is it truncated?") from reason
    checked = check_document(document, source, kind, versions, error, hint)
    if checked.pop(CHECKSUM, None) not in (None, _document_checksum(checked)):
        damage_logger.warning(
            "%s has been edited or damaged since it was written; its numbers are used as they are", source
        )
    return checked


def _describe_json_error(reason: Exception) -> str:
    # Python advises to raise its limit on the digits of an integer.
    return "an integer has thousands of digits" if "set_int_max_str_digits" in str(reason) else str(reason)


def check_document(
    document: Any,
    source: str,
    kind: str,
    versions: Collection[int],
    error: type[InvalidInput] = DocumentError,
    hint: str = "recreate it",
) -> dict[str, Any]:
    """Checks the format and version of a parsed document and returns it; see `parse_document`.

    Example:
        >>> check_document({"format": "tagalong-example", "version": 3}, "a.json", "tagalong-example", (1, 2))
        Traceback (most recent call last):
        tagalong.files.DocumentError: a.json must have version 1 or 2, found 3; update tagalong
    """
    is_document = isinstance(document, dict)
    found = document.get("format") if is_document else type(document).__name__
    if is_document and found is None and UNVERSIONED in versions:
        return dict(document)
    if found != kind:
        raise error(source, f"must have the format {kind!r}", short(found), "choose another file")
    version = document.get("version")
    if version not in versions:
        expected = " or ".join(str(number) for number in sorted(versions) if number != UNVERSIONED)
        is_newer = isinstance(version, int) and version > max(versions)
        raise error(source, f"must have version {expected}", short(version), "update tagalong" if is_newer else hint)
    return dict(document)


@contextmanager
def report_damage(
    source: Path | str, error: type[InvalidInput] = DocumentError, hint: str = "recreate it"
) -> Iterator[None]:
    """Converts any error that occurs while reading a damaged file into one that names the file."""
    try:
        yield
    except READ_ERRORS as reason:
        if isinstance(reason, error):  # it already names a file
            raise
        lines = (" ".join(line.split()) for line in str(reason).splitlines()[:2])
        message = " ".join(lines)[:MAX_REASON].replace("`", "'")  # backticks mark arguments
        description = message if message and isinstance(reason, ValueError) else f"{type(reason).__name__}: {message}"
        raise error(str(source), f"is damaged: {description}", hint=hint) from reason


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"the constant {name}")


def checksum(content: bytes) -> str:
    """Returns the SHA-256 checksum of the given bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def add_checksum(content: bytes) -> bytes:
    """Returns the content preceded by its checksum, so that `remove_checksum` can detect damage.

    Example:
        >>> remove_checksum(add_checksum(b"weights"))
        b'weights'
        >>> remove_checksum(add_checksum(b"weights").replace(b"w", b"x"))
        Traceback (most recent call last):
        ValueError: the checksum does not match
    """
    return CHECKSUM_PREFIX + hashlib.sha256(content).digest() + content


def remove_checksum(checked: bytes) -> bytes:
    """Returns content without the checksum that `add_checksum` put before it.

    Raises:
        ValueError: If the content does not match the checksum.
    """
    start = len(CHECKSUM_PREFIX) + hashlib.sha256().digest_size
    content = checked[start:]
    if (
        checked[: len(CHECKSUM_PREFIX)] != CHECKSUM_PREFIX
        or checked[len(CHECKSUM_PREFIX) : start] != hashlib.sha256(content).digest()
    ):
        raise ValueError("the checksum does not match")
    return content


def pack_arrays(arrays: Mapping[str, Any], *, compress: bool = False) -> bytes:
    """Packs named arrays into an npz archive and returns its bytes.

    Example:
        >>> unpack_arrays(pack_arrays({"steps": [1, 2]}))
        {'steps': array([1, 2])}
    """
    content = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(content, **arrays)
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


def make_folder(folder: Path) -> None:
    """Creates the folder that was passed as `cache`, including its parents.

    Raises:
        InvalidInput: If the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        found = f"{folder} ({error.strerror})"
        raise InvalidInput("cache", "must be a writable folder", found, "choose another folder") from error
