"""Our own methods pass the checks; for broken ones the checks say what is wrong."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tagalong.errors import InvalidInput
from tagalong.files import TEMPORARY_FOLDER
from tagalong.group import Group
from tagalong.learn import Job
from tagalong.study import Choice, Decision, Method, Oracle, make_method, method_names
from tagalong.study.methods import Stl
from tagalong.testing import FailedChecks, check_method

pytestmark = pytest.mark.slow

OWN = [name for name in method_names() if type(make_method(name)).__module__.startswith("tagalong.")]

# The effort is enough for copies, sets of tasks and students. The order of tasks determines the order in which teachers
# are averaged, and training amplifies the rounding errors of their answers, so students may differ.
OPTIONS: dict[str, dict[str, Any]] = {"auto": {"effort": 16, "ordered": True}, "boosting": {"max_trees": 60}}


@pytest.mark.parametrize("name", [*OWN, "tag+pcgrad", "hoa+uw", "mtl-wide2", "mtl-big2", "mgda"])
def test_our_methods_pass_the_checks(name: str) -> None:
    check_method(name, **OPTIONS.get(name, {}))


def test_auto_does_not_depend_on_the_order_of_tasks_unless_networks_are_taught() -> None:
    check_method("auto", effort=16, teach=False)


def test_options_reach_the_method_and_impossible_ones_are_rejected() -> None:
    check_method("optimal", impossible=[{"max_size": 0}, {"max_tasks": "many"}], max_size=2)
    check_method("random", impossible=[{"samples": 0}, {"exact": True}], overlap=True, samples=2)
    with pytest.raises(FailedChecks, match=r"\{'samples': 3\} must be rejected .* but was accepted"):
        check_method("random", impossible=[{"samples": 3}])


def test_temporary_folders_name_their_owner_so_that_leftovers_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *arguments: made.append(make(*arguments)) or made[-1])
    check_method("stl")
    assert made
    assert all(TEMPORARY_FOLDER.fullmatch(Path(folder).name) for folder in made)


class Plain(Method):
    """The first two tasks share a network, all others have their own; each class below breaks it in one way."""

    name = "plain"
    budgeted = False

    def groups(self, names: tuple[str, ...]) -> list[Group]:
        together = sorted(names)[:2]
        return [Group(together, together), *(Group({task}, {task}) for task in names if task not in together)]

    def decide(self, backend: Any, budgets: Any, seeds: Any) -> Decision:
        return Decision.pooled({None: Choice(tuple(self.groups(backend.tasks)))}, seeds)


class ServesTwice(Plain):
    def groups(self, names):
        return [*super().groups(names), Group(names, {names[0]})]


class LeavesOut(Plain):
    def groups(self, names):
        return [group for group in super().groups(names) if "one" not in group.serves]


class SpendsTooMuch(Plain):
    budgeted = True

    def decide(self, backend, budgets, seeds):
        return Decision.pooled({budget: Choice(tuple(self.groups(backend.tasks))) for budget in budgets}, seeds)


class ForgetsABudget(SpendsTooMuch):
    def decide(self, backend, budgets, seeds):
        return super().decide(backend, budgets[-1:], seeds)


class Peeks(Oracle):
    name = "peeks"
    honest = True


class ReadsTestLabels(Plain):
    def decide(self, backend, budgets, seeds):
        def mean(task: str) -> float:
            return float(backend.problem.test.targets[task].nanmean())

        names = sorted(backend.tasks, key=mean)
        groups = [Group(names[:1], names[:1]), Group(names[1:], names[1:])]
        return Decision.pooled({None: Choice(tuple(groups))}, seeds)


def with_helpers(names: tuple[str, ...], drawn: np.ndarray) -> list[Group]:
    """Returns one network per task, which also trains the tasks drawn for it."""
    return [
        Group([task, *(other for other, helps in zip(names, row, strict=True) if helps)], [task])
        for task, row in zip(names, drawn, strict=True)
    ]


class DrawsWithoutSeed(Plain):
    def groups(self, names):
        return with_helpers(names, np.random.default_rng().integers(0, 2, size=(len(names), len(names))))


class DrawsFromGlobalState(Plain):
    def groups(self, names):
        return with_helpers(names, np.random.randint(0, 2, size=(len(names), len(names))))  # noqa: NPY002


class InOrder(Plain):
    def groups(self, names):
        half = len(names) // 2
        return [Group(part, part) for part in (names[:half], names[half:])]


class FirstAlone(Plain):
    def groups(self, names):
        return [Group(part, part) for part in (names[:1], names[1:])]


class ShufflesByChance(Plain):
    def groups(self, names):
        shuffled = random.sample(names, len(names))
        return [Group(part, part) for part in (shuffled[:1], shuffled[1:])]


class TrainsAgain(Plain):
    def decide(self, backend, budgets, seeds):
        backend.networks([Job(backend.problem.names[:1], int(np.random.default_rng().integers(2**40)))])
        return super().decide(backend, budgets, seeds)


class AboutHasASet(Plain):
    def decide(self, backend, budgets, seeds):
        decision = super().decide(backend, budgets, seeds)
        return Decision(decision.choices, about={"tried": {"one"}})


class AboutHasNan(Plain):
    def decide(self, backend, budgets, seeds):
        return Decision(super().decide(backend, budgets, seeds).choices, about={"value": float("nan")})


class TakesAnything(Plain):
    def __init__(self, **options: Any) -> None:
        self.options = options


class NeedsThree(Plain):
    def decide(self, backend, budgets, seeds):
        backend.tasks[2]
        return super().decide(backend, budgets, seeds)


class TrainsOthers(Plain):
    def groups(self, names):
        return [Group({*group.trains, "six"}, group.serves) for group in super().groups(names)]


class RefusesAll(Plain):
    def problems(self, tasks, problem=None):
        return [InvalidInput("tasks", "must be another")]


class NotAMethod:
    name = "nothing"


def test_a_user_defined_method_passes_the_checks() -> None:
    check_method(Plain)
    check_method(Plain())
    check_method(lambda: Stl())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (ServesTwice, "every task is served exactly once: with 2 tasks, budget None and seed 0, 'one' is served by 2"),
        (LeavesOut, "every task is served exactly once: with 2 tasks, budget None and seed 0, 'one' is served by 0"),
        (SpendsTooMuch, r"no more networks than the budget allows: .*budget 1 and seed 0, there are 2"),
        (ForgetsABudget, r"a choice for every budget and seed.*: with 2 tasks there is none for \(1, 0\), \(1, 1\)"),
        (Peeks, r"never looks at test rows .*: with budget \d and seed \d it first chose \{.*\}, then \{"),
        (ReadsTestLabels, r"never looks at test rows .*: with budget None and seed 0 it first chose \{.*\}, then \{"),
        (DrawsWithoutSeed, "the same seeds give the same groups: with budget None and seed 0 it first chose"),
        (DrawsFromGlobalState, "the same seeds give the same groups: with budget None and seed 0 it first chose"),
        (FirstAlone, r"order in which tasks are listed does not matter"),
        (ShufflesByChance, r"makes the same decision|the same groups"),
        (InOrder, r"order in which tasks are listed does not matter .*ordered=True.*: with budget None"),
        (TrainsAgain, "a second run in the same folder trains nothing: it trained 1 networks"),
        (AboutHasASet, "`Decision.about` is valid JSON: raised TypeError"),
        (AboutHasNan, "`Decision.about` is valid JSON: raised ValueError: Out of range float"),
        (TakesAnything, r"\{'no_such_option': 1\} must be rejected with a ValueError or by `problems`"),
        (NeedsThree, "it decides with 2 tasks: raised IndexError"),
        (TrainsOthers, "networks train only tasks of the problem.*: .* trains 'six'"),
        (RefusesAll, "`problems` must accept one of the small problems, found .*must be another"),
        (NotAMethod, "the factory must return a Method, found NotAMethod"),
    ],
)
def test_the_error_for_a_broken_method_says_what_is_wrong(method: Any, message: str) -> None:
    with pytest.raises(FailedChecks, match=message):
        check_method(method)


def test_test_rows_and_the_order_of_tasks_may_matter_if_declared() -> None:
    class DeclaresIt(ReadsTestLabels):
        honest = False

    check_method(DeclaresIt)
    check_method(InOrder, ordered=True)


def test_one_error_lists_all_failed_checks() -> None:
    class Both(ServesTwice, TakesAnything):
        name = "both"

        def decide(self, backend, budgets, seeds):
            return Decision(super().decide(backend, budgets, seeds).choices, about={"tried": {"one"}})

    with pytest.raises(FailedChecks) as caught:
        check_method(Both)
    assert isinstance(caught.value, AssertionError)
    first, *others = str(caught.value).splitlines()
    assert first == f"method 'both' fails {len(caught.value.failures)} checks:"
    assert others == [f"- {message}" for message in caught.value.failures]
    assert {message.partition(":")[0] for message in caught.value.failures} == {
        "every task is served exactly once",
        "`Decision.about` is valid JSON",
        "impossible options are rejected",
        "the order in which tasks are listed does not matter (or pass `ordered=True`)",
    }
