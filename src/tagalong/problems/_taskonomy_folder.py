"""Where Taskonomy's images are: one folder per building and domain, in the order that the downloads have them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RGB = "rgb"
DOMAINS = {
    "segmentation": "segment_semantic",
    "depth": "depth_zbuffer",
    "normals": "normal",
    "edges": "edge_texture",
    "keypoints": "keypoints2d",
}
COMPONENT = "taskonomy"  # a folder that the present download puts between domain and buildings
VIEW = re.compile(r"(point_\d+_view_\d+)((?:_domain_\w+)?\.png)")
Folders = Mapping[str, Path]


@dataclass(frozen=True)
class Building:
    """The images of a building.

    Attributes:
        name: of the building.
        folders: of each domain.
        endings: how names of a domain's files end: the view's name comes before.
        views: those with an image in every domain, by file name.
        incomplete: how many views lack an image in some domain.
    """

    name: str
    folders: Folders
    endings: Mapping[str, str]
    views: tuple[str, ...]
    incomplete: int

    def file(self, domain: str, view: str) -> str:
        """The path of an image."""
        return f"{self.folders[domain]}{os.sep}{view}{self.endings[domain]}"


def domains_of(tasks: Iterable[str]) -> tuple[str, ...]:
    """What must be read for these tasks; where normals are valid is known from depth."""
    chosen = set(tasks)
    needed = chosen | {"depth"} if "normals" in chosen else chosen
    return (RGB, *(domain for task, domain in DOMAINS.items() if task in needed))


def find_folders(data: Path, domains: Sequence[str]) -> Mapping[str, Folders]:
    """By building the folders of these domains that are there.

    Reads DATA/DOMAIN/BUILDING, DATA/DOMAIN/taskonomy/BUILDING and DATA/BUILDING/DOMAIN.

    Raises:
        ValueError: neither layout is there.
    """
    if not data.is_dir():
        raise ValueError(f"`data` must be the folder with Taskonomy's images, found {data}, which is no folder")
    found: dict[str, dict[str, Path]] = {}
    if (data / RGB).is_dir():
        for domain in domains:
            inside = data / domain / COMPONENT
            for building in _subfolders(inside if inside.is_dir() else data / domain):
                found.setdefault(building.name, {})[domain] = building
    else:
        for building in _subfolders(data):
            folders = {domain: building / domain for domain in domains if (building / domain).is_dir()}
            if folders:
                found[building.name] = folders
    if not found:
        raise ValueError(
            f"`data` must hold {RGB}/BUILDING/*.png, or BUILDING/{RGB}/*.png, and label domains beside {RGB}; found "
            f"neither in {data}"
        )
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def open_building(name: str, folders: Folders, domains: Sequence[str]) -> Building | str:
    """Looks which views of a building have all images; says what is wrong if a domain is missing or empty."""
    lacking = [domain for domain in domains if domain not in folders]
    if lacking:
        return f"`data`: the building {name!r} must have {', '.join(domains)}, found no {', '.join(lacking)}"
    endings: dict[str, str] = {}
    views: dict[str, set[str]] = {}
    for domain in domains:
        matches = [match for match in map(VIEW.fullmatch, os.listdir(folders[domain])) if match]
        endings[domain] = matches[0][2] if matches else ""
        views[domain] = {match[1] for match in matches if match[2] == endings[domain]}
    empty = [str(folders[domain]) for domain in domains if not views[domain]]
    if empty:
        where = ", ".join(empty)
        return f"`data`: the building {name!r} must have files point_*_view_*_domain_*.png, found none in {where}"
    complete = set.intersection(*views.values())
    # By file name, as the published code sorts before it takes the first ones.
    ordered = tuple(sorted(complete, key=lambda view: view + endings[RGB]))
    return Building(name, folders, endings, ordered, len(set.union(*views.values())) - len(complete))
