"""How an effort is spent: on copies, other models, sets of tasks and students; and what is recommended."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from reduced_rank import World
from study_small import conflicting_pairs, narrow_encoder, small_problem

from tagalong.group import Group
from tagalong.learn import Job, Problem, Task, Trained, count_parameters, relative_step_cost
from tagalong.study import Score, make_method, open_runner
from tagalong.study.runner import Runner
from tagalong.study.search import Spending, spend
from tagalong.study.search.spending import divide_effort

BUDGETS = (1, 2, 5)
EFFORT = 18


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_runner(small_problem(), tmp_path_factory.mktemp("run"), device="cpu") as runner:
        yield runner


@pytest.fixture(scope="module")
def spending(runner: Runner) -> Spending:
    return spend(runner, BUDGETS, EFFORT, 0)


def kinds_of(found: Spending) -> list[str]:
    return [member.kind for member in found.members]


def tasks_answered(found: Spending, budget: int) -> list[str]:
    return sorted(task for group in found.plans[budget].groups for task in group.serves)


def test_every_kind_of_model_is_trained_within_the_effort(spending: Spending) -> None:
    kinds = kinds_of(spending)
    assert set(kinds) == {"copy", "set", "student", "uw", "ridge", "boosting"}
    assert kinds.count("copy") + kinds.count("set") == (EFFORT - 2) / 2, "less uw and boosting"
    assert spending.spent == pytest.approx(sum(member.effort for member in spending.members))
    assert spending.spent <= EFFORT + 2  # students may take longer than expected


def test_every_plan_answers_every_task_with_at_most_as_many_models_as_the_budget(spending: Spending) -> None:
    for budget, plan in spending.plans.items():
        assert set(tasks_answered(spending, budget)) == {"a", "b", "c"}
        assert 1 <= len(plan.groups) <= budget
        assert len({replace(group, serves=()) for group in plan.groups}) == len(plan.groups)
        assert plan.expected == plan.families[plan.family]
        assert math.isfinite(plan.doubt)
        assert plan.doubt > 0


def test_a_plan_is_at_most_the_tolerance_of_the_verdict_below_any_family_but_sets(spending: Spending) -> None:
    for plan in spending.plans.values():
        others = {name: skill for name, skill in plan.families.items() if name not in ("sets", "one for each task")}
        assert plan.expected >= max(others.values()) - 0.01


def test_students_learn_from_models_of_the_pool_in_the_store(spending: Spending, runner: Runner) -> None:
    pool = {member.result.key: member.group for member in spending.members if member.kind != "student"}
    (teachers,) = {member.group.taught.teachers for member in spending.members if member.group.taught}
    assert set(teachers) <= pool.keys()
    assert runner.store.results(teachers).keys() == set(teachers)
    assert {pool[key] for key in teachers} == set(spending.teachers)


def test_spending_again_trains_nothing_and_finds_the_same(spending: Spending, runner: Runner) -> None:
    before = len(runner.store)
    again = spend(runner, BUDGETS, EFFORT, 0)
    assert len(runner.store) == before
    assert again.plans == spending.plans


def test_without_teaching_there_are_more_copies_and_sets(spending: Spending, runner: Runner) -> None:
    found = spend(runner, [2], EFFORT, 0, teach=False)
    kinds = kinds_of(found)
    assert "student" not in kinds
    assert found.teachers == ()
    assert kinds.count("copy") + kinds.count("set") == EFFORT - 2


@pytest.mark.parametrize(("effort", "kinds"), [(1.4, "cr"), (2, "ccr"), (3, "crbs"), (4, "ccccr"), (6, "ccccrbs")])
def test_small_efforts_train_copies_first(runner: Runner, effort: float, kinds: str) -> None:
    found = spend(runner, [1, 4], effort, 0)
    assert "".join(kind[0] for kind in kinds_of(found)) == kinds
    assert len(found.plans[4].groups) <= len(kinds)
    assert set(tasks_answered(found, 1)) == {"a", "b", "c"}


def test_there_are_copies_for_every_budget_that_the_effort_pays_for() -> None:
    efforts, several = [1, 2, 3, 4.5, 6, 8, 11, 12, 16, 20, 40, 60, 200], [(1,), (2,), (1, 2, 3, 4), (3, 9), (50,)]
    for effort, budgets, passes, teach in product(efforts, several, [None, 1], [True, False]):
        copies, sets = divide_effort(effort, budgets, passes, teach=teach)
        assert copies >= max(min(budget, passes or budget) for budget in (1, *budgets) if budget <= effort)
        assert copies + sets <= math.ceil(effort)
        if teach and max(budgets) <= effort / 3:
            assert copies + sets <= 0.75 * effort, "the rest is for students"


def test_larger_networks_have_a_multiple_of_the_parameters_and_cost_as_much(runner: Runner) -> None:
    found = spend(runner, [1, 2, 3], 60, 0, passes=1)
    plain = count_parameters(runner.problem, runner.tasks)
    steps = np.mean([member.result.steps for member in found.members if member.kind == "copy"])
    wide = [member for member in found.members if member.kind == "wide"]
    assert [member.group.size for member in wide] == [2, 3]
    for member in wide:
        assert member.result.parameters / plain == pytest.approx(member.group.size, rel=0.15)
        assert member.effort == pytest.approx(member.group.size * member.result.steps / steps)
    assert wide[0].result.job == runner.job(runner.tasks, 0, width=make_method("mtl-big2").width(runner.problem))
    for budget, plan in found.plans.items():
        assert 1 <= sum(group.size for group in plan.groups) <= budget
        assert tasks_answered(found, budget) == ["a", "b", "c"], "by one network each"
        assert ("2 times the size" in plan.families) == (budget > 1)


def test_networks_that_cannot_be_larger_are_not(tmp_path: Path) -> None:
    with open_runner(conflicting_pairs(), tmp_path, device="cpu") as runner:
        found = spend(replace_encoder(runner), [2], 30, 0, teach=False)
    assert set(kinds_of(found)) == {"copy", "set", "uw", "ridge", "boosting"}


def replace_encoder(runner: Runner) -> Runner:
    fixed = torch.nn.Linear(runner.problem.train.inputs.shape[1], 1)
    return Runner(replace(runner.problem, encoder=fixed.to(runner.problem.train.inputs.dtype)), runner.store)


def test_a_larger_network_and_larger_students_are_used_where_plain_ones_are_too_narrow(tmp_path: Path) -> None:
    with open_runner(conflicting_pairs(narrow_encoder, light=0.1), tmp_path, device="cpu") as runner:
        found = spend(own_networks(runner), [1, 2], 40, 0, passes=1)
    assert {group.size for group in found.plans[1].groups} == {1}
    assert found.plans[2].family == "2 times the size"
    assert found.plans[2].expected > found.plans[2].families["copies"] + 0.05
    students = [member.group for member in found.members if member.kind == "student"]
    assert {student.size for student in students} == {1, 2}


def own_networks(runner: Runner) -> Runner:
    """Returns a runner for the same problem, whose inputs do not look like a table."""
    problem = runner.problem
    own = {"loss": square, "average": "outputs", "soft_targets": True}
    return Runner(replace(problem, tasks=tuple(replace(task, **own) for task in problem.tasks)), runner.store)


def square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.reshape(targets.shape) - targets) ** 2


def test_inputs_that_cannot_be_mixed_are_not(tmp_path: Path) -> None:
    def encoder(width: float = 1.0) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(2, 3), torch.nn.Flatten()).double()

    problem = small_problem()
    words = {part: replace(rows, inputs=(rows.inputs > 0).long()) for part, rows in problem.splits.items()}
    with open_runner(replace(problem, encoder=encoder, **words), tmp_path, device="cpu") as runner:
        found = spend(runner, [1], 12, 0)
    assert {member.group.taught.mixtures for member in found.members if member.group.taught} == {0}


def test_tasks_that_cannot_be_taught_have_no_students(tmp_path: Path) -> None:
    problem = small_problem()
    tasks = [Task(name, kind="regression", loss=square, average="outputs") for name in problem.names]
    with open_runner(replace(problem, tasks=tuple(tasks)), tmp_path, device="cpu") as runner:
        found = spend(runner, [2], 4, 0)
    assert kinds_of(found) == ["copy"] * 4


class DivergingWorld(World):
    """Networks with some seeds, or for some tasks, diverge."""

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        return {
            job: self._lost(one) if self.loses(job) else one for job, one in super().find_results(jobs, what).items()
        }

    def loses(self, job: Job) -> bool:
        return (job.seed != 0 and job.seed % 3 == 0) or job.tasks == ("a",)

    def _lost(self, result: Trained) -> Trained:
        return replace(result, val=dict.fromkeys(result.val, Score(math.nan, math.nan)), halves={}, best_epoch=-1)


def test_diverged_networks_count_but_are_never_recommended() -> None:
    world = DivergingWorld("conflict", 0, tasks=("a", "b", "c"))
    found = spend(world, [2, 3], 16, 0)
    assert found.lost
    assert all(world.loses(member.result.job) for member in found.lost)
    assert not any(world.loses(member.result.job) for member in found.members)
    assert found.spent == len(found.members) + len(found.lost) <= 16


def test_a_single_task_is_answered_by_copies() -> None:
    found = spend(World("twins", 0, tasks=("a",)), [1, 3], 10, 0)
    assert set(kinds_of(found)) == {"copy"}
    assert [len(found.plans[budget].groups) for budget in (1, 3)] == [1, 3]
    assert found.plans[3].expected > 0


@pytest.mark.parametrize("passes", [None, 1])
def test_tasks_that_conflict_are_answered_by_different_networks(passes: int | None) -> None:
    plan = spend(World("conflict", 0, ("a", "b", "c", "d")), [2], 20, 0, passes=passes).plans[2]
    assert plan.family == "sets"
    assert {group.serves for group in plan.groups} == {frozenset("ab"), frozenset("cd")}
    assert plan.expected > 0.3


@pytest.mark.parametrize("kind", ["shuffled", "independent"])
def test_copies_are_chosen_where_sets_of_tasks_are_not_better(kind: str) -> None:
    plans = [spend(World(kind, seed, ("a", "b", "c", "d")), [2], 16, 0).plans[2] for seed in range(3)]
    assert [plan.family for plan in plans] == ["copies"] * 3
    assert all(len(group.trains) == 4 for plan in plans for group in plan.groups)
    assert np.mean([plan.expected for plan in plans]) > -0.01


@pytest.fixture
def few_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """TabM networks with 4 members cost about 4 training runs."""
    monkeypatch.setattr("tagalong.learn.table_networks.MEMBERS", 4)


def table(epochs: int = 2) -> Problem:
    """Three regression tasks with the default network, which learns less in a few epochs than a TabM network."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(300, 4))
    targets = np.stack([np.sin(2 * inputs[:, 0]), inputs[:, 0] * inputs[:, 1], inputs[:, 2]], 1)
    targets = targets + 0.1 * draw.normal(size=targets.shape)
    names = [Task(name, kind="regression") for name in "abc"]
    problem = Problem.from_arrays(inputs, targets, names, split=(0.5, 0.3, 0.2))
    return replace(problem, recipe=replace(problem.recipe, epochs=epochs))


@pytest.mark.usefixtures("few_members")
@pytest.mark.parametrize(("effort", "kinds"), [(9, {"ridge", "boosting"}), (24, {"ridge", "boosting", "tabm", "uw"})])
def test_models_for_tables_cost_what_they_multiply_and_may_be_recommended(
    tmp_path: Path, effort: int, kinds: set[str]
) -> None:
    problem = table()
    with open_runner(problem, tmp_path, device="cpu") as runner:
        found = spend(runner, [1, 2, 3], effort, 0)
    others = {member.kind: member for member in found.members if member.kind not in ("copy", "set", "student", "wide")}
    assert others.keys() == kinds
    steps = np.mean([member.result.steps for member in found.members if member.kind == "copy"])
    for kind in kinds - {"uw"}:
        assert others[kind].group == Group("abc", "abc", network=kind)
    assert (others["ridge"].effort, others["boosting"].effort) == (0, 1)
    if "tabm" in kinds:
        expected = relative_step_cost(problem, "tabm") * others["tabm"].result.steps / steps
        assert others["tabm"].effort == pytest.approx(expected)
    assert found.spent == pytest.approx(sum(member.effort for member in found.members))
    for budget, plan in found.plans.items():
        assert plan.families["mixed"] > plan.families["copies"] + 0.1
        assert len(plan.groups) <= budget
        assert {group.network for group in plan.groups} & {"boosting", "tabm"}


@pytest.mark.usefixtures("few_members")
def test_diverged_tabm_networks_count_what_they_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.learn.table_networks.TABM_RATE", 1e30)
    problem = table(epochs=1)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        found = spend(runner, [1], 20, 0, teach=False)
    (lost,) = found.lost
    assert lost.kind == "tabm"
    assert lost.effort == relative_step_cost(problem, "tabm")
