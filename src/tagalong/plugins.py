"""Registries of commands, problems, methods and estimators, and the plug-ins that other packages add to them.

A package declares its plug-ins as entry points in the groups "tagalong.commands", "tagalong.problems",
"tagalong.methods" and "tagalong.estimators". `register` does the same for code that is not installed, such as a
checkout or a notebook. `register_problem`, `register_method` and `register_estimator` add or replace a single entry.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import Any, Generic, Literal, TypeVar, get_args

from tagalong.errors import InvalidInput, did_you_mean

Kind = Literal["commands", "problems", "methods", "estimators"]
T = TypeVar("T")
OWN_DISTRIBUTION = "tagalong"  # the distribution whose plug-ins come first
log = logging.getLogger(__name__)


class PluginError(InvalidInput):
    """Raised when a plug-in cannot be used."""


@dataclass(frozen=True)
class Plugin:
    """A plug-in from another package, which is not imported until `load` is called.

    Attributes:
        kind: "commands", "problems", "methods" or "estimators".
        name: the name by which users refer to the plug-in.
        value: the location of the plug-in, in the form "module:attribute".
        package: the name and version of the distribution that declares the plug-in; empty if it was added with
            `register`.
        registered: the registered object, or None if only its location is known.
    """

    kind: Kind
    name: str
    value: str
    package: str = ""
    registered: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"the {self.kind[:-1]} {self.name!r} from {self.value}"

    @property
    def entry_point(self) -> EntryPoint:
        """The plug-in as an `importlib.metadata.EntryPoint`."""
        return EntryPoint(self.name, self.value, _entry_point_group(self.kind))

    def load(self) -> Any:
        """Imports the plug-in and returns it.

        Raises:
            PluginError: If the import fails.
        """
        if self.registered is not None:
            return self.registered
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.load_error(error) from error

    def load_error(self, cause: BaseException | str) -> PluginError:
        """Returns the error to raise if the plug-in cannot be used.

        Args:
            cause: the reason, or an exception whose first line is used as the reason.
        """
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        reason = lines[0].replace("`", "'")  # backticks would mark arguments
        return PluginError(str(self), f"cannot be loaded: {reason}")


_registered: dict[Kind, dict[str, Plugin]] = {kind: {} for kind in get_args(Kind)}
_warned: set[str] = set()


def register(
    *,
    commands: Mapping[str, Any] | None = None,
    problems: Mapping[str, Any] | None = None,
    methods: Mapping[str, Any] | None = None,
    estimators: Mapping[str, Any] | None = None,
) -> None:
    """Registers plug-ins from code that is not installed, such as a notebook.

    Installed packages should use entry points instead.

    Each argument maps names to objects, or to locations of the form "module:attribute", which are imported on first
    use. If two plug-ins have the same name, the first one is used and a warning is logged. Registering the same plug-in
    again has no effect.

    Args:
        commands: functions, or typer apps for groups of commands; see `tagalong.cli`.
        problems: functions that return a `Problem`, or `tagalong.problems.ProblemSpec` records.
        methods: callables that create a `tagalong.study.Method` from its options, usually the class itself.
        estimators: `tagalong.measure.Estimator` objects or classes.

    Raises:
        InvalidInput: If a name is empty or not a string.

    Example:
        >>> register(methods={"thirds": "a_package.methods:Thirds"})
        >>> find_plugins("methods")["thirds"].value
        'a_package.methods:Thirds'
    """
    given: dict[Kind, Mapping[str, Any] | None] = {
        "commands": commands,
        "problems": problems,
        "methods": methods,
        "estimators": estimators,
    }
    for kind, plugins in given.items():
        for name, value in (plugins or {}).items():
            if not isinstance(name, str) or not name:
                raise InvalidInput(kind, "must use non-empty strings as names", repr(name))
            plugin = (
                Plugin(kind, name, value)
                if isinstance(value, str)
                else Plugin(kind, name, _location(value), registered=value)
            )
            first = _registered[kind].get(name)
            if first is not None and first.value != plugin.value:
                warn_once(f"{plugin} is not used: {first.value} has the same name")
            else:
                _registered[kind][name] = plugin


def find_plugins(kind: Kind, taken: Collection[str] = ()) -> dict[str, Plugin]:
    """Returns the plug-ins of a kind by name, without importing them.

    Registered plug-ins come first, followed by those of installed packages. If names collide, a warning is logged.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that are already in use.
    """
    found: dict[str, Plugin] = {}
    for plugin in (*_registered[kind].values(), *_installed_plugins(kind, tuple(sys.path))):
        if plugin.name in taken:
            warn_once(f"{plugin} is not used: another {kind[:-1]} already has this name")
        elif (first := found.setdefault(plugin.name, plugin)).value != plugin.value:
            warn_once(f"{plugin} is not used: {first.value} has the same name")
    return found


def load_plugins(
    kind: Kind, taken: Collection[str] = (), *, loader: Callable[[Plugin], T] = Plugin.load
) -> dict[str, T]:
    """Imports all plug-ins of a kind and returns them by name. Broken plug-ins are skipped with a warning.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that are already in use.
        loader: a function that converts a plug-in to the value to return, and may raise the error returned by
            `Plugin.load_error`.
    """
    loaded: dict[str, T] = {}
    for name, plugin in find_plugins(kind, taken).items():
        try:
            loaded[name] = loader(plugin)
        except PluginError as error:  # noqa: PERF203 - a broken package must not hide the others
            warn_once(str(error))
    return loaded


class Registry(Generic[T]):
    """Objects that users select by name, whether built in, registered at run time, or declared by other packages.

    Args:
        kind: the kind of object, e.g. "methods". Other packages declare theirs in the "tagalong.methods" entry point
            group.
        convert: a function that converts a name and the object registered under it to an entry. For unsuitable objects,
            it raises `InvalidInput` without an argument name, e.g. "must be a class, found int".
        entries: the built-in entries, by name.
        separator: a character that joins names into combinations and must not occur in names.

    Example:
        >>> colors: Registry[str] = Registry("methods", lambda name, value: str(value), {"red": "#f00"})
        >>> colors.register("blue", "#00f")
        >>> colors.names()[:2], colors.find("blue")
        (['red', 'blue'], '#00f')
        >>> colors.find("bleu")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `name` must be a known method, found 'bleu'; did you mean 'blue'?
    """

    def __init__(
        self, kind: Kind, convert: Callable[[str, Any], T], entries: Mapping[str, T] | None = None, separator: str = ""
    ) -> None:
        self.kind: Kind = kind
        self.entries = dict(entries or {})
        self._convert, self._separator = convert, separator

    @property
    def noun(self) -> str:
        """The singular form of the kind."""
        return self.kind[:-1]

    def register(self, name: str, value: Any) -> None:
        """Adds an entry, or replaces the existing one with this name.

        Raises:
            InvalidInput: If the name or the object is not valid.
        """
        if not isinstance(name, str) or not name or (self._separator and self._separator in name):
            without = f" without {self._separator!r}" if self._separator else ""
            raise InvalidInput("name", f"must be a non-empty string{without}", repr(name))
        try:
            self.entries[name] = self._convert(name, value)
        except InvalidInput as error:
            raise InvalidInput(self.noun, *error.args[1:]) from None

    def plugins(self) -> dict[str, Plugin]:
        """Returns the plug-ins of other packages, without importing them."""
        found = find_plugins(self.kind, self.entries)
        joined = [name for name in found if self._separator and self._separator in name]
        for name in joined:
            warn_once(f"{found.pop(name)} is not used: only names of combinations may contain {self._separator!r}")
        return found

    def names(self) -> list[str]:
        """Returns all names, ending with those from other packages, without importing anything."""
        return [*self.entries, *self.plugins()]

    def load(self) -> dict[str, T]:
        """Returns all entries by name. Broken plug-ins are skipped with a warning."""
        return self.entries | load_plugins(self.kind, self.entries, loader=self._from_plugin)

    def get(self, name: object) -> T | None:
        """Returns the entry with this name, or None if there is none.

        Raises:
            PluginError: If the entry comes from a plug-in that cannot be loaded.
        """
        if not isinstance(name, str):
            return None
        if name in self.entries:
            return self.entries[name]
        plugin = self.plugins().get(name)
        return None if plugin is None else self._from_plugin(plugin)

    def find(self, name: str, argument: str = "name") -> T:
        """Returns the entry with this name.

        Raises:
            InvalidInput: If no entry has this name; the error message suggests the closest match.
            PluginError: If the entry comes from a plug-in that cannot be loaded.
        """
        found = self.get(name)
        if found is None:
            raise unknown_name(argument, self.noun, name, self.names())
        return found

    def _from_plugin(self, plugin: Plugin) -> T:
        value = plugin.load()
        try:
            return self._convert(plugin.name, value)
        except InvalidInput as error:
            raise plugin.load_error(f"it {error}") from error


def unknown_name(argument: str, noun: str, name: object, known: Iterable[str]) -> InvalidInput:
    """Returns the error for an unknown name, which suggests the closest known name or lists the known names.

    Example:
        >>> print(unknown_name("executor", "executor", "seriel", ["serial", "processes", "ray"]))
        `executor` must be a known executor, found 'seriel'; did you mean 'serial'?
    """
    return InvalidInput(argument, f"must be a known {noun}", repr(name), did_you_mean(str(name), known))


def warn_once(message: str) -> None:
    """Logs a warning unless it has been logged before, since registries are read many times."""
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


def _entry_point_group(kind: Kind) -> str:
    return f"tagalong.{kind}"


@lru_cache(maxsize=32)
def _installed_plugins(kind: Kind, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Returns the plug-ins of installed packages, cached by `path`, which is `sys.path`."""
    try:
        entry_points_found = list(entry_points(group=_entry_point_group(kind)))
    except Exception:  # one broken distribution makes the standard library fail for all
        entry_points_found = [
            entry_point for package in distributions() for entry_point in _entry_points_of(package, kind)
        ]
    found = [
        Plugin(kind, entry_point.name, entry_point.value, _distribution_label(entry_point))
        for entry_point in entry_points_found
    ]
    # Sorted, since the order of distributions differs between machines.
    return tuple(sorted(found, key=lambda plugin: (plugin.package.split(" ")[0] != OWN_DISTRIBUTION, plugin.package)))


def _entry_points_of(package: Distribution, kind: Kind) -> list[EntryPoint]:
    try:
        return list(package.entry_points.select(group=_entry_point_group(kind)))
    except Exception as error:
        warn_once(f"the entry points of {package.name} cannot be read: {error}")
        return []


def _distribution_label(entry_point: EntryPoint) -> str:
    return f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist is not None else ""


def _location(value: Any) -> str:
    """Returns where an object is defined, with a suffix that distinguishes instances of the same class."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return f"{type(value).__module__}:{type(value).__qualname__}@{id(value):x}"
