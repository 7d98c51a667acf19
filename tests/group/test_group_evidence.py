"""Are there groups at all? Families are told from noise and from unrelated directions."""

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.group import GroupEvidence, group_evidence


def evidence(share: float, noise: float, seed: int) -> GroupEvidence:
    """Tests 16 directions of 4 families, which explain a share of their variance, in 20 dimensions."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((4, 20))[np.arange(16) % 4]
    directions = np.sqrt(share) * common + np.sqrt(1 - share) * rng.standard_normal((16, 20))
    directions -= directions.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    errors = noise * rng.standard_normal((16, 16))
    cosines = directions @ directions.T + (errors + errors.T) / np.sqrt(2) * (1 - np.eye(16))
    return group_evidence(Affinity.from_matrix((cosines + cosines.T) / 2), budget=4, draws=99, seed=seed)


@pytest.mark.parametrize(("share", "noise", "least", "most"), [(0.7, 0.05, 29, 30), (0.5, 0.1, 3, 28), (0, 0.05, 0, 4)])
def test_families_are_shown_but_unrelated_directions_are_not(share: float, noise: float, least: int, most: int) -> None:
    assert least <= sum(bool(evidence(share, noise, seed)) for seed in range(30)) <= most


def test_pure_noise_has_no_groups() -> None:
    rng = np.random.default_rng(0)
    shown = 0
    for _ in range(40):
        noise = 0.2 * rng.standard_normal((12, 12))
        shown += bool(group_evidence(Affinity.from_matrix(noise + noise.T + np.eye(12)), budget=3, draws=99))
    assert shown <= 4


def test_the_order_of_tasks_does_not_matter_and_directed_affinities_are_refused() -> None:
    matrix = np.where(np.arange(9)[:, None] % 3 == np.arange(9) % 3, 0.5, -0.2)
    matrix[0, 1] = matrix[1, 0] = np.nan
    affinity = Affinity.from_matrix(matrix)
    order = [str(i) for i in (4, 2, 0, 8, 6, 1, 3, 5, 7)]
    assert group_evidence(affinity.only(order), 3).score == pytest.approx(group_evidence(affinity, 3).score)
    with pytest.raises(ValueError, match="symmetric"):
        group_evidence(Affinity.from_matrix(np.arange(9).reshape(3, 3)), 2)
    with pytest.raises(ValueError, match="budget"):
        group_evidence(affinity, 9)
