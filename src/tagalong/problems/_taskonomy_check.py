"""Every image decoded once before any training, where damage that only decoding shows is to be skipped and counted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from tagalong._progress import Progress
from tagalong.affinity._atomic import write_atomic
from tagalong.learn._reading import THREADS

from ._taskonomy_images import ViewReader
from ._taskonomy_views import Views

INSIDE = "damaged inside"
AT_ONCE = 256  # views of which the pool knows: there may be millions, and Ctrl-C waits for these


def decodable(reader: ViewReader, folder: Path, progress: Progress) -> ViewReader:
    """The same reader without the views that cannot be decoded.

    Decoding is done once: what it finds is kept in a file of the folder, by view, and later those views alone are
    decoded again, since their files may have been replaced.

    Args:
        reader: of all views.
        folder: for the file; it must be there.
        progress: is told how far it is.
    """
    file = folder / f"taskonomy-{_key(reader)}.json"
    rows: Sequence[int] = range(len(reader))
    with suppress(OSError, ValueError, TypeError):  # not there yet, or not whole: then all are decoded
        known = dict(json.loads(file.read_text()))
        rows = [row for row in rows if reader.views.name(row) in known]
    if not rows:
        return reader
    progress.start(len(rows), "decoding images", "views")
    try:
        flaws = dict(_flaws(reader, rows, progress))
    finally:
        progress.done()
    write_atomic(file, json.dumps({reader.views.name(row): why for row, why in flaws.items()}, indent=1).encode())
    return replace(reader, views=_without(reader.views, flaws)) if flaws else reader


def _key(reader: ViewReader) -> str:
    digest = hashlib.sha256(repr(reader.tasks).encode())
    for content in reader.contents():
        digest.update(content)
    return digest.hexdigest()[:16]


def _flaws(reader: ViewReader, rows: Sequence[int], progress: Progress) -> Iterator[tuple[int, str]]:
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            yield from ((row, why) for row, why in zip(some, pool.map(reader.flaw, some), strict=True) if why)
            progress.advance(len(some))


def _without(views: Views, rows: Iterable[int]) -> Views:
    """The other views; buildings of which none is left are filtered."""
    gone = np.array(sorted(rows), dtype=np.int64)
    kept = np.setdiff1d(np.arange(len(views)), gone)
    left, building = np.unique(views.building[kept], return_inverse=True)
    lost = set(range(len(views.buildings))) - set(left.tolist())
    names = [views.name(row) for row in gone.tolist()]
    return Views(
        buildings=tuple(views.buildings[place] for place in left.tolist()),
        building=building.astype(np.int32),
        view=views.view[kept],
        skipped=Counter(views.skipped) + Counter({INSIDE: len(gone)}),
        filtered=(*views.filtered, *(views.buildings[place].name for place in sorted(lost))),
        digest=hashlib.sha256(views.digest + "\n".join(names).encode()).digest(),
    )
