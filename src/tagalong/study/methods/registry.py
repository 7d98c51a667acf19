"""Methods by name: ours, a user's own, and those that other packages bring."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tagalong.plugins import Plugin, find_plugins, warn_once

from .auto import Auto
from .hoa_optimal import Hoa, Optimal, Oracle
from .method import RULES, Method, rule_problem
from .mtl_stl import Combined, Mtl, Ruled, Stl, Wide
from .random_groups import Random
from .tag_cs import Cs, Tag

Factory = Callable[..., Method]
_registry: dict[str, Factory] = {
    "mtl": Mtl,
    "stl": Stl,
    "random": Random,
    "cs": Cs,
    "tag": Tag,
    "hoa": Hoa,
    "optimal": Optimal,
    "oracle": Oracle,
    "auto": Auto,
    **{rule: partial(Ruled, rule) for rule in RULES},
}
LARGER = re.compile(r"mtl-(wide|big)(\d+(?:\.\d+)?)")


def register_method(name: str, factory: Factory) -> None:
    """Makes a method known by its name.

    Args:
        name: what users write; without "+".
        factory: makes the method from the keyword options that users may give, usually the class itself. Other
            packages can declare one in the entry point group "tagalong.methods" instead.

    Example:
        >>> from tagalong.group import Group
        >>> class Halves(Method):
        ...     '''The first half of the tasks, and the rest.'''
        ...     name, budgeted = "halves", False
        ...     def decide(self, lab, budgets, seeds):
        ...         names = lab.problem.names
        ...         parts = names[: len(names) // 2], names[len(names) // 2 :]
        ...         return Decision.pooled({None: Choice(tuple(Group(part, part) for part in parts))}, seeds)
        >>> from tagalong.study import Choice, Decision
        >>> register_method("halves", Halves)
        >>> "halves" in method_names()
        True
    """
    if not isinstance(name, str) or not name or "+" in name:
        raise ValueError(f"`name` must be a non-empty string without '+', found {name!r}")
    if not callable(factory):
        raise ValueError(f"`factory` must be callable, found {type(factory).__name__}")
    _registry[name] = factory


def method_names() -> list[str]:
    """The names of all methods; combinations such as "tag+pcgrad" come on top."""
    return [*_registry, *_offered()]


def _offered() -> dict[str, Plugin]:
    """Methods of other packages; none is imported."""
    found = find_plugins("methods", _registry)
    for plugin in (plugin for plugin in found.values() if "+" in plugin.name):
        warn_once(f"{plugin} is not used: only combinations have a '+' in their name")
    return {name: plugin for name, plugin in found.items() if "+" not in name}


def _factory(name: str) -> Factory | None:
    if name in _registry:
        return _registry[name]
    plugin = _offered().get(name)
    if plugin is None:
        return None
    made: Factory = plugin.load()
    if not callable(made):
        raise plugin.broken(f"it must be a class or a function, found {type(made).__name__}")
    return made


def make_method(name: str, options: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method of this name.

    Args:
        name: one of `method_names()`, a rule of `tagalong.learn`, a combination "method+rule", "mtl-wide2" (twice the
            channels) or "mtl-big2" (about twice the parameters).
        options: by method name, what its factory takes.

    Raises:
        ValueError: no such method, an option that it does not take, or the package that brings it is broken.

    Example:
        >>> make_method("tag", {"tag": {"every": 5}}).meter["every"], make_method("hoa+uw").rule
        (5, 'uw')
    """
    given = {} if options is None else options
    if factory := _factory(name):
        return _made(name, factory, given.get(name, {}))
    if larger := LARGER.fullmatch(name):
        return _made(name, partial(Wide, float(larger[2]), larger[1]), given.get(name, {}))
    groups, plus, rule = name.rpartition("+")
    if plus and (factory := _factory(groups)):
        return Combined(_made(groups, factory, {**given.get(groups, {}), **given.get(name, {})}), rule)
    if not plus and rule_problem(name) is None:
        return _made(name, partial(Ruled, name), given.get(name, {}))
    raise ValueError(_unknown(name))


def _made(name: str, factory: Factory, options: Mapping[str, Any]) -> Method:
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        unknown = [option for option in options if option not in parameters]
        if unknown:
            known = f"takes {', '.join(parameters)}" if parameters else "takes no options"
            raise ValueError(f"`options`: {name!r} {known}; found {', '.join(unknown)}")
    return factory(**options)


def _unknown(name: str) -> str:
    names = method_names()
    known = [*names, "mtl-wide2", "mtl-big2", "tag+pcgrad"]
    close = difflib.get_close_matches(name, [*known, *(f"{m}+{rule}" for m in names for rule in RULES)], 1, 0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return (
        f"`methods` must be among {', '.join(map(repr, names))}, combinations such as 'tag+pcgrad', 'mtl-wide2', "
        f"'mtl-big2', or a rule of TorchJD such as 'mgda'; found {name!r}{hint}"
    )
