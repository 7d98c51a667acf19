"""State that a replay may disturb, beyond the networks of the no-trace tests."""

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from small import regression
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrizations, parametrize

from tagalong import AffinityMeter
from tagalong.measure import ClosureError

X = torch.linspace(-1, 1, 32).reshape(8, 4).double()


class UsedThroughAMethod(nn.Module):
    """A model that is used only through a method, and never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.heads = nn.ModuleDict({t: nn.Linear(5, 1) for t in "ab"})
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.array = 0, np.zeros(2)

    def losses(self) -> dict[str, Tensor]:
        self.seen += 1
        self.calls += 1
        self.array += 1
        z = self.encoder(X)
        return {t: head(z).pow(2).mean() for t, head in self.heads.items()}


def test_models_used_through_a_method_are_protected_even_in_several_threads() -> None:
    torch.manual_seed(0)
    models = [UsedThroughAMethod().double() for _ in range(4)]

    def measure(model: UsedThroughAMethod) -> None:
        meter = AffinityMeter(model.encoder, lr=0.1, every=1)
        for _ in range(3):
            meter(model.losses)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(measure, models))
    assert all(model.seen.item() == model.calls == model.array.mean() == 3 for model in models)
    assert not module_hooks._global_forward_pre_hooks


def test_the_error_names_lazy_modules() -> None:
    torch.manual_seed(0)
    encoder, heads = nn.Linear(4, 3).double(), nn.ModuleDict({t: nn.LazyLinear(1).double() for t in "ab"})
    with pytest.raises(ClosureError, match="a parameter of a lazy module"):
        AffinityMeter(encoder, lr=0.1)(lambda: {t: heads[t](encoder(X)).pow(2).mean() for t in "ab"})


def test_a_forward_pass_started_outside_the_closure_is_rejected() -> None:
    model, _ = regression()
    begun = model.encoder[:2](X)
    with pytest.raises(ClosureError, match="before it ran"):
        AffinityMeter(model.encoder, lr=0.1)(
            lambda: {t: head(model.encoder[2:](begun)).pow(2).mean() for t, head in model.heads.items()}
        )


def test_replays_recompute_cached_parametrisations() -> None:
    def affinity(around: Callable[[], Any]) -> np.ndarray:
        torch.manual_seed(0)
        encoder = parametrizations.orthogonal(nn.Linear(4, 4)).double()
        heads = nn.ModuleDict({t: nn.Linear(4, 1) for t in "ab"}).double()
        meter = AffinityMeter(encoder, lr=0.1)
        with around():
            meter(lambda: {t: head(encoder(X)).pow(2).mean() for t, head in heads.items()})
        return meter.affinity().mean

    np.testing.assert_allclose(affinity(parametrize.cached), affinity(torch.enable_grad), rtol=1e-12)


@pytest.mark.parametrize("held_out", [False, True])
def test_replays_keep_no_activations(held_out: bool) -> None:
    model, closure = regression()
    kept: SimpleQueue[bool] = SimpleQueue()  # unlike a list, not restored after a replay

    def watched() -> dict[str, Tensor]:
        inner = model.encoder[:2](X)
        outer = model.encoder[2:](inner)
        alive = weakref.ref(inner)
        del inner
        kept.put(alive() is not None)
        return {t: head(outer).pow(2).mean() for t, head in model.heads.items()}

    meter = AffinityMeter(model.encoder, lr=0.1)
    if held_out:
        meter(closure, held_out=watched)
    else:
        meter(watched)
        assert kept.get()  # the user's own graph
    assert kept.qsize() > 3
    assert not any(kept.get() for _ in range(kept.qsize()))
