"""A grouping as JSON or YAML: versioned, and the same again when read."""

from __future__ import annotations

import json
from typing import Any

from ._certificate import Certificate
from ._grouping import Group, Grouping, Option
from ._stability import Stability
from ._yaml import read_yaml, write_yaml

FORMAT = "tagalong-grouping"
VERSION = 1
PLAIN = ("value", "bound", "status", "budget", "objective", "solver")


class GroupingFileError(ValueError):
    """A text that should hold a grouping does not."""


def to_text(grouping: Grouping) -> str:
    return json.dumps(to_document(grouping), indent=1, allow_nan=False)


def from_text(text: str) -> Grouping:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise GroupingFileError(f"a grouping must be valid JSON, found {error}") from error
    return from_document(document)


def to_yaml(grouping: Grouping) -> str:
    return write_yaml(to_document(grouping))


def from_yaml(text: str) -> Grouping:
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise GroupingFileError(f"a grouping must be valid YAML, found {error}") from error
    return from_document(document)


def to_document(grouping: Grouping) -> dict[str, Any]:
    """What JSON can hold."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    document |= {name: getattr(grouping, name) for name in PLAIN}
    document["groups"] = _plain_groups(grouping.groups)
    document["per_task"] = dict(grouping.per_task)
    document["ties"] = [_plain_groups(tie) for tie in grouping.ties]
    document["options"] = {
        task: [{"trains": sorted(option.trains), "score": option.score} for option in options]
        for task, options in grouping.options.items()
    }
    certificate, resampled = grouping.certificate, grouping.resampled
    if certificate is not None:
        document["certificate"] = {"tasks": dict(certificate.tasks), "network": certificate.network}
    if resampled is not None:
        document["resampled"] = {
            "resamples": resampled.resamples,
            "share": resampled.share,
            "tasks": list(resampled.tasks),
            "together": [list(row) for row in resampled.together],
            "same": list(resampled.same),
        }
    return document


def from_document(document: Any) -> Grouping:
    """The grouping in a document that `to_document` made, perhaps by way of a file."""
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise GroupingFileError(f"a grouping must have the format {FORMAT!r}, found {found!r}")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise GroupingFileError(
            f"this tagalong reads groupings of version {VERSION}, found {version!r}; update tagalong"
        )
    try:
        return _built(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise GroupingFileError(f"the grouping is damaged: {error!r}; save it again") from error


def _built(document: dict[str, Any]) -> Grouping:
    certificate, resampled = document.get("certificate"), document.get("resampled")
    return Grouping(
        groups=_groups(document["groups"]),
        per_task=document["per_task"],
        ties=tuple(_groups(tie) for tie in document["ties"]),
        options={
            task: tuple(Option(frozenset(option["trains"]), option["score"]) for option in options)
            for task, options in document["options"].items()
        },
        certificate=certificate and Certificate(**certificate),
        resampled=resampled
        and Stability(
            resampled["resamples"],
            resampled["share"],
            tuple(resampled["tasks"]),
            tuple(map(tuple, resampled["together"])),
            tuple(resampled["same"]),
        ),
        **{name: document[name] for name in PLAIN},
    )


def _plain_groups(groups: tuple[Group, ...]) -> list[dict[str, Any]]:
    return [{"trains": sorted(group.trains), "serves": sorted(group.serves), "cost": group.cost} for group in groups]


def _groups(entries: list[dict[str, Any]]) -> tuple[Group, ...]:
    return tuple(Group(entry["trains"], entry["serves"], entry["cost"]) for entry in entries)
