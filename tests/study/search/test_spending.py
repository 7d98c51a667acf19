"""How an effort is spent: on copies, networks for sets of tasks, and students."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reduced_rank import World
from study_small import conflicting_pairs, narrow_encoder, small_problem

from tagalong.group import Group
from tagalong.learn import Job, Problem, Task, Trained, count_parameters, relative_step_cost
from tagalong.study import Score, make_method, open_runner
from tagalong.study.runner import Runner
from tagalong.study.search import Spending, SpendingSettings, spend
from tagalong.study.search.shares import divide_effort
from tagalong.study.search.spending_result import Member

BUDGETS = (1, 2, 5)
EFFORT = 18


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_runner(small_problem(), tmp_path_factory.mktemp("run"), device="cpu") as runner:
        yield runner


@pytest.fixture(scope="module")
def spending(runner: Runner) -> Spending:
    return spend(runner, BUDGETS, EFFORT, 0)


def tasks_answered(found: Spending, budget: int) -> list[str]:
    return sorted(task for group in found.plans[budget].groups for task in group.serves)


def test_every_kind_of_network_is_trained_within_the_effort(spending: Spending) -> None:
    members = [member for step in spending.rounds for member in step.members]
    kinds = [member.kind for member in members]
    assert set(kinds) == {"copy", "set", "student"}
    assert kinds.count("copy") + kinds.count("set") == EFFORT / 2
    assert spending.spent == pytest.approx(sum(member.effort for member in members))
    assert spending.spent <= EFFORT + 2  # students may take longer than expected
    assert [step.spent for step in spending.rounds] == sorted(step.spent for step in spending.rounds)
    assert spending.rounds[-1].best == {budget: plan.expected for budget, plan in spending.plans.items()}


def test_every_plan_answers_every_task_with_at_most_as_many_networks_as_the_budget(spending: Spending) -> None:
    for budget, plan in spending.plans.items():
        assert set(tasks_answered(spending, budget)) == {"a", "b", "c"}
        assert 1 <= len(plan.groups) <= budget
        assert len({(group.trains, group.copy, group.taught) for group in plan.groups}) == len(plan.groups)
        assert plan.expected == plan.alternatives[plan.pool]
        assert math.isfinite(plan.doubt)
        assert plan.doubt > 0


def test_students_learn_from_networks_of_the_pool_in_the_store(spending: Spending, runner: Runner) -> None:
    pool = {member.result.key: member.group for member in members_of(spending) if member.kind != "student"}
    (teachers,) = {member.group.taught.teachers for member in members_of(spending) if member.kind == "student"}
    assert set(teachers) <= pool.keys()
    assert runner.store.results(teachers).keys() == set(teachers)
    assert {pool[key] for key in teachers} == set(spending.teachers)


def test_spending_again_trains_nothing_and_finds_the_same(spending: Spending, runner: Runner) -> None:
    before = len(runner.store)
    again = spend(runner, BUDGETS, EFFORT, 0)
    assert len(runner.store) == before
    assert again.plans == spending.plans


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        (SpendingSettings(teach=False), {"copy", "set"}),
        (SpendingSettings(sets=False, mixtures=False), {"copy", "student"}),
        (SpendingSettings(sets=False, teach=False), {"copy"}),
    ],
)
def test_what_the_settings_exclude_is_not_trained(runner: Runner, settings: SpendingSettings, kinds: set[str]) -> None:
    found = spend(runner, [2], 16, 0, settings=settings)
    members = [member for step in found.rounds for member in step.members]
    assert {member.kind for member in members} == kinds
    assert not any(member.group.taught and member.group.taught.mixtures for member in members)
    assert bool(found.teachers) == ("student" in kinds)


@pytest.mark.parametrize(("effort", "kinds"), [(1.4, "c"), (2, "cc"), (3, "ccs"), (4, "cccc"), (6, "ccccss")])
def test_small_efforts_train_copies_first(runner: Runner, effort: float, kinds: str) -> None:
    found = spend(runner, [1, 4], effort, 0)
    assert "".join(member.kind[0] for step in found.rounds for member in step.members) == kinds
    assert len(found.plans[4].groups) <= len(kinds)
    assert set(tasks_answered(found, 1)) == {"a", "b", "c"}


def test_there_are_copies_for_every_budget_that_the_effort_pays_for() -> None:
    efforts, several = [1, 2, 3, 4.5, 6, 8, 11, 12, 16, 20, 40, 60, 200], [(1,), (2,), (1, 2, 3, 4), (3, 9), (50,)]
    for effort, budgets, passes, teach in product(efforts, several, [None, 1, 2], [True, False]):
        shares = divide_effort(effort, budgets, passes, teach=teach)
        assert shares.copies >= max(min(budget, passes or budget) for budget in (1, *budgets) if budget <= effort)
        assert shares.copies + shares.sets + sum(shares.wide) <= math.ceil(effort)
        assert set(shares.wide) <= {budget for budget in budgets if budget > 1}
        assert sum(shares.wide) <= effort / 4
        assert shares.copies + shares.sets >= 8 or effort < 16, "enough for a search"
        if teach and max(budgets) <= effort / 3:
            assert shares.copies + shares.sets + sum(shares.wide) <= 0.75 * effort, "the rest is for students"


def test_wider_networks_leave_enough_for_a_search() -> None:
    assert divide_effort(16, [1, 2, 3], 1).wide == ()
    assert divide_effort(20, [1, 2, 3], 1).wide == (2,)
    assert divide_effort(20, [1, 2, 3], 1, sets=False).wide == (2, 3)
    assert divide_effort(200, [2]).wide == (2,) * 4, "no more than a few"
    assert divide_effort(200, [2], wide=False).wide == divide_effort(200, [1]).wide == ()


def members_of(found: Spending) -> list[Member]:
    return [member for step in found.rounds for member in step.members]


@pytest.fixture(scope="module")
def one_pass(runner: Runner) -> Spending:
    return spend(runner, [1, 2, 3], 40, 0, settings=SpendingSettings(passes=1))


def test_wider_networks_have_a_multiple_of_the_parameters_and_cost_as_much(one_pass: Spending, runner: Runner) -> None:
    plain = count_parameters(runner.problem, runner.tasks)
    steps = np.mean([member.result.steps for member in members_of(one_pass) if member.kind == "copy"])
    wide = [member for member in members_of(one_pass) if member.kind == "wide"]
    assert [member.group.size for member in wide] == list(divide_effort(40, [1, 2, 3], 1).wide) == [2, 3, 2, 3]
    for member in wide:
        assert member.result.parameters / plain == pytest.approx(member.group.size, rel=0.15)
        assert member.effort == pytest.approx(member.group.size * member.result.steps / steps)
    assert one_pass.spent == pytest.approx(sum(member.effort for member in members_of(one_pass)))
    assert one_pass.no_wider is None


def test_the_networks_of_a_plan_are_together_as_large_as_the_budget_at_most(one_pass: Spending) -> None:
    for budget, plan in one_pass.plans.items():
        assert 1 <= sum(group.size for group in plan.groups) <= budget
        assert tasks_answered(one_pass, budget) == ["a", "b", "c"], "by one network each"
        assert ("wide" in plan.alternatives) == (budget > 1)


def test_the_first_wider_network_is_that_of_the_larger_baseline(runner: Runner, one_pass: Spending) -> None:
    wide = next(member for member in members_of(one_pass) if member.kind == "wide")
    width = make_method("mtl-big2").width(runner.problem)
    assert wide.result.job == runner.job(runner.tasks, 0, width=width)


def test_networks_that_cannot_be_wider_are_not_and_the_reason_is_known(tmp_path: Path) -> None:
    problem = replace(small_problem(), encoder=torch.nn.Linear(4, 3).double())
    settings = SpendingSettings(passes=1, sets=False, teach=False)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        found = spend(runner, [2], 8, 0, settings=settings)
    assert [member.kind for member in members_of(found)] == ["copy"] * 8
    assert found.no_wider is not None
    assert "`width`" in found.no_wider
    elsewhere = spend(World("twins", 0, ("a", "b")), [2], 8, 0, settings=settings)
    assert elsewhere.no_wider == "networks are trained elsewhere"


def test_a_wider_network_and_wider_students_are_used_where_plain_ones_are_too_narrow(tmp_path: Path) -> None:
    settings = SpendingSettings(passes=1, sets=False, mixtures=False)
    with open_runner(conflicting_pairs(narrow_encoder, light=0.1), tmp_path, device="cpu") as runner:
        found = spend(runner, [1, 2], 20, 0, settings=settings)
    (group,) = found.plans[2].groups
    assert (found.plans[2].pool, group.size, group.serves) == ("wide", 2, frozenset("abcd"))
    assert found.plans[2].expected < -0.4
    assert [group.size for group in found.plans[1].groups] == [1]
    students = [member.group for member in members_of(found) if member.kind == "student"]
    assert {student.size for student in students} == {1, 2}
    assert any(teacher.size == 2 for teacher in found.teachers)


def test_students_learn_the_sets_of_tasks_that_one_network_answers_best(tmp_path: Path) -> None:
    with open_runner(conflicting_pairs(light=0.1), tmp_path, device="cpu") as runner:
        found = spend(runner, [1, 2], 40, 0, settings=SpendingSettings(mixtures=False))
    students = {member.group.trains for member in members_of(found) if member.kind == "student"}
    assert {frozenset("abcd"), frozenset("cd")} < students, "and one of the sets that answer a and b equally well"
    assert {group.serves for group in found.plans[2].groups} == {frozenset("ab"), frozenset("cd")}


def test_inputs_that_cannot_be_mixed_are_not(tmp_path: Path) -> None:
    def encoder(width: float = 1.0) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(2, 3), torch.nn.Flatten()).double()

    problem = small_problem()
    words = {part: replace(rows, inputs=(rows.inputs > 0).long()) for part, rows in problem.splits.items()}
    with open_runner(replace(problem, encoder=encoder, **words), tmp_path, device="cpu") as runner:
        found = spend(runner, [1], 12, 0, settings=SpendingSettings(sets=False))
    assert {member.group.taught.mixtures for member in members_of(found) if member.group.taught} == {0}


def test_tasks_that_cannot_be_taught_have_no_students(tmp_path: Path) -> None:
    problem = small_problem()
    tasks = [Task(name, kind="regression", loss=lowered_square, average="outputs") for name in problem.names]
    own = replace(problem, tasks=tuple(tasks))
    with open_runner(own, tmp_path, device="cpu") as runner:
        found = spend(runner, [2], 4, 0)
    assert [member.kind for step in found.rounds for member in step.members] == ["copy"] * 4


def lowered_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.reshape(targets.shape) - targets) ** 2 - 10  # negative, which must not matter


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
    lost = [result.job for step in found.rounds for result, _ in step.others]
    assert lost
    assert all(world.loses(job) for job in lost)
    assert not any(world.loses(member.result.job) for step in found.rounds for member in step.members)
    trained = sum(len(step.members) + len(step.others) for step in found.rounds)
    assert found.spent == trained <= 16


def test_a_single_task_is_answered_by_copies() -> None:
    found = spend(World("twins", 0, tasks=("a",)), [1, 3], 10, 0)
    assert {member.kind for step in found.rounds for member in step.members} == {"copy"}
    assert [len(found.plans[budget].groups) for budget in (1, 3)] == [1, 3]
    assert found.plans[3].expected < 0


@pytest.mark.parametrize("passes", [None, 1])
def test_tasks_that_conflict_are_answered_by_different_networks(passes: int | None) -> None:
    plan = spend(World("conflict", 0, ("a", "b", "c", "d")), [2], 20, 0, settings=SpendingSettings(passes)).plans[2]
    assert plan.pool == "all"
    assert {group.serves for group in plan.groups} == {frozenset("ab"), frozenset("cd")}
    assert plan.expected < -0.3


@pytest.mark.parametrize("kind", ["shuffled", "independent"])
def test_copies_are_chosen_where_sets_of_tasks_are_not_better(kind: str) -> None:
    plans = [spend(World(kind, seed, ("a", "b", "c", "d")), [2], 16, 0).plans[2] for seed in range(3)]
    assert [plan.pool for plan in plans] == ["copies"] * 3
    assert all(len(group.trains) == 4 for plan in plans for group in plan.groups)
    assert np.mean([plan.expected for plan in plans]) < 0.01


@pytest.fixture
def few_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """TabM networks with 4 members cost about 4 training runs."""
    monkeypatch.setattr("tagalong.learn.table_networks.MEMBERS", 4)


def table(epochs: int = 2, tasks: str = "abc") -> Problem:
    """Three regression tasks with the default network, which learns less in a few epochs than a TabM network."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(300, 4))
    targets = np.stack([np.sin(2 * inputs[:, 0]), inputs[:, 0] * inputs[:, 1], inputs[:, 2]], 1)
    targets = (targets + 0.1 * draw.normal(size=targets.shape))[:, : len(tasks)]
    names = [Task(name, kind="regression") for name in tasks]
    problem = Problem.from_arrays(inputs, targets, names, split=(0.5, 0.3, 0.2))
    return replace(problem, recipe=replace(problem.recipe, epochs=epochs))


@pytest.mark.usefixtures("few_members")
def test_tabm_networks_cost_what_their_multiplications_say_and_may_be_recommended_and_teach(tmp_path: Path) -> None:
    problem = table()
    settings = SpendingSettings(sets=False, mixtures=False)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        found = spend(runner, [1, 2, 3], 24, 0, settings=settings)
    cost, members = relative_step_cost(problem, "tabm"), members_of(found)
    tabm = [member for member in members if member.kind == "tabm"]
    steps = np.mean([member.result.steps for member in members if member.kind == "copy"])
    assert len(tabm) == divide_effort(24, [1, 2, 3], sets=False, tabm_cost=cost).tabm == 2
    for number, member in enumerate(tabm):
        assert member.group == Group("abc", "abc", copy=number, network="tabm")
        assert member.result.parameters == count_parameters(problem.with_network("tabm"), problem.names)
        assert member.effort == pytest.approx(cost * member.result.steps / steps)
    assert found.spent == pytest.approx(sum(member.effort for member in members))
    assert 20 <= found.spent <= 26
    assert any(teacher.network == "tabm" for teacher in found.teachers)
    students = [member.group for member in members if member.kind == "student"]
    assert students
    assert {student.network for student in students} == {None}
    for budget, plan in found.plans.items():
        assert plan.pool == "tabm"
        assert plan.alternatives["tabm"] < plan.alternatives["copies"]
        assert len(plan.groups) <= budget
        assert {group.network for group in plan.groups} == {"tabm"}, "plain networks would only make it worse"


@pytest.mark.usefixtures("few_members")
@pytest.mark.parametrize(("effort", "changed", "tabm"), [(10, {}, True), (24, {"lr": 2e-3}, True), (24, {}, False)])
def test_without_tabm_networks_everything_is_as_if_there_were_none(
    tmp_path: Path, effort: int, changed: dict[str, Any], tabm: bool
) -> None:
    problem, found = table(epochs=1), []
    problem = replace(problem, recipe=replace(problem.recipe, **changed))
    for name, one in (("with", problem), ("without", replace(problem, chosen_network=None))):
        with open_runner(one, tmp_path / name, device="cpu") as runner:
            found.append(spend(runner, [1, 2], effort, 0, settings=SpendingSettings(mixtures=False, tabm=tabm)))
    keys = [[member.result.key for member in members_of(one)] for one in found]
    assert found[0].plans == found[1].plans
    assert keys[0] == keys[1]
    assert not any(member.kind == "tabm" for member in members_of(found[0]))


def test_tabm_networks_have_a_limited_share_and_leave_enough_for_copies() -> None:
    cost, several = 32.5, [(1,), (1, 2, 3, 4), (50,)]
    for effort, budgets, teach in product([3, 20, 60, 80, 100, 200, 1000], several, [True, False]):
        shares = divide_effort(effort, budgets, tabm_cost=cost, teach=teach)
        assert shares.tabm * cost <= 0.4 * effort
        assert shares.tabm <= 4
        assert shares.copies >= max(budget for budget in (1, *budgets) if budget <= effort)
        assert bool(shares.tabm) == (effort >= 100 and (max(budgets) < 50 or effort >= 200 or not teach))
        rest = divide_effort(effort - shares.tabm * cost, budgets, teach=teach)
        assert shares == replace(rest, tabm=shares.tabm)


@pytest.mark.usefixtures("few_members")
def test_diverged_tabm_networks_count_what_they_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.learn.table_networks.TABM_RATE", 1e30)
    problem = table(epochs=1)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        found = spend(runner, [1], 14, 0, settings=SpendingSettings(sets=False, teach=False))
    ((result, effort),) = [other for step in found.rounds for other in step.others]
    assert result.job.network == "tabm"
    assert effort == relative_step_cost(problem, "tabm")
    assert {group.network for group in found.plans[1].groups} == {None}
