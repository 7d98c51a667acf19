"""What a study is asked, checked: every problem is named at once, before any training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeGuard

from tagalong.errors import noted, refuse
from tagalong.learn import Problem, check_data

from .methods import Method, Mtl, make_method

USUAL = (2, 3, 4)  # the paper's budgets
Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Asked:
    """Methods, budgets and seeds that make sense together.

    Attributes:
        methods: as asked for, `mtl` first if it was left out, since everything is compared with it.
        budgets: how many networks there may be.
        seeds: of the networks.
        price_per_hour: of computing, if costs are wanted as money.
        confirming: seeds that no choice has seen, for the verdict alone.
    """

    methods: tuple[Method, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    price_per_hour: float | None = None
    confirming: tuple[int, ...] = ()

    def to_document(self, options: Options | None) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "methods": [method.name for method in self.methods],
            "budgets": list(self.budgets),
            "seeds": list(self.seeds),
            "options": {name: dict(given) for name, given in (options or {}).items()},
            "price_per_hour": self.price_per_hour,
            "confirming_seeds": list(self.confirming),
        }


def check_request(
    problem: Problem,
    methods: Sequence[str | Method],
    budgets: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    options: Options | None = None,
    price_per_hour: float | None = None,
    confirm: int = 0,
) -> Asked:
    """Refuses what cannot be meant, with every problem at once."""
    problems: list[str] = []
    noted(problems, check_data, problem)
    made = _methods(methods, options, problems)
    for method in made:
        problems += method.problems(problem)
    n = len(problem.names)
    found_budgets = _budgets(usual_budgets(n) if budgets is None else budgets, n, made, problems)
    found_seeds = _seeds(seeds, problems)
    if price_per_hour is not None and not (_is_number(price_per_hour) and price_per_hour >= 0):
        problems.append(f"`price_per_hour` must be a number from 0, found {price_per_hour!r}")
    if not _is_whole(confirm, least=0):
        problems.append(f"`confirm` must be a whole number of seeds from 0, found {confirm!r}")
    refuse(list(dict.fromkeys(problems)))
    if not any(method.name == "mtl" for method in made):
        made = [Mtl(), *made]
    fresh = tuple(range(max(found_seeds) + 1, max(found_seeds) + 1 + confirm))
    return Asked(tuple(made), found_budgets, found_seeds, price_per_hour, fresh)


def usual_budgets(tasks: int) -> list[int]:
    """The paper's budgets, as far as there are tasks."""
    return [budget for budget in USUAL if budget <= tasks] or [1]


def with_effort(options: Options | None, effort: Any) -> Options | None:
    """The options with the effort of `auto` among them, where one is given.

    Example:
        >>> with_effort({"tag": {"every": 1}}, "quick")
        {'tag': {'every': 1}, 'auto': {'effort': 'quick'}}
    """
    if effort is None:
        return options
    given = dict(options or {})
    return given | {"auto": {**given.get("auto", {}), "effort": effort}}


def _methods(methods: Sequence[str | Method], options: Options | None, problems: list[str]) -> list[Method]:
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        problems.append(f"`methods` must be a list of names, found {methods!r}; write [{methods!r}]")
        return []
    if not len(methods):
        problems.append("`methods` must name at least one method, found none; write ['mtl', 'tag']")
    made: dict[str, Method] = {}
    for entry in methods:
        try:
            method = entry if isinstance(entry, Method) else make_method(str(entry), options)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
            continue
        if method.name in made:
            problems.append(f"`methods` must be distinct, found {method.name!r} more than once")
        made[method.name] = method
    asked = {str(entry) for entry in methods} | {str(entry).partition("+")[0] for entry in methods}
    stray = [name for name in options or {} if name not in asked]
    if stray == ["auto"] and set((options or {})["auto"]) == {"effort"}:
        problems.append("`effort` is what 'auto' may spend, which is not among `methods`; add it or leave `effort` out")
    elif stray:
        problems.append(f"`options` must be of methods that are asked for, found {', '.join(map(repr, stray))}")
    return list(made.values())


def _budgets(budgets: Sequence[int], n: int, methods: Sequence[Method], problems: list[str]) -> tuple[int, ...]:
    if not isinstance(budgets, Sequence) or isinstance(budgets, str):
        problems.append(f"`budgets` must be a list of numbers of networks, found {budgets!r}; write [2, 3]")
        return ()
    for budget in budgets:
        if not _is_whole(budget):
            problems.append(f"`budgets` must be whole numbers of networks, found {budget!r}")
        elif not 1 <= budget <= n:
            problems.append(f"`budgets` must be from 1 to the number of tasks, {n}, found {budget}")
    hungry = [method.name for method in methods if method.budgeted]
    if hungry and not len(budgets):
        problems.append(f"`budgets` must hold at least one budget for {', '.join(hungry)}, found none; write [2, 3]")
    return tuple(dict.fromkeys(int(budget) for budget in budgets if _is_whole(budget)))


def _seeds(seeds: int | Sequence[int], problems: list[str]) -> tuple[int, ...]:
    if _is_whole(seeds, least=1):
        return tuple(range(seeds))
    listed = seeds if isinstance(seeds, Sequence) and not isinstance(seeds, str) else ()
    if listed and all(_is_whole(seed, least=0) for seed in listed) and len(set(listed)) == len(listed):
        return tuple(int(seed) for seed in listed)
    problems.append(f"`seeds` must be how many (3 means 0, 1, 2) or a list of distinct whole numbers, found {seeds!r}")
    return ()


def _is_whole(value: Any, least: float = -math.inf) -> TypeGuard[int]:
    """Whether a whole number, numpy's too, is at least so large."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
