"""Does a method keep the promises of `tagalong.study.Method`?"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tagalong.affinity import Affinity
from tagalong.learn import Problem
from tagalong.study import (
    Choice,
    Chunk,
    Cost,
    Decision,
    Executor,
    Lab,
    Method,
    Packed,
    Store,
    make_executor,
    make_method,
)

from .promises import Promises, expect, name_of, reseeded, small_problem

SEEDS = (0, 1)
NAMES = (("one", "two"), ("one", "two", "three"), ("one", "two", "three", "four", "five"))
STRANGE = ("b.c", "x+y", "ä, ö")
OTHER_TEST_ROWS = (3,)
Groups = frozenset[tuple[frozenset[str], frozenset[str], float]]


def check_method(
    method: str | Method | Callable[..., Method],
    *,
    impossible: Sequence[Mapping[str, Any]] = (),
    ordered: bool = False,
    **options: Any,
) -> None:
    """Lets a method decide on small problems with 2, 3 and 5 tasks, and checks what `Method` promises.

    Every task is served exactly once, by at most as many networks as the budget allows; the same seeds give the same
    groups, whatever the global random numbers are, whatever the test rows hold and in whatever order tasks are listed;
    run again on the same folder it trains nothing; what it tells about a decision is JSON; options that it does not
    have are refused. Problems that its `problems` refuses are left out.

    Args:
        method: a name that `make_method` knows, a function that makes the method (its class, say), or a method.
        impossible: options, each of which must be refused with a ValueError or by `problems`.
        ordered: whether decisions may depend on the order in which a problem lists its tasks, as those that are drawn
            task by task do. Expected values over many groupings (`Choice.shares`) always may.
        **options: of the method.

    Raises:
        BrokenPromises: lists every promise that is not kept.

    Example:
        >>> check_method("stl")
        >>> check_method("optimal", impossible=[{"max_size": 0}])
    """
    make = _factory(method)
    promises = Promises(f"method {name_of(method)!r}")
    with promises.that("it can be made and describes itself"):
        _check_description(make(**options))
        with TemporaryDirectory(prefix="tagalong-") as folder:
            _check_decisions(promises, partial(make, **options), Path(folder), ordered)
    if not isinstance(method, Method):
        for wrong in ({"no_such_option": 1}, *impossible):
            with promises.that("impossible options are refused"):
                _check_refusal(make, {**options, **wrong}, wrong)
    promises.settle()


def _factory(method: str | Method | Callable[..., Method]) -> Callable[..., Method]:
    if isinstance(method, str):
        return lambda **options: make_method(method, {method: options} if options else None)
    if isinstance(method, Method):
        return lambda: copy.deepcopy(method)
    return method


def _check_description(method: Any) -> None:
    expect(isinstance(method, Method), f"the factory must give a Method, found {type(method).__name__}")
    expect(isinstance(method.name, str) and bool(method.name), f"`name` must be a text, found {method.name!r}")
    for flag in ("budgeted", "honest"):
        expect(isinstance(getattr(method, flag), bool), f"`{flag}` must be True or False")


def _check_refusal(make: Callable[..., Method], options: Mapping[str, Any], wrong: Mapping[str, Any]) -> None:
    """By whoever sees it first: the signature, the factory, or `problems`, as a study asks them."""
    try:
        takes = inspect.signature(make).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in takes.values()) and not options.keys() <= takes.keys():
            return  # what `make_method` refuses for it
        found = make(**options).problems(small_problem(NAMES[-1]))
    except ValueError:
        return
    except Exception as error:
        raise AssertionError(
            f"{dict(wrong)} must be refused with a ValueError, found {type(error).__name__}: {error}"
        ) from error
    expect(bool(found), f"{dict(wrong)} must be refused with a ValueError or by `problems`, found no complaint")


def _check_decisions(promises: Promises, make: Callable[[], Method], folder: Path, ordered: bool) -> None:
    complaints = {names: make().problems(small_problem(names)) for names in NAMES}
    accepted = [names for names, found in complaints.items() if not found]
    expect(bool(accepted), f"`problems` must accept some of the small problems, found {complaints[NAMES[-1]]}")
    found: dict[int, Decision] = {}
    for names in accepted:
        with promises.that(f"it decides with {len(names)} tasks"):
            found[len(names)], _ = _decided(make, small_problem(names), folder / str(len(names)))
            _check_choices(promises, make(), found[len(names)], names)
    if len(STRANGE) in found:
        with promises.that("it decides whatever tasks are called and in whatever order they come"):
            strange, _ = _decided(make, small_problem(STRANGE, [2, 0, 1]), folder / "strange")
            _check_choices(promises, make(), strange, STRANGE)
    names = accepted[-1]
    if len(names) in found:
        _check_same(promises, make, found[len(names)], names, folder, ordered)


def _check_same(
    promises: Promises, make: Callable[[], Method], first: Decision, names: Sequence[str], folder: Path, ordered: bool
) -> None:
    """What must not change a decision."""
    expected, problem = _groups(first), small_problem(names)
    with promises.that("run again on the same folder it trains nothing"):
        again, trained = _decided(make, problem, folder / str(len(names)), chance=8)  # other draws than 0 gives
        expect(not trained, f"it trained {trained} networks that the folder should have had, or trained by itself")
    with promises.that("run again on the same folder it decides the same"):
        _expect_same(expected, _groups(again))
    with promises.that("the same seeds give the same groups"):
        fresh, _ = _decided(make, problem, folder / "fresh", chance=13)
        _expect_same(expected, _groups(fresh))
        _check_independent(promises, make, first, names, folder, ordered)


def _check_independent(
    promises: Promises, make: Callable[[], Method], first: Decision, names: Sequence[str], folder: Path, ordered: bool
) -> None:
    """Told apart from chance only where nothing else changes a decision."""
    expected = _groups(first)
    if make().honest:
        with promises.that("an honest method never looks at test rows (else declare `honest = False`)"):
            for seed in OTHER_TEST_ROWS:
                other, _ = _decided(make, small_problem(names, test_seed=seed), folder / f"test-{seed}")
                _expect_same(expected, _groups(other))
    if not ordered and all(choice.shares is None for choice in first.choices.values()):
        with promises.that("the order in which tasks are listed does not matter (else pass `ordered=True`)"):
            turned = [*range(1, len(names)), 0]  # no task stays where it was
            other, _ = _decided(make, small_problem(names, turned), folder / "turned")
            _expect_same(expected, _groups(other))


class _Counting:
    """The serial executor, which counts the networks that it trains."""

    def __init__(self) -> None:
        self._inner, self.trained = make_executor("serial"), 0

    def start(self, problem: Problem, device: str) -> None:
        self._inner.start(problem, device)

    def map(self, chunks: Sequence[Chunk], advance: Callable[[int], None]) -> Iterator[tuple[Chunk, list[Packed]]]:
        self.trained += sum(len(chunk.jobs) for chunk in chunks)
        return self._inner.map(chunks, advance)

    def stop(self) -> None:
        self._inner.stop()


def _decided(make: Callable[[], Method], problem: Problem, folder: Path, *, chance: int = 0) -> tuple[Decision, int]:
    """A decision as a study asks for it, and how many networks were trained for it.

    Args:
        make: gives a fresh method.
        problem: to decide on.
        folder: of the store.
        chance: seed of the global random numbers, which must not matter.
    """
    counting = _Counting()
    executor: Executor = counting
    budgets = range(1, len(problem.names) + 1)
    with reseeded(chance), Store(folder / "run.sqlite") as store, Lab(problem, store, executor=executor) as lab:
        method = make()
        method.begin(lab, SEEDS)
        decision = method.decide(lab, list(budgets), lab.sound(SEEDS))
    expect(isinstance(decision, Decision), f"`decide` must give a Decision, found {type(decision).__name__}")
    return decision, counting.trained


def _check_choices(promises: Promises, method: Method, decision: Decision, names: Sequence[str]) -> None:
    where = f"with {len(names)} tasks"
    budgets: tuple[int | None, ...] = tuple(range(1, len(names) + 1)) if method.budgeted else (None,)
    with promises.that("there is a choice for every budget and seed, or for None and every seed if not `budgeted`"):
        wanted = {(budget, seed) for budget in budgets for seed in SEEDS}
        missing, extra = wanted - set(decision.choices), set(decision.choices) - wanted
        expect(not missing, f"{where} there is none for {_listed(missing)}")
        expect(not extra, f"{where} there is one for {_listed(extra)}, which was not asked for")
    for (budget, seed), choice in decision.choices.items():
        here = f"{where}, budget {budget} and seed {seed}"
        with promises.that("every task is served exactly once"):
            _check_served(choice, names, here)
        with promises.that("networks train tasks of the problem, and serve only what they train"):
            for group in choice.groups:
                expect(group.trains <= set(names), f"{here}, {group} trains {_listed(group.trains - set(names))}")
                expect(group.serves <= group.trains, f"{here}, {_listed(group.serves - group.trains)} is not trained")
        with promises.that("there are at most as many networks as the budget allows"):
            number = math.fsum(_shares(choice))
            expect(budget is None or number <= budget + 1e-9, f"{here}, there are {number:g}")
    with promises.that("what it tells about a decision is JSON"):
        json.dumps(dict(decision.about), allow_nan=False)
    with promises.that("costs of deciding are told by seed"):
        expect(set(decision.deciding) <= set(SEEDS), f"{where} found {_listed(decision.deciding)}")
        expect(all(isinstance(cost, Cost) for cost in decision.deciding.values()), "each must be a Cost")
    if decision.affinity is not None:
        with promises.that("a measured affinity is one of all tasks"):
            expect(isinstance(decision.affinity, Affinity), f"found {type(decision.affinity).__name__}")
            expect(set(decision.affinity.tasks) == set(names), f"{where} found {_listed(decision.affinity.tasks)}")


def _check_served(choice: Choice, names: Sequence[str], here: str) -> None:
    served: dict[str, float] = defaultdict(float)
    for group, share in zip(choice.groups, _shares(choice), strict=True):
        for task in group.serves:
            served[task] += share
    for task in names:
        number = served[task]
        expect(abs(number - 1) < 1e-9, f"{here}, {task!r} is served by {number:g} networks")


def _shares(choice: Choice) -> Sequence[float]:
    return [1.0] * len(choice.groups) if choice.shares is None else choice.shares


def _groups(decision: Decision) -> dict[tuple[int | None, int], Groups]:
    return {
        at: frozenset((g.trains, g.serves, round(s, 9)) for g, s in zip(choice.groups, _shares(choice), strict=True))
        for at, choice in decision.choices.items()
    }


def _expect_same(expected: Mapping[Any, Groups], found: Mapping[Any, Groups]) -> None:
    for (budget, seed), groups in expected.items():
        other = found.get((budget, seed), frozenset())
        sentence = f"with budget {budget} and seed {seed} it chose {_text(groups)}, and then {_text(other)}"
        expect(groups == other, sentence)


def _text(groups: Groups) -> str:
    return " ".join(sorted("{" + ", ".join(sorted(trains)) + "}" for trains, _, _ in groups)) or "nothing"


def _listed(items: Any) -> str:
    return ", ".join(sorted(map(repr, items)))
