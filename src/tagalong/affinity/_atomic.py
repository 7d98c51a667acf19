"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
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
