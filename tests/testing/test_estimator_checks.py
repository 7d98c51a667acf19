"""Our own estimators pass the checks; for broken ones the checks say what is wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tagalong.measure import Estimator, Gradient, Lookahead, Observed
from tagalong.testing import FailedChecks, check_estimator


@pytest.mark.parametrize("name", ["lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine"])
def test_our_estimators_pass_the_checks(name: str) -> None:
    check_estimator(name)


class Drop(Estimator):
    """The decrease of the loss, not divided by it."""

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
def test_user_defined_estimators_pass_the_checks(estimator: Any) -> None:
    check_estimator(estimator)


class Transposed(Lookahead):
    def __call__(self, seen):
        return super().__call__(seen).T


class TransposedWhereSquare(Lookahead):
    def __call__(self, seen):
        found = super().__call__(seen)
        return found.T if found.shape[0] == found.shape[1] else found


class DoublesFirstSource(Lookahead):
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


class DrawsRandomNumbers(Drop):
    def __call__(self, seen):
        return super().__call__(seen) * (1 + 0 * torch.rand(1, dtype=torch.float64))


class ModifiesInputs(Drop):
    def __call__(self, seen):
        return seen.after.neg_().add_(seen.before)


class KeepsState(Drop):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, seen):
        self.calls += 1
        return super().__call__(seen) / self.calls


class HidesRatio(Lookahead):
    ratio = False


class ClaimsRatio(Drop):
    ratio = True


class HidesSteps(Drop):
    of_steps = False


class NotFinite(Lookahead):
    def __call__(self, seen):
        return super().__call__(seen).fill_diagonal_(torch.nan)


class NeedsUnknownQuantity(Lookahead):
    needs = frozenset({"curvature"})  # type: ignore[arg-type]


class ThreeTasksOnly(Gradient):
    def __call__(self, seen):
        return super().__call__(seen) * torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Transposed(), r"affinities \[source, target\]: for 2 sources and 3 targets the shape is \[3, 2\]"),
        (TransposedWhereSquare(), "rows are sources and columns are targets: permuting the sources must permute"),
        (
            DoublesFirstSource(),
            "permuting the tasks permutes the affinities: with the losses in another order, affinities differ by",
        ),
        (ChangesBuffers, r"it has no side effects: a call changed buffer encoder\.1\.running_mean"),
        (ChangesGradients, "it has no side effects: a call changed gradient of heads"),
        (DrawsRandomNumbers(), "it has no side effects: a call changed torch's random numbers"),
        (ModifiesInputs(), "it does not modify its inputs: it modified `after`"),
        (KeepsState(), "a resumed meter measures the same affinity: steps after resuming differ"),
        (HidesRatio(), "without `ratio`, a target's loss may be zero or negative: .* must be finite"),
        (
            ClaimsRatio(),
            r"rescaling a target's loss changes no affinity .*: with one loss scaled by 7, affinities differ by",
        ),
        (
            HidesSteps(),
            "an estimator measures the same with and without other estimators: "
            "together with lookahead, gradient, cosine, its affinities differ",
        ),
        (NotFinite(), "affinities are finite: in a meter, they are not finite for a → a, b → b, c → c"),
        (NeedsUnknownQuantity(), "its attributes are valid: `needs` must be a non-empty subset of"),
        (ThreeTasksOnly(), "missing tasks are skipped and counted: raised RuntimeError"),
        (lambda model: "lookahead", "its attributes are valid: it must be an Estimator, found str"),
    ],
)
def test_the_error_for_a_broken_estimator_says_what_is_wrong(estimator: Any, message: str) -> None:
    with pytest.raises(FailedChecks, match=message):
        check_estimator(estimator)


def test_an_unknown_name_is_rejected_as_by_a_meter() -> None:
    with pytest.raises(ValueError, match="`name` must be a known estimator"):
        check_estimator("no such estimator")
