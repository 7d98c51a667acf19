import csv
import gzip
import sys
from dataclasses import replace

import numpy as np
import pytest

from tagalong.problems import DEMOS, load_problem, qm9
from tagalong.problems.qm9_problem import ATOMIC_NUMBERS, FREE_ATOM_ENERGIES, MAX_ATOMS, TARGETS, molecule_features

ROWS = 150


def molecules() -> tuple[list[list[str]], list[np.ndarray]]:
    random = np.random.default_rng(0)
    atoms = [random.choice(list(ATOMIC_NUMBERS), size=random.integers(2, MAX_ATOMS + 1)).tolist() for _ in range(ROWS)]
    return atoms, [random.normal(0, 2, size=(len(molecule), 3)).round(3) for molecule in atoms]


def properties() -> list[dict[str, float]]:
    random = np.random.default_rng(1)
    return [{name: float(random.normal()) for name in TARGETS.values()} for _ in range(ROWS)]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for qm9pack: tables with atoms and coordinates as text; importing it fails."""
    folder = tmp_path / "qm9pack" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    rows = [
        {
            "XYZ_file": f"m{number}.xyz",
            "Elements": str(atoms).replace(" ", ""),
            "XYZ_Ang": str(place.tolist()),
            **values,
        }
        for number, (atoms, place, values) in enumerate(zip(*molecules(), properties(), strict=True))
    ]
    for part in range(3):
        with (folder / f"qm9_part{part + 1}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], quoting=csv.QUOTE_NONNUMERIC)
            writer.writeheader()
            writer.writerows(rows[part * 50 : part * 50 + 50])
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("qm9pack", None)
    return folder


@pytest.fixture
def packed(tmp_path):
    """The same molecules in the two-file format."""
    atoms, places = molecules()
    offset = np.cumsum([0, *map(len, atoms)])
    numbers = np.array([ATOMIC_NUMBERS[atom] for molecule in atoms for atom in molecule], np.uint8)
    where = (np.concatenate(places) * 1000).round().astype(np.int16)
    np.savez(tmp_path / "qm9_geometry.npz", Z=numbers, R_mA=where, offset=offset)
    with gzip.open(tmp_path / "qm9_properties.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, TARGETS.values())
        writer.writeheader()
        writer.writerows(properties())
    return tmp_path


def test_package_and_files_give_the_same_problem(package, packed) -> None:
    from_package, from_files = load_problem("qm9", rows=None), qm9(rows=None, data=packed)
    assert from_package.names == from_files.names == tuple(TARGETS)
    np.testing.assert_allclose(from_package.train.inputs, from_files.train.inputs, atol=1e-4)
    for task in TARGETS:
        np.testing.assert_allclose(from_package.test.targets[task], from_files.test.targets[task], atol=1e-5)


def test_the_seed_determines_the_molecules(packed) -> None:
    assert [len(split) for split in qm9(rows=100, data=packed).splits.values()] == [70, 10, 20]
    assert qm9(rows=100, data=packed, seed=1).fingerprint != qm9(rows=100, data=packed).fingerprint


def test_the_energy_of_free_atoms_is_subtracted(packed) -> None:
    problem = qm9(rows=None, data=packed, tasks=["atomisation", "dipole"])
    mean, deviation = problem.scales["atomisation"]
    raw = [values["InternalEnergy_0K_au"] for values in properties()]
    expected = [
        value - sum(FREE_ATOM_ENERGIES[atom] for atom in atoms)
        for value, atoms in zip(raw, molecules()[0], strict=True)
    ]
    found = [split.targets["atomisation"] * deviation + mean for split in problem.splits.values()]
    np.testing.assert_allclose(np.sort(np.concatenate(found)), np.sort(expected), rtol=1e-4)


def test_features_equal_a_loop_and_ignore_order_and_position() -> None:
    numbers, where = np.array([6, 1, 8, 1]), np.random.default_rng(0).normal(size=(4, 3))
    matrix = np.zeros((MAX_ATOMS, MAX_ATOMS))
    for i in range(4):
        for j in range(4):
            distance = np.sqrt(sum((where[i] - where[j]) ** 2))
            matrix[i, j] = 0.5 * numbers[i] ** 2.4 if i == j else numbers[i] * numbers[j] / distance
    expected = [2, 1, 0, 1, 0, *sorted(np.abs(np.linalg.eigvalsh(matrix)), reverse=True)]
    order = [2, 0, 3, 1]
    found = molecule_features([numbers, numbers[order]], [where, where[order] + 5.0])
    np.testing.assert_allclose(found, [expected, expected], atol=1e-9)


def test_invalid_options_and_folders_are_errors(packed, tmp_path) -> None:
    with pytest.raises(
        ValueError, match="`tasks` must contain only QM9 properties, found 'dipol'; did you mean 'dipole'"
    ):
        qm9(tasks=["dipol"], data=packed)
    with pytest.raises(ValueError, match="`rows` must be an integer ≥ 100, or None for all molecules, found 3"):
        qm9(rows=3, data=packed)
    with pytest.raises(ValueError, match=r"`data` must be a folder that contains either qm9_part1.csv"):
        qm9(data=tmp_path / "nowhere")


def test_the_demo_loads_the_package_with_small_networks(package) -> None:
    problem = DEMOS["molecules"].load()
    assert problem.names == tuple(TARGETS)
    assert len(problem.train) == 0.7 * ROWS
    assert problem.encoder(1.0)[0].out_features == 32
    assert DEMOS["molecules"].load(fast=True).names == tuple(TARGETS)[:5]


def test_the_demo_draws_a_part_of_all_molecules(package, monkeypatch) -> None:
    monkeypatch.setitem(DEMOS, "molecules", replace(DEMOS["molecules"], options={"rows": 100}))
    assert len(DEMOS["molecules"].load().train) == 70
