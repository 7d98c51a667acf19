"""A folder for what is worth keeping about a data set."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
