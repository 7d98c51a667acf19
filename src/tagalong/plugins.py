"""Commands, problems, methods and estimators by name: the registries, and what other packages add to them.

A package declares its own as entry points, in the groups "tagalong.commands", "tagalong.problems", "tagalong.methods"
and "tagalong.estimators". `register` does the same for code that is not installed, such as a checkout or a notebook;
`register_problem`, `register_method` and `register_estimator` add or replace a single one.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from tagalong.errors import InvalidInput, did_you_mean

Kind = Literal["commands", "problems", "methods", "estimators"]
T = TypeVar("T")
OWN = "tagalong"  # the distribution whose plug-ins come first
log = logging.getLogger(__name__)


class PluginError(InvalidInput):
    """A plug-in cannot be used."""


@dataclass(frozen=True)
class Plugin:
    """Something that another package adds; `load` imports it, and nothing else does.

    Attributes:
        kind: "commands", "problems", "methods" or "estimators".
        name: by which users refer to it.
        value: its location, as "module:attribute".
        package: name and version of the distribution that declares it; empty if it was registered by `register`.
        registered: the object itself, if it was registered as an object.
    """

    kind: Kind
    name: str
    value: str
    package: str = ""
    registered: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"the {self.kind[:-1]} {self.name!r} of {self.value}"

    @property
    def entry_point(self) -> EntryPoint:
        """The entry point, as `importlib.metadata` represents it."""
        return EntryPoint(self.name, self.value, _group(self.kind))

    def load(self) -> Any:
        """Imports the plug-in and returns it.

        Raises:
            PluginError: the import fails.
        """
        if self.registered is not None:
            return self.registered
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.broken(error) from error

    def broken(self, why: BaseException | str) -> PluginError:
        """Returns the error to raise if the plug-in cannot be used.

        Args:
            why: the reason, or an error, whose first line is shown.
        """
        lines = str(why).strip().splitlines() or [type(why).__name__]
        reason = lines[0].replace("`", "'")  # backticks would be read as arguments
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
    """Registers plug-ins of code that is not installed, such as a notebook; installed packages use entry points.

    Each mapping goes from names to the objects themselves, or to their locations as "module:attribute", which are
    imported when they are used. If two plug-ins have the same name, the first one is used and a warning is logged;
    registering the same one again changes nothing.

    Args:
        commands: functions, or typer apps for groups of commands; see `tagalong.cli`.
        problems: functions that make a `Problem`, or `tagalong.problems.ProblemSpec` records.
        methods: what makes a `tagalong.study.Method` from its options, usually the class itself.
        estimators: `tagalong.measure.Estimator` objects or classes.

    Raises:
        InvalidInput: a name is empty or not a string.

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
    for kind, some in given.items():
        for name, value in (some or {}).items():
            if not isinstance(name, str) or not name:
                raise InvalidInput(kind, "must have non-empty strings as names", repr(name))
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

    Those that were registered come first, then those of installed packages. If names collide, a warning is logged.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that plug-ins must not have.
    """
    found: dict[str, Plugin] = {}
    for plugin in (*_registered[kind].values(), *_declared(kind, tuple(sys.path))):
        if plugin.name in taken:
            warn_once(f"{plugin} is not used: another {kind[:-1]} has this name already")
        elif (first := found.setdefault(plugin.name, plugin)).value != plugin.value:
            warn_once(f"{plugin} is not used: {first.value} has the same name")
    return found


def load_plugins(kind: Kind, taken: Collection[str] = (), *, read: Callable[[Plugin], T] = Plugin.load) -> dict[str, T]:
    """Imports all plug-ins of a kind and returns them by name; those that are broken are left out with a warning.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that plug-ins must not have.
        read: turns a plug-in into the value that is returned; may raise `Plugin.broken`.
    """
    loaded: dict[str, T] = {}
    for name, plugin in find_plugins(kind, taken).items():
        try:
            loaded[name] = read(plugin)
        except PluginError as error:  # noqa: PERF203 - a broken package must not hide the others
            warn_once(str(error))
    return loaded


class Registry(Generic[T]):
    """Objects that users choose by name: ours, those registered at run time, and those of other packages.

    Args:
        kind: what they are, such as "methods"; other packages declare theirs in the group "tagalong.methods".
        convert: turns a name and what was registered or declared under it into an entry. It raises `InvalidInput`
            for anything else, without an argument: "must be a class, found int".
        entries: those that come with tagalong, by name.
        separator: a character that joins names to combinations, so that no name may contain it.

    Example:
        >>> colors: Registry[str] = Registry("methods", lambda name, made: str(made), {"red": "#f00"})
        >>> colors.register("blue", "#00f")
        >>> colors.names()[:2], colors.find("blue")
        (['red', 'blue'], '#00f')
        >>> colors.find("bleu")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `name` must be a known method, found 'bleu'; did you mean 'blue'?
    """

    instances: ClassVar[list[Registry[Any]]] = []

    def __init__(
        self, kind: Kind, convert: Callable[[str, Any], T], entries: Mapping[str, T] | None = None, separator: str = ""
    ) -> None:
        self.kind: Kind = kind
        self.shipped = dict(entries or {})
        self.entries = dict(self.shipped)
        self._convert, self._separator = convert, separator
        self.instances.append(self)

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return self.kind[:-1]

    def register(self, name: str, made: Any) -> None:
        """Adds an entry, or replaces the one that has this name.

        Raises:
            InvalidInput: the name or the object cannot be used.
        """
        if not isinstance(name, str) or not name or (self._separator and self._separator in name):
            without = f" without {self._separator!r}" if self._separator else ""
            raise InvalidInput("name", f"must be a non-empty string{without}", repr(name))
        try:
            self.entries[name] = self._convert(name, made)
        except InvalidInput as error:
            raise InvalidInput(self.noun, error.expected, error.found, error.hint) from None

    def plugins(self) -> dict[str, Plugin]:
        """Those of other packages; none is imported."""
        found = find_plugins(self.kind, self.entries)
        joined = [name for name in found if self._separator and self._separator in name]
        for name in joined:
            warn_once(f"{found.pop(name)} is not used: only combinations have a {self._separator!r} in their name")
        return found

    def names(self) -> list[str]:
        """All names, those of other packages last; none of these is imported."""
        return [*self.entries, *self.plugins()]

    def load(self) -> dict[str, T]:
        """All entries by name; those of other packages that are broken are left out, and a warning is logged."""
        return self.entries | load_plugins(self.kind, self.entries, read=self._from_plugin)

    def get(self, name: object) -> T | None:
        """The entry of this name; None if there is none.

        Raises:
            PluginError: it is of another package, and broken.
        """
        if not isinstance(name, str):
            return None
        if name in self.entries:
            return self.entries[name]
        plugin = self.plugins().get(name)
        return None if plugin is None else self._from_plugin(plugin)

    def find(self, name: str, argument: str = "name") -> T:
        """The entry of this name.

        Raises:
            InvalidInput: there is none; suggests the closest name.
            PluginError: it is of another package, and broken.
        """
        found = self.get(name)
        if found is None:
            raise unknown_name(argument, self.noun, name, self.names())
        return found

    def _from_plugin(self, plugin: Plugin) -> T:
        made = plugin.load()
        try:
            return self._convert(plugin.name, made)
        except InvalidInput as error:
            raise plugin.broken(f"it {error}") from error


def unknown_name(argument: str, noun: str, name: object, known: Iterable[str]) -> InvalidInput:
    """The error for a name that nothing has, with the closest name or a list of all.

    Example:
        >>> print(unknown_name("executor", "executor", "seriel", ["serial", "processes", "ray"]))
        `executor` must be a known executor, found 'seriel'; did you mean 'serial'?
    """
    return InvalidInput(argument, f"must be a known {noun}", repr(name), did_you_mean(str(name), known))


def warn_once(message: str) -> None:
    """Logs a warning unless it was logged before: registries are read many times."""
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


def _group(kind: Kind) -> str:
    return f"tagalong.{kind}"


@lru_cache(maxsize=32)
def _declared(kind: Kind, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Returns the plug-ins of installed packages; `path` is `sys.path`, so that a changed one is searched again."""
    try:
        points = list(entry_points(group=_group(kind)))
    except Exception:  # one broken file, which the standard library reads together with all others
        points = [point for package in distributions() for point in _entry_points_of(package, kind)]
    found = [Plugin(kind, point.name, point.value, _package(point)) for point in points]
    # Sorted, since the order of folders differs between machines.
    return tuple(sorted(found, key=lambda plugin: (plugin.package.split(" ")[0] != OWN, plugin.package)))


def _entry_points_of(package: Distribution, kind: Kind) -> list[EntryPoint]:
    try:
        return list(package.entry_points.select(group=_group(kind)))
    except Exception as error:
        warn_once(f"the entry points of {package.name} cannot be read: {error}")
        return []


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""


def _location(value: Any) -> str:
    """Returns where an object is defined; two instances of one class differ."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return f"{type(value).__module__}:{type(value).__qualname__}@{id(value):x}"
