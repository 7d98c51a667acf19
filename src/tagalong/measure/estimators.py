"""Affinity estimators and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.registry import Registry

Quantity = Literal["after", "slopes", "cosines", "kernel_cosines", "centered_cosines"]
"""The quantities of `Observed` that an estimator can request."""


@dataclass
class Observed:
    """The quantities observed at one measured step.

    Rows are sources i, columns are targets j, and Δθ_i is the step on task i. Quantities that no estimator needs are
    None.

    Attributes:
        before: The target losses before the step, L_j(θ).
        after: The target losses after each step, L_j(θ + Δθ_i).
        slopes: The first-order decrease of L_j due to the step, ⟨g_j, −Δθ_i⟩.
        cosines: The cosine similarities ⟨g_i, g_j⟩ / (|g_i| |g_j|).
        kernel_cosines: The same, but restricted to weights with more than one dimension.
        centered_cosines: The cosine similarities, but with the mean over the tasks subtracted from the gradients.
    """

    before: Tensor
    after: Tensor | None = None
    slopes: Tensor | None = None
    cosines: Tensor | None = None
    kernel_cosines: Tensor | None = None
    centered_cosines: Tensor | None = None


class Estimator(ABC):
    """Computes affinities from the quantities observed at a measured step.

    Subclass this class, register the subclass with `register_estimator`, and pass its name as
    ``AffinityMeter(estimator=...)``.

    Attributes:
        name: The name by which users select the estimator.
        needs: The quantities of `Observed` that the estimator uses.
        ratio: Whether the estimator divides by the target's loss, which must then be positive.
        of_steps: Whether the estimator uses the steps Δθ, and therefore depends on the null step and the learning rate.
    """

    name: str
    needs: frozenset[Quantity]
    ratio = True
    of_steps = True

    @abstractmethod
    def __call__(self, observed: Observed) -> Tensor:
        """Returns the affinities [sources, targets]."""


class Lookahead(Estimator):
    """Z[i→j] = 1 − L_j(θ + Δθ_i) / L_j(θ): equation 1 of Fifty et al. (2021)."""

    name = "lookahead"
    needs = frozenset({"after"})

    def __call__(self, observed: Observed) -> Tensor:
        assert observed.after is not None
        return 1.0 - observed.after / observed.before


class Gradient(Estimator):
    """Z[i→j] ≈ ⟨g_j, −Δθ_i⟩ / L_j(θ): a first-order approximation of the lookahead that avoids its n forward passes."""

    name = "gradient"
    needs = frozenset({"slopes"})

    def __call__(self, observed: Observed) -> Tensor:
        assert observed.slopes is not None
        return observed.slopes / observed.before


class Cosine(Estimator):
    """The cosine similarity between task gradients (the CS baseline in the paper).

    Args:
        kernels_only: Whether to use only weights with more than one dimension, as the published CS does.
    """

    ratio = False
    of_steps = False

    def __init__(self, kernels_only: bool = False) -> None:
        self.kernels_only = kernels_only
        self.name = "cosine_kernels" if kernels_only else "cosine"
        self.needs = frozenset({"kernel_cosines" if kernels_only else "cosines"})

    def __call__(self, observed: Observed) -> Tensor:
        cosines = observed.kernel_cosines if self.kernels_only else observed.cosines
        assert cosines is not None
        return cosines


class CenteredCosine(Estimator):
    """The cosine similarity between task gradients after subtracting their mean over the tasks.

    The mean is the direction that all tasks share. What remains shows which tasks are more alike than the others. Two
    centered gradients are always opposite, so the plain cosine is used if a batch has fewer than three tasks.
    """

    name = "centered_cosine"
    needs = frozenset({"centered_cosines"})
    ratio = False
    of_steps = False

    def __call__(self, observed: Observed) -> Tensor:
        assert observed.centered_cosines is not None
        return observed.centered_cosines


def _to_estimator(name: str, value: object) -> Estimator:
    estimator = value() if isinstance(value, type) else value
    if not isinstance(estimator, Estimator):
        raise InvalidInput("estimator", "must be an Estimator", type(estimator).__name__)
    if estimator.name != name:
        raise InvalidInput("estimator", f"must have the name {name!r}", repr(estimator.name))
    return estimator


_BUILT_IN: tuple[Estimator, ...] = (Lookahead(), Gradient(), Cosine(), Cosine(kernels_only=True), CenteredCosine())
_estimators = Registry("estimator", _to_estimator, {estimator.name: estimator for estimator in _BUILT_IN})


def register_estimator(name: str, estimator: Estimator | type[Estimator]) -> None:
    """Registers an estimator under a name.

    Args:
        name: the name by which users select the estimator; must equal its `name` attribute.
        estimator: the estimator, or its class if that needs no arguments. Other packages can use the
            "tagalong.estimators" entry point group instead.

    Raises:
        InvalidInput: If the name or the estimator cannot be used.

    Example:
        >>> class Drop(Estimator):
        ...     '''The absolute decrease of the loss.'''
        ...     name, needs, ratio = "drop", frozenset({"after"}), False
        ...     def __call__(self, observed):
        ...         return observed.before - observed.after
        >>> register_estimator("drop", Drop)
        >>> "drop" in estimator_names()
        True
    """
    _estimators.register(name, estimator)


def estimator_names() -> list[str]:
    """Returns the names of all estimators, including those from other packages."""
    return sorted(_estimators.names())


def resolve_estimators(chosen: Sequence[str | Estimator]) -> list[Estimator]:
    # Returns the chosen estimators, looking them up by name.
    estimators = [item if isinstance(item, Estimator) else _estimators.find(item, "estimator") for item in chosen]
    names = [estimator.name for estimator in estimators]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"`estimator` must be one estimator or a list of different ones, found {names}")
    return estimators
