"""Balancing rules against direct implementations of their papers, and in training."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_small import TASKS, small_problem
from torch import Tensor, nn
from torchjd.aggregation import IMTLG, MGDA, GradVac, Krum
from torchjd.scalarization import DWA, FAMO, IMTLL, STCH

from tagalong.errors import InvalidInput
from tagalong.learn import (
    Job,
    Network,
    Problem,
    Recipe,
    build_network,
    check_rule,
    describe_rule,
    mean_loss,
    register_rule,
    seeded_rng,
    train,
)
from tagalong.learn.balance import make_balancer
from tagalong.learn.randomness import batches

OBJECTS = {"mgda": MGDA(), "imtl-g": IMTLG(), "imtl-l": IMTLL(3), "stch": STCH(mu=1.0), "gradvac": GradVac()}
EVERY = ["plain", "uw", "pcgrad", "pcgrad-uw", "gradnorm", "gradnorm:0.5", *OBJECTS]


@pytest.fixture(autouse=True)
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.learn.balance._rules", dict(OBJECTS))


def start(rule: str, problem: Problem | None = None) -> tuple[Problem, Network, Any]:
    problem = problem or small_problem()
    network = build_network(problem, TASKS, 0)
    return problem, network, make_balancer(rule, network, problem.tasks)


def backward(balancer: Any, losses: dict[str, Tensor], scale: float = 1.0) -> None:
    balancer.backward(torch.stack(list(losses.values())), torch.tensor(scale))


def losses_of(problem: Problem, network: Network, step: int = 0, without: tuple[str, ...] = ()) -> dict[str, Tensor]:
    rows = batches(0, step, len(problem.train), 16)[0]
    outputs, targets = network.at_step(step)(problem.train.inputs[rows]), problem.train.targets
    kept = {task: torch.nan if task in without else 0.0 for task in TASKS}
    return {task.name: mean_loss(task, outputs[task.name], targets[task.name][rows] + kept[task.name])
            for task in problem.tasks}  # fmt: skip


def shared_gradient(network: Network, loss: Tensor) -> Tensor:
    found = torch.autograd.grad(loss, list(network.encoder.parameters()), retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in found])


def shared_grad(network: Network) -> Tensor:
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                      for p in network.encoder.parameters()])  # fmt: skip


def pcgrad(gradients: list[Tensor], call: int) -> Tensor:
    """Algorithm 1 of Yu et al. 2020, as printed, with the permutations that the rule draws."""
    result = torch.zeros_like(gradients[0])
    with seeded_rng(0, "balance", call):
        for i, gradient in enumerate(gradients):
            projected = gradient.clone()
            for j in torch.randperm(len(gradients)).tolist():
                overlap = projected @ gradients[j]
                if j != i and overlap < 0:
                    projected = projected - overlap / gradients[j].norm() ** 2 * gradients[j]
            result = result + projected
    return result


@pytest.mark.parametrize("weigh", [False, True], ids=["pcgrad", "pcgrad-uw"])
def test_pcgrad_is_algorithm_1_for_shared_parameters_and_plain_gradients_for_heads(weigh: bool) -> None:
    problem, network, balancer = start("pcgrad-uw" if weigh else "pcgrad")
    weights = [task.weight * (0.5 if weigh else 1) for task in problem.tasks]
    conflicts = 0
    for call in range(6):
        losses = losses_of(problem, network, call)
        rows = [shared_gradient(network, weight * losses[t]) for weight, t in zip(weights, TASKS, strict=True)]
        conflicts += sum(bool(a @ b < 0) for a in rows for b in rows)
        heads = [torch.autograd.grad(weight * losses[task], list(head.parameters()), retain_graph=True)
                 for weight, task, head in zip(weights, TASKS, network.heads, strict=True)]  # fmt: skip
        network.zero_grad()
        backward(balancer, losses)
        torch.testing.assert_close(shared_grad(network), pcgrad(rows, call), rtol=1e-10, atol=1e-14)
        for head, expected in zip(network.heads, heads, strict=True):
            assert all(torch.equal(p.grad, e) for p, e in zip(head.parameters(), expected, strict=True))
    assert conflicts > 0


def test_uncertainty_weights_by_hand() -> None:
    problem, network, balancer = start("uw")
    (spread,) = balancer.parameters()
    spread.data = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    losses = losses_of(problem, network, without=("weight",))
    values = [losses["age"].item(), 0.0, losses["ill"].item()]
    halves = [0.5 * math.exp(-s) for s in (0.3, -0.2, 1.0)]
    expected = halves[0] * shared_gradient(network, losses["age"]) + halves[2] * shared_gradient(network, losses["ill"])
    backward(balancer, losses)
    torch.testing.assert_close(shared_grad(network), expected, rtol=1e-12, atol=1e-15)
    own = [0.5 - halves[0] * values[0], 0.0, 0.5 - halves[2] * values[2]]  # without labels nothing is learned
    torch.testing.assert_close(spread.grad, torch.tensor(own, dtype=torch.float64))
    given = [task.weight for task in problem.tasks]
    np.testing.assert_allclose(list(balancer.weights().values()), np.multiply(halves, given), rtol=1e-12)


def test_weight_decay_is_not_applied_to_uncertainties() -> None:
    recipe = Recipe(weight_decay=0.3)
    parameter, learned = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = recipe.make_optimizer([parameter], [learned])
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.zeros(1)
    optimizer.step()
    assert learned.item() == 1
    assert parameter.item() < 1


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_gradnorm_is_equation_2_by_autograd(alpha: float) -> None:
    """The paper's algorithm with autograd through the norms, clipped and renormalized as TAG's code does."""
    problem, network, balancer = start(f"gradnorm:{alpha}")
    given = torch.tensor([task.weight for task in problem.tasks], dtype=torch.float64)
    kernel = network.encoder[3].weight
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer, trainer = torch.optim.Adam([weights], lr=0.025), torch.optim.SGD(network.parameters(), lr=0.3)
    first = None
    for step in range(8):
        found = losses_of(problem, network, step)
        losses = given * torch.stack([found[task] for task in TASKS])
        first = losses.detach() if first is None else first
        lengths = torch.stack([
            torch.autograd.grad(weight * loss, kernel, retain_graph=True, create_graph=True)[0].norm()
            for weight, loss in zip(weights, losses, strict=True)
        ])  # fmt: skip
        ratios = losses.detach() / first
        target = (lengths.mean() * (ratios / ratios.mean()) ** alpha).detach()
        weights.grad = torch.autograd.grad((lengths - target).abs().sum(), weights, retain_graph=True)[0]
        expected = sum(w * shared_gradient(network, loss) for w, loss in zip(weights.detach(), losses, strict=True))
        trainer.zero_grad()
        backward(balancer, found)
        torch.testing.assert_close(shared_grad(network), expected, rtol=1e-9, atol=1e-12)
        optimizer.step()
        with torch.no_grad():
            weights.clamp_(0.1, 10).mul_(3 / weights.sum())
        now = [value / g for value, g in zip(balancer.weights().values(), given.tolist(), strict=True)]
        np.testing.assert_allclose(now, weights.detach().numpy(), rtol=1e-8)
        trainer.step()
    assert max(abs(value - 1) for value in now) > 0.05


def test_gradnorm_keeps_the_weight_of_a_task_without_labels() -> None:
    problem, network, balancer = start("gradnorm")
    backward(balancer, losses_of(problem, network, without=("ill",)))
    weights = np.array(list(balancer.weights().values())) / [1, 0.5, 1]
    assert weights.sum() == pytest.approx(3)
    assert weights[2] == pytest.approx(3 / (1.025 + 0.975 + 1), rel=1e-3)
    assert not np.allclose(weights[:2], 1)
    backward(balancer, losses_of(problem, network))  # its first loss is this one
    assert np.isfinite(list(balancer.weights().values())).all()


def test_gradients_too_small_to_square_are_left_out() -> None:
    problem = small_problem(dtype=torch.float32)
    _, network, balancer = start("pcgrad", problem)
    losses = losses_of(problem, network)
    backward(balancer, {**losses, "age": -1e-25 * losses["ill"]})
    assert shared_grad(network).isfinite().all()


@pytest.mark.parametrize("rule", ["pcgrad", "gradnorm", "uw", "imtl-g"])
def test_an_overflow_is_left_to_the_scaler(rule: str) -> None:
    problem, network, balancer = start(rule)
    weights = balancer.weights()
    losses = losses_of(problem, network)
    backward(balancer, {**losses, "age": losses["age"] * torch.inf}, 2.0**16)
    assert not shared_grad(network).isfinite().all()
    assert rule == "uw" or balancer.weights() == pytest.approx(weights, rel=0.1)


@pytest.mark.parametrize("rule", ["uw", "gradnorm", "pcgrad", "pcgrad-uw", "imtl-l"])
def test_the_factor_of_a_scaler_cancels(rule: str) -> None:
    gradients = []
    for scale in (1.0, 1024.0):
        problem, network, balancer = start(rule)
        for step in range(2):
            network.zero_grad()
            for parameter in balancer.parameters():
                parameter.grad = None
            backward(balancer, losses_of(problem, network, step), scale)
        everything = [*network.parameters(), *balancer.parameters()]
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in everything]))
    torch.testing.assert_close(gradients[1], 1024 * gradients[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rule", ["mgda", "imtl-g"])
def test_tasks_without_labels_do_not_stop_the_others(rule: str) -> None:
    problem, network, balancer = start(rule)
    backward(balancer, losses_of(problem, network, without=("ill",)))
    assert not any(parameter.grad.any() for parameter in network.heads[2].parameters())
    pair = build_network(problem, ("age", "weight"), 0)
    rows = batches(0, 0, len(problem.train), 16)[0]
    losses = {
        name: mean_loss(problem.task(name), outputs, problem.train.targets[name][rows])
        for name, outputs in pair(problem.train.inputs[rows]).items()
    }
    backward(make_balancer(rule, pair, problem.tasks[:2]), losses)
    torch.testing.assert_close(shared_grad(network), shared_grad(pair))


@pytest.mark.parametrize(
    ("rule", "tasks", "settings"),
    [
        *((rule, ("age",), {}) for rule in ("pcgrad", "gradnorm", "mgda")),
        *((rule, TASKS, {"make": nn.Identity()}) for rule in ("pcgrad", "gradnorm")),
    ],
)
def test_one_task_or_an_encoder_without_parameters_is_trained_as_by_the_plain_sum(
    rule: str, tasks: tuple[str, ...], settings: dict[str, Any]
) -> None:
    problem = small_problem(**settings)
    balanced, plain = (train(problem, Job(tasks, rule=name)) for name in (rule, "plain"))
    np.testing.assert_allclose(balanced.curve, plain.curve, rtol=1e-9)


@pytest.mark.parametrize("rule", ["pcgrad", "gradnorm", "uw"])
def test_frozen_parameters_do_not_change(rule: str) -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    network[0].weight.requires_grad_(False)
    state = train(small_problem(make=network), Job(TASKS, rule=rule)).state
    assert torch.equal(state["encoder.0.weight"], network[0].weight)
    assert not torch.equal(state["encoder.2.weight"], network[2].weight)


def test_a_rule_of_ones_own_has_a_name_and_its_repr_enters_keys() -> None:
    register_rule("krum", Krum(n_byzantine=0))
    check_rule("krum", 3)
    assert describe_rule("krum") != describe_rule("mgda") != describe_rule("uw") == "uw"
    assert repr(Krum(n_byzantine=0)) in describe_rule("krum")


@pytest.mark.parametrize(
    ("name", "rule"), [("uw", MGDA()), ("a+b", MGDA()), ("dwa", DWA()), ("famo", FAMO(3)), ("x", 3)]
)
def test_objects_that_cannot_be_rules_are_refused(name: str, rule: Any) -> None:
    with pytest.raises(InvalidInput):
        register_rule(name, rule)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("magic", "'magic'"),
        ("MGDA(epsilon=0.1)", "register_rule"),
        ("gradnorm:-1", "gradnorm:ALPHA"),
        ("imtl-l", "2 tasks"),
    ],
)
def test_invalid_rules_raise_an_error(rule: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_rule(rule, 2)


def test_a_training_whose_rule_cannot_be_saved_starts_again(tmp_path: Path) -> None:
    problem, path = small_problem(), tmp_path / "a.pt"
    register_rule("vac", GradVac())
    train(problem, Job(TASKS, rule="vac"), checkpoint=path, progress=lambda epoch: None)
    assert not path.exists()
    assert not make_balancer("vac", build_network(problem, TASKS, 0), problem.tasks).resumable
