"""QM9: nine quantum-mechanical properties of small organic molecules (Ramakrishnan et al. 2014)."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, as_names, did_you_mean, is_integer, require_package
from tagalong.learn import MLP, Problem, Recipe, Task, derive_seed

if TYPE_CHECKING:
    import pandas as pd

TARGETS = {
    "dipole": "Dipole_debye",
    "polarisability": "Polarizability_bohr3",
    "homo": "HOMO_au",
    "lumo": "LUMO_au",
    "gap": "HOMO_LUMO_gap_au",
    "extent": "R2_bohr2",
    "zero_point": "ZPVE_au",
    "atomisation": "InternalEnergy_0K_au",
    "heat_capacity": "Heatcapacity_Cv_cal_mol_K",
}
# Energies of free atoms at the same level of theory, in Hartree (published with QM9).
FREE_ATOM_ENERGIES = {"H": -0.500273, "C": -37.846772, "N": -54.583861, "O": -75.064579, "F": -99.718730}
ATOMIC_NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
MAX_ATOMS = 29
MOLECULES_PER_BATCH = 2048
TABLE, GEOMETRY = "qm9_properties.csv.gz", "qm9_geometry.npz"
QM9_RECIPE = Recipe(lr=5e-3, batch_size=256, epochs=150, patience=10, schedule="step", period=20)
Molecules = tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]  # atomic numbers and coordinates of each


def qm9(
    tasks: Sequence[str] | None = None,
    rows: int | None = 12_000,
    hidden: Sequence[int] = (64, 64),
    seed: int = 0,
    data: str | Path | None = None,
    recipe: Recipe | None = None,
) -> Problem:
    """Nine properties of small molecules, predicted from their composition and Coulomb matrix.

    Args:
        tasks: the properties to predict, in this order. If None, all nine properties are predicted.
        rows: the number of molecules, drawn at random. If None, all 130,831 molecules are used.
        hidden: the sizes of the encoder's hidden layers.
        seed: the seed for choosing the molecules and splitting them.
        data: a folder with the tables of `qm9pack` (`qm9_part1.csv`, …), or with `qm9_properties.csv.gz` and
            `qm9_geometry.npz` (arrays `Z`, `R_mA` and `offset`). If None, the installed `qm9pack` package is used.
        recipe: the training recipe. If None, `QM9_RECIPE` is used.
    """
    chosen = tuple(TARGETS) if tasks is None else as_names(tasks)
    if unknown := [task for task in chosen if task not in TARGETS]:
        hint = did_you_mean(unknown[0], TARGETS)
        raise InvalidInput("tasks", "must contain only QM9 properties", repr(unknown[0]), hint)
    if rows is not None and not is_integer(rows, 100):
        raise InvalidInput("rows", "must be an integer ≥ 100, or None for all molecules", repr(rows))
    properties, molecules = _read_molecules(_package_folder() if data is None else Path(data), rows, seed)
    inputs = molecule_features(*molecules)
    targets = {task: properties[TARGETS[task]].to_numpy() for task in chosen}
    if "atomisation" in targets:
        free_atoms = inputs[:, : len(ATOMIC_NUMBERS)] @ list(FREE_ATOM_ENERGIES.values())
        targets["atomisation"] = targets["atomisation"] - free_atoms
    return Problem.from_arrays(
        inputs,
        targets,
        [Task(task, kind="regression") for task in chosen],
        name="qm9",
        encoder=MLP(inputs.shape[1], hidden),
        recipe=recipe or QM9_RECIPE,
        seed=seed,
        notes=[f"{len(inputs)} molecules; energies of atomisation in Hartree"],
    )


def _package_folder() -> Path:
    require_package("the problem 'qm9'", "qm9pack", "tagalong[molecules]")
    package: Any = importlib.util.find_spec("qm9pack")  # importing it would require setuptools
    return Path(package.submodule_search_locations[0]) / "data"


def _read_molecules(folder: Path, rows: int | None, seed: int) -> tuple[pd.DataFrame, Molecules]:
    import pandas as pd

    is_packed = (folder / TABLE).is_file() and (folder / GEOMETRY).is_file()
    files = [folder / TABLE] if is_packed else sorted(folder.glob("qm9_part*.csv"))
    if not files:
        expected = f"must be a folder that contains either qm9_part1.csv, … or {TABLE} and {GEOMETRY}"
        raise InvalidInput("data", expected, f"neither in {folder}")
    table = pd.concat([pd.read_csv(file, dtype=str) for file in files], ignore_index=True, join="inner")
    if absent := [name for name in TARGETS.values() if name not in table]:
        raise InvalidInput("data", "must contain the QM9 tables", f"no column {absent[0]!r}")
    if rows is not None and rows < len(table):
        random = np.random.default_rng(derive_seed(seed, "molecules"))
        table = table.iloc[np.sort(random.permutation(len(table))[:rows])]
    properties = table[list(TARGETS.values())].astype(float)
    if is_packed:
        with np.load(folder / GEOMETRY) as arrays:
            atoms, positions, offset = arrays["Z"].astype(np.int64), arrays["R_mA"] / 1000, arrays["offset"]
        molecules = [slice(offset[row], offset[row + 1]) for row in table.index]
        return properties, (
            [atoms[molecule] for molecule in molecules],
            [positions[molecule] for molecule in molecules],
        )
    # Texts such as "['C','H']" and "[[x,y,z],[x,y,z]]"
    elements, places = (map(ast.literal_eval, table[name]) for name in ("Elements", "XYZ_Ang"))
    numbers = [np.array([ATOMIC_NUMBERS[atom] for atom in atoms]) for atoms in elements]
    return properties, (numbers, [np.array(place, dtype=np.float64).reshape(-1, 3) for place in places])


def molecule_features(numbers: list[NDArray[np.int64]], positions: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Returns the number of H, C, N, O and F atoms and the absolute eigenvalues of the Coulomb matrix, largest first.

    The Coulomb matrix (Rupp et al. 2012) has 0.5 Z_i^2.4 on its diagonal and Z_i Z_j / |R_i − R_j| elsewhere.

    Args:
        numbers: the atomic numbers of each molecule.
        positions: the coordinates [atoms, 3] of each molecule's atoms in ångströms.
    """
    counts = [[np.sum(molecule == number) for number in ATOMIC_NUMBERS.values()] for molecule in numbers]
    features = np.concatenate([np.array(counts, float), np.zeros((len(numbers), MAX_ATOMS))], axis=1)
    diagonal = np.eye(MAX_ATOMS, dtype=bool)
    for start in range(0, len(numbers), MOLECULES_PER_BATCH):
        batch = slice(start, start + MOLECULES_PER_BATCH)
        charge = np.zeros((len(numbers[batch]), MAX_ATOMS))
        padded = np.zeros((len(charge), MAX_ATOMS, 3))
        for row, (molecule, where) in enumerate(zip(numbers[batch], positions[batch], strict=True)):
            charge[row, : len(molecule)], padded[row, : len(molecule)] = molecule, where
        distance = np.linalg.norm(padded[:, :, None] - padded[:, None], axis=-1)
        pairs = charge[:, :, None] * charge[:, None]
        matrix = np.divide(pairs, distance, out=np.zeros_like(pairs), where=(distance > 0) & ~diagonal)
        matrix[:, diagonal] = 0.5 * charge**2.4
        # Absolute values, since rounding errors could swap two eigenvalues of equal magnitude and opposite sign.
        features[batch, len(ATOMIC_NUMBERS) :] = np.sort(np.abs(np.linalg.eigvalsh(matrix)), axis=1)[:, ::-1]
    return features
