"""What other packages add: commands, problems, methods and estimators.

A package declares them as entry points, in the groups "tagalong.commands", "tagalong.problems", "tagalong.methods" and
"tagalong.estimators". `register` does the same for code that is not installed, such as a checkout or a notebook.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import Any, Literal, TypeVar, get_args

Kind = Literal["commands", "problems", "methods", "estimators"]
T = TypeVar("T")
OWN = "tagalong"  # the distribution whose plug-ins are listed first
log = logging.getLogger(__name__)


class PluginError(ValueError):
    """A plug-in that cannot be used, in a sentence."""


@dataclass(frozen=True)
class Plugin:
    """Something that another package adds. Nothing of that package is imported before `load`.

    Attributes:
        kind: what it is, such as "commands".
        name: what users write.
        value: where it is found, as "module:attribute".
        package: name and version of the distribution that declares it; empty if it was registered by hand.
        registered: the object itself, if it was registered by hand as one.
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
        """The same as the standard library has it."""
        return EntryPoint(self.name, self.value, _group(self.kind))

    def load(self) -> Any:
        """Imports it.

        Raises:
            PluginError: its import fails.
        """
        if self.registered is not None:
            return self.registered
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.broken(error) from error

    def broken(self, why: BaseException | str) -> PluginError:
        """What to raise where the plug-in cannot be used.

        Args:
            why: the error, of which the first line is shown, or the reason in words.
        """
        lines = str(why).strip().splitlines() or [type(why).__name__]
        return PluginError(f"{self} cannot be loaded: {lines[0]}")


_registered: dict[Kind, dict[str, Plugin]] = {kind: {} for kind in get_args(Kind)}
_warned: set[str] = set()


def register(
    *,
    commands: Mapping[str, Any] | None = None,
    problems: Mapping[str, Any] | None = None,
    methods: Mapping[str, Any] | None = None,
    estimators: Mapping[str, Any] | None = None,
) -> None:
    """Adds plug-ins by hand, as entry points do for packages that are installed.

    Each mapping goes from names to the objects themselves, or to where they are found, as "module:attribute"; these
    are imported when they are used. Of two plug-ins with the same name the first is used, and a warning says so;
    registering the same one again changes nothing.

    Args:
        commands: functions, or typer apps for groups of commands; see `tagalong.cli`.
        problems: functions that make a `Problem`, or `tagalong.problems.ProblemSpec` records.
        methods: what makes a `tagalong.study.Method` from its options, usually the class itself.
        estimators: `tagalong.measure.Estimator` objects or classes.

    Raises:
        ValueError: a name that is no text, or empty.

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
                raise ValueError(f"`{kind}` must have non-empty strings as names, found {name!r}")
            plugin = (
                Plugin(kind, name, value)
                if isinstance(value, str)
                else Plugin(kind, name, _address(value), registered=value)
            )
            first = _registered[kind].get(name)
            if first is not None and first.value != plugin.value:
                warn_once(f"{plugin} is not used: {first.value} has the same name")
            else:
                _registered[kind][name] = plugin


def find_plugins(kind: Kind, taken: Collection[str] = ()) -> dict[str, Plugin]:
    """The plug-ins of a kind, by name; none is imported.

    Those registered by hand come first, then those of installed packages. Where names collide, a warning is logged.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that no plug-in can have.
    """
    found: dict[str, Plugin] = {}
    for plugin in (*_registered[kind].values(), *_declared(kind, tuple(sys.path))):
        if plugin.name in taken:
            warn_once(f"{plugin} is not used: there is a {kind[:-1]} of this name already")
        elif (first := found.setdefault(plugin.name, plugin)).value != plugin.value:
            warn_once(f"{plugin} is not used: {first.value} has the same name")
    return found


def load_plugins(kind: Kind, taken: Collection[str] = (), *, read: Callable[[Plugin], T] = Plugin.load) -> dict[str, T]:
    """Imports all plug-ins of a kind; a warning is logged for each that is broken, and the others are returned.

    Args:
        kind: "commands", "problems", "methods" or "estimators".
        taken: names that no plug-in can have.
        read: turns a plug-in into what is returned; may raise `Plugin.broken`.
    """
    loaded: dict[str, T] = {}
    for name, plugin in find_plugins(kind, taken).items():
        try:
            loaded[name] = read(plugin)
        except PluginError as error:  # noqa: PERF203 - a broken package must not hide the others
            warn_once(str(error))
    return loaded


def warn_once(message: str) -> None:
    """Logs a warning that has not been logged before: registries are read many times."""
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


def _group(kind: Kind) -> str:
    return f"tagalong.{kind}"


@lru_cache(maxsize=32)
def _declared(kind: Kind, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """The plug-ins of installed packages, looked for again when the path changes."""
    try:
        points = list(entry_points(group=_group(kind)))
    except Exception:  # the file of one package, which the standard library reads with all others
        points = [point for package in distributions() for point in _readable(package, kind)]
    found = [Plugin(kind, point.name, point.value, _package(point)) for point in points]
    # In the order of the folder they would be listed differently on every machine.
    return tuple(sorted(found, key=lambda plugin: (plugin.package.split(" ")[0] != OWN, plugin.package)))


def _readable(package: Distribution, kind: Kind) -> list[EntryPoint]:
    try:
        return list(package.entry_points.select(group=_group(kind)))
    except Exception as error:
        warn_once(f"the entry points of {package.name} cannot be read: {error}")
        return []


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""


def _address(made: Any) -> str:
    """Where an object is defined; one of two instances of the same class is not the other."""
    if hasattr(made, "__qualname__"):
        return f"{made.__module__}:{made.__qualname__}"
    return f"{type(made).__module__}:{type(made).__qualname__}@{id(made):x}"
