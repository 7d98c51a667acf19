"""Methods by name: built-in ones, those registered by users, and those from other packages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from tagalong.errors import InvalidInput
from tagalong.registry import Registry, unknown_name

from .auto import AutoMethod
from .boosting import Boosting, Ridge
from .constant import Constant
from .ensemble import BestOf, Blend, Ensemble
from .hoa_optimal import Hoa, Optimal, Oracle
from .method import RULE_NAMES, Method, rule_problem
from .mtl_stl import Combined, Mtl, Ruled, Stl, Wide
from .random_groups import Random
from .tag_cs import Cs, Tag

Factory = Callable[..., Method]
BUILT_IN: dict[str, Factory] = {
    "mtl": Mtl,
    "stl": Stl,
    "random": Random,
    "cs": Cs,
    "tag": Tag,
    "hoa": Hoa,
    "optimal": Optimal,
    "oracle": Oracle,
    "auto": AutoMethod,
    "ensemble": Ensemble,
    "best-of": BestOf,
    **{rule: partial(Ruled, rule) for rule in RULE_NAMES},
    "constant": Constant,
    "boosting": Boosting,
    "ridge": Ridge,
    "blend": Blend,
}
LARGER_MTL_PATTERN = re.compile(r"mtl-(wide|big)(\d+(?:\.\d+)?)")


def _check_factory(name: str, factory: Any) -> Factory:
    if not callable(factory):
        raise InvalidInput("method", "must be a class or a function", type(factory).__name__)
    return cast(Factory, factory)


_methods = Registry("method", _check_factory, BUILT_IN)


def register_method(name: str, method: Factory) -> None:
    """Registers a method under a name.

    Args:
        name: the name of the method.
        method: a callable that creates the method from keyword options, usually the method's class. Other packages can
            declare methods in the entry point group "tagalong.methods" instead.

    Raises:
        InvalidInput: If the name is empty, or the method cannot be called.

    Example:
        >>> from tagalong.group import Group
        >>> class Halves(Method):
        ...     '''The first half of the tasks, and the rest.'''
        ...     name, budgeted = "halves", False
        ...     def decide(self, runner, budgets, seeds):
        ...         half = len(runner.tasks) // 2
        ...         parts = runner.tasks[:half], runner.tasks[half:]
        ...         return Decision.pooled({None: Choice(tuple(Group(part, part) for part in parts))}, seeds)
        >>> from tagalong.study import Choice, Decision
        >>> register_method("halves", Halves)
        >>> "halves" in method_names()
        True
    """
    _methods.register(name, method)


def method_names() -> list[str]:
    """Returns the names of all methods, including those from other packages.

    Combinations like "tag+pcgrad" are excluded.
    """
    return _methods.names()


def make_method(name: str, options: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """Creates the method with this name.

    Args:
        name: one of `method_names()`, a rule of `tagalong.learn`, a combination "method+rule", "mtl-wide2" (twice the
            channels) or "mtl-big2" (about twice the parameters).
        options: the keyword options of each method, by name.

    Raises:
        InvalidInput: If no method has this name, if it does not accept one of the options, or if its package cannot
            be loaded.

    Example:
        >>> make_method("tag", {"tag": {"every": 5}}).meter["every"], make_method("hoa+uw").rule
        (5, 'uw')
    """
    options = options or {}
    own_options = options.get(name, {})
    if factory := _methods.get(name):
        return _create_method(name, factory, own_options)
    if larger := LARGER_MTL_PATTERN.fullmatch(name):
        return _create_method(name, partial(Wide, float(larger[2]), larger[1]), own_options)
    groups, plus, rule = name.rpartition("+")
    if plus and (factory := _methods.get(groups)):
        return Combined(_create_method(groups, factory, {**options.get(groups, {}), **own_options}), rule)
    if not plus and rule_problem(name) is None:
        return _create_method(name, partial(Ruled, name), own_options)
    raise unknown_name("methods", "method", name, _names_to_suggest())


def _create_method(name: str, factory: Factory, options: Mapping[str, Any]) -> Method:
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        unknown = [option for option in options if option not in parameters]
        if unknown:
            known = f"only {', '.join(parameters)}" if parameters else "no options"
            raise InvalidInput("`options`:", f"{name!r} accepts {known}", ", ".join(unknown))
    return factory(**options)


def _names_to_suggest() -> list[str]:
    """Returns the names of all methods, followed by examples of other valid names and by all combinations."""
    names = method_names()
    examples = ["tag+pcgrad", "mtl-wide2", "mtl-big2"]
    return list(dict.fromkeys([*names, *examples, *(f"{name}+{rule}" for name in names for rule in RULE_NAMES)]))
