"""Methods, problems, estimators and commands by name: built-in ones, your own, and those from other packages.

Another package declares its own as entry points in the groups "tagalong.methods", "tagalong.problems",
"tagalong.estimators" and "tagalong.commands". They are imported when they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tagalong.errors import InvalidInput, did_you_mean

T = TypeVar("T")
log = logging.getLogger(__name__)


class Registry(Generic[T]):
    """Objects that users choose by name.

    Args:
        noun: what the objects are, e.g. "method". Other packages declare theirs in the group "tagalong.methods".
        convert: converts a name and an object to an entry, or raises `InvalidInput`.
        entries: the built-in entries, by name.

    Example:
        >>> colors = Registry("color", lambda name, value: str(value), {"red": "#f00"})
        >>> colors.register("blue", "#00f")
        >>> colors.names(), colors.find("blue")
        (['red', 'blue'], '#00f')
        >>> colors.find("bleu")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `name` must be a known color, found 'bleu'; did you mean 'blue'?
    """

    def __init__(self, noun: str, convert: Callable[[str, Any], T], entries: Mapping[str, T]) -> None:
        self.noun, self.entries, self._convert = noun, dict(entries), convert

    def register(self, name: str, value: Any) -> None:
        """Adds an entry, or replaces the one with this name."""
        if not isinstance(name, str) or not name:
            raise InvalidInput("name", "must be a non-empty string", repr(name))
        self.entries[name] = self._convert(name, value)

    def names(self) -> list[str]:
        """Returns all names; those from other packages come last and are not imported."""
        return list(dict.fromkeys([*self.entries, *find_plugins(self.noun)]))

    def get(self, name: str) -> T | None:
        """Returns the entry with this name, or None if there is none.

        Raises:
            InvalidInput: If the entry comes from another package and cannot be loaded.
        """
        if name not in self.entries:
            plugin = find_plugins(self.noun).get(name)
            if plugin is None:
                return None
            try:
                self.entries[name] = self._convert(name, plugin.load())
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                subject = f"the {self.noun} {name!r} from {plugin.value}"
                raise InvalidInput(subject, f"cannot be loaded: {reason}") from error
        return self.entries[name]

    def find(self, name: str, argument: str = "name") -> T:
        """Returns the entry with this name.

        Raises:
            InvalidInput: If there is none, or it cannot be loaded. The message suggests the closest name.
        """
        entry = self.get(name)
        if entry is None:
            raise unknown_name(argument, self.noun, name, self.names())
        return entry

    def load(self) -> dict[str, T]:
        """Returns all entries by name. Those that cannot be loaded are skipped with a warning."""
        loaded = {}
        for name in self.names():
            try:
                loaded[name] = self.find(name)
            except InvalidInput as error:  # noqa: PERF203 - a broken package must not hide the others
                warn_once(str(error))
        return loaded


@cache  # looking through all installed packages takes 10 ms
def find_plugins(noun: str) -> dict[str, EntryPoint]:
    """Returns the entry points of other packages by name, without importing them."""
    return {point.name: point for point in sorted(entry_points(group=f"tagalong.{noun}s"))}


@cache
def warn_once(message: str) -> None:
    log.warning(message)  # plug-ins are listed many times


def unknown_name(argument: str, noun: str, name: object, known: Iterable[str]) -> InvalidInput:
    """Returns the error for an unknown name, which suggests the closest known name or lists the known names.

    Example:
        >>> print(unknown_name("executor", "executor", "seriel", ["serial", "processes", "ray"]))
        `executor` must be a known executor, found 'seriel'; did you mean 'serial'?
    """
    return InvalidInput(argument, f"must be a known {noun}", repr(name), did_you_mean(str(name), known))
