"""Compares two snapshots of the public API, and finds unlisted differences that could break users' code."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

Snapshot = dict[str, str]

STORED = Path(__file__).with_name("api_523576c.json")
CHANGES = Path(__file__).with_name("changes.yaml")
SAME = "same as "  # starts the line of an object that another door describes

ADVICE = f"""\
If this was an accident, restore the name, the parameter or the default. If it is intended, list it in
tests/api/{CHANGES.name}, under its name as of {STORED.stem.removeprefix("api_")}, and in CHANGELOG.md:

    renamed:    # a name, a class with its members, or a whole package; moved or renamed
      tagalong.truth: tagalong_paper.truth
    removed:    # a name, a class or a whole package; nothing replaces it by name
      tagalong.study.Store: why
    changed:    # a signature, a default, the bases of a class, a method that became a property
      tagalong.study.Study.run: why

A new public package also needs a line in DOORS, in tests/api/snapshot.py.
`python tests/api/snapshot.py --diff` shows this again, together with everything that was added."""


@dataclass(frozen=True)
class Changes:
    """The intended differences, as read from `changes.yaml`. Names are those of the stored snapshot."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def moved(self) -> Mapping[str, str]:
        """Renamed and removed names; if several entries cover a name, the longest applies."""
        return {**self.removed, **self.renamed}

    def new_name(self, name: str) -> str:
        entry = _covering_entry(name, self.renamed)
        return name if entry is None else self.renamed[entry] + name[len(entry) :]

    def new_line(self, line: str) -> str:
        """Returns the line of a class with the new names of its bases."""
        kind, inside = _split_line(line)
        names = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in self.renamed.items()}
        return f"class({', '.join(names.get(one, one) for one in inside.split(', '))})" if kind == "class" else line


@dataclass(frozen=True)
class Difference:
    """All differences, and those that are not listed.

    Attributes:
        added: names that are new.
        extended: {old name: (was, now)} where existing calls still work, such as after adding an optional parameter.
        renamed: {old name: new name}, as listed.
        removed: {old name: why}, as listed.
        changed: {old name: why}, as listed.
        unlisted: a message for each name that is gone or changed, but not listed.
        stale: a message for each listed entry that is not true.
    """

    added: list[str]
    extended: Mapping[str, tuple[str, str]]
    renamed: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, str]
    unlisted: list[str]
    stale: list[str]

    @property
    def failure_message(self) -> str:
        """The message for a failing test; empty if everything is listed."""
        unlisted = f"The public API differs from {STORED.name}, and {CHANGES.name} does not list it as intended:"
        stale = f"Entries of {CHANGES.name} that are not true (any more); correct or delete them:"
        lines = [*_format_section(unlisted, self.unlisted), *_format_section(stale, self.stale)]
        return "\n".join(["", *lines, ADVICE]) if lines else ""

    def __str__(self) -> str:
        extended = [f"{name}\n    was {was}\n    now {now}" for name, (was, now) in self.extended.items()]
        lines = [
            *_format_section("Added:", _group_by_door(self.added)),
            *_format_section("Extended (existing calls still work):", extended),
            *_format_section("Renamed:", [f"{old} -> {new}" for old, new in self.renamed.items()]),
            *_format_section("Removed:", [f"{name}: {why}" for name, why in self.removed.items()]),
            *_format_section("Changed:", [f"{name}: {why}" for name, why in self.changed.items()]),
        ]
        return "\n".join(lines) + self.failure_message or f"The public API is the same as in {STORED.name}."


def read_snapshot(path: Path = STORED) -> Snapshot:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_changes(path: Path = CHANGES) -> Changes:
    """Reads the list; raises ValueError where an entry has no reason, or a section is unknown."""
    sections: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if unknown := sorted(set(sections) - {"renamed", "removed", "changed"}):
        raise ValueError(f"{path.name} may contain renamed, removed and changed, found {', '.join(unknown)}")
    for section, entries in sections.items():
        for name, text in (entries or {}).items():
            if not isinstance(text, str) or not text.strip():
                needed = "the new name" if section == "renamed" else "a reason"
                raise ValueError(f"{path.name}: `{section}: {name}` needs {needed} after the colon")
    return Changes(**{section: entries or {} for section, entries in sections.items()})


def compare(old: Snapshot, new: Snapshot, changes: Changes) -> Difference:
    """Compares two snapshots, given the intended differences."""
    before, after = _expand(old), _expand(new)
    gone, altered, extended = [], {}, {}
    for name in _names_to_compare(old, new, before, changes):
        if changes.new_name(name) not in after:
            gone.append(name)
            continue
        was, now = before[name], after[changes.new_name(name)]
        kind = _classify(changes.new_line(was), now)
        if kind == "changed":
            altered[name] = (was, now)
        elif kind == "extended":
            extended[name] = (was, now)
    found = {changes.new_name(name) for name in before}
    missed = [name for name in _outermost(gone) if _covering_entry(name, changes.moved) not in changes.removed]
    return Difference(
        added=_outermost(name for name in new if name not in found),
        extended=extended,
        renamed=changes.renamed,
        removed=changes.removed,
        changed=changes.changed,
        unlisted=[
            *(
                _describe_missing(name, before[name], changes.new_name(name), sorted(set(after) - found))
                for name in missed
            ),
            *(f"{n} is changed\n    was {a}\n    now {b}" for n, (a, b) in altered.items() if n not in changes.changed),
        ],
        stale=list(_find_stale(before, after, altered, changes)),
    )


def _expand(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot with the members of each object under all of its names."""
    full = {name: line for name, line in snapshot.items() if not line.startswith(SAME)}
    members = defaultdict(list)
    for name in full:
        for parent in _parents(name):
            members[parent].append(name)
    for name, line in snapshot.items():
        if line.startswith(SAME):
            main = line.removeprefix(SAME)
            full |= {name + one[len(main) :]: full[one] for one in (main, *members[main])}
    return full


def _names_to_compare(old: Snapshot, new: Snapshot, before: Snapshot, changes: Changes) -> Iterator[str]:
    """Yields the old names to compare: second names of an object only if they now refer to another object."""
    for name in before:
        top = name if name in old else next(parent for parent in _parents(name) if parent in old)
        if old[top].startswith(SAME):
            here, there = (changes.new_name(one) for one in (top, old[top].removeprefix(SAME)))
            if here in new and _main_name(here, new) == _main_name(there, new):
                continue
        yield name


def _main_name(name: str, snapshot: Snapshot) -> str:
    line = snapshot.get(name, "")
    return line.removeprefix(SAME) if line.startswith(SAME) else name


def _classify(was: str, now: str) -> str:
    """Returns "same", "extended" if every old use still works, or "changed"."""
    if was == now:
        return "same"
    (kind, inside), (kind_now, inside_now) = _split_line(was), _split_line(now)
    if kind != kind_now:
        return "changed"
    if kind == "class":
        return "extended" if set(inside.split(", ")) - {""} <= set(inside_now.split(", ")) else "changed"
    return "extended" if _accepts_old_calls(_arguments(inside), _arguments(inside_now)) else "changed"


def _split_line(line: str) -> tuple[str, str]:
    kind, bracket, rest = line.partition("(")
    return kind, rest[:-1] if bracket else ""


def _arguments(signature: str) -> ast.arguments:
    parsed = ast.parse(f"lambda {signature}: 0", mode="eval").body
    assert isinstance(parsed, ast.Lambda)
    return parsed.args


def _accepts_old_calls(old: ast.arguments, new: ast.arguments) -> bool:
    """Tells whether all old parameters are unchanged, and new ones are optional and come last."""
    pairs = zip_longest(_positional(old), _positional(new))
    in_order = all(was == now or (was is None and now[2] is not None and old.vararg is None) for was, now in pairs)
    named, named_now = _named(old), _named(new)
    came = {name: default for name, default in named_now.items() if name not in named}
    return (
        in_order
        and all(name in named_now and named_now[name] == default for name, default in named.items())
        and None not in came.values()
        and (old.vararg is None or new.vararg is not None)
        and (old.kwarg is None or new.kwarg is not None)
    )


def _positional(arguments: ast.arguments) -> list[tuple[str, str, str | None]]:
    both = [("only", one.arg) for one in arguments.posonlyargs] + [("any", one.arg) for one in arguments.args]
    required = len(both) - len(arguments.defaults)
    defaults = [None] * required + [ast.unparse(default) for default in arguments.defaults]
    return [(kind, name, default) for (kind, name), default in zip(both, defaults, strict=True)]


def _named(arguments: ast.arguments) -> dict[str, str | None]:
    defaults = [None if default is None else ast.unparse(default) for default in arguments.kw_defaults]
    return dict(zip((one.arg for one in arguments.kwonlyargs), defaults, strict=True))


def _describe_missing(name: str, line: str, expected: str, candidates: Iterable[str]) -> str:
    last = name.rpartition(".")[2]
    alike = [other for other in candidates if other.rpartition(".")[2] == last][:3]
    hint = f"\n    did it become {' or '.join(alike)}? Then list it under `renamed`" if alike else ""
    where = "" if expected == name else f"; its new name in {CHANGES.name}, {expected}, does not exist"
    return f"{name} is gone{where}\n    was {line}{hint}"


def _find_stale(before: Snapshot, after: Snapshot, altered: Mapping[str, Any], changes: Changes) -> Iterator[str]:
    """Yields messages about entries whose names never existed, still exist, or did not change."""
    moved = changes.moved
    for entry in moved:
        section = "renamed" if entry in changes.renamed else "removed"
        covered = [name for name in before if _covering_entry(name, moved) == entry]
        there = [name for name in map(changes.new_name, covered) if name in after]
        still = [name for name in (*covered, *(there if section == "removed" else ())) if name in after]
        if not covered:
            yield _describe_unknown(section, entry)
        elif still:
            yield f"{section}: {entry}\n    {still[0]} is still there"
        elif section == "renamed" and not there:
            yield f"{section}: {entry}\n    no door (DOORS in snapshot.py) exports {changes.renamed[entry]}"
    for entry in changes.renamed.keys() & changes.removed.keys():
        yield f"removed: {entry}\n    it is listed under renamed too"
    for entry in changes.changed:
        if entry not in before:
            yield _describe_unknown("changed", entry)
        elif entry not in altered:
            yield f"changed: {entry}\n    it is gone, compared under another of its names, or existing calls still work"


def _describe_unknown(section: str, entry: str) -> str:
    return f"{section}: {entry}\n    {STORED.name} does not contain this name; entries use the old names"


def _parents(name: str) -> list[str]:
    """Returns the dotted names that contain this one, nearest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _covering_entry(name: str, entries: Mapping[str, str]) -> str | None:
    return next((one for one in (name, *_parents(name)) if one in entries), None)


def _outermost(names: Iterable[str]) -> list[str]:
    """Returns the names without members of classes that are themselves among the names."""
    every = sorted(set(names))
    return [name for name in every if not set(_parents(name)) & set(every)]


def _group_by_door(names: Iterable[str]) -> list[str]:
    doors = defaultdict(list)
    for name in names:
        door, _, last = name.rpartition(".")
        doors[door].append(last)
    return [f"{door}: {', '.join(sorted(lasts))}" for door, lasts in sorted(doors.items())]


def _format_section(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {line.replace(chr(10), chr(10) + '  ')}" for line in lines]
    return [title, *indented, ""] if indented else []
