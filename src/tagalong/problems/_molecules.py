"""Molecules as numbers: how many atoms of each kind, and the eigenvalues of the Coulomb matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
MOST_ATOMS = 29
MOLECULES_AT_ONCE = 2048


def describe(numbers: list[NDArray[np.int64]], places: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Features of molecules: counts of H, C, N, O, F, and the sizes of the eigenvalues, largest first.

    Args:
        numbers: the atomic numbers of each molecule.
        places: the coordinates of its atoms in Ångström [atoms, 3].

    Rupp et al. 2012: the matrix has 0.5 Z^2.4 on its diagonal and Z_i Z_j / |R_i − R_j| beside it.
    """
    parts = [
        _eigenvalues(numbers[start : start + MOLECULES_AT_ONCE], places[start : start + MOLECULES_AT_ONCE])
        for start in range(0, len(numbers), MOLECULES_AT_ONCE)
    ]
    counts = np.array([[np.sum(molecule == number) for number in ELEMENTS.values()] for molecule in numbers], float)
    return np.concatenate([counts, np.concatenate(parts)], axis=1)


def _eigenvalues(numbers: list[NDArray[np.int64]], places: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    charge = np.zeros((len(numbers), MOST_ATOMS))
    place = np.zeros((len(numbers), MOST_ATOMS, 3))
    for row, (molecule, where) in enumerate(zip(numbers, places, strict=True)):
        charge[row, : len(molecule)], place[row, : len(molecule)] = molecule, where
    apart = np.linalg.norm(place[:, :, None] - place[:, None], axis=-1)
    own = np.eye(MOST_ATOMS, dtype=bool)
    pairs = charge[:, :, None] * charge[:, None]
    matrix = np.divide(pairs, apart, out=np.zeros_like(pairs), where=(apart > 0) & ~own)
    matrix[:, own] = 0.5 * charge**2.4
    # Sizes only: signs of values that are equally large would swap with the last digit of a coordinate.
    sizes: NDArray[np.float64] = np.sort(np.abs(np.linalg.eigvalsh(matrix)), axis=1)[:, ::-1]
    return sizes
