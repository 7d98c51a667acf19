"""Every image decoded once before any training, where damage that only decoding shows is to be skipped and counted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    Decoding is done once, and killed on the way it goes on where it was: what it finds is kept in a file of the folder,
    by view. Later those views alone are decoded again, since their files may have been replaced.

    Args:
        reader: of all views.
        folder: for the file; it must be there.
        progress: is told how far it is.
    """
    file = folder / f"taskonomy-{_key(reader)}.json"
    decoded, flaws = _kept(file)
    rows = [*_rows(reader.views, flaws), *range(decoded, len(reader))]
    if not rows:
        return reader
    progress.start(len(rows), "decoding images", "views")
    try:
        for some, whys in _decode(reader, rows):
            decoded = max(decoded, some[-1] + 1)
            named = {reader.views.name(row): why for row, why in zip(some, whys, strict=True)}
            flaws = {name: why for name, why in (flaws | named).items() if why}
            write_atomic(file, json.dumps({"decoded": decoded, "flaws": flaws}, indent=1).encode())
            progress.advance(len(some))
    finally:
        progress.done()
    return replace(reader, views=_without(reader.views, _rows(reader.views, flaws))) if flaws else reader


def _key(reader: ViewReader) -> str:
    digest = hashlib.sha256(repr(reader.tasks).encode())
    for content in reader.contents():
        digest.update(content)
    return digest.hexdigest()[:16]


def _kept(file: Path) -> tuple[int, dict[str, str | None]]:
    """How many views were decoded before, and what was wrong with some; of what is not ours or not whole, none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text())
        return int(known["decoded"]), dict(known["flaws"])
    return 0, {}


def _rows(views: Views, names: Mapping[str, object]) -> list[int]:
    return [row for row in range(len(views)) if views.name(row) in names] if names else []


def _decode(reader: ViewReader, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], list[str | None]]]:
    """Some rows at a time, with what is wrong with each."""
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            yield some, list(pool.map(reader.flaw, some))


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
