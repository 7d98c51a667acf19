"""Our estimators keep the promises that are asked of others, and broken ones are told what is wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tagalong.measure import Estimator, Gradient, Lookahead, Observed
from tagalong.testing import BrokenPromises, check_estimator


@pytest.mark.parametrize("name", ["lookahead", "gradient", "cosine", "cosine_kernels"])
def test_our_estimators_keep_their_promises(name: str) -> None:
    check_estimator(name)


class Drop(Estimator):
    """By how much the loss falls, not divided by it."""

    name, needs, ratio = "drop", frozenset({"after"}), False

    def __call__(self, seen: Observed) -> Tensor:
        assert seen.after is not None
        return seen.before - seen.after


class Inner(Estimator):
    """Inner products of gradients over the target's loss."""

    name, needs, of_steps = "inner", frozenset({"gram"}), False

    def __call__(self, seen: Observed) -> Tensor:
        assert seen.gram is not None
        return seen.gram / seen.before


@pytest.mark.parametrize("estimator", [Drop(), Inner(), lambda model: Drop()])
def test_estimators_of_ones_own_keep_them_too(estimator: Any) -> None:
    check_estimator(estimator)


class Transposed(Lookahead):
    def __call__(self, seen):
        return super().__call__(seen).T


class TransposedWhereSquare(Lookahead):
    def __call__(self, seen):
        found = super().__call__(seen)
        return found.T if found.shape[0] == found.shape[1] else found


class InOrder(Lookahead):
    """Counts the first source twice."""

    def __call__(self, seen):
        return super().__call__(seen) * torch.tensor([2.0, *[1.0] * (len(seen.after) - 1)])[:, None]


class ChangesBuffers(Drop):
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, seen):
        self.model.encoder[1].running_mean += 1
        return super().__call__(seen)


class ChangesGradients(ChangesBuffers):
    def __call__(self, seen):
        for parameter in self.model.heads.parameters():
            parameter.grad = torch.ones_like(parameter)
        return Drop.__call__(self, seen)


class DrawsNumbers(Drop):
    def __call__(self, seen):
        return super().__call__(seen) * (1 + 0 * torch.rand(1, dtype=torch.float64))


class WritesIntoWhatItSees(Drop):
    def __call__(self, seen):
        return seen.after.neg_().add_(seen.before)


class Remembers(Drop):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, seen):
        self.calls += 1
        return super().__call__(seen) / self.calls


class DividesInSecret(Lookahead):
    ratio = False


class DoesNotDivide(Drop):
    ratio = True


class HidesSteps(Drop):
    of_steps = False


class NotFinite(Lookahead):
    def __call__(self, seen):
        return super().__call__(seen).fill_diagonal_(torch.nan)


class NeedsNothing(Lookahead):
    needs = frozenset({"curvature"})  # type: ignore[arg-type]


class ThreeTasksOnly(Gradient):
    def __call__(self, seen):
        return super().__call__(seen) * torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "sentence"),
    [
        (Transposed(), r"affinities \[source, target\]: for 2 sources and 3 targets it gave the shape \[3, 2\]"),
        (TransposedWhereSquare(), "rows are sources and columns are targets: listing the sources in another order"),
        (InOrder(), "permuting the tasks permutes the affinities: with the losses listed in another order differ by"),
        (ChangesBuffers, r"it leaves no trace: while estimating it changed buffer encoder\.1\.running_mean"),
        (ChangesGradients, "it leaves no trace: while estimating it changed gradient of heads"),
        (DrawsNumbers(), "it leaves no trace: while estimating it changed torch's random numbers"),
        (WritesIntoWhatItSees(), "it changes nothing of what was observed: it wrote into `after`"),
        (Remembers(), "a resumed meter finds the same affinity: steps after resuming differ"),
        (DividesInSecret(), "without `ratio` a target's loss may be zero or negative: .* must be finite"),
        (DoesNotDivide(), r"rescaling a target's loss changes no affinity .*: with one loss times 7 differ by"),
        (HidesSteps(), "several estimators at once find the same as alone: beside lookahead, gradient, cosine its"),
        (NotFinite(), "affinities are finite: in a meter they are not finite for a → a, b → b, c → c"),
        (NeedsNothing(), "it describes itself: `needs` must be some of"),
        (ThreeTasksOnly(), "missing tasks are skipped and counted: raised RuntimeError"),
        (lambda model: "lookahead", "it describes itself: it must be an Estimator, found str"),
    ],
)
def test_broken_estimators_are_told_what_is_wrong(estimator: Any, sentence: str) -> None:
    with pytest.raises(BrokenPromises, match=sentence):
        check_estimator(estimator)


def test_an_unknown_name_is_refused_as_a_meter_does() -> None:
    with pytest.raises(ValueError, match="`name` must be a known estimator"):
        check_estimator("no such estimator")
