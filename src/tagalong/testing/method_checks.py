"""Checks that a method does what `tagalong.study.Method` specifies."""

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
from tagalong.files import owner_mark
from tagalong.learn import Problem
from tagalong.study import (
    Choice,
    Chunk,
    Cost,
    Decision,
    Executor,
    Method,
    NetworkResult,
    Store,
    TrainingBackend,
    make_executor,
    make_method,
)

from .checks import Checks, display_name, expect, temporary_seed
from .small_problem import small_problem

SEEDS = (0, 1)
TASK_NAMES = (("one", "two"), ("one", "two", "three"), ("one", "two", "three", "four", "five"))
UNUSUAL_NAMES = ("b.c", "x+y", "ä, ö")
OTHER_TEST_SEED = 3
Groups = frozenset[tuple[frozenset[str], frozenset[str], int, float]]


def check_method(
    method: str | Method | Callable[..., Method],
    *,
    impossible: Sequence[Mapping[str, Any]] = (),
    ordered: bool = False,
    **options: Any,
) -> None:
    """Runs a method on small problems with 2, 3 and 5 tasks, and checks its decisions.

    Every task must be served exactly once, with no more networks than the budget allows. The same seeds must give the
    same groups, regardless of the global random state, the test rows and the order of the tasks. A second run in the
    same folder must not train anything. `Decision.about` must be valid JSON. Unknown options must be rejected. Problems
    that the method's `problems` rejects are skipped.

    Args:
        method: a name known to `make_method`, a function that creates the method (such as its class), or a method.
        impossible: sets of options that must each be rejected, with a ValueError or by `problems`.
        ordered: whether decisions may depend on the order in which a problem lists its tasks, e.g. because the method
            draws random numbers task by task. This is always allowed for decisions that average over many groupings
            (`Choice.shares`).
        **options: options for the method.

    Raises:
        FailedChecks: If at least one check fails; the error message lists all failed checks.

    Example:
        >>> check_method("stl")
        >>> check_method("optimal", impossible=[{"max_size": 0}])
    """
    make = _method_factory(method)
    checks = Checks(f"method {display_name(method)!r}")
    with checks.check("it can be created and its attributes are valid"):
        _check_attributes(make(**options))
        with TemporaryDirectory(prefix=f"tagalong-{owner_mark()}-") as folder:
            _check_decisions(checks, partial(make, **options), Path(folder), ordered)
    if not isinstance(method, Method):
        for invalid in ({"no_such_option": 1}, *impossible):
            with checks.check("impossible options are rejected"):
                _check_rejected(make, {**options, **invalid}, invalid)
    checks.raise_failures()


def _method_factory(method: str | Method | Callable[..., Method]) -> Callable[..., Method]:
    if isinstance(method, str):
        return lambda **options: make_method(method, {method: options} if options else None)
    if isinstance(method, Method):
        return lambda: copy.deepcopy(method)
    return method


def _check_attributes(method: Any) -> None:
    expect(isinstance(method, Method), f"the factory must return a Method, found {type(method).__name__}")
    expect(
        isinstance(method.name, str) and bool(method.name), f"`name` must be a non-empty string, found {method.name!r}"
    )
    for flag in ("budgeted", "honest"):
        expect(isinstance(getattr(method, flag), bool), f"`{flag}` must be True or False")


def _check_rejected(make: Callable[..., Method], options: Mapping[str, Any], invalid: Mapping[str, Any]) -> None:
    """Checks that an option is rejected by the signature, the factory or `problems`, as in a study."""
    try:
        allowed = inspect.signature(make).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in allowed.values()) and not options.keys() <= allowed.keys():
            return  # `make_method` rejects it
        found = make(**options).problems(TASK_NAMES[-1], small_problem(TASK_NAMES[-1]))
    except ValueError:
        return
    except Exception as error:
        raise AssertionError(
            f"{dict(invalid)} must be rejected with a ValueError, found {type(error).__name__}: {error}"
        ) from error
    expect(bool(found), f"{dict(invalid)} must be rejected with a ValueError or by `problems`, but was accepted")


def _check_decisions(checks: Checks, make: Callable[[], Method], folder: Path, ordered: bool) -> None:
    complaints = {names: make().problems(names, small_problem(names)) for names in TASK_NAMES}
    accepted = [names for names, found in complaints.items() if not found]
    expect(
        bool(accepted),
        f"`problems` must accept one of the small problems, found {'; '.join(map(str, complaints[TASK_NAMES[-1]]))}",
    )
    found: dict[int, Decision] = {}
    for names in accepted:
        with checks.check(f"it decides with {len(names)} tasks"):
            found[len(names)], _ = _run_method(make, small_problem(names), folder / str(len(names)))
            _check_decision(checks, make(), found[len(names)], names)
    if len(UNUSUAL_NAMES) in found:
        with checks.check("it decides with unusual task names, in any order"):
            unusual, _ = _run_method(make, small_problem(UNUSUAL_NAMES, [2, 0, 1]), folder / "unusual")
            _check_decision(checks, make(), unusual, UNUSUAL_NAMES)
    names = accepted[-1]
    if len(names) in found:
        _check_reproducible(checks, make, found[len(names)], names, folder, ordered)


def _check_reproducible(
    checks: Checks, make: Callable[[], Method], first: Decision, names: Sequence[str], folder: Path, ordered: bool
) -> None:
    """Checks that a second run, in the same folder or a new one, makes the same decision."""
    expected, problem = _comparable_groups(first), small_problem(names)
    with checks.check("a second run in the same folder trains nothing"):
        again, trained = _run_method(
            make, problem, folder / str(len(names)), global_seed=8
        )  # draws other numbers than seed 0
        expect(not trained, f"it trained {trained} networks that should have been loaded from the folder")
    with checks.check("a second run in the same folder makes the same decision"):
        _expect_same(expected, _comparable_groups(again))
    with checks.check("the same seeds give the same groups"):
        fresh, _ = _run_method(make, problem, folder / "fresh", global_seed=13)
        _expect_same(expected, _comparable_groups(fresh))
        _check_independent(checks, make, first, names, folder, ordered)


def _check_independent(
    checks: Checks, make: Callable[[], Method], first: Decision, names: Sequence[str], folder: Path, ordered: bool
) -> None:
    """Checks that test rows and the order of tasks do not affect a method, provided that it is reproducible."""
    expected = _comparable_groups(first)
    if make().honest:
        with checks.check("an honest method never looks at test rows (or set `honest = False`)"):
            other, _ = _run_method(make, small_problem(names, test_seed=OTHER_TEST_SEED), folder / "other-test-rows")
            _expect_same(expected, _comparable_groups(other))
    if not ordered and all(choice.shares is None for choice in first.choices.values()):
        with checks.check("the order in which tasks are listed does not matter (or pass `ordered=True`)"):
            rotated = [*range(1, len(names)), 0]  # moves every task
            other, _ = _run_method(make, small_problem(names, rotated), folder / "rotated")
            _expect_same(expected, _comparable_groups(other))


class _CountingExecutor:
    """A serial executor that counts the networks it trains."""

    def __init__(self) -> None:
        self._inner, self.trained = make_executor("serial"), 0

    def start(self, problem: Problem, device: str) -> None:
        self._inner.start(problem, device)

    def map(
        self, chunks: Sequence[Chunk], advance: Callable[[int], None]
    ) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        self.trained += sum(len(chunk.jobs) for chunk in chunks)
        return self._inner.map(chunks, advance)

    def stop(self) -> None:
        self._inner.stop()


def _run_method(
    make: Callable[[], Method], problem: Problem, folder: Path, *, global_seed: int = 0
) -> tuple[Decision, int]:
    """Runs a method as a study would, and returns its decision and the number of trained networks.

    Args:
        make: a function that creates a new method.
        problem: the problem to make a decision for.
        folder: the folder of the store.
        global_seed: the seed for the global random number generators, which must not matter.
    """
    counting = _CountingExecutor()
    executor: Executor = counting
    budgets = range(1, len(problem.names) + 1)
    with (
        temporary_seed(global_seed),
        Store(folder / "run.sqlite") as store,
        TrainingBackend(problem, store, executor=executor) as backend,
    ):
        method = make()
        method.begin(backend, SEEDS)
        decision = method.decide(backend, list(budgets), backend.converged_seeds(SEEDS))
    expect(isinstance(decision, Decision), f"`decide` must return a Decision, found {type(decision).__name__}")
    return decision, counting.trained


def _check_decision(checks: Checks, method: Method, decision: Decision, names: Sequence[str]) -> None:
    where = f"with {len(names)} tasks"
    budgets: tuple[int | None, ...] = tuple(range(1, len(names) + 1)) if method.budgeted else (None,)
    with checks.check("there is a choice for every budget and seed (for None and every seed if not `budgeted`)"):
        wanted = {(budget, seed) for budget in budgets for seed in SEEDS}
        missing, extra = wanted - set(decision.choices), set(decision.choices) - wanted
        expect(not missing, f"{where} there is none for {_format_items(missing)}")
        expect(not extra, f"{where} there is one for {_format_items(extra)}, which was not requested")
    for (budget, seed), choice in decision.choices.items():
        context = f"{where}, budget {budget} and seed {seed}"
        if method.averages:
            with checks.check("every task is served, and no network is averaged with itself"):
                _check_averaged(choice, names, context)
        else:
            with checks.check("every task is served exactly once"):
                _check_served(choice, names, context)
        with checks.check("networks train only tasks of the problem, and serve only tasks that they train"):
            for group in choice.groups:
                expect(
                    group.trains <= set(names), f"{context}, {group} trains {_format_items(group.trains - set(names))}"
                )
                expect(
                    group.serves <= group.trains,
                    f"{context}, {_format_items(group.serves - group.trains)} is not trained",
                )
        with checks.check("there are no more networks than the budget allows"):
            number = math.fsum(share * g.size for g, share in zip(choice.groups, _shares(choice), strict=True))
            expect(budget is None or number <= budget + 1e-9, f"{context}, there are {number:g}")
    with checks.check("`Decision.about` is valid JSON"):
        json.dumps(dict(decision.about), allow_nan=False)
    with checks.check("`Decision.deciding` has a cost for each seed"):
        expect(set(decision.deciding) <= set(SEEDS), f"{where} found {_format_items(decision.deciding)}")
        expect(all(isinstance(cost, Cost) for cost in decision.deciding.values()), "each must be a Cost")
    if decision.affinity is not None:
        with checks.check("`Decision.affinity` covers all tasks"):
            expect(isinstance(decision.affinity, Affinity), f"found {type(decision.affinity).__name__}")
            expect(
                set(decision.affinity.tasks) == set(names), f"{where} found {_format_items(decision.affinity.tasks)}"
            )


def _check_served(choice: Choice, names: Sequence[str], context: str) -> None:
    if choice.scores is not None:  # predictions are made without networks
        wrong = {part for part in ("val", "test") if set(choice.scores[part]) != set(names)}
        expect(not wrong, f"{context}, not every task has a score on {_format_items(wrong)} rows")
        return
    served: dict[str, float] = defaultdict(float)
    for group, share in zip(choice.groups, _shares(choice), strict=True):
        for task in group.serves:
            served[task] += share
    for task in names:
        number = served[task]
        expect(abs(number - 1) < 1e-9, f"{context}, {task!r} is served by {number:g} networks")


def _check_averaged(choice: Choice, names: Sequence[str], context: str) -> None:
    for task in names:
        members = [(g.trains, g.copy, g.taught, g.size, g.network) for g in choice.groups if task in g.serves]
        expect(bool(members), f"{context}, {task!r} is served by no network")
        expect(len(set(members)) == len(members), f"{context}, {task!r} is served twice by the same network")


def _shares(choice: Choice) -> Sequence[float]:
    return [1.0] * len(choice.groups) if choice.shares is None else choice.shares


def _comparable_groups(decision: Decision) -> dict[tuple[int | None, int], Groups]:
    return {
        at: frozenset(
            (g.trains, g.serves, g.copy, round(s, 9)) for g, s in zip(choice.groups, _shares(choice), strict=True)
        )
        for at, choice in decision.choices.items()
    }


def _expect_same(expected: Mapping[Any, Groups], found: Mapping[Any, Groups]) -> None:
    for (budget, seed), groups in expected.items():
        other = found.get((budget, seed), frozenset())
        choices = f"first chose {_format_groups(groups)}, then {_format_groups(other)}"
        expect(groups == other, f"with budget {budget} and seed {seed} it {choices}")


def _format_groups(groups: Groups) -> str:
    return " ".join(sorted("{" + ", ".join(sorted(trains)) + "}" for trains, *_ in groups)) or "nothing"


def _format_items(items: Any) -> str:
    return ", ".join(sorted(map(repr, items)))
