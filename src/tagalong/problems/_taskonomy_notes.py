"""What is said about the views of Taskonomy: how many are used, which were skipped, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tagalong._names import counted, refuse

from ._taskonomy_folder import Folders
from ._taskonomy_lists import Lists
from ._taskonomy_views import Views

OUTSIDE = (
    "images were looked at from outside: those damaged inside are counted when read, or before, with check=decode",
)


def refuse_empty(views: Mapping[str, Views]) -> None:
    """Refuses parts without a single view.

    Raises:
        ValueError: names them, and says why their views were skipped.
    """
    start = "must have images that can be used, found none"
    refuse([f"`data`: {part} {start}: {_skipped(found)}" for part, found in views.items() if not len(found)])


def refuse_unlabelled(unlabelled: Mapping[str, Sequence[str]]) -> None:
    """Refuses parts that have nothing to learn a task from, to choose by, or to report.

    Args:
        unlabelled: for each part its tasks without a label.

    Raises:
        ValueError: names them.
    """
    start, todo = "must have labels of every task, found no pixel known for", "add buildings to its list"
    refuse([f"`data`: {part} {start} {', '.join(found)}; {todo}" for part, found in unlabelled.items() if found])


def about_views(
    views: Mapping[str, Views], lists: Lists, folders: Mapping[str, Folders], per_building: int | None
) -> tuple[str, ...]:
    """How many views of how many buildings there are, and what was left out."""
    sizes = "; ".join(_size(part, v) for part, v in views.items())
    notes = [f"read from files: {sizes}"]
    if per_building is not None:
        notes.append(f"of each building of validation and test the first {counted(per_building, 'image')}")
    notes += [f"{part}: images skipped: {_skipped(v)}" for part, v in views.items() if v.skipped]
    notes += [
        f"{part}: buildings filtered, no image left: {', '.join(v.filtered)}" for part, v in views.items() if v.filtered
    ]
    unlisted = len(folders.keys() - {name for names in lists.values() for name in names})
    return (*notes, f"buildings in the folder that no list names: {unlisted}") if unlisted else tuple(notes)


def _size(part: str, views: Views) -> str:
    return f"{part} {counted(len(views), 'image')} of {counted(len(views.buildings), 'building')}"


def _skipped(views: Views) -> str:
    return "; ".join(f"{number} {why}" for why, number in sorted(views.skipped.items())) or "no images"
