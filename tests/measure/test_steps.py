"""The step on a task's gradient equals the step that the optimizer itself would take, whatever its class."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from small import comparable
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop, SparseAdam
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tagalong import AffinityMeter

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
LEVEL = 10.0  # of the losses, from which steps are read
# Values for the rarer settings; everything else is read from the signatures.
NUMBERS = {"weight_decay": 0.1, "momentum": 0.8, "lr_decay": 0.05, "lambd": 0.1, "dampening": 0.3, "rho": 0.7}
FLAGS = ("maximize", "amsgrad", "centered", "nesterov", "decoupled_weight_decay")


def parameters_for(kind: type[Optimizer], dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    shapes = ((2, 3), (3, 2)) if kind.__name__ == "Muon" else ((2, 3), (2,), (), (1, 2, 2))
    return [nn.Parameter(torch.randn(shape, dtype=dtype, device=device)) for shape in shapes]


def random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.randn_like(t) for t in tensors]


def train(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], steps: int) -> None:
    for _ in range(steps):
        for p in parameters:
            p.grad = torch.randn_like(p)
        for optimizer in optimizers:
            optimizer.step()


def flat(tensors: Iterable[Tensor]) -> np.ndarray:
    return torch.cat([t.detach().reshape(-1).cpu().double() for t in tensors]).numpy()


def true_step(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], gradients: Sequence[Tensor]) -> np.ndarray:
    """Returns the step of copies of the optimizers; their other parameters have no gradient."""
    copies, doubles = copy.deepcopy((list(parameters), list(optimizers)))
    for optimizer in doubles:
        optimizer._warned_capturable_if_run_uncaptured = True  # lost by deepcopy
        for name in ("grad_scale", "found_inf"):  # which a scaler sets for its own step
            vars(optimizer).pop(name, None)
        optimizer.zero_grad()
    for p, gradient in zip(copies, gradients, strict=True):
        p.grad = gradient.clone()
    for optimizer in doubles:
        optimizer.step()
    return flat(copies) - flat(parameters)


def snapshot(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> Any:
    """Returns everything that a measured step must not change."""
    states = [
        {
            "state": list(o.state.values()),
            "settings": [{**g, "params": 0} for g in o.param_groups],
            "own": sorted(vars(o)),
        }
        for o in optimizers
    ]
    tensors = [(p.detach(), p._version, p.grad) for p in parameters]
    return comparable([tensors, states, [getattr(o, "log", None) for o in optimizers]])


def measured_steps(
    parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], gradients: Sequence[Tensor], **options: Any
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the step on the gradients and the step on zeros, as lookahead and as first order measure them.

    The task's loss is linear in the parameters. Every held-out loss is a constant plus one number of one parameter, so
    the affinities are the step. Only one of the tasks is a source, so they are relative to the step on a zero gradient.
    """
    start = [p.detach().clone() for p in parameters]
    targets = list(map(str, range(sum(p.numel() for p in parameters))))

    def closure() -> dict[str, Tensor]:
        return {"step": 100 + sum((g * p).sum() for g, p in zip(gradients, parameters, strict=True))}

    def held_out() -> dict[str, Tensor]:
        moved = torch.cat([(p - old).reshape(-1) for p, old in zip(parameters, start, strict=True)])
        return dict(zip(targets, LEVEL + moved, strict=True))

    names, before = ["lookahead", "gradient"], snapshot(parameters, optimizers)
    meter = AffinityMeter(parameters, optimizers, tasks=["step", *targets], estimator=names, **options)
    meter(closure, held_out)
    assert snapshot(parameters, optimizers) == before
    for name in names:
        affinity = meter.affinity(name)
        null = np.nan_to_num(affinity.null[0, 1:])
        yield -LEVEL * (affinity.history[0, 0, 1:] + null), -LEVEL * null


def assert_steps_agree(
    parameters: Sequence[Tensor],
    optimizers: Sequence[Optimizer],
    tolerance: float = 1e-12,
    reference: Optimizer | None = None,
    **options: Any,
) -> None:
    """Asserts that the measured steps are those of the optimizers themselves, or of another optimizer."""
    gradients, references = random_like(parameters), optimizers if reference is None else [reference]
    expected = true_step(parameters, references, gradients)
    at_rest = true_step(parameters, references, [torch.zeros_like(p) for p in parameters])
    for step, null in measured_steps(parameters, optimizers, gradients, **options):
        np.testing.assert_allclose(step, expected, rtol=tolerance, atol=LEVEL * tolerance)
        np.testing.assert_allclose(null, at_rest, rtol=tolerance, atol=LEVEL * tolerance)


def dense_optimizers() -> list[type[Optimizer]]:
    """Returns the optimizers in torch's module, so that one which torch adds is not forgotten."""
    found = {c for c in vars(torch.optim).values() if inspect.isclass(c) and issubclass(c, Optimizer)}
    return sorted(found - {Optimizer, LBFGS, SparseAdam}, key=lambda c: c.__name__)


def variants(kind: type[Optimizer]) -> Iterator[dict[str, Any]]:
    """Returns settings of one optimizer: each by itself, some together, for all implementations."""
    options = inspect.signature(kind).parameters
    together = {"lr": 0.05} | {n: v for n, v in NUMBERS.items() if n in options and n != "dampening"}
    yield {"lr": 0.05}
    for name, number in NUMBERS.items():
        if name in options:
            yield {name: number} | ({"momentum": 0.8} if name == "dampening" else {})
    for flag in FLAGS:
        if flag in options:
            yield {**together, flag: True}
            yield {**together, flag: False}
    for name in ("foreach", "fused"):
        if name in options:
            yield {**together, name: True}
    if "Tensor" in str(options["lr"].annotation):
        yield {"lr": torch.tensor(0.0625, dtype=torch.float64)} | ({"foreach": False} if "foreach" in options else {})


def own_class(kind: type[Optimizer]) -> type[Optimizer]:
    """Returns a subclass, for which no formula is known, so that a copy of the optimizer takes the step."""
    return type(f"Own{kind.__name__}", (kind,), {})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "kind", [*dense_optimizers(), *map(own_class, (SGD, Adam, AdamW))], ids=lambda kind: kind.__name__
)
def test_steps_equal_the_true_optimizer(kind: type[Optimizer], device: str) -> None:
    for settings in variants(kind):
        fused = bool(settings.get("fused"))
        if device == "cuda" and fused and kind is torch.optim.Adagrad:
            continue  # torch has no such kernel
        for trained in (0, 3):
            parameters = parameters_for(kind, torch.float32 if fused else torch.float64, device)
            optimizer = kind(parameters, **settings)
            train(parameters, [optimizer], trained)
            assert_steps_agree(parameters, [optimizer], 1e-5 if fused else 1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "kind", [k for k in dense_optimizers() if "capturable" in inspect.signature(k).parameters], ids=lambda k: k.__name__
)
def test_capturable_steps_equal_the_true_optimizer(kind: type[Optimizer]) -> None:
    for trained in (0, 3):
        parameters = parameters_for(kind, torch.float32, "cuda")
        optimizer = kind(parameters, capturable=True, lr=torch.tensor(0.0625))  # type: ignore[call-arg]
        train(parameters, [optimizer], trained)
        assert_steps_agree(parameters, [optimizer], 1e-5)


@pytest.mark.filterwarnings("ignore:a large part of the lookahead affinities is rounding error")
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_half_precision_parameters_are_stepped_by_the_optimizer_itself(kind: type[Optimizer]) -> None:
    parameters = parameters_for(kind, torch.bfloat16)
    optimizer = kind(parameters, lr=0.05, weight_decay=0.1)  # type: ignore[call-arg]
    train(parameters, [optimizer], 3)
    assert_steps_agree(parameters, [optimizer], 0.02)


@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_smaller_than_tensors_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.measure.steps.CHUNK_SIZE", chunk)
    for settings in variants(AdamW):
        parameters = parameters_for(AdamW)
        optimizer = AdamW(parameters, **settings)
        train(parameters, [optimizer], 3)
        assert_steps_agree(parameters, [optimizer], 1e-5 if settings.get("fused") else 1e-12)


@pytest.mark.parametrize("kind", [SGD, own_class(SGD), AdamW, own_class(AdamW), RMSprop])
@pytest.mark.parametrize("trained", [0, 3])
def test_groups_keep_their_own_settings_and_parameters_their_state(kind: Any, trained: int) -> None:
    parameters, heads = parameters_for(kind), parameters_for(kind)
    groups = [
        {"params": [parameters[0], heads[0]], "lr": 0.01},
        {"params": heads[1:2], "lr": 0.5},
        {"params": [heads[2], *parameters[1:]], "lr": 0.3, "maximize": True},
    ]
    optimizer = kind(groups, lr=0.1)
    train([*parameters[:3], *heads[:3]], [optimizer], trained)  # the last one has had no gradient so far
    assert_steps_agree(parameters, [optimizer])
    assert_steps_agree([parameters[3], parameters[0]], [optimizer])


def test_several_optimizers_each_move_their_own_parameters() -> None:
    parameters = parameters_for(SGD)
    optimizers: list[Optimizer] = [
        SGD(parameters[:1], lr=0.1, momentum=0.9),
        AdamW(parameters[1:2], lr=0.2),
        RMSprop(parameters[2:3], lr=0.3),
    ]  # the last parameter is in none, so it does not move
    train(parameters, optimizers, 3)
    assert_steps_agree(parameters, optimizers)


def test_plain_sgd_uses_the_learning_rate_of_each_group_or_its_own() -> None:
    parameters = parameters_for(SGD)
    groups = [{"params": parameters[:2], "lr": 0.2}, {"params": parameters[2:], "lr": torch.tensor(0.3)}]
    optimizer = Adam(groups)
    train(parameters, [optimizer], 2)
    assert_steps_agree(parameters, [optimizer], reference=SGD([dict(group) for group in groups]), update="sgd")
    for group in groups:
        group["lr"] = 0.7
    assert_steps_agree(parameters, [optimizer], reference=SGD(groups), update="sgd", lr=0.7)


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, own_class(SGD), own_class(AdamW), RMSprop])
def test_parameters_that_a_task_does_not_use_do_not_move(kind: Any) -> None:
    """As in a real step on this task alone, where their ``.grad`` is None, so that momentum does not move them."""
    shared = nn.ModuleDict({"low": nn.Linear(4, 3), "high": nn.Linear(3, 3)}).double()
    x, y = torch.randn(8, 4).double(), torch.randn(8, 3).double()
    options = {"weight_decay": 0.1} | ({"momentum": 0.9} if issubclass(kind, SGD | RMSprop) else {})
    optimizer = kind(shared.parameters(), lr=0.05, **options)

    def losses(model: nn.ModuleDict) -> dict[str, Tensor]:
        low = model["low"](x).tanh()
        return {"low": (low - y).pow(2).mean(), "high": (model["high"](low) - y).pow(2).mean(), "both": low.abs().sum()}

    for _ in range(3):
        optimizer.zero_grad()
        sum(losses(shared).values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    before, expected = losses(shared), []
    for task in before:
        model, alone = copy.deepcopy((shared, optimizer))
        alone.zero_grad()
        losses(model)[task].backward()
        alone.step()
        expected.append([(1 - after / before[target]).item() for target, after in losses(model).items()])
    meter = AffinityMeter(shared, optimizer)
    meter(lambda: losses(shared))
    np.testing.assert_allclose(meter.affinity().mean, expected, rtol=1e-12, atol=1e-14)


class ClippedDescent(Optimizer):
    """A typical third-party optimizer: a required argument, a global norm, gradients changed in place, a counter."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, *, largest: float) -> None:
        super().__init__(params, {"lr": lr})
        self.largest = largest
        self.log: dict[str, Any] = {"steps": 0, "norms": [], "count": torch.zeros(())}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.log["steps"] += 1
        self.log["count"] += 1
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        self.log["norms"].append(norm)
        for gradient in gradients:
            gradient.mul_(self.largest / norm.clamp(min=self.largest))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["seen"] = self.state[p].get("seen", 0) + 1
                    p.data.add_(p.grad, alpha=-group["lr"])


class Wrapper(Optimizer):
    """Shares groups and state with the optimizer inside."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups, self.state = inner.param_groups, inner.state

    def add_param_group(self, group: dict[str, Any]) -> None:
        assert self.inner is not None  # set before the base class's __init__
        super().add_param_group(group)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class GlobalCount(Optimizer):
    """Keeps a counter in the same dict as the parameters' state."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {})
        self.state["count"] = 1  # type: ignore[index]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["count"] += 1  # type: ignore[index]
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data = p.data - p.grad / self.state["count"]  # type: ignore[index]


OTHERS: dict[str, Callable[[Any], Optimizer]] = {
    "clipped": lambda p: ClippedDescent(p, 0.1, largest=0.5),
    "wrapper": lambda p: Wrapper(SGD(p, lr=0.1, momentum=0.9)),
    "other wrapper": lambda p: Wrapper(Adam(p, lr=0.1)),
    "own count": GlobalCount,
}


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_third_party_optimizers_are_run_as_they_are(make: Callable[[Any], Optimizer], trained: int) -> None:
    parameters, heads = parameters_for(SGD), parameters_for(SGD)
    optimizer = make([*parameters, *heads])
    train([*parameters, *heads], [optimizer], trained)
    gradients, start = random_like(parameters), flat(parameters)
    steps = list(measured_steps(parameters, [optimizer], gradients))
    optimizer.zero_grad()
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient.clone()
    optimizer.step()
    for step, _ in steps:
        np.testing.assert_allclose(step, flat(parameters) - start, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [SGD, own_class(Adam)])
def test_scheduled_optimizers_step_with_the_current_rate(kind: Any) -> None:
    parameters = parameters_for(kind)
    optimizer = kind(parameters, lr=0.1)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    train(parameters, [optimizer], 1)
    scheduler.step()
    assert "step" in vars(optimizer)  # the scheduler has replaced it
    assert_steps_agree(parameters, [optimizer])


def test_steps_do_not_count_as_steps_for_a_scheduler() -> None:
    """A scheduler warns when it moves before the optimizer has; a looked-ahead step must not silence it."""
    parameters = parameters_for(SGD)
    optimizer = own_class(SGD)(parameters, lr=0.1, momentum=0.9)  # type: ignore[call-arg]
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
    assert_steps_agree(parameters, [optimizer])
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


@pytest.mark.parametrize("make", [own_class(SGD), OTHERS["wrapper"], OTHERS["clipped"]])
def test_step_hooks_do_not_fire(make: Any) -> None:
    parameters = parameters_for(SGD)
    optimizer = make(parameters)
    gradients, fired = random_like(parameters), []

    def note(who: Optimizer, *_: Any) -> None:
        fired.append(who)

    handles = [
        register_optimizer_step_pre_hook(note), register_optimizer_step_post_hook(note),
        optimizer.register_step_pre_hook(note), optimizer.register_step_post_hook(note),
    ]  # fmt: skip
    try:
        meter = AffinityMeter(parameters, optimizer)
        meter(lambda: dict.fromkeys("ab", 100 + sum((g * p).sum() for g, p in zip(gradients, parameters, strict=True))))
        assert meter.measured == 1
        assert fired == []
        train(parameters, [optimizer], 1)
        assert fired.count(optimizer) >= 4  # and fire again for the true step
    finally:
        for handle in handles:
            handle.remove()


def test_attributes_set_by_a_gradient_scaler_are_ignored() -> None:
    parameters = parameters_for(SGD, torch.float32)
    optimizer = own_class(Adam)(parameters, lr=0.1, fused=True)  # type: ignore[call-arg]
    train(parameters, [optimizer], 1)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(1.0)  # type: ignore[attr-defined]
    assert_steps_agree(parameters, [optimizer], 1e-5)


def test_unsuitable_optimizers_are_refused() -> None:
    encoder, head = nn.Linear(3, 2), nn.Linear(2, 1)
    weights = list(encoder.parameters())
    unsuitable: list[tuple[Any, str]] = [
        ({"lr": 0.1}, "str"),
        ([SGD(weights, lr=0.1), Adam([encoder.weight])], "more than one"),
        (SGD(head.parameters(), lr=0.1), "none of the shared"),
    ]
    for optimizer, part in unsuitable:
        with pytest.raises(ValueError, match=f"`optimizer`.*{part}"):
            AffinityMeter(encoder, optimizer)

    def losses() -> dict[str, Tensor]:
        return dict.fromkeys("ab", encoder(torch.ones(1, 3)).pow(2).sum())

    with pytest.raises(ValueError, match="`per_lr`"):
        AffinityMeter(encoder, GlobalCount(weights), per_lr=True)(losses)
    for kind in (LBFGS, SparseAdam):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}"):
            AffinityMeter(encoder, kind(weights))(losses)
    # A head may be in two optimizers.
    AffinityMeter(encoder, (o for o in (SGD([*weights, head.bias], lr=0.1), Adam([head.bias]))))


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "cosine"])
def test_sparse_gradients_are_refused(estimator: str) -> None:
    embedding, heads = nn.Embedding(5, 3, sparse=True), {t: nn.Linear(3, 1) for t in "ab"}
    before = embedding.weight.detach().clone()
    meter = AffinityMeter([embedding.weight], lr=0.1, estimator=estimator)
    with pytest.raises(ValueError, match=r"`shared`.*\(5, 3\).*sparse=False"):
        meter(lambda: {t: head(embedding(torch.tensor([0, 2, 2]))).pow(2).mean() for t, head in heads.items()})
    assert torch.equal(embedding.weight, before)
    assert embedding.weight.grad is None
