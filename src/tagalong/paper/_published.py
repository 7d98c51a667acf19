"""A published matrix, ready to be grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tagalong.affinity import Affinity

from ._matrices import CELEBA, MATRICES, TASKONOMY

DATASETS = {"celeba": "CelebA", "taskonomy": "Taskonomy"}


@dataclass(frozen=True)
class Published:
    """One of the six matrices: data set and method.

    Attributes:
        key: its name in `MATRICES`.

    Example:
        >>> Published("taskonomy_hoa").options
        {'objective': 'min', 'allow_single': True}
    """

    key: str

    @property
    def dataset(self) -> str:
        """CelebA or Taskonomy."""
        return DATASETS[self.key.partition("_")[0]]

    @property
    def method(self) -> str:
        """TAG, CS or HOA."""
        return self.key.partition("_")[2].upper()

    @property
    def affinity(self) -> Affinity:
        """The matrix as [source, target]; it is published the other way round."""
        tasks = CELEBA if self.dataset == "CelebA" else TASKONOMY
        return Affinity.from_matrix(MATRICES[self.key], tasks, axis="target")

    @property
    def options(self) -> dict[str, Any]:
        """For `select_groups`: HOA holds results of pairs and of single tasks, which are losses in Taskonomy."""
        return {
            "objective": "min" if self.key == "taskonomy_hoa" else "max",
            "allow_single": self.method == "HOA",
        }


def published() -> tuple[Published, ...]:
    """All of them, in the paper's order."""
    return tuple(map(Published, MATRICES))
