"""An affinity as a file: valid JSON that names its version; a long history lies in an archive beside it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tagalong._caution import caution

from ._atomic import write_atomic
from ._check import AffinityFileError
from ._record import Record

FORMAT = "tagalong-affinity"
VERSION = 1
DIRECTION = "[source][target]"
INLINE = 100_000  # numbers of history that stay in the JSON, about two megabytes
ALWAYS = ("tasks", "mean", "stderr", "count", "skipped", "settings")
TIMED = ("steps", "history", "null")


def write(affinity: Record, path: Path) -> None:
    """Archive first, JSON last: the JSON names an archive that is there."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "direction": DIRECTION}
    document["caution"] = caution(affinity.tasks)
    document |= {name: _plain(getattr(affinity, name)) for name in ALWAYS}
    archive, content = None, b""
    if affinity.history.size + affinity.null.size > INLINE:
        content = _packed({name: getattr(affinity, name) for name in TIMED})
        digest = hashlib.sha256(content).hexdigest()
        archive = f"{path.name}.{digest[:16]}.npz"
        document["archive"] = {"file": archive, "sha256": digest}
    else:
        document |= {name: _plain(getattr(affinity, name)) for name in TIMED}
    text = json.dumps(document, allow_nan=False, indent=1) + "\n"
    while True:
        if archive is not None:
            write_atomic(path.with_name(archive), content)
        write_atomic(path, text.encode())
        _remove_stale(path, archive)
        if _whole(path):  # else another process saved here at once, and one took the other's archive for stale
            return


def read(path: Path) -> dict[str, Any]:
    """The fields of the affinity saved at `path`; where another process saves there meanwhile, of the later one."""
    document = _document(path)
    try:
        return _fields(path, document)
    except AffinityFileError:
        if _document(path) == document:
            raise
    return read(path)


def _fields(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    names = ALWAYS if "archive" in document else ALWAYS + TIMED
    missing = [name for name in names if name not in document]
    if missing:
        raise AffinityFileError(f"{path} is damaged: it lacks {', '.join(missing)}; save the affinity again")
    fields = {name: document[name] for name in names}
    return fields | (_archived(path, document["archive"]) if "archive" in document else {})


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        hint = "is it cut short, or not an affinity file?"
        raise AffinityFileError(f"{path} is not valid JSON ({error}); {hint}") from error
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise AffinityFileError(f"{path} is not an affinity file: expected the format {FORMAT!r}, found {found!r}")
    direction = document.get("direction", DIRECTION)
    if direction != DIRECTION:
        raise AffinityFileError(
            f"{path} has the direction {direction!r}, expected {DIRECTION!r}; read its matrix with "
            'from_matrix(..., axis="target")'
        )
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise AffinityFileError(f"{path} is damaged: expected a version number, found {version!r}")
    if version > VERSION:
        raise AffinityFileError(
            f"{path} has version {version} and this tagalong reads up to {VERSION}; update tagalong"
        )
    return dict(document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _archived(path: Path, entry: Any) -> dict[str, NDArray[Any]]:
    name, digest = (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or Path(name).name != name:
        raise AffinityFileError(f"{path} is damaged: expected the name of an archive beside it, found {name!r}")
    archive = path.with_name(name)
    try:
        content = archive.read_bytes()
    except FileNotFoundError:
        raise AffinityFileError(f"{path} needs its history in {archive}, which is missing; copy both") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise AffinityFileError(f"{archive} is not the history that {path} was saved with: its hash differs")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {field: arrays[field] for field in TIMED}
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise AffinityFileError(f"{archive} is not an archive of {', '.join(TIMED)}: {error}") from error


def _packed(arrays: dict[str, NDArray[Any]]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _plain(value: Any) -> Any:
    """What JSON can hold: NaN becomes null."""
    if isinstance(value, np.ndarray):
        return np.where(np.isnan(value), np.array(None), value.astype(object)).tolist()
    if isinstance(value, (tuple, list, str)):
        return value
    return {key: _plain(entry) if isinstance(entry, np.ndarray) else entry for key, entry in value.items()}


def _whole(path: Path) -> bool:
    """Whether the archive that the JSON names is there, if it names one."""
    entry = _document(path).get("archive")
    return entry is None or path.with_name(entry["file"]).exists()


def _remove_stale(path: Path, archive: str | None) -> None:
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.npz")
    for other in path.absolute().parent.iterdir():
        if pattern.fullmatch(other.name) and other.name != archive:
            other.unlink(missing_ok=True)
